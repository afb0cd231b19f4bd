"""Compiling before the first call: Triton's cache on disk is filled, and nothing is launched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilewright.gemm import planner
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.schedules import SCHEDULES
from tilewright.runtime.devices import Device
from tilewright.runtime.offline import compile_call, target_of
from tilewright.tune import pool

#: fewer kernels than this are compiled here: starting Python again takes longer
FEW = 4

#: a problem, the plan that runs it and the device
Job = tuple[Problem, Plan, Device]


def warmup(problems: Problem | Iterable[Problem], *, device: Device | str | None = None) -> list[Plan]:
    """Compile the kernels that these problems will run, so that a first call only loads them; returns their plans.

    Works for the GPU that is here, and without one for a ``device`` that is named: the binaries are in Triton's cache
    (``TRITON_CACHE_DIR``), which can be carried to the machine that has it. Compiled is what freshly allocated, dense
    operands need; other strides, and a function of the caller's as epilogue, may need another kernel.

    Raises ``RuntimeError`` in one line when there is neither a GPU nor a ``device``, when kernels are built for the
    interpreter, and when one does not compile.
    """
    if device is None and not torch.cuda.is_available():
        raise RuntimeError(
            "tilewright.warmup: no GPU is visible; name the device to compile for, such as device='h200'"
        )
    where = planner.device_or_default(device)
    given = [problems] if isinstance(problems, Problem) else list(problems)
    jobs = [(problem, planner.plan(problem, where), where) for problem in given]
    todo = [job for job in distinct(jobs) if job[0].m and job[0].n and job[0].batch]
    if len(todo) < FEW:
        for job in todo:
            compile_job(job)
    else:
        failed = [why for why in pool.run("tilewright.gemm.warmup:compile_job", todo) if why is not None]
        if failed:
            raise RuntimeError(f"tilewright.warmup: {failed[0]}")
    return [plan for _, plan, _ in jobs]


def compile_job(job: Job) -> None:
    """Compile one job's kernel into Triton's cache, as a launch on the device would."""
    problem, plan, device = job
    compile_call(SCHEDULES[plan.schedule].signature(plan, problem, device), target_of(device))


def signature(problem: Problem, plan: Plan) -> tuple[Any, ...]:
    """What a binary depends on: Triton specialises integers that are 1 or divisible by 16."""
    sizes = (problem.m, problem.n, problem.k, problem.batch)
    kinds = tuple((size == 1, size % 16 == 0) for size in sizes)
    return plan, kinds, problem.k % plan.block_k == 0, replace(problem, m=0, n=0, k=0, batch=0)


def distinct(jobs: Iterable[Job]) -> Sequence[Job]:
    """One job for each binary."""
    return list({signature(problem, plan): (problem, plan, device) for problem, plan, device in jobs}.values())
