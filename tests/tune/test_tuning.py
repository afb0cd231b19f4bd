"""``tw.tune`` on a machine whose times are made up, and the operands that a real one measures candidates on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import pytest
import torch

import tilewright as tw
from support import GPU
from tilewright.gemm import planner, tuning
from tilewright.gemm.operands import Operands
from tilewright.gemm.schedules import SCHEDULES
from tilewright.gemm.tuning_bench import expected, filled, tolerance
from tilewright.gemm.warmup import distinct
from tilewright.runtime.launch import launch
from tilewright.tune.store import Store

H200 = tw.Device.named("h200")
SQUARE, FEW = tw.Problem(4096, 4096, 4096), tw.Problem(16, 4096, 4096)
NAMES = [SQUARE, FEW, replace(SQUARE, m=4000), replace(SQUARE, epilogue=("bias",))]


@dataclass
class Made:
    """A machine on which candidate i of a problem takes 100 - i microseconds: the model is always wrong."""

    broken: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    device: tw.Device = H200
    measured: list[tw.Problem] = field(default_factory=list)

    def compile(self, jobs, progress=None):
        return ["it broke" if plan.schedule in self.broken else None for _, plan in jobs]

    def bench(self, problem):
        self.measured.append(problem)
        places = {plan: i for i, plan in enumerate(tuning.candidates(problem, H200))}

        class Bench:
            def why_not(bench, plan):  # noqa: N805
                assert plan.schedule not in self.broken  # what does not compile is not run
                return "wrong result" if plan.schedule in self.wrong else None

            def rank(bench, plans, block_ms, rounds):  # noqa: N805
                return [100.0 - places[plan] for plan in plans]

        return Bench()


@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    planner.forget()
    yield Store()
    planner.forget()


def test_the_fastest_is_kept_and_is_the_plan_from_then_on():
    before = tw.plan(SQUARE, H200)
    (found,) = tw.tune(SQUARE, machine=Made())
    assert (found.source, found.kept) == ("measured", True)
    assert found.plan == tuning.candidates(SQUARE, H200)[-1] != before
    assert found.model == before and found.gain == pytest.approx(found.model_us / found.us) and found.gain > 1
    assert (tw.plan(SQUARE, H200), planner.source(SQUARE, H200)) == (found.plan, "store")


def test_what_shares_a_plan_is_measured_once_and_what_is_stored_not_again():
    machine = Made()
    assert [one.problem for one in tw.tune(NAMES, machine=machine)] == [SQUARE, FEW]
    assert machine.measured == [SQUARE, FEW]
    again = tw.tune(NAMES, machine=machine)
    assert [one.source for one in again] == ["store", "store"] and len(machine.measured) == 2
    assert [one.source for one in tw.tune(SQUARE, machine=machine, force=True)] == ["measured"]


def test_what_does_not_compile_or_is_wrong_is_never_the_plan():
    fast = tuning.candidates(SQUARE, H200)[-1].schedule
    for machine in (Made(broken={fast}), Made(wrong={fast})):
        (found,) = tw.tune(SQUARE, machine=machine, force=True)
        assert found.plan.schedule != fast
        assert {tw.Plan.parse(plan).schedule for plan, _ in found.failed} == {fast}


def test_a_problem_without_a_candidate_that_runs_is_a_result_and_keeps_nothing(own_store):
    (found,) = tw.tune(SQUARE, machine=Made(broken=set(SCHEDULES)))
    assert (found.plan, found.source, found.kept) == (None, "failed", False)
    assert found.failed[-1] == ("", "no candidate runs")
    assert len(own_store) == 0


def test_every_schedule_has_a_candidate():
    for problem in (SQUARE, FEW):
        ranked, found = planner.plans(problem, H200), tuning.candidates(problem, H200)
        assert {plan.schedule for plan in found} == {plan.schedule for plan in ranked}
        assert found[0] == ranked[0] and len(found) == len(set(found)) <= tuning.MOST + len(SCHEDULES)


def test_processes_share_the_problems(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        found.append([one.problem for one in tw.tune(NAMES, machine=Made())])
    assert found == [[SQUARE], [FEW]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"problems": "4096"}, "problems is "),
        ({"problems": replace(SQUARE, epilogue=("custom",))}, "problems is "),
        ({"problems": SQUARE, "within": 0.5}, "within is 0.5"),
        ({"problems": SQUARE, "most": 0}, "most is 0"),
    ],
)
def test_a_bad_call_is_one_line(given, says):
    with pytest.raises((ValueError, TypeError), match=rf"^tilewright\.tune: {re.escape(says)}") as error:
        tw.tune(**given, machine=Made())
    assert "\n" not in str(error.value)


@pytest.mark.skipif(GPU, reason="for a machine without a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(RuntimeError, match=r"^tilewright\.tune: no GPU is visible"):
        tw.tune(SQUARE)


# --------------------------------------------------------------------------------------------------- what is measured

E4M3 = torch.float8_e4m3fn
MEASURED = [
    tw.Problem(33, 40, 70, dtype=torch.float16, epilogue=("bias", "gelu", "dropout", "residual")),
    tw.Problem(33, 40, 70, batch=3, dtype=torch.float32, precision="ieee", layout="tn"),
    *(tw.Problem(33, 140, 270, batch=2, dtype=torch.int8, scaled=kind) for kind in ("tensor", "row", "block")),
    *(tw.Problem(33, 140, 270, dtype=E4M3, scaled=kind) for kind in ("tensor", "row", "block")),
]


@pytest.mark.kernels
@pytest.mark.parametrize("problem", MEASURED, ids=str)
def test_a_kernel_gives_what_candidates_are_compared_with(problem, device):
    operands = filled(Operands.stand_in(problem, device))
    wanted = expected(operands)
    assert 0.1 < float(wanted.float().std()) < 10  # results that no dtype overflows and no tolerance hides
    sheet = planner.device_or_default()
    plan = next(plan for plan in planner.plans(problem, sheet) if plan.schedule == "tile")
    launch(SCHEDULES["tile"].prepare(plan, operands, sheet))
    allowed = torch.finfo(operands.c.dtype).eps + tolerance(problem)
    assert float((operands.c.to(wanted.dtype) - wanted).norm()) <= allowed * float(wanted.norm())
    assert float((operands.c.roll(1, -1).to(wanted.dtype) - wanted).norm()) > allowed * float(wanted.norm())


def test_each_binary_is_compiled_once():
    plan = tw.Plan("tile", 64, 64, 128)
    int8 = tw.Problem(512, 512, 512, dtype=torch.int8)
    fp8 = tw.Problem(512, 512, 512, dtype=E4M3)
    same = [replace(int8, m=1024), replace(int8, n=4096), replace(int8, k=1024)]
    other = [
        replace(int8, scaled="row"), replace(int8, scaled="block"), replace(int8, m=1), replace(int8, k=520), fp8,
        replace(fp8, fast_accumulate=True),
    ]  # fmt: skip
    assert len(distinct((problem, plan, H200) for problem in [int8, *same])) == 1
    assert len(distinct((problem, plan, H200) for problem in [int8, *other])) == 1 + len(other)
