"""Planning, on devices that are not here: pure functions of a problem and a sheet."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tilewright as tw
from support import integers, laid
from tilewright.gemm import planner
from tilewright.gemm.schedules import SCHEDULES

H200 = tw.Device.named("h200")
A100 = tw.Device.named("a100")
MI300X = tw.Device.named("mi300x")
#: half of everything that limits a plan
SMALL = replace(H200, name="small", title="half an H200", sms=66, smem_per_block=100 * 1024, smem_per_sm=114 * 1024)
TINY = replace(A100, name="tiny", title="a tiny Ampere", sms=2, smem_per_block=16 * 1024, smem_per_sm=32 * 1024)
DEVICES = [*(tw.Device.named(name) for name in tw.Device.names()), SMALL, TINY]

PROBLEMS = [
    tw.Problem(4096, 4096, 4096),
    tw.Problem(1, 4096, 4096),
    tw.Problem(17, 129, 33),
    tw.Problem(8192, 28672, 8192, dtype=torch.float16, layout="nn"),
    tw.Problem(64, 128256, 4096, layout="tn", out_dtype=torch.float32),
    tw.Problem(512, 512, 512, dtype=torch.float32, precision="ieee"),
    tw.Problem(1025, 1023, 1000, dtype=torch.float64, layout="tt"),
    tw.Problem(128, 128, 64, batch=70_000),
    tw.Problem(4096, 4096, 4096, epilogue=("alpha", "bias", "gelu", "dropout", "residual", "pre")),
    tw.Problem(0, 16, 16),
    tw.Problem(16, 16, 0),
    tw.Problem(1000, 1000, 1000, alignment=2, layout="nt"),
    tw.Problem(512, 512, 512, dtype=torch.float32, precision="tf32"),
    tw.Problem(512, 512, 512, dtype=torch.float32, precision="tf32x3"),
]


def taken(problem, device):
    """Whether the device has the arithmetic at all."""
    return device.backend == "cuda" or problem.precision == "ieee"


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_candidate_fits_the_device(problem, device):
    """Shared memory and registers are counted here anew, from the least that a tile must hold."""
    if not taken(problem, device):
        assert tw.plans(problem, device) == []
        return
    found = tw.plans(problem, device)
    assert found and len(set(found)) == len(found)
    assert tw.plan(problem, device) == found[0]
    words = 2 if problem.dtype is torch.float64 else 1
    for plan in found:
        slices = plan.num_stages if device.has_tma or plan.num_stages == 1 else plan.num_stages - 1
        needs = slices * (plan.block_m + plan.block_n) * plan.block_k * problem.dtype.itemsize
        threads = plan.num_warps * device.warp_size
        sums = plan.block_m * plan.block_n * words // threads
        if plan.schedule == "gemv":  # its slices pass through registers, and each place of a slice has a sum
            needs, sums = 0, plan.block_k * plan.block_m * plan.block_n * words // threads
        assert needs <= device.smem_per_block, plan
        assert threads <= 1024 and sums <= 200, plan
        assert SCHEDULES[plan.schedule].supports(problem, device) is None
        planner.check(plan, problem, device)


def test_a_smaller_device_gets_smaller_plans():
    """Not the same list for every device: what fits an H200 does not fit the tiny one."""
    problem = PROBLEMS[0]
    large, small = tw.plans(problem, H200), tw.plans(problem, TINY)
    assert max(p.block_m * p.block_n for p in small) < max(p.block_m * p.block_n for p in large)
    refused = [p for p in large if SCHEDULES[p.schedule].refuses(p, problem, TINY)]
    assert refused
    for plan in refused:
        with pytest.raises(
            ValueError, match=r"^tilewright\.plan: plan is '.*', which cannot run .* on a tiny Ampere: "
        ):
            planner.check(plan, problem, TINY)


def test_best_first_by_the_model():
    from tilewright.gemm import cost

    for problem in PROBLEMS[:6]:
        seconds = [cost.predict(problem, plan, H200).seconds for plan in tw.plans(problem, H200)]
        assert seconds == sorted(seconds)


def test_a_plan_does_not_depend_on_what_was_planned_before(monkeypatch):
    """Same plan with a cold cache, after others, and with the schedules in another order: ties have a rule."""
    before = [tw.plan(p, H200) for p in PROBLEMS]
    planner.forget()
    planner._ranked.cache_clear()
    monkeypatch.setattr(planner, "SCHEDULES", dict(reversed(list(SCHEDULES.items()))))
    assert [tw.plan(p, H200) for p in reversed(PROBLEMS)] == before[::-1]
    planner.forget()
    planner._ranked.cache_clear()


PLAN = tw.Plan("tile", 64, 64, 64)
SQUARE = tw.Problem(4096, 4096, 4096)


@pytest.mark.parametrize(
    ("plan", "problem", "device", "why"),
    [
        (replace(PLAN, schedule="magic"), SQUARE, H200, "plan.schedule is 'magic'; it must be one of "),
        (replace(PLAN, num_stages=16), SQUARE, H200, "shared memory"),
        (replace(PLAN, block_k=1024), SQUARE, H200, "shared memory"),
        (replace(PLAN, block_m=512, block_n=256, block_k=16, num_warps=4), SQUARE, H200, "registers of 4 warps"),
        (replace(PLAN, split_k=2), SQUARE, H200, "does not split k"),
        (replace(PLAN, num_warps=32), SQUARE, MI300X, "more than a program may have"),
        (replace(PLAN, block_m=16, block_n=16), tw.Problem(2**20, 2**20, 16), H200, "2^31 tiles"),
        (replace(PLAN, schedule="persistent"), SQUARE, A100, "copy engine"),
        (replace(PLAN, schedule="persistent"), replace(SQUARE, layout="sn"), H200, "stride 1"),
        (replace(PLAN, schedule="persistent"), replace(SQUARE, alignment=8), H200, "multiples of 8 bytes"),
        (replace(PLAN, schedule="persistent"), replace(SQUARE, k=0), H200, "empty operand"),
        (replace(PLAN, schedule="persistent"), replace(SQUARE, batch=6, batch_dims=2), H200, "two strides"),
        (replace(PLAN, schedule="persistent"), tw.Problem(64, 64, 64, dtype=torch.float64), H200, "precision"),
        (PLAN, tw.Problem(64, 64, 64, dtype=torch.float32, precision="tf32"), MI300X, "no tf32"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_a_bad_plan_is_refused_with_the_reason(plan, problem, device, why):
    with pytest.raises(ValueError, match=r"^tilewright\.plan: ") as error:
        planner.check(plan, problem, device)
    assert why in str(error.value) and "\n" not in str(error.value)


def test_the_same_numbers_are_accepted_where_they_fit():
    """Each refusal above is about the device or the problem: the same plan passes elsewhere."""
    planner.check(PLAN, SQUARE, H200)
    planner.check(replace(PLAN, schedule="persistent"), SQUARE, H200)
    planner.check(replace(PLAN, num_warps=32, block_m=128, block_n=128), SQUARE, H200)
    planner.check(PLAN, tw.Problem(64, 64, 64, dtype=torch.float32, precision="ieee"), MI300X)


def test_no_schedule_at_all():
    problem = tw.Problem(64, 64, 64, dtype=torch.float32, precision="tf32")
    with pytest.raises(ValueError, match=r"^tilewright\.plan: problem is .*MI300X.*no tf32") as error:
        tw.plan(problem, "mi300x")
    assert "\n" not in str(error.value)


def test_devices_by_name_and_by_default():
    assert tw.plans(SQUARE, "a100") == tw.plans(SQUARE, A100)
    with pytest.raises(ValueError, match=r"^tilewright\.Device\.named: name is 'abacus'; it must be one of "):
        tw.plan(SQUARE, "abacus")
    if not torch.cuda.is_available():
        assert tw.plans(SQUARE) == tw.plans(SQUARE, H200)


def test_what_a_problem_of_tensors_says():
    x, w = integers(4, 16, 40, dtype=torch.bfloat16), integers(24, 40, dtype=torch.bfloat16)
    problem = tw.Problem.of(x, w.t(), activation="gelu", bias=integers(24), alpha=2.0)
    assert (problem.m, problem.n, problem.k, problem.batch) == (64, 24, 40, 1)  # a shared b: one tall product
    assert problem.layout == "nt" and problem.epilogue == ("alpha", "bias", "gelu") and problem.alignment == 16
    each = tw.Problem.of(x, integers(4, 40, 24, dtype=torch.bfloat16))
    assert (each.m, each.batch, each.batch_dims, each.layout) == (16, 4, 1, "nn")
    assert tw.Problem.of(laid(x, "offset_1"), w.t()).alignment == 2
    assert tw.Problem.of(laid(x[0], "both"), w.t()).layout == "st"
    assert problem.flops == 2 * 64 * 24 * 40
    assert tw.Problem(64, 24, 40).bytes == 2 * (64 * 40 + 40 * 24 + 64 * 24)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("m", -1), ("n", 2.0), ("k", True), ("batch", 2**31), ("layout", "ab"), ("layout", "n"),
        ("epilogue", ("jump",)), ("precision", "half"), ("dtype", torch.int32), ("out_dtype", torch.int32),
    ],
)  # fmt: skip
def test_a_bad_problem_is_one_line(field, value):
    with pytest.raises((ValueError, TypeError), match=rf"^tilewright\.Problem: {field} is ") as error:
        tw.Problem(**{**dict(m=1, n=1, k=1), field: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("function", [tw.plan, tw.plans])
def test_what_is_no_problem_is_refused(function):
    with pytest.raises(TypeError, match=r"^tilewright\.plan: problem is int; it must be a tilewright\.Problem$"):
        function(3)
