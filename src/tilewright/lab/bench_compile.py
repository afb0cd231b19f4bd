"""Compile what a suite will run, in as many processes as there are cores, before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tilewright.gemm.plan import Plan
from tilewright.lab.inputs import empty
from tilewright.lab.peers import ours
from tilewright.lab.suites import Case
from tilewright.tune import pool

Job = tuple[Case, Plan]


def signature(case: Case, plan: Plan) -> tuple[Any, ...]:
    """Jobs of one signature share their binaries: Triton specialises integers that are 1 or divisible by 16."""
    sizes = tuple((size == 1, size % 16 == 0) for size in (case.m, case.n, case.k))
    codes = (case.scales, case.fast_accumulate, case.result_dtype)
    return (
        str(plan),
        case.dtype,
        case.layout,
        case.precision,
        case.epilogue,
        case.op,
        case.batch_invariant,
        *codes,
        sizes,
    )


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """One job for each signature."""
    return list({signature(*job): job for job in jobs}.values())


def compile_case(job: Job) -> None:
    """In a worker: one launch, which compiles."""
    case, plan = job
    with torch.no_grad():
        # a forced plan is refused by addmm, which plans for itself
        ours(case, None if case.op == "addmm" else plan)(empty(case, torch.device("cuda")))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def compile_all(
    jobs: Iterable[Job], progress: Callable[[int, int], None] | None = None, timeout: float = 120.0
) -> dict[tuple[Any, ...], str]:
    """Compile the jobs in a pool; the signatures that failed, each with the reason.

    Args:
        progress: called with how many are done and how many there are.
        timeout: seconds after which a job counts as hung.
    """
    todo = distinct(jobs)
    if len(todo) < 4:  # not worth starting Python again; the caller's first launch compiles
        return {}
    found = pool.run("tilewright.lab.bench_compile:compile_case", todo, timeout=timeout, progress=progress)
    return {signature(*job): why for job, why in zip(todo, found, strict=True) if why is not None}
