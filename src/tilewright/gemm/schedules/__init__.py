"""The ways to run a product: one file each, all with the same few functions."""

from __future__ import annotations

from typing import Protocol

from tilewright.gemm.operands import Operands
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.schedules import gemv, hopper, persistent, split, stream, tile
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call


class Schedule(Protocol):
    """What a file in this folder offers."""

    NAME: str

    def supports(self, problem: Problem, device: Device) -> str | None:
        """Why it cannot run the problem on the device, or ``None``."""

    def candidates(self, problem: Problem, device: Device) -> list[Plan]:
        """Every plan worth trying."""

    def refuses(self, plan: Plan, problem: Problem, device: Device) -> str | None:
        """Why this plan cannot run the problem on the device, or ``None``."""

    def resident(self, plan: Plan, problem: Problem, device: Device) -> int:
        """Programs that a multiprocessor holds at once, 1 or more."""

    def prepare(self, plan: Plan, operands: Operands, device: Device) -> Call:
        """The launch of a plan on operands, which lie on the device."""

    def signature(self, plan: Plan, problem: Problem, device: Device) -> Call:
        """The same launch over stand-ins, for offline compilation."""


SCHEDULES: dict[str, Schedule] = {m.NAME: m for m in (tile, persistent, hopper, stream, split, gemv)}
