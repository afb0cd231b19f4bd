"""Every plan, not only the chosen one: each candidate of awkward problems, and plans that no candidate list has."""

from __future__ import annotations

import itertools

import pytest
import torch

import tilewright as tw
from support import DEVICE, Guarded, assert_exact, assert_near, integers, laid, normals, oracle
from tilewright.gemm import planner
from tilewright.gemm.schedules import SCHEDULES

pytestmark = pytest.mark.kernels

#: what a problem must be for every schedule to take it, and what sends it to the portable one alone
PROBLEMS = {
    "descriptors": dict(size=(33, 72, 40), dtype=torch.bfloat16, how=("rows", "columns")),
    "unaligned": dict(size=(31, 37, 65), dtype=torch.float16, how=("rows", "rows")),
    "transposed": dict(size=(40, 24, 136), dtype=torch.float16, how=("columns", "rows")),
    "tf32": dict(size=(17, 36, 68), dtype=torch.float32, how=("rows", "columns"), precision="tf32"),
    "tf32x3": dict(size=(36, 20, 36), dtype=torch.float32, how=("columns", "columns"), precision="tf32x3"),
    "ieee": dict(size=(33, 17, 65), dtype=torch.float32, how=("rows", "both"), precision="ieee"),
    "float64": dict(size=(33, 17, 19), dtype=torch.float64, how=("rows", "columns")),
    "batch": dict(size=(24, 40, 24), dtype=torch.bfloat16, how=("rows", "columns"), batch=(3,)),
    "one_row": dict(size=(1, 72, 130), dtype=torch.bfloat16, how=("rows", "columns")),
}


def made(case):
    m, n, k = case["size"]
    batch = case.get("batch", ())
    a = laid(integers(*batch, m, k, dtype=case["dtype"], seed=1), case["how"][0])
    b = laid(integers(*batch, k, n, dtype=case["dtype"], seed=2), case["how"][1])
    return a, b


def cases():
    device = planner.device_or_default(None)
    for name, case in PROBLEMS.items():
        a, b = made(case)
        for plan in planner.plans(tw.Problem.of(a, b, precision=case.get("precision")), device):
            yield pytest.param(name, plan, id=f"{name}-{plan}")


@pytest.mark.parametrize(("name", "plan"), list(cases()))
def test_every_candidate(name, plan):
    """Each candidate is exact, and writes the whole output and nothing else."""
    case = PROBLEMS[name]
    a, b = made(case)
    shape = (*a.shape[:-1], b.shape[-1])
    guarded = Guarded(shape, case["dtype"])
    tw.matmul(a, b, plan=plan, precision=case.get("precision"), out=guarded.out)
    assert_exact(guarded.out, oracle(a, b))
    assert guarded.untouched()


def test_the_awkward_problems_reach_every_schedule():
    reached = {p.values[1].schedule for p in cases()}
    device = planner.device_or_default(None)
    shapes = [tw.Problem(64, 64, 64), tw.Problem(1, 64, 64)]
    expected = {n for n, s in SCHEDULES.items() if any(s.supports(p, device) is None for p in shapes)}
    assert reached == expected


def heavy_cases():
    a, b = made(PROBLEMS["descriptors"])
    options = epilogue_options(33, 72)
    problem = tw.Problem.of(a, b, **{k: v for k, v in options.items() if k != "seed"})
    device = planner.device_or_default(None)
    seen = set()
    for plan in planner.plans(problem, device):
        key = (plan.schedule, plan.block_m, plan.block_n, plan.num_warps)
        if key not in seen:  # group and stages do not change what an epilogue does
            seen.add(key)
            yield pytest.param(plan, id=str(plan))


def epilogue_options(m, n):
    return dict(
        alpha=2.0,
        bias=integers(n, dtype=torch.bfloat16, seed=3),
        activation="relu",
        dropout_p=0.5,
        seed=2**40 + 1,
        residual=integers(m, n, dtype=torch.bfloat16, seed=4),
    )


@pytest.mark.parametrize("plan", list(heavy_cases()))
def test_every_step_of_the_epilogue_under_every_tile(plan):
    a, b = made(PROBLEMS["descriptors"])
    options = epilogue_options(33, 72)
    guarded = Guarded((33, 72), torch.bfloat16)
    tw.matmul(a, b, plan=plan, out=guarded.out, **options)
    assert_exact(guarded.out, oracle(a, b, **options))
    assert guarded.untouched()


def test_an_epilogue_in_pieces():
    """Large tiles hand their columns to the epilogue in 1, 2 or 4 pieces; each keeps its own columns."""
    device = planner.device_or_default(None)
    a, b = integers(40, 48, dtype=torch.bfloat16, seed=1), integers(48, 264, dtype=torch.bfloat16, seed=2)
    options = epilogue_options(40, 264)
    problem = tw.Problem.of(a, b, **{k: v for k, v in options.items() if k != "seed"})
    tried = set()
    for plan in (
        tw.Plan("persistent", 64, 64, 64, num_warps=4, num_stages=3),
        tw.Plan("persistent", 64, 128, 64, num_warps=4, num_stages=3),
        tw.Plan("persistent", 128, 128, 64, num_warps=8, num_stages=3),
        tw.Plan("persistent", 128, 256, 64, num_warps=8, num_stages=2),
    ):
        schedule = SCHEDULES["persistent"]
        if schedule.refuses(plan, problem, device) is None:
            tried.add(schedule.parts_of(plan, problem))
            assert_exact(tw.matmul(a, b, plan=plan, **options), oracle(a, b, **options))
    if schedule.supports(problem, device) is None:
        assert tried == {1, 2, 4}


ORDERS = [(order, group) for order in "mn" for group in (1, 2, 3, 8)]


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize(("order", "group"), ORDERS, ids=str)
def test_every_program_order(schedule, order, group):
    """4 x 3 tiles, so that bands of 2 and 3 have a short last one; each tile of the output is another number."""
    a = torch.zeros(64, 16, dtype=torch.float16, device=DEVICE)
    b = torch.zeros(16, 40, dtype=torch.float16, device=DEVICE)
    a[:, 0] = torch.arange(64, device=DEVICE)
    b[0] = 1
    a[:, 1] = 64
    b[1] = torch.arange(40, device=DEVICE) // 16
    plan = tw.Plan(schedule, 16, 16, 16, group_m=group, order=order, num_warps=1, num_stages=2)
    device = planner.device_or_default(None)
    if why := SCHEDULES[schedule].refuses(plan, tw.Problem.of(a, b), device):
        pytest.skip(why)
    assert_exact(tw.matmul(a, b, plan=plan), oracle(a, b))
    batched = torch.stack([a, 2 * a])
    assert_exact(tw.matmul(batched, b.expand(2, 16, 40), plan=plan), oracle(batched, b))
    flipped = torch.stack([b, 2 * b])
    assert_exact(tw.matmul(batched, flipped, plan=plan), oracle(batched, flipped))


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_more_tiles_than_programs(schedule):
    """A persistent program takes several tiles in turn, over the batch too, and starts each from zero."""
    a, b = integers(2, 48, 24, dtype=torch.float16, seed=1), integers(2, 24, 48, dtype=torch.float16, seed=2)
    plan = tw.Plan(schedule, 16, 16, 16, num_warps=1, num_stages=2)
    device = planner.device_or_default(None)
    if why := SCHEDULES[schedule].refuses(plan, tw.Problem.of(a, b), device):
        pytest.skip(why)
    options = dict(bias=integers(48, dtype=torch.float16, seed=3), dropout_p=0.25, seed=5)
    expected = oracle(a, b, **options)
    torch.testing.assert_close(tw.matmul(a, b, plan=plan, **options).cpu().double(), expected, rtol=2**-11, atol=0)


def test_schedules_and_tiles_agree_within_the_bound():
    """Random data under different tiles: each within the bound of PyTorch's error."""
    a, b = normals(40, 300, dtype=torch.bfloat16, seed=1), normals(300, 56, dtype=torch.bfloat16, seed=2)
    device = planner.device_or_default(None)
    problem = tw.Problem.of(a, b, out_dtype=torch.float32)
    for schedule, (bm, bn, bk) in itertools.product(sorted(SCHEDULES), [(64, 64, 64), (32, 64, 128), (64, 32, 32)]):
        plan = tw.Plan(schedule, bm, bn, bk, num_stages=2)
        if SCHEDULES[schedule].refuses(plan, problem, device) is None:
            assert_near(tw.matmul(a, b, plan=plan, out_dtype=torch.float32), a, b)
