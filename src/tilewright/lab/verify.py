"""Proof: every schedule and every candidate plan, forced one at a time, against float64 on the CPU.

A result passes when each of its elements is no further from the float64 result than twice the largest error of
PyTorch's own product of the same dtypes on the same device, plus one rounding to the output's dtype. Where the
arithmetic is exact (small integers, steps that round nothing) the bits must be those of the rounded float64 result.
What a kernel leaves unwritten shows, because ``out`` is filled with NaN; what it writes beside ``out`` shows too.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch

from tilewright.gemm import planner
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ACTIVATIONS, Problem
from tilewright.gemm.schedules import SCHEDULES
from tilewright.lab import console
from tilewright.lab.console import Progress
from tilewright.lab.trial import EXACT_STEPS, Trial
from tilewright.runtime.devices import Device
from tilewright.runtime.errors import bad
from tilewright.runtime.mode import INTERPRETED, broken_interpreter, runs_kernels

_EVERYTHING = ("alpha", "bias", "gelu", "dropout", "residual")


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

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Verification:
        """What :meth:`to_dict` of another process wrote."""
        names = {f.name for f in fields(Check)}
        checks = [{name: entry[name] for name in names} for entry in data["checks"]]
        for entry in checks:  # JSON has no NaN
            entry["error"] = math.nan if entry["error"] is None else entry["error"]
        skipped = [(entry["problem"], entry["schedule"], entry["reason"]) for entry in data["skipped"]]
        return Verification(data["device"], data["mode"], [Check(**e) for e in checks], skipped, data["seconds"])

    def table(self, every: bool = False) -> Any:
        """The checks as a rich table: ``every`` one, or for each problem and schedule the worst and the failures."""
        chosen = [(check, 1) for check in self.checks] if every else self.worst()
        shown = {check for check, _ in chosen}
        chosen += [(check, 1) for check in self.failed if check not in shown]
        rows = [
            (
                console.brief_problem(check.problem),
                console.brief_plan(check.plan),
                "" if every else count,
                f"{check.error:.1e}",
                f"{check.peer_error:.1e}",
                "" if check.ratio is None else f"{check.ratio:.2f}",
                "exact" if check.exact and check.passed else check.passed,
            )
            for check, count in chosen
        ]
        columns = ("problem", "plan" if every else "plan (worst)", "of", "error", "PyTorch", "ratio", "")
        return console.table(columns, rows, right=columns[2:6])

    def summary(self) -> str:
        """The outcome in a line."""
        exact = sum(check.exact is not None for check in self.checks)
        verdict = "all passed" if self.passed else f"{len(self.failed)} FAILED" if self.checks else "nothing to check"
        where = f"{self.mode} on {'the CPU' if self.device == 'CPU' else self.device}"
        return f"{len(self.checks)} plans {where}, {exact} also exactly on integers: {verdict}; {self.seconds:.1f} s"

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
        Problem(3, 72, 1032, dtype=bf16, epilogue=("bias", "dropout")),
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
    chosen += [Problem(129, 136, 64, dtype=bf16)]
    chosen += [Problem(1, 264, 4104, dtype=half), Problem(1, 264, 4104, dtype=bf16, layout="nn")]
    chosen += [Problem(67, 1, 4104, dtype=fp32, precision="ieee"), Problem(67, 2, 1032, dtype=fp64, layout="tt")]
    return chosen


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
        cause: BaseException = failure
        while cause.__cause__ is not None:  # compilers and interpreters wrap what happened in what they were doing
            cause = cause.__cause__
        lines = str(cause).strip().splitlines() or [""]
        reason = f"{type(cause).__name__}: {lines[0][:200]}"
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
            "tilewright.verify: no GPU is visible and kernels are not interpreted; set TRITON_INTERPRET=1 for that"
        )
    if INTERPRETED and (why := broken_interpreter()):
        raise RuntimeError(f"tilewright.verify: {why}")
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
    found = _in_processes(work, where) if where.type == "cuda" and len(work) > _ALONE else _here(work, where)
    checks: dict[int, Check] = {}
    for index, verdict in found:
        checks[index] = verdict
        if progress:
            wanted, candidate = work[index]
            progress(len(checks), len(work), f"{wanted.m}x{wanted.n}x{wanted.k} {candidate.schedule}")
    result.checks = [checks[index] for index in sorted(checks)]
    result.seconds = time.perf_counter() - began
    return result


#: checks that one process makes as fast as several: on a GPU nearly all of a check is compiling its kernel
_ALONE = 8
#: seconds without any verdict after which what is left counts as hung
_HUNG = 180.0


def _here(work: Sequence[tuple[Problem, Plan]], where: torch.device) -> Iterator[tuple[int, Check]]:
    """The checks one after another in this process, each with its place in ``work``."""
    trials: list[Trial] = []
    current: Problem | None = None
    for index, (wanted, candidate) in enumerate(work):
        if wanted is not current:
            current, trials = wanted, _trials(wanted, where)
        yield index, check(trials[0].problem, candidate, trials)


def _chunk(job: tuple[list[int], list[tuple[Problem, Plan]], str]) -> list[tuple[int, Check]]:
    """In a worker: some checks of one problem."""
    indices, work, where = job
    return [(indices[i], verdict) for i, verdict in _here(work, torch.device(where))]


def _in_processes(work: Sequence[tuple[Problem, Plan]], where: torch.device) -> Iterator[tuple[int, Check]]:
    """The same in a process for each core: they compile at once, and a kernel that hangs can be ended."""
    jobs: list[tuple[list[int], list[tuple[Problem, Plan]], str]] = []
    for index, (problem, plan) in enumerate(work):
        if not jobs or jobs[-1][1][0][0] is not problem or len(jobs[-1][0]) >= _ALONE:
            jobs.append(([], [], str(where)))
        jobs[-1][0].append(index)
        jobs[-1][1].append((problem, plan))
    left = set(range(len(work)))
    # spawn: a forked process cannot use CUDA
    with multiprocessing.get_context("spawn").Pool(min(os.cpu_count() or 1, len(jobs), 16)) as pool:
        results = pool.imap_unordered(_chunk, jobs)
        try:
            for _ in jobs:
                for index, verdict in results.next(_HUNG):
                    left.discard(index)
                    yield index, verdict
        except multiprocessing.TimeoutError:
            pass
    for index in sorted(left):
        problem, plan = work[index]
        reason = f"no verdict within {_HUNG:.0f} s"
        yield index, Check(str(problem), str(plan), plan.schedule, math.nan, math.nan, None, False, _HUNG, reason)


def _trials(problem: Problem, where: torch.device) -> list[Trial]:
    exact = set(problem.epilogue) <= EXACT_STEPS
    return [Trial(problem, where), *([Trial(problem, where, integers=True, seed=1)] if exact else [])]
