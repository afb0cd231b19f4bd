"""Which plan runs a problem: functions of the problem, the device's sheet and the plans that were measured for it."""

from __future__ import annotations

import functools

import torch

from tilewright.gemm import cost, invariant, stored
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
    if problem.batch_invariant:
        found = invariant.members(problem, device)
    else:
        schedules = [s for s in SCHEDULES.values() if s.supports(problem, device) is None]
        found = [plan for s in schedules for plan in s.candidates(problem, device)]
    return tuple(sorted(found, key=lambda plan: (cost.predict(problem, plan, device).seconds, plan)))


@functools.lru_cache(maxsize=4096)
def _chosen(problem: Problem, device: Device) -> tuple[Plan, str]:
    measured = stored.find(problem, device)
    if measured is not None and (not problem.batch_invariant or invariant.belongs(measured[0], problem, device)):
        return measured
    found = _ranked(problem, device)
    if not found:
        reasons = {name: s.supports(problem, device) for name, s in SCHEDULES.items()}
        raise bad("plan", "problem", str(problem), f"one that {device.title} can run ({reasons})")
    return found[0], "model"


def plans(problem: Problem, device: Device | str | None = None) -> list[Plan]:
    """Every candidate for the problem on the device, best first by the cost model. Needs no GPU."""
    return list(_ranked(_checked(problem), device_or_default(device)))


def plan(problem: Problem, device: Device | str | None = None) -> Plan:
    """The plan for the problem on the device; ``ValueError`` when no schedule supports it. Needs no GPU.

    One that was tuned on this machine, else one that was measured for the device and shipped, else the candidate that
    the cost model says is fastest.
    """
    return _chosen(_checked(problem), device_or_default(device))[0]


def source(problem: Problem, device: Device | str | None = None) -> str:
    """Where :func:`plan` has it from: "store", "shipped" or "model"."""
    return _chosen(_checked(problem), device_or_default(device))[1]


def forget() -> None:
    """Look for stored plans anew: a problem's plan is otherwise the same for the life of a process."""
    _chosen.cache_clear()


def check(plan: Plan, problem: Problem, device: Device, name: str = "plan") -> None:
    """Raise ``ValueError`` with the reason when ``plan`` cannot run the problem on the device."""
    schedule = SCHEDULES.get(plan.schedule)
    if schedule is None:
        raise bad(name, "plan.schedule", repr(plan.schedule), f"one of {', '.join(SCHEDULES)}")
    if why := schedule.refuses(plan, problem, device):
        raise ValueError(f"tilewright.{name}: plan is '{plan}', which cannot run {problem} on {device.title}: {why}")


def _checked(problem: Problem) -> Problem:
    """The problem, if it is one."""
    if not isinstance(problem, Problem):
        raise bad("plan", "problem", type(problem).__name__, "a tilewright.Problem", TypeError)
    return problem
