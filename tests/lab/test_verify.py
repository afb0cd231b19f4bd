"""The verifier: it passes what is right, and fails a product that is wrong in any of the ways kernels go wrong."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tilewright.gemm import reference
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.lab import console, demo, trial, verify
from tilewright.lab.trial import Trial
from tilewright.runtime.mode import INTERPRETED, runs_kernels

PLAN = Plan("tile", 16, 16, 16)
CPU = torch.device("cpu")
CAN_RUN = INTERPRETED or torch.cuda.is_available()


def product(a, b, *, out, plan, seed, precision, alpha=1.0, bias=None, activation=None, residual=None, dropout_p=0.0):
    """What ``matmul`` is asked, by PyTorch: accumulated in float32 and rounded once."""
    out.copy_(reference.product(a, b, bias, residual, activation, alpha, dropout_p, seed)[0])


def judged(monkeypatch, problem, wrong=lambda out, **_: None, instead=None):
    """The check of a problem whose product is right, then changed by ``wrong``."""

    def run(a, b, *, out, **options):
        (instead or product)(a, b, out=out, **options)
        wrong(out, a=a, b=b)

    monkeypatch.setattr(trial, "matmul", run)
    return verify.check(problem, PLAN, verify._trials(problem, CPU))


PROBLEMS = [
    Problem(17, 24, 40, dtype=torch.bfloat16),
    Problem(17, 24, 40, dtype=torch.float16, layout="tt", epilogue=("bias", "relu")),
    Problem(17, 24, 40, dtype=torch.float32, precision="ieee"),
    Problem(17, 24, 40, dtype=torch.float64),
    Problem(3, 5, 7, batch=2, dtype=torch.float32, precision="ieee", epilogue=("alpha", "dropout", "residual")),
    Problem(17, 24, 40, dtype=torch.bfloat16, out_dtype=torch.float32),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_right_product_passes(monkeypatch, problem):
    found = judged(monkeypatch, problem)
    assert found.passed, found.reason
    assert found.exact is True


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda out, **_: out.view(-1)[-1].fill_(math.nan), "not written"),
        (lambda out, **_: out[..., -1, :].mul_(0), "off by more"),
        (lambda out, **_: out[..., :, 0].add_(out.abs().max() / 16), "off by more"),
        (
            lambda out, **_: out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(7),
            "outside the output",
        ),
        (lambda out, **_: out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(7), "outside the output"),
    ],
    ids=["unwritten", "row lost", "column off", "written after", "written before"],
)
def test_a_wrong_product_fails(monkeypatch, problem, wrong, said):
    found = judged(monkeypatch, problem, wrong)
    assert not found.passed
    assert said in found.reason


def test_a_small_error_shows_in_integers(monkeypatch):
    """One step of k left out of 4096 is lost in bfloat16's rounding of random numbers, and not in integers."""
    problem = Problem(8, 8, 4096, dtype=torch.bfloat16)

    def short(a, b, **options):
        a = a.clone()
        a[..., -1] = 0
        product(a, b, **options)

    found = judged(monkeypatch, problem, instead=short)
    assert not found.passed
    assert found.exact is False


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_lost_precision_fails(monkeypatch, narrow):
    """fp32 operands that are multiplied in a narrower dtype, and sums that are kept in one."""
    problem = Problem(17, 24, 512, dtype=torch.float32, precision="ieee")

    def rounded(a, b, **options):
        product(a.to(narrow).float(), b.to(narrow).float(), **options)

    assert "off by more" in judged(monkeypatch, problem, instead=rounded).reason

    def narrow_sum(a, b, *, out, **_):
        total = torch.zeros(out.shape, dtype=narrow)
        for i in range(0, a.shape[-1], 16):
            total = total + (a[:, i : i + 16].float() @ b[i : i + 16].float()).to(narrow)
        out.copy_(total)

    problem = Problem(17, 24, 2048, dtype=narrow, out_dtype=torch.float32)
    assert not judged(monkeypatch, problem, instead=narrow_sum).passed


def test_tf32_is_no_tf32x3(monkeypatch):
    def truncated(a, b, **options):
        product(trial._round_tf32(a), trial._round_tf32(b), **options)

    shape = {"m": 17, "n": 24, "k": 512, "dtype": torch.float32}
    assert judged(monkeypatch, Problem(**shape, precision="tf32"), instead=truncated).passed
    assert not judged(monkeypatch, Problem(**shape, precision="tf32x3"), instead=truncated).passed


def test_another_mask_fails(monkeypatch):
    problem = Problem(16, 16, 16, dtype=torch.float32, precision="ieee", epilogue=("dropout",))

    def other_seed(a, b, *, seed, **options):
        product(a, b, seed=seed + 1, **options)

    assert not judged(monkeypatch, problem, instead=other_seed).passed


def test_an_exception_is_a_failed_check(monkeypatch):
    def broken(*_, **__):
        raise IndexError("kernel\nlong story")

    found = judged(monkeypatch, Problem(4, 4, 4), instead=broken)
    assert not found.passed
    assert found.reason == "IndexError: kernel"
    assert math.isnan(found.error)


def test_rounding_to_tf32():
    x = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -1 - 2**-11, 0.0])
    want = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-10, 1.0, -1 - 2**-10, 0.0])
    assert torch.equal(trial._round_tf32(x), want)


def test_the_oracle_of_float64_is_exact():
    one = Trial(Problem(5, 6, 300, dtype=torch.float64), CPU)
    backwards = torch.matmul(one.a.flip(-1), one.b.flip(-2))
    assert torch.equal(one.expected, backwards)


def test_default_problems_cover_what_they_claim():
    full = verify.problems()
    assert {p.dtype for p in full} == {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    assert {p.layout for p in full} >= {"nn", "nt", "tn", "tt"}
    assert {p.precision for p in full if p.dtype is torch.float32} == {"ieee", "tf32", "tf32x3"}
    assert any(p.batch > 1 for p in full)
    assert any(p.k == 0 for p in full)
    assert any(p.k > 4096 for p in full)
    assert {s for p in full for s in p.epilogue} >= set(trial.ACTIVATIONS) | {"alpha", "bias", "dropout", "residual"}
    assert set(verify.problems(quick=True)) < set(full)


def test_plain_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(verify, "runs_kernels", lambda device: False)
    with pytest.raises(RuntimeError, match=r"^tilewright\.verify: no GPU"):
        verify.run([Problem(4, 4, 4)])


@pytest.mark.skipif(not CAN_RUN, reason="no GPU and kernels are not interpreted")
def test_kernels_pass_and_the_result_survives_json():
    seen = []
    chosen = [Problem(65, 64, 24, dtype=torch.float16, epilogue=("bias", "relu")), Problem(5, 7, 9)]
    found = verify.run(chosen, quick=True, progress=lambda done, total, label: seen.append((done, total)))
    assert found.passed, [c.reason for c in found.failed]
    assert {check.schedule for check in found.checks} >= {"tile", "persistent", "split", "gemv"}
    assert seen[-1] == (len(found.checks) - 1, len(found.checks))
    # 65x64x24 has too many rows for gemv, and 5x7x9 no tensor descriptor
    assert {("gemv", 65), ("persistent", 5)} <= {(name, int(text.split("x")[0])) for text, name, _ in found.skipped}
    again = verify.Verification.from_dict(json.loads(json.dumps(console.plain(found))))
    assert again.checks == found.checks
    assert again.summary() == found.summary()


@pytest.mark.skipif(not CAN_RUN, reason="no GPU and kernels are not interpreted")
def test_a_plan_can_be_forced():
    found = verify.run([Problem(33, 16, 24)], plan=PLAN)
    assert [check.plan for check in found.checks] == [str(PLAN)]
    with pytest.raises(ValueError, match=r"^tilewright\.verify"):
        verify.run([Problem(33, 16, 24)], plan=Plan("no-such", 16, 16, 16))
    with pytest.raises(ValueError, match=r"schedule is 'no-such'"):
        verify.run([Problem(33, 16, 24)], schedules=["no-such"])
    assert runs_kernels(torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"))


# ---------------------------------------------------------------------------------------------------------- the demo


class FakeChild:
    """A command whose output is known."""

    outputs: dict[str, tuple[dict | None, str]]

    def __init__(self, arguments, interpret=False):
        self.name = arguments[0]
        assert interpret == (self.name == "verify")

    def result(self):
        return (*self.outputs[self.name], 1.0)

    def stop(self):
        pass


def _checks(*schedules: str, passed: bool = True) -> dict:
    checks = [verify.Check("p", "q", s, 1e-3, 1e-3, True, passed, 0.1, "" if passed else "why") for s in schedules]
    return verify.Verification("CPU", "interpreted", checks).to_dict()


def _kernels(count: int = 4, instructions: int = 4) -> dict:
    entry = {"device": "h200", "target": "sm_90", "plan": "tile 64x64x64", "tensor_core_count": instructions}
    entry |= {"tensor_core": "wgmma", "registers": 100, "spills": 0, "shared": 1024}
    return {"results": [entry] * count}


ROWS = {"device": "GPU", "rows": [{"case": "1x1x1", "plan": "p", "ours_us": 1.0, "peer_us": 2.0, "ratio": 2.0}]}


@pytest.mark.parametrize(
    "outputs, failing",
    [
        ({}, []),
        ({"verify": (_checks("tile", "persistent", passed=False), "")}, ["verify"]),
        ({"verify": (_checks("tile"), "")}, ["verify"]),
        ({"verify": (None, "it crashed")}, ["verify"]),
        ({"inspect": (_kernels(instructions=0), "")}, ["inspect"]),
        ({"inspect": (_kernels(count=3), "")}, ["inspect"]),
        ({"inspect": (_kernels(), "one spills")}, ["inspect"]),
        ({"bench": ({"rows": []}, "")}, ["bench"]),
        ({"bench": (ROWS, "a case failed")}, ["bench"]),
    ],
)
def test_the_demo_fails_when_a_step_does(monkeypatch, capsys, outputs, failing):
    good = {"verify": (_checks("tile", "persistent"), ""), "inspect": (_kernels(), ""), "bench": (ROWS, "")}
    monkeypatch.setattr(FakeChild, "outputs", good | outputs, raising=False)
    monkeypatch.setattr(demo, "Child", FakeChild)
    monkeypatch.setenv("COLUMNS", "80")
    found = list(demo.steps(measure=True))
    assert [step.name for step in found] == ["verify", "inspect", "explain", "bench"]
    assert [step.name for step in found if not step.passed] == failing
    pytest.importorskip("rich")
    for i, step in enumerate(found):
        demo.show(step, i + 1, 4)
        text = capsys.readouterr().out
        assert step.title in text
        assert ("FAILED" in text) == (not step.passed)


def test_a_child_that_prints_no_json_has_a_reason():
    child = demo.Child(["plan", "nonsense"])
    data, reason, _ = child.result()
    assert data is None
    assert reason.startswith("tilewright.cli: shape is 'nonsense'")
