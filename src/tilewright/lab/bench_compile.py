"""Compile what a suite will run, in as many processes as there are cores, before anything is timed.

Triton keeps binaries on disk, so that what one process has compiled another one loads. A kernel that crashes or hangs
does so in a process that can be ended.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tilewright.gemm.plan import Plan
from tilewright.lab.peers import Inputs, ours
from tilewright.lab.suites import Case

Job = tuple[Case, Plan]


def signature(case: Case, plan: Plan) -> tuple[Any, ...]:
    """Jobs of one signature share their binaries: Triton specialises integers that are 1 or divisible by 16."""
    sizes = tuple((size == 1, size % 16 == 0) for size in (case.m, case.n, case.k))
    return (str(plan), case.dtype, case.layout, case.precision, case.epilogue, case.op, sizes)


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """One job for each signature."""
    return list({signature(*job): job for job in jobs}.values())


def _empty(case: Case) -> Inputs:
    """Inputs without values: compiling needs none."""

    def make(rows: int, cols: int, letter: str) -> torch.Tensor:
        if letter == "t":
            return make(cols, rows, "n").t()
        return torch.empty(rows, cols, dtype=case.torch_dtype, device="cuda")

    bias = make(1, case.n, "n")[0] if "bias" in case.epilogue else None
    residual = make(case.m, case.n, "n") if "residual" in case.epilogue or case.op == "addmm" else None
    return Inputs(make(case.m, case.k, case.layout[0]), make(case.k, case.n, case.layout[1]), bias, residual)


def _work(job: tuple[int, Case, Plan]) -> tuple[int, str | None]:
    """In a worker: one launch, which compiles; why it failed, or ``None``."""
    index, case, plan = job
    try:
        with torch.no_grad():
            # a forced plan is refused by addmm, which plans for itself
            ours(case, None if case.op == "addmm" else plan)(_empty(case))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        return index, f"{type(error).__name__}: {error}".splitlines()[0]
    return index, None


def compile_all(
    jobs: Iterable[Job], progress: Callable[[int, int], None] | None = None, timeout: float = 120.0
) -> dict[tuple[Any, ...], str]:
    """Compile the jobs in a pool; the signatures that failed, each with the reason.

    Args:
        progress: called with how many are done and how many there are.
        timeout: seconds without any worker finishing after which the rest counts as hung.
    """
    todo = distinct(jobs)
    if len(todo) < 4:  # not worth starting Python again; the caller's first launch compiles
        return {}
    reasons: dict[int, str | None] = dict.fromkeys(range(len(todo)), "did not finish compiling and launching")
    # spawn: a forked process cannot use CUDA
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(os.cpu_count() or 1, len(todo), 32)) as pool:
        found = pool.imap_unordered(_work, [(i, case, plan) for i, (case, plan) in enumerate(todo)])
        try:
            for done in range(len(todo)):
                index, why = found.next(timeout)
                reasons[index] = why
                if progress:
                    progress(done + 1, len(todo))
        except multiprocessing.TimeoutError:
            pass
    return {signature(*todo[i]): why for i, why in reasons.items() if why is not None}
