"""Which plan runs a problem: pure functions of the problem and the device's sheet."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from tilewright.gemm import cost
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.schedules import SCHEDULES
from tilewright.runtime.devices import Device
from tilewright.runtime.errors import bad

#: the device that is planned for when there is no GPU and none is named
DEFAULT_DEVICE = "h200"


def device_or_default(device: Device | str | None = None) -> Device:
    """That device, the current GPU, or the H200's sheet when there is no GPU."""
    if isinstance(device, Device):
        return device
    if device is not None:
        return Device.named(device)
    return Device.current() if torch.cuda.is_available() else Device.named(DEFAULT_DEVICE)


@functools.lru_cache(maxsize=4096)
def _ranked(problem: Problem, device: Device) -> tuple[Plan, ...]:
    schedules = [s for s in SCHEDULES.values() if s.supports(problem, device) is None]
    found = [plan for s in schedules for plan in s.candidates(problem, device)]
    return tuple(sorted(found, key=lambda plan: (cost.predict(problem, plan, device).seconds, plan)))


def plans(problem: Problem, device: Device | str | None = None) -> list[Plan]:
    """Every candidate for the problem on the device, best first by the cost model. Needs no GPU."""
    return list(_ranked(_planned(problem), device_or_default(device)))


def plan(problem: Problem, device: Device | str | None = None) -> Plan:
    """The plan for the problem on the device; ``ValueError`` when no schedule supports it."""
    where = device_or_default(device)
    found = _ranked(_planned(problem), where)
    if not found:
        reasons = {name: s.supports(problem, where) for name, s in SCHEDULES.items()}
        raise bad("plan", "problem", str(problem), f"one that {where.title} can run ({reasons})")
    return found[0]


def check(plan: Plan, problem: Problem, device: Device, name: str = "plan") -> None:
    """Raise ``ValueError`` with the reason when ``plan`` cannot run the problem on the device."""
    schedule = SCHEDULES.get(plan.schedule)
    if schedule is None:
        raise bad(name, "plan.schedule", repr(plan.schedule), f"one of {', '.join(SCHEDULES)}")
    if why := schedule.refuses(plan, problem, device):
        raise ValueError(f"tilewright.{name}: plan is '{plan}', which cannot run {problem} on {device.title}: {why}")


def _planned(problem: Problem) -> Problem:
    """The problem as its plan depends on it, if it is one: a batch-invariant one is planned by n, k and dtypes alone.

    Alignment and layout can change with the number of rows (a single row has no row stride), so they are set to what
    every operand satisfies.
    """
    if not isinstance(problem, Problem):
        raise bad("plan", "problem", type(problem).__name__, "a tilewright.Problem", TypeError)
    if not problem.batch_invariant:
        return problem
    return replace(problem, m=BATCH_INVARIANT_M, batch=1, batch_dims=0, layout="nt", alignment=1)


#: the m that batch-invariant products are planned for
BATCH_INVARIANT_M = 128
