"""``tw.tune``: measure the candidates of products on this GPU, and keep the fastest in the user's store."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from tilewright.gemm import cost, planner, stored
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.tuning_bench import Gpu
from tilewright.runtime import eager as shortcut
from tilewright.runtime.devices import Device
from tilewright.runtime.errors import bad
from tilewright.runtime.mode import INTERPRETED
from tilewright.tune.halving import fastest
from tilewright.tune.store import Store

#: candidates that are measured: those within this factor of the best by the model, and this many at most
WITHIN, MOST = 1.35, 16
#: processes that compile for a first call under TILEWRIGHT_TUNE=on: each holds a CUDA context beside somebody's model
FIRST_CALL_WORKERS = 4

#: called with how many steps are done, how many there are, and what is being done
Progress = Callable[[int, int, str], None]


class Bench(Protocol):
    """The candidates of one problem on a device."""

    def why_not(self, plan: Plan) -> str | None:
        """Why a candidate fails or is wrong, or ``None``."""

    def rank(self, plans: Sequence[Plan], block_ms: float, rounds: int) -> list[float]:
        """Microseconds of each, in interleaved blocks."""


class Machine(Protocol):
    """What tuning needs of a device: the tests put one in its place whose times are made up."""

    @property
    def device(self) -> Device:
        """What it is."""

    def compile(
        self, jobs: Sequence[tuple[Problem, Plan]], progress: Callable[[int, int], None] | None = None
    ) -> list[str | None]:
        """Compile jobs and run each once where it can do no harm; why one failed, or ``None``."""

    def bench(self, problem: Problem) -> Bench:
        """What measures the candidates of one problem; ``ValueError`` when it cannot be measured."""


@dataclass(frozen=True)
class Tuned:
    """What became of one problem.

    Args:
        problem: as it was measured: the largest m of those that share its plan, and no steps that cost nothing.
        plan, us: the fastest candidate and its microseconds; ``None`` when nothing could be measured.
        source: "measured", "store" (it was there, and was not measured again) or "failed".
        model, model_us: the cost model's pick, and its microseconds in the same measurement.
        candidates: (plan, microseconds, predicted microseconds) of each that was measured.
        failed: (plan, reason) of each that did not compile, run or give the right result; an empty plan is all of them.
        kept: whether the store took it.
    """

    problem: Problem
    plan: Plan | None
    us: float | None
    source: str
    model: Plan | None = None
    model_us: float | None = None
    candidates: tuple[tuple[Plan, float, float], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    kept: bool = False

    @property
    def gain(self) -> float | None:
        """The time of the model's pick over that of the fastest: 1 where the model was right."""
        return self.model_us / self.us if self.us and self.model_us else None


def tune(
    problems: Problem | Iterable[Problem],
    *,
    device: Device | str | None = None,
    store: Store | str | Path | None = None,
    force: bool = False,
    within: float = WITHIN,
    most: int = MOST,
    progress: Progress | None = None,
    machine: Machine | None = None,
) -> list[Tuned]:
    """Measure the candidates of each problem on the current GPU and store the fastest; one result for each problem.

    Candidates are those that the cost model puts within ``within`` times its best, ``most`` at the most, and the best
    of each schedule. They compile in other processes; each runs once into a result of our own and is compared with
    PyTorch's; then all are timed shortly and the best few at length, interleaved, on operands that no cache holds. No
    tensor of the caller's is touched. A result is stored as soon as there is one, so that an interrupted run goes on
    where it stopped. Under ``torchrun`` each process (RANK of WORLD_SIZE) takes its share of the problems.

    Args:
        problems: one, or several. Those that share a plan (see ``gemm/stored.py``) are measured once.
        device: refused unless it is the GPU that is here.
        store: a store or its file; by default the user's, in ``TILEWRIGHT_CACHE_DIR``.
        force: measure again what the store has.
        machine: what compiles and measures, for tests.

    Raises:
        RuntimeError: no GPU is visible, or kernels are interpreted.
        ValueError: a problem with a function of the caller's as epilogue.
    """
    given = [problems] if isinstance(problems, Problem) else list(problems)
    for problem in given:
        if not isinstance(problem, Problem):
            raise bad("tune", "problems", f"with a {type(problem).__name__}", "of tilewright.Problem", TypeError)
        if "custom" in problem.epilogue:
            raise bad(
                "tune", "problems", f"with {problem}", "without a function of the caller's, which no problem holds"
            )
    if not isinstance(within, (int, float)) or within < 1:
        raise bad("tune", "within", repr(within), "a number of 1 or more")
    if not isinstance(most, int) or most < 1:
        raise bad("tune", "most", repr(most), "an integer of 1 or more")
    where = machine or this_gpu(device)
    kept = store if isinstance(store, Store) else Store(store)
    asked = share(list({stored.key(problem): stored.representative(problem) for problem in given}.values()))
    try:
        return _tune(asked, where, kept, force, within, most, progress or (lambda done, total, text: None))
    finally:  # also when interrupted: what was stored counts from the next call on
        planner.forget()
        shortcut.forget()


def this_gpu(device: Device | str | None = None, workers: int | None = None) -> Gpu:
    """The current GPU; ``RuntimeError`` in one line when there is none, or when it is not ``device``."""
    if not torch.cuda.is_available():
        raise RuntimeError("tilewright.tune: no GPU is visible; plans are measured on one")
    if INTERPRETED:
        raise RuntimeError("tilewright.tune: kernels are interpreted; start the process without TRITON_INTERPRET")
    gpu = Gpu(workers)
    if device is not None and planner.device_or_default(device) != gpu.device:
        raise RuntimeError(
            f"tilewright.tune: the GPU here is {gpu.device.title}; plans of another one are measured there"
        )
    return gpu


def share(problems: list[Problem]) -> list[Problem]:
    """This process's part: every WORLD_SIZE-th problem from RANK on, or all of them outside ``torchrun``."""
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return problems
    return problems[rank::world] if 0 <= rank < world else problems


def candidates(problem: Problem, device: Device, within: float = WITHIN, most: int = MOST) -> list[Plan]:
    """The plans that are measured: best first by the model, at least one of every schedule that has any."""
    ranked = planner.plans(problem, device)
    if not ranked:
        return []
    limit = within * cost.predict(problem, ranked[0], device).seconds
    near = [plan for plan in ranked if cost.predict(problem, plan, device).seconds <= limit][:most]
    first = {plan.schedule: plan for plan in reversed(ranked)}
    return list(dict.fromkeys([*near, *(plan for plan in ranked if plan in first.values())]))


def _tune(
    problems: list[Problem], machine: Machine, store: Store, force: bool, within: float, most: int, progress: Progress
) -> list[Tuned]:
    device = machine.device
    known = {} if force else {p: found for p in problems if (found := stored.kept(p, device, store)) is not None}
    plans = {p: candidates(p, device, within, most) for p in problems if p not in known}
    jobs = [(problem, plan) for problem, found in plans.items() for plan in found]

    def compiling(done: int, total: int) -> None:
        progress(0, len(problems), f"compiling {done}/{total}")

    broken = dict(zip(jobs, machine.compile(jobs, compiling) if jobs else [], strict=True))
    results: list[Tuned] = []
    for done, problem in enumerate(problems):
        progress(done, len(problems), str(problem))
        if problem in known:
            plan, us = known[problem]
            results.append(Tuned(problem, plan, us, "store", kept=True))
            continue
        why = {plan: broken[problem, plan] for plan in plans[problem]}
        results.append(_one(problem, why, machine, store))
    progress(len(problems), len(problems), "done")
    return results


def _one(problem: Problem, why: dict[Plan, str | None], machine: Machine, store: Store) -> Tuned:
    """Measure one problem's candidates, of which ``why`` says what is already known to be wrong."""
    device = machine.device
    failed = {plan: reason for plan, reason in why.items() if reason is not None}

    def failure(reason: str) -> Tuned:
        rest = tuple((str(plan), text) for plan, text in failed.items())
        return Tuned(problem, None, None, "failed", failed=(*rest, ("", reason)))

    if problem.m == 0 or problem.n == 0 or problem.k == 0 or problem.batch == 0:
        return failure("there is nothing to multiply")
    try:
        bench = machine.bench(problem)
        for plan in why:
            if plan not in failed and (reason := bench.why_not(plan)) is not None:
                failed[plan] = reason
        good = [plan for plan in why if plan not in failed]
        if not good:
            return failure("no candidate runs")
        winner, times = fastest(good, bench.rank)
    except (ValueError, RuntimeError) as error:  # out of memory, or a launch that broke the device
        return failure(f"{type(error).__name__}: {error}".splitlines()[0])
    us = times[good.index(winner)]
    predicted = (cost.predict(problem, plan, device).seconds * 1e6 for plan in good)
    timed = tuple(zip(good, times, predicted, strict=True))
    reasons = tuple((str(plan), text) for plan, text in failed.items())
    kept = stored.keep(problem, device, winner, us, store)
    return Tuned(problem, winner, us, "measured", good[0], times[0], timed, reasons, kept)


# ------------------------------------------------------------------------------------------------------- first calls

_tried: set[Any] = set()


def wanted() -> bool:
    """Whether ``TILEWRIGHT_TUNE`` asks that a first call of a problem tunes it."""
    value = os.environ.get("TILEWRIGHT_TUNE", "off").lower()
    if value not in ("on", "off", ""):
        raise bad("tune", "TILEWRIGHT_TUNE", repr(value), "'on' or 'off'")
    return value == "on"


def first_call(problem: Problem, device: Device) -> None:
    """Tune a problem that is about to run for the first time, unless something forbids it or has done it already.

    A CUDA graph's capture cannot be interrupted by work of ours, and a tracer runs nothing. A failure is a warning.
    """
    if INTERPRETED or not torch.cuda.is_available() or torch.compiler.is_compiling() or "custom" in problem.epilogue:
        return
    if torch.cuda.is_current_stream_capturing() or 0 in (problem.m, problem.n, problem.k, problem.batch):
        return
    tag = (stored.key(problem), device)
    if tag in _tried or planner.source(problem, device) == "store":
        return
    _tried.add(tag)
    try:
        with torch.no_grad():
            found = _tune(
                [stored.representative(problem)], this_gpu(device, FIRST_CALL_WORKERS), Store(), False, WITHIN, MOST,
                lambda done, total, text: None,
            )  # fmt: skip
        trouble = "" if found[0].plan else found[0].failed[-1][1]
    except RuntimeError as error:
        trouble = str(error)
    finally:
        planner.forget()
    if trouble:
        warnings.warn(f"tilewright.tune: {problem} was not tuned ({trouble})", RuntimeWarning, stacklevel=2)
