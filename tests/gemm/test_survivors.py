"""What no other test notices when it breaks: a batch handed in the other way round, infinity in 16 bits, the model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import tilewright as tw
from support import ACTIVATIONS, DEVICE, assert_exact, integers, name_of, oracle
from tilewright.gemm import cost, planner
from tilewright.gemm.operands import Epilogue, Operands
from tilewright.gemm.schedules import SCHEDULES
from tilewright.runtime.launch import launch

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
