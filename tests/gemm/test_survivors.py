"""What no other test notices when it breaks: a batch handed in the other way round, infinity in 16 bits, the model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright as tw
from support import ACTIVATIONS, DEVICE, Guarded, assert_exact, integers, laid, name_of, oracle
from tilewright.gemm import cost, planner
from tilewright.gemm.operands import Epilogue, Operands
from tilewright.gemm.schedules import SCHEDULES
from tilewright.runtime.launch import Call, launch

H200 = tw.Device.named("h200")


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a])
def test_infinity_and_nan_through_an_activation_in_16_bits(activation, dtype):
    """Where the result is rounded to 16 bits an activation may be another function than in float32."""
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 60.0, -60.0], dtype=dtype, device=DEVICE)
    got = tw.matmul(x[:, None], torch.ones(1, 3, dtype=dtype, device=DEVICE), activation=activation)
    expected = ACTIVATIONS[activation](x.cpu().double())[:, None].expand(-1, 3)
    assert_exact(got, expected.to(dtype))


@pytest.mark.kernels
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_batch_in_the_outer_of_the_two_dimensions(schedule):
    """(3, 1, m, n) and (1, 3, m, n) are one batch, and operands may have either; the stride of the 1 is 0 in both."""

    def outer(t):
        return t.as_strided((3, 1, *t.shape[1:]), (t.stride(0), 0, *t.stride()[1:]))

    device = planner.device_or_default(None)
    m, n, k = 24, 40, 16
    a, b = integers(3, m, k, dtype=torch.bfloat16, seed=1), integers(3, k, n, dtype=torch.bfloat16, seed=2)
    residual = integers(3, m, n, dtype=torch.bfloat16, seed=3)
    out, pre = torch.full_like(residual, math.nan), torch.full_like(residual, math.nan)
    epilogue = Epilogue(activation="relu", residual=outer(residual), pre=outer(pre), dropout_p=0.5, seed=3)
    operands = Operands(outer(a), outer(b), outer(out), epilogue)
    plan = tw.Plan(schedule, 16, 16, 16, num_warps=1, num_stages=2)
    if why := SCHEDULES[schedule].refuses(plan, operands.problem, device):
        pytest.skip(why)
    launch(SCHEDULES[schedule].prepare(plan, operands, device))
    assert_exact(pre, oracle(a, b))
    assert_exact(out, oracle(a, b, activation="relu", dropout_p=0.5, seed=3, residual=residual))


def forced(schedule, a, b):
    """A plan of small tiles, so that a small product has several of them in every dimension."""
    plan = tw.Plan(schedule, 16, 32, 16, num_warps=1, num_stages=2)
    if why := SCHEDULES[schedule].refuses(plan, tw.Problem.of(a, b), planner.device_or_default(None)):
        pytest.skip(why)
    return plan


@pytest.mark.kernels
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("how_b", ["rows", "columns"])
@pytest.mark.parametrize("how_a", ["rows", "columns"])
def test_each_product_of_a_batch_has_its_own_operands_in_every_layout(how_a, how_b, schedule):
    """Candidates for a product this small are of the tile schedule alone: the plan is forced."""
    a = laid(integers(3, 24, 40, dtype=torch.bfloat16, seed=1), how_a)
    b = laid(integers(3, 40, 48, dtype=torch.bfloat16, seed=2), how_b)
    assert_exact(tw.matmul(a, b, plan=forced(schedule, a, b)), oracle(a, b))


@pytest.mark.kernels
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("how", ["columns", "sliced", "offset_1"])
def test_an_output_that_no_descriptor_describes_ends_where_it_ends(how, schedule):
    """The last tile is wider and taller than what is left of C, and what it has over goes nowhere."""
    a, b = integers(2, 24, 40, dtype=torch.bfloat16, seed=1), integers(2, 40, 48, dtype=torch.bfloat16, seed=2)
    guarded = Guarded((2, 24, 48), torch.bfloat16, how)
    tw.matmul(a, b, out=guarded.out, plan=forced(schedule, a, b))
    assert_exact(guarded.out, oracle(a, b))
    assert guarded.untouched()


def test_one_row_of_each_of_a_batch():
    """The last token of each sequence, say: one product of as many rows, which lie as far apart as the batch."""
    x, w = integers(5, 4, 24, dtype=torch.bfloat16, seed=1), integers(24, 40, dtype=torch.bfloat16, seed=2)
    residual = integers(5, 3, 40, dtype=torch.bfloat16, seed=3)[:, :1]
    last = x[:, -1:]
    assert tw.Problem.of(last, w).m == 5
    assert_exact(tw.matmul(last, w), oracle(last, w))
    assert_exact(tw.matmul(last, w, residual=residual), oracle(last, w, residual=residual))


# the backward ------------------------------------------------------------------------------------------------------


def test_alpha_in_the_gradient_of_a_shared_weight():
    """A batch against one matrix takes another way to its gradient: one long sum over all the rows."""
    x, w = integers(3, 5, 16, seed=1), integers(16, 24, seed=2).requires_grad_()
    grad = integers(3, 5, 24, seed=3)
    tw.matmul(x, w, alpha=-2.0).backward(grad)
    assert_exact(w.grad, -2.0 * (x.cpu().double().flatten(0, 1).t() @ grad.cpu().double().flatten(0, 1)))


def test_the_gradient_of_a_wide_bias_is_not_rounded_to_the_products_dtype():
    """257 is no bfloat16."""
    bias = torch.zeros(8, device=DEVICE, requires_grad=True)
    x, w = torch.zeros(257, 16, dtype=torch.bfloat16, device=DEVICE), integers(16, 8, dtype=torch.bfloat16)
    tw.matmul(x, w, bias=bias).sum().backward()
    assert_exact(bias.grad, torch.full((8,), 257.0))


class Products(TorchDispatchMode):
    """Writes down the operands' dtypes of every product."""

    def __init__(self):
        super().__init__()
        self.dtypes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.tilewright.matmul.default:
            self.dtypes.append((args[0].dtype, args[1].dtype))
        return func(*args, **(kwargs or {}))


def test_a_backward_multiplies_operands_of_one_dtype():
    """The gradient of a float32 result of bfloat16 operands is float32; tensor cores take no such pair."""
    a = integers(17, 24, dtype=torch.bfloat16, seed=1).requires_grad_()
    b = integers(24, 16, dtype=torch.bfloat16, seed=2).requires_grad_()
    with Products() as products:
        tw.matmul(a, b, out_dtype=torch.float32).backward(integers(17, 16, seed=3))
    assert products.dtypes == [(torch.bfloat16, torch.bfloat16)] * 3


@triton.jit
def shift_kernel(p_from, p_to):
    at = tl.program_id(0)
    tl.store(p_to + at, tl.load(p_from + at) + 1.0)


@pytest.mark.interpret  # whose programs run one after the other
def test_a_write_shows_through_another_view_of_the_buffer():
    """Each program reads what the one before wrote: the views overlap, and are one piece of memory to the kernel."""
    buffer = torch.zeros(5, dtype=torch.bfloat16)
    launch(Call(shift_kernel, (4,), (buffer[:4], buffer[1:]), {}, 1, 1, (1,)))
    assert buffer.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_tile_just_too_large_for_its_warps_is_refused():
    """128 registers of a thread hold the sum of a 128x128 tile by four warps; twice that is too many."""
    problem = tw.Problem(4096, 4096, 4096)
    for schedule in ("tile", "persistent", "split"):
        plan = tw.Plan(schedule, 128, 256, 32, num_warps=4, num_stages=2)
        with pytest.raises(ValueError, match="does not fit the registers of 4 warps"):
            planner.check(plan, problem, H200)
        for smaller in (replace(plan, num_warps=8), replace(plan, block_n=128)):
            planner.check(smaller, problem, H200)


# the cost model's counts, by hand --------------------------------------------------------------------------------


def stub(programs, **fields):
    """A device that runs that many programs at once, one on each multiprocessor."""
    return replace(H200, name="stub", sms=programs, blocks_per_sm=1, **fields)


SMALL = tw.Plan("tile", 32, 32, 16, group_m=1, num_warps=4, num_stages=2)


def test_operands_that_the_l2_holds_are_read_once():
    """One program at a time: without a cache each of the eight rows of tiles would read B again."""
    problem = tw.Problem(256, 64, 64)
    found = cost.predict(problem, SMALL, stub(1))
    assert found.hbm_bytes == 2 * (256 * 64 + 64 * 64 + 256 * 64) == problem.bytes


def test_operands_that_the_l2_does_not_hold_are_read_again():
    """B is read once for each of the eight rows of tiles, where the L2 holds a slice and not the whole."""
    problem = tw.Problem(256, 2048, 64)
    a, b, c = 256 * 64 * 2, 64 * 2048 * 2, 256 * 2048 * 2
    device = stub(1, l2_bytes=100_000, model={})
    assert cost.predict(problem, SMALL, device).hbm_bytes == a + 8 * b + c


@pytest.mark.parametrize("steps", [(), ("residual",), ("pre",), ("relu", "residual", "pre")], ids="+".join)
def test_what_lies_beside_c_moves_too(steps):
    problem = tw.Problem(64, 96, 32, epilogue=steps)
    extra = len(set(steps) & {"residual", "pre"})
    found = cost.predict(problem, SMALL, stub(6)).hbm_bytes
    assert found == problem.bytes == 2 * (64 * 32 + 32 * 96 + 64 * 96 * (1 + extra))


def test_bytes_that_the_l2_moves():
    """Every tile asks for its rows of A and columns of B, a slice of k at a time."""
    found = cost.predict(tw.Problem(64, 96, 80), SMALL, stub(6))
    assert found.tiles == 6
    assert found.l2_bytes == 6 * 5 * (32 + 32) * 16 * 2


@pytest.mark.parametrize(
    ("rows", "waves", "fill"), [(1, 1, 0.25), (4, 1, 1.0), (5, 2, 0.25), (7, 2, 0.75), (8, 2, 1.0)]
)
def test_waves_and_the_useful_share_of_the_last(rows, waves, fill):
    found = cost.predict(tw.Problem(32 * rows, 32, 64), SMALL, stub(4))
    assert (found.tiles, found.programs, found.waves, found.fill) == (rows, 4, waves, fill)
