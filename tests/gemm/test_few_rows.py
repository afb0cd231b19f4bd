"""Products of few rows: the schedules ``gemv`` and ``split``, by plans that are forced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

import tilewright as tw
from support import (
    DEVICE,
    Guarded,
    assert_exact,
    assert_near,
    integers,
    laid,
    name_of,
    normals,
    oracle,
)
from tilewright.gemm import planner
from tilewright.gemm.operands import Epilogue, canonical_views
from tilewright.gemm.schedules import SCHEDULES, gemv, split
from tilewright.lang.partial import share
from tilewright.runtime.launch import launch
from tilewright.runtime.mode import INTERPRETED

pytestmark = pytest.mark.kernels

HERE = planner.device_or_default(None)
SPLITS = (1, 2, 3, 5, 8)


def gemv_plan(m, n, k=64, **given):
    return tw.Plan("gemv", m, n, k, **{"group_m": 1, "num_warps": 4, "num_stages": 1, **given})


def split_plan(m=16, n=32, k=32, **given):
    return tw.Plan("split", m, n, k, **{"group_m": 1, "num_warps": 4, "num_stages": 2, **given})


def checked(plan, a, b, **options):
    """Forced, exact, and nothing written beside the output."""
    guarded = Guarded((*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    tw.matmul(a, b, plan=plan, out=guarded.out, **options)
    assert_exact(guarded.out, oracle(a, b, **options))
    assert guarded.untouched()


#: 330 is 10 slices of 32 and 10 more, 6 of 64 in all: 5 and 8 do not divide them, and some parts of 8 are empty
@pytest.mark.parametrize("parts", SPLITS)
@pytest.mark.parametrize(
    ("plan", "m", "n"),
    [
        (gemv_plan(1, 4), 1, 37),
        (gemv_plan(4, 4), 3, 37),
        (gemv_plan(2, 16), 5, 16),
        (gemv_plan(8, 1), 37, 1),
        (gemv_plan(4, 2), 37, 2),
        (split_plan(), 33, 72),
        (split_plan(swap=True), 7, 72),
        (split_plan(32, 16, 64, swap=True, order="n", group_m=2), 40, 24),
    ],
    ids=str,
)
def test_parts_of_k_of_any_length(plan, m, n, parts):
    a, b = integers(m, 330, dtype=torch.bfloat16, seed=1), integers(330, n, dtype=torch.bfloat16, seed=2)
    checked(replace(plan, split_k=parts), a, b)


@pytest.mark.parametrize("k", [0, 1, 16, 17])
@pytest.mark.parametrize("plan", [gemv_plan(1, 4), gemv_plan(1, 4, split_k=3), split_plan(), split_plan(split_k=3)])
def test_short_k(plan, k):
    """Fewer slices than parts: a part without any adds zeros."""
    a, b = integers(1, k, dtype=torch.float16, seed=1), integers(k, 24, dtype=torch.float16, seed=2)
    checked(plan, a, b)


#: layouts of an aligned and of an unaligned operand, so that slices come through descriptors and through pointers
HOWS = ["rows", "columns", "padded", "sliced", "both"]


@pytest.mark.parametrize("how_a", HOWS)
@pytest.mark.parametrize("how_b", HOWS)
@pytest.mark.parametrize("swap", [False, True])
def test_split_takes_any_layout(how_a, how_b, swap):
    a = laid(integers(24, 136, dtype=torch.float32, seed=1), how_a)
    b = laid(integers(136, 40, dtype=torch.float32, seed=2), how_b)
    checked(split_plan(split_k=2, swap=swap), a, b, precision="tf32")


@pytest.mark.parametrize("how_a", ["rows", "sliced", "offset_1"])
@pytest.mark.parametrize("how_b", [*HOWS, "offset_1"])
@pytest.mark.parametrize("column", [False, True])
def test_gemv_takes_any_layout(how_a, how_b, column):
    a = laid(integers(2, 131, dtype=torch.bfloat16, seed=1), how_a)
    b = laid(integers(131, 37, dtype=torch.bfloat16, seed=2), how_b)
    if column:
        checked(gemv_plan(8, 2, 32, split_k=2), b.transpose(0, 1), a.transpose(0, 1))
    else:
        checked(gemv_plan(2, 8, 32, split_k=2), a, b)


@pytest.mark.parametrize("out_how", ["columns", "sliced", "offset_1"])
@pytest.mark.parametrize("plan", [gemv_plan(2, 8, split_k=2), split_plan(split_k=2), split_plan(swap=True)], ids=str)
def test_outputs_of_any_strides(plan, out_how):
    a, b = integers(2, 72, dtype=torch.float16, seed=1), integers(72, 40, dtype=torch.float16, seed=2)
    guarded = Guarded((2, 40), torch.float16, out_how)
    tw.matmul(a, b, plan=plan, out=guarded.out)
    assert_exact(guarded.out, oracle(a, b))
    assert guarded.untouched()


def epilogue_options(m, n, dtype):
    return dict(
        alpha=2.0,
        bias=integers(n, dtype=dtype, seed=3),
        activation="relu",
        dropout_p=0.5,
        seed=2**40 + 1,
        residual=laid(integers(m, n, dtype=dtype, seed=4), "columns"),
    )


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("n", [48, 37], ids=["sixteens", "single words"])
@pytest.mark.parametrize(
    "plan",
    [gemv_plan(2, 8), gemv_plan(4, 16), gemv_plan(2, 32, 32), split_plan(), split_plan(swap=True)],
    ids=str,
)
def test_the_epilogue_runs_once_on_the_whole_sum(plan, n, parts):
    """A bias, a mask and a residual that differ by row and column: none is turned with a swap, none added twice."""
    a = integers(5, 200, dtype=torch.bfloat16, seed=1)
    b = laid(integers(200, n, dtype=torch.bfloat16, seed=2), "columns")
    checked(replace(plan, split_k=parts), a, b, **epilogue_options(5, n, torch.bfloat16))


def test_the_value_before_the_activation_is_kept():
    """For the backward: it is written once, turned back where operands are swapped."""
    for plan in (gemv_plan(4, 8, split_k=2), split_plan(split_k=2, swap=True)):
        x, w = normals(3, 130, seed=1).requires_grad_(), normals(130, 40, seed=2).requires_grad_()
        tw.matmul(x, w, activation="silu", plan=plan).sum().backward()
        x2, w2 = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        torch.nn.functional.silu(x2 @ w2).sum().backward()
        torch.testing.assert_close(x.grad, x2.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(w.grad, w2.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plan", [gemv_plan(2, 8, split_k=2), split_plan(split_k=2), split_plan(swap=True)], ids=str)
def test_batches_of_one_and_of_two_strides(plan):
    a, b = integers(3, 2, 70, dtype=torch.float32, seed=1), integers(3, 70, 24, dtype=torch.float32, seed=2)
    checked(plan, a, b, dropout_p=0.5, seed=3)
    a = integers(2, 3, 2, 70, dtype=torch.float32, seed=1).transpose(0, 1)
    b = integers(3, 2, 70, 24, dtype=torch.float32, seed=2)
    checked(plan, a, b, dropout_p=0.5, seed=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=name_of)
@pytest.mark.parametrize(("m", "n"), [(1, 60), (33, 1)])
def test_gemv_is_as_accurate_as_pytorch(dtype, m, n):
    a, b = normals(m, 2000, dtype=dtype, seed=1), normals(2000, n, dtype=dtype, seed=2)
    plan = gemv_plan(min(m, 8), min(n, 8), 128)
    assert_near(tw.matmul(a, b, plan=plan, precision="ieee" if dtype is torch.float32 else None), a, b)
    if dtype is not torch.float64:
        assert_near(tw.matmul(a, b, plan=replace(plan, split_k=5)), a, b)


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
@pytest.mark.parametrize("swap", [False, True])
def test_split_at_each_precision(precision, swap):
    a, b = normals(20, 600, seed=1), normals(600, 24, seed=2)
    plan = split_plan(split_k=3, swap=swap)
    assert_near(tw.matmul(a, b, plan=plan, precision=precision), a, b, precision=precision)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("swap", [False, True])
def test_split_into_wider_results(dtype, swap):
    a, b = normals(20, 600, dtype=dtype, seed=1), normals(600, 24, dtype=dtype, seed=2)
    plan = split_plan(split_k=5, swap=swap)
    assert_near(tw.matmul(a, b, plan=plan, out_dtype=torch.float32), a, b)


def prepared(plan, a, b):
    c = a.new_empty(a.shape[0], b.shape[1])
    (operands,) = canonical_views(a, b, c, Epilogue(), None)
    return SCHEDULES[plan.schedule].prepare(plan, operands, HERE), c


@pytest.mark.parametrize("plan", [gemv_plan(1, 16, split_k=4), split_plan(split_k=4), split_plan(split_k=7, swap=True)])
def test_same_bits_and_counters_at_zero_after_every_launch(plan):
    a, b = normals(1, 520, dtype=torch.float32, seed=1), normals(520, 72, dtype=torch.float32, seed=2)
    call, c = prepared(plan, a, b)
    launch(call)
    first = c.clone()
    floats_at, floats, flags_at, flags = call.scratch
    parts, arrived = call.args[floats_at], call.args[flags_at]
    assert parts.numel() >= floats and arrived.numel() >= flags
    for _ in range(2 if INTERPRETED else 40):
        parts.fill_(float("nan"))
        c.fill_(float("nan"))
        launch(call)
        assert torch.equal(c, first)
        assert int(arrived.abs().sum()) == 0


def test_the_sum_is_made_in_the_order_of_the_parts():
    """1, 2^24 and -2^24 in float32: only one order of the three gives 0."""
    a = torch.zeros(1, 96, device=DEVICE)
    a[0, 0], a[0, 32], a[0, 64] = 1.0, 2.0**24, -(2.0**24)
    b = torch.ones(96, 16, device=DEVICE)
    for plan in (gemv_plan(1, 4, 32, split_k=3), split_plan(split_k=3), split_plan(split_k=3, swap=True)):
        assert tw.matmul(a, b, plan=plan, precision="ieee").unique().tolist() == [0.0]
        assert tw.matmul(a.flip(1), b, plan=plan, precision="ieee").unique().tolist() == [1.0]


@triton.jit
def shares_kernel(p_out, slices, SPLIT: tl.constexpr):
    first, end = share(slices, tl.program_id(0), SPLIT)
    tl.store(p_out + 2 * tl.program_id(0), first)
    tl.store(p_out + 2 * tl.program_id(0) + 1, end)


@pytest.mark.parametrize("slices", [0, 1, 5, 8, 9, 23, 2**27])
@pytest.mark.parametrize("parts", SPLITS)
def test_parts_share_all_slices(slices, parts):
    """Each slice once, in order; no part has two more than another."""
    out = torch.full((parts, 2), -1, dtype=torch.int32, device=DEVICE)
    shares_kernel[(parts,)](out, slices, SPLIT=parts)
    firsts, ends = out.cpu().unbind(1)
    assert firsts[0] == 0 and ends[-1] == slices and torch.equal(firsts[1:], ends[:-1])
    assert int((ends - firsts).max() - (ends - firsts).min()) <= 1


PROBLEM = tw.Problem(4, 256, 4096)


@pytest.mark.parametrize(
    ("plan", "problem", "why"),
    [
        (gemv_plan(1, 8), replace(PROBLEM, batch_invariant=True), "batch-invariant"),
        (gemv_plan(1, 8), tw.Problem(9, 9, 64), "8 rows of A or columns of B"),
        (gemv_plan(1, 8, swap=True), PROBLEM, "does not swap"),
        (gemv_plan(1, 8, num_warps=32), PROBLEM, "more than a program may have"),
        (gemv_plan(8, 32, 1024), PROBLEM, "registers of 4 warps"),
        (gemv_plan(1, 8, split_k=33), PROBLEM, "32 programs at most"),
        (gemv_plan(1, 8, split_k=2), replace(PROBLEM, dtype=torch.float64, out_dtype=None), "kept in float32"),
        (gemv_plan(1, 1, 16), tw.Problem(1, 2**30, 2, batch=2), "2^31 tiles"),
        (split_plan(8), PROBLEM, "16 or more along m, n and k"),
        (split_plan(), replace(PROBLEM, dtype=torch.float64, out_dtype=None), "float64"),
        (split_plan(), replace(PROBLEM, alignment=2), "aligned to 2 bytes"),
        (split_plan(split_k=33), PROBLEM, "32 programs at most"),
        (split_plan(split_k=32), tw.Problem(4096, 4096, 4096), "more than 256 MB"),
        (split_plan(num_stages=128), PROBLEM, "shared memory"),
        (split_plan(512, 256, num_warps=4), PROBLEM, "registers of 4 warps"),
        (split_plan(128, 128, num_warps=4), replace(PROBLEM, epilogue=("gelu",)), "epilogue"),
        (tw.Plan("tile", 16, 16, 16, swap=True), PROBLEM, "does not swap"),
        (tw.Plan("persistent", 16, 16, 16, swap=True), PROBLEM, "does not swap"),
        (tw.Plan("tile", 8, 16, 16), PROBLEM, "16 or more along m, n and k"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_what_a_plan_cannot_do_is_refused(plan, problem, why):
    device = tw.Device.named("mi300x" if why == "more than a program may have" else "h200")
    with pytest.raises(ValueError, match=r"^tilewright\.plan: ") as error:
        planner.check(plan, problem, device)
    assert why in str(error.value) and "\n" not in str(error.value)


def test_descriptors_where_they_can_be():
    device = tw.Device.named("h200")
    assert split.by_descriptor(PROBLEM, device)
    for other in (
        replace(PROBLEM, alignment=8), replace(PROBLEM, layout="st"), replace(PROBLEM, batch=6, batch_dims=2),
        replace(PROBLEM, k=0), replace(PROBLEM, batch_invariant=True),
    ):  # fmt: skip
        assert not split.by_descriptor(other, device)
    assert not split.by_descriptor(PROBLEM, tw.Device.named("a100"))


def test_plans_that_fit_what_is_asked():
    """One row: gemv; a few: split, with no more parts than fill the device; many rows of a short k: neither."""
    h200 = tw.Device.named("h200")
    for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (2112, 7168)):
        assert tw.plan(tw.Problem(1, n, k), h200).schedule == "gemv"
        assert tw.plan(tw.Problem(n, 1, k), h200).schedule == "gemv"
        assert tw.plan(tw.Problem(16, n, k), h200).schedule == "split"
    assert gemv.supports(tw.Problem(4096, 4096, 4096), h200)
    assert split.candidates(tw.Problem(4096, 4096, 4096), h200) == []
    for plan in split.candidates(tw.Problem(16, 2112, 7168), h200):
        tiles = -(-2112 // plan.block_n)
        assert plan.split_k == 1 or tiles * plan.split_k <= 4 * h200.sms
        assert plan.split_k == 1 or 2 * plan.split_k * plan.block_k <= 7168
    thin = tw.plan(tw.Problem(33, 1, 64, dtype=torch.float32, precision="ieee"), h200)
    assert thin.schedule == "gemv"  # a tile sums such products in one chain, at twice PyTorch's error


def test_weights_are_read_along_their_contiguous_dimension():
    h200 = tw.Device.named("h200")
    for problem, outer in (
        (tw.Problem(1, 4096, 4096, layout="nt"), "block_n"), (tw.Problem(4096, 1, 4096, layout="nt"), "block_m"),
    ):  # fmt: skip
        assert all(p.block_k >= 8 * getattr(p, outer) for p in gemv.candidates(problem, h200))
    for problem, outer in (
        (tw.Problem(1, 4096, 4096, layout="nn"), "block_n"), (tw.Problem(4096, 1, 4096, layout="tt"), "block_m"),
    ):  # fmt: skip
        assert all(getattr(p, outer) * 2 >= 64 for p in gemv.candidates(problem, h200))
