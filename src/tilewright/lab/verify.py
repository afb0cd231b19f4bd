"""Proof: every schedule and every candidate plan, forced one at a time, against float64 on the CPU.

A result passes when each of its elements is no further from the float64 result than twice the largest error of
PyTorch's own product of the same dtypes on the same device, plus one rounding to the output's dtype. Where the
arithmetic is exact (small integers, steps that round nothing) the bits must be those of the rounded float64 result.
What a kernel leaves unwritten shows, because ``out`` is filled with NaN; what it writes beside ``out`` shows too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch

from tilewright.gemm import planner, reference
from tilewright.gemm.matmul import matmul
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ACTIVATIONS, Problem
from tilewright.gemm.schedules import SCHEDULES
from tilewright.lab.console import Progress
from tilewright.runtime.devices import Device
from tilewright.runtime.errors import bad
from tilewright.runtime.mode import INTERPRETED, runs_kernels

#: elements before and after ``out`` that no kernel may touch: a multiple of 16 bytes for every dtype
GUARD = 64
#: steps that round nothing when their inputs are small integers (alpha is 1/2, dropout keeps half)
EXACT_STEPS = {"alpha", "bias", "relu", "relu2", "dropout", "residual"}
_SEED = 1234
_DROPOUT = 0.5
_ALPHA = 0.5
_EVERYTHING = ("alpha", "bias", "gelu", "dropout", "residual")
_INTEGERS = 3


@dataclass(frozen=True)
class Check:
    """One plan on one problem.

    ``error`` and ``peer_error`` are the largest absolute errors over the largest absolute value of the float64 result;
    ``ratio`` is one over the other (``None`` where PyTorch makes no error); ``exact`` says whether the integer run had
    the right bits (``None`` where a step rounds); ``reason`` says why it failed.
    """

    problem: str
    plan: str
    schedule: str
    error: float
    peer_error: float
    exact: bool | None
    passed: bool
    seconds: float
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Our error over PyTorch's."""
        return self.error / self.peer_error if self.peer_error > 0.0 else None

    def to_dict(self) -> dict[str, Any]:
        """Every field, and the ratio."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass
class Verification:
    """All checks of a run; ``skipped`` has the schedules that cannot run a problem, and why."""

    device: str
    mode: str
    checks: list[Check] = field(default_factory=list)
    skipped: list[tuple[str, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    @property
    def passed(self) -> bool:
        """Whether there was something to check, and all of it passed."""
        return bool(self.checks) and not self.failed

    def worst(self) -> list[tuple[Check, int]]:
        """For each problem and schedule, the check that stands for the others (a failure, else the largest error)."""
        groups: dict[tuple[str, str], list[Check]] = {}
        for check in self.checks:
            groups.setdefault((check.problem, check.schedule), []).append(check)
        return [(max(g, key=lambda c: (not c.passed, c.error)), len(g)) for g in groups.values()]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        skipped = [dict(zip(("problem", "schedule", "reason"), entry, strict=True)) for entry in self.skipped]
        return {
            "device": self.device,
            "mode": self.mode,
            "passed": self.passed,
            "count": len(self.checks),
            "failures": len(self.failed),
            "seconds": self.seconds,
            "checks": [check.to_dict() for check in self.checks],
            "skipped": skipped,
        }


def problems(quick: bool = False) -> list[Problem]:
    """Awkward problems: sizes of 1, primes, one off a tile, long k; every layout, dtype, epilogue; batches.

    ``quick`` is one of each kind. A size that is no multiple of 16 bytes has no tensor descriptor: such problems run on
    the schedules that need none.
    """
    half, bf16, fp32, fp64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
    chosen = [
        Problem(65, 72, 136, dtype=bf16, epilogue=_EVERYTHING),
        Problem(65, 72, 136, dtype=half, epilogue=("bias", "relu")),
        Problem(65, 72, 136, dtype=fp32, precision="ieee", epilogue=("bias", "silu", "residual")),
        Problem(31, 37, 41, dtype=bf16, layout="tn"),
        Problem(24, 40, 1032, dtype=bf16, layout="nn"),
        Problem(24, 17, 40, batch=3, dtype=half, layout="tt", epilogue=("relu2",)),
    ]
    if quick:
        return chosen
    chosen += [Problem(*shape, dtype=bf16) for shape in ((1, 1, 1), (1, 67, 129), (61, 1, 37), (8, 16, 0))]
    chosen += [Problem(31, 37, 41, dtype=dtype, precision="ieee") for dtype in (half, bf16, fp32, fp64)]
    chosen += [Problem(33, 72, 136, dtype=fp32, precision=precision) for precision in ("tf32", "tf32x3")]
    chosen += [Problem(33, 72, 136, dtype=fp64, epilogue=_EVERYTHING)]
    chosen += [Problem(65, 72, 136, dtype=bf16, layout=layout) for layout in ("nn", "nt", "tn", "tt")]
    chosen += [Problem(33, 35, 37, dtype=fp32, precision="ieee", layout=layout) for layout in ("nn", "tn", "tt", "ss")]
    chosen += [Problem(17, 19, 4099, dtype=half), Problem(24, 40, 4104, dtype=bf16)]
    chosen += [Problem(24, 40, 4104, dtype=fp32, precision=precision) for precision in ("ieee", "tf32", "tf32x3")]
    chosen += [Problem(17, 24, 40, dtype=half, epilogue=("bias", name)) for name in ACTIVATIONS]
    chosen += [Problem(17, 24, 40, dtype=bf16, out_dtype=fp32), Problem(17, 24, 40, dtype=fp32, out_dtype=bf16)]
    chosen += [Problem(33, 40, 48, batch=3, dtype=bf16), Problem(7, 9, 11, batch=2, dtype=fp32, epilogue=_EVERYTHING)]
    chosen += [Problem(129, 264, 64, dtype=bf16)]
    return chosen


class Trial:
    """A problem with its operands, the float64 result, and how far a right result may be from it."""

    def __init__(self, problem: Problem, device: torch.device, integers: bool = False, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.integers = integers
        z, m, n, k = problem.batch, problem.m, problem.n, problem.k
        self.out_dtype = problem.out_dtype or problem.dtype
        batch = () if z == 1 else (z,)
        steps = problem.epilogue
        a = self._operand(batch, m, k, problem.layout[0], problem.dtype)
        b = self._operand(batch, k, n, problem.layout[1], problem.dtype)
        bias = self._draw((n,), problem.dtype) if "bias" in steps else None
        residual = self._draw((*batch, m, n), self.out_dtype) if "residual" in steps else None
        self.activation = next((step for step in steps if step in ACTIVATIONS), None)
        self.alpha = _ALPHA if "alpha" in steps else 1.0
        self.dropout_p = _DROPOUT if "dropout" in steps else 0.0
        self.a, self.b = a.to(device), b.to(device)
        self.bias = None if bias is None else bias.to(device)
        self.residual = None if residual is None else residual.to(device)
        self.shape = (*batch, m, n)
        self.problem = Problem.of(
            self.a, self.b, out_dtype=self.out_dtype, bias=self.bias, activation=self.activation, alpha=self.alpha,
            residual=self.residual, dropout_p=self.dropout_p, precision=problem.precision,
        )  # fmt: skip

    @cached_property
    def expected(self) -> torch.Tensor:
        """The float64 result, made on the CPU whatever device the product runs on."""
        bias = None if self.bias is None else self.bias.cpu()
        residual = None if self.residual is None else self.residual.cpu()
        return self._finish(torch.matmul(self.a.cpu().double(), self.b.cpu().double()), bias, residual)

    @cached_property
    def scale(self) -> float:
        """Largest absolute value of the float64 result, or 1 where that is 0."""
        return float(self.expected.abs().max()) or 1.0 if self.expected.numel() else 1.0

    @cached_property
    def peer_error(self) -> float:
        """Largest absolute error of PyTorch's own product."""
        return self._largest(self._peer().cpu())

    def _draw(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.integers:
            return torch.randint(-_INTEGERS, _INTEGERS + 1, shape, generator=self.generator).to(dtype)
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        if dtype is torch.float64:
            # on this grid every product and sum of the oracle is exact, so that it can judge its own dtype
            x = (x * 2**16).round() / 2**16
        return x.to(dtype)

    def _operand(self, batch: tuple[int, ...], rows: int, cols: int, letter: str, dtype: torch.dtype) -> torch.Tensor:
        if letter == "t":
            return self._draw((*batch, cols, rows), dtype).transpose(-1, -2)
        if letter == "s":
            return self._draw((*batch, rows, 2 * cols), dtype)[..., ::2]
        return self._draw((*batch, rows, cols), dtype)

    def _finish(self, x: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None) -> torch.Tensor:
        """The epilogue in the dtype of ``x``."""
        x = x * self.alpha
        if bias is not None:
            x = x + bias.to(x.dtype)
        x = reference.dropout(reference.activate(x, self.activation), self.dropout_p, _SEED)
        return x if residual is None else x + residual.to(x.dtype)

    def _peer(self) -> torch.Tensor:
        """PyTorch's own product, in the operands' dtype (or the output's, where that is wider), then the epilogue in
        the accumulator's dtype: the tightest yardstick that PyTorch offers."""
        a, b = self.a, self.b
        if self.out_dtype.itemsize > a.dtype.itemsize:
            a, b = a.to(self.out_dtype), b.to(self.out_dtype)
        before = torch.get_float32_matmul_precision()
        tf32 = a.dtype is torch.float32 and self.problem.precision == "tf32"
        if tf32 and a.device.type != "cuda":
            # a CPU has no tf32: its product of operands that were rounded to tf32
            a, b = _round_tf32(a), _round_tf32(b)
        try:
            torch.set_float32_matmul_precision("high" if tf32 and a.device.type == "cuda" else "highest")
            product = torch.matmul(a, b)
        finally:
            torch.set_float32_matmul_precision(before)
        finished = self._finish(product.to(self.problem.accumulator), self.bias, self.residual)
        return finished.to(self.out_dtype)

    def _largest(self, result: torch.Tensor) -> float:
        """Largest absolute error; NaN where the result has one that float64 has not."""
        return float((result.double() - self.expected).abs().max()) if result.numel() else 0.0

    def run(self, plan: Plan) -> tuple[torch.Tensor, bool]:
        """The result of ``plan`` in a NaN-filled ``out``, on the CPU, and whether what lies around it is untouched."""
        count = math.prod(self.shape)
        memory = torch.full((count + 2 * GUARD,), math.nan, dtype=self.out_dtype, device=self.a.device)
        memory[:GUARD] = memory[GUARD + count :] = _INTEGERS
        out = memory[GUARD : GUARD + count].view(self.shape)
        matmul(
            self.a, self.b, bias=self.bias, activation=self.activation, residual=self.residual, alpha=self.alpha,
            dropout_p=self.dropout_p, seed=_SEED, precision=self.problem.precision, out=out, plan=plan,
        )  # fmt: skip
        memory = memory.cpu()
        around = torch.cat((memory[:GUARD], memory[GUARD + count :]))
        return memory[GUARD : GUARD + count].view(self.shape), bool((around == _INTEGERS).all())

    def allowed(self) -> torch.Tensor:
        """How far each element may be from float64: twice PyTorch's largest error, and one rounding."""
        info = torch.finfo(self.out_dtype)
        allowed = 2 * self.peer_error + self.expected.abs() * info.eps / 2 + info.smallest_normal * info.eps
        if self.a.dtype is torch.float32 and self.problem.precision == "tf32x3":
            # its definition: of (hi + lo)(hi + lo), lo * lo is left out and each lo is rounded to tf32, so that every
            # product is off by up to 3 * 2^-22; independent errors add as the root of their squares
            spread = torch.matmul(self.a.cpu().double().square(), self.b.cpu().double().square()).sqrt()
            allowed = allowed + 3 * 2**-22 * abs(self.alpha) * spread
        return allowed

    def judge(self, plan: Plan) -> tuple[float, str]:
        """(largest error, why it does not pass or "")."""
        result, untouched = self.run(plan)
        error = self._largest(result)
        if not untouched:
            return error, "it wrote outside the output"
        if self.integers:
            wrong = int((result != self.expected.to(self.out_dtype)).sum())
            return error, f"{wrong} of {result.numel()} elements are not exact for integers" if wrong else ""
        if bool(result.isnan().any()):
            return error, f"{int(result.isnan().sum())} of {result.numel()} elements are NaN or were not written"
        over = int(((result.double() - self.expected).abs() > self.allowed()).sum())
        return error, f"{over} of {result.numel()} elements are off by more than is allowed" if over else ""


def _round_tf32(x: torch.Tensor) -> torch.Tensor:
    """To tf32's 10 bits of fraction, ties away from zero as the hardware's conversion does."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def check(problem: Problem, plan: Plan, trials: Sequence[Trial]) -> Check:
    """Run ``plan`` on every trial of the problem (random numbers first, then integers) and judge it."""
    began = time.perf_counter()
    random = trials[0]
    error, reason, exact = math.nan, "", None
    try:
        for trial in trials:
            found, why = trial.judge(plan)
            reason = reason or why
            if trial.integers:
                exact = not why
            else:
                error = found
    except Exception as failure:  # whatever a kernel or its compiler throws is a verdict on this plan alone
        lines = str(failure).strip().splitlines() or [""]
        reason = f"{type(failure).__name__}: {lines[0]}"
    return Check(
        problem=str(problem),
        plan=str(plan),
        schedule=plan.schedule,
        error=error / random.scale,
        peer_error=random.peer_error / random.scale,
        exact=exact,
        passed=not reason,
        seconds=time.perf_counter() - began,
        reason=reason,
    )


def plans_of(problem: Problem, device: Device, schedule: str, quick: bool = False) -> list[Plan]:
    """The candidates of a schedule for a problem; ``quick`` leaves the first, the middle one and the last."""
    module = SCHEDULES[schedule]
    found = [p for p in module.candidates(problem, device) if module.refuses(p, problem, device) is None]
    if quick and len(found) > 3:
        found = [found[0], found[len(found) // 2], found[-1]]
    return found


def run(
    chosen: Sequence[Problem] | None = None,
    *,
    schedules: Sequence[str] | None = None,
    plan: Plan | None = None,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check every plan of ``schedules`` (all by default), or ``plan`` alone, on problems (:func:`problems` by default).

    It runs compiled on a GPU, and interpreted on the CPU when Triton was started with TRITON_INTERPRET=1;
    ``RuntimeError`` when it can do neither.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"))
    if not runs_kernels(where):
        raise RuntimeError(
            "tilewright.verify: there is no GPU and kernels are not interpreted; set TRITON_INTERPRET=1 in the environment"
        )
    names = list(schedules or SCHEDULES)
    for name in names:
        if name not in SCHEDULES:
            raise bad("verify", "schedule", repr(name), f"one of {', '.join(SCHEDULES)}")
    sheet = planner.device_or_default(None)
    result = Verification(sheet.title if where.type == "cuda" else "CPU", "interpreted" if INTERPRETED else "compiled")
    began = time.perf_counter()
    work: list[tuple[Problem, Plan]] = []
    for wanted in problems(quick) if chosen is None else chosen:
        # strides and addresses are the tensors' own: ask what the product really is
        problem = Trial(wanted, where, integers=True).problem
        if plan is not None:
            planner.check(plan, problem, sheet, "verify")
            work.append((wanted, plan))
            continue
        for name in names:
            if why := SCHEDULES[name].supports(problem, sheet):
                result.skipped.append((str(problem), name, why))
            work += [(wanted, p) for p in plans_of(problem, sheet, name, quick)]
    trials: list[Trial] = []
    current: Problem | None = None
    for done, (wanted, candidate) in enumerate(work):
        if progress:
            progress(done, len(work), f"{wanted.m}x{wanted.n}x{wanted.k} {candidate.schedule}")
        if wanted is not current:
            current, trials = wanted, _trials(wanted, where)
        result.checks.append(check(trials[0].problem, candidate, trials))
    result.seconds = time.perf_counter() - began
    return result


def _trials(problem: Problem, where: torch.device) -> list[Trial]:
    exact = set(problem.epilogue) <= EXACT_STEPS
    return [Trial(problem, where), *([Trial(problem, where, integers=True, seed=1)] if exact else [])]
