"""Products of which a row's bits do not depend on how many other rows there are: families of plans with equal bits.

An element's sum has the bits that its order gives it: which elements of k one instruction sums, in which order
instructions follow one another, and over how many slices and splits. None of that is about rows, so plans of different
tiles agree on every bit as long as they multiply with the same instruction, walk k in slices of the same length and do
not split it. Such plans are a family. The family is chosen by n, k, the operands' dtype and the precision alone; the
member of it that runs may then follow m, A's alignment and the epilogue, and a small product is not slowed by a large
one's tile.

Where nothing is known of a family (no tensor cores, or AMD's, whose instruction depends on the tile), one plan is the
whole of it. A schedule that is not named here is never part of one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import NamedTuple

import torch

from tilewright.gemm import cost
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ALIGNED, Problem
from tilewright.gemm.schedules import SCHEDULES, persistent
from tilewright.gemm.schedules.common import fit_stages, sum_registers
from tilewright.runtime.devices import Device
from tilewright.runtime.mode import INTERPRETED

#: schedules that walk k from its start to its end, slice by slice, for every tile alike
ORDERED = ("persistent", "tile")
#: the rows that a family is chosen for, and those that a family of one plan is
MANY, MIDDLE = 2048, 128
#: candidates are made for this many rows or more: fewer would leave out the tiles that all m have
LEAST_M = 64
#: registers of a thread that may hold the sum and slices that wait (from 96 on, an epilogue spills)
MOST_HELD = 80
#: steps of which a plan must be able to run any, where it is the only one of its family
_EVERY_STEP = ("alpha", "bias", "pre", "gelu", "dropout", "residual", "custom")


class Family(NamedTuple):
    """What the members share; ``only`` is the one member where there is no other."""

    instruction: str
    block_k: int
    only: Plan | None = None


def instruction(plan: Plan, problem: Problem, device: Device) -> str | None:
    """The name of the plan's matrix instruction where it depends on no more than this; ``None`` where plans may differ.

    Hopper and Blackwell multiply with all warps of a group at once where a tile has 64 rows or more, and else, as older
    devices do, warp by warp.
    """
    plain = problem.dtype is torch.float64 or (problem.dtype is torch.float32 and problem.precision == "ieee")
    if device.backend != "cuda" or plain or INTERPRETED:  # numpy's sums may follow the size of a block
        return None
    return "group" if device.has_tma and plan.block_m >= 64 and plan.num_warps % 4 == 0 else "warp"


@functools.lru_cache(maxsize=1024)
def family(problem: Problem, device: Device) -> Family | None:
    """The family of the plans that may run a batch-invariant problem; ``None`` when no plan can.

    It has the slices of the fastest plan for many rows, by the cost model: those lose most by another length, while few
    rows are bound by the bytes of B whatever the slice.
    """

    def asked(m: int) -> Problem:
        return Problem(m, problem.n, problem.k, dtype=problem.dtype, precision=problem.precision)

    def fastest(plans: list[Plan], m: int) -> Plan | None:
        return min(plans, key=lambda plan: (cost.predict(asked(m), plan, device).seconds, plan), default=None)

    made = _candidates(asked(MANY), device)
    for wanted in ("group", "warp"):
        if best := fastest([p for p in made if instruction(p, problem, device) == wanted], MANY):
            return Family(wanted, best.block_k)
    # one plan: it has to run whatever A and the epilogue are
    hard = replace(
        asked(MIDDLE), layout="ss", alignment=problem.dtype.itemsize, epilogue=_EVERY_STEP, out_dtype=torch.float64
    )
    able = [p for p in _candidates(asked(MIDDLE), device) if p.schedule == "tile" and _refusal(p, hard, device) is None]
    only = fastest(able, MIDDLE)
    return None if only is None else Family("", only.block_k, only)


def members(problem: Problem, device: Device) -> list[Plan]:
    """The plans that may run a batch-invariant problem: all give a row the same bits."""
    shared = family(problem, device)
    if shared is None:
        return []
    if shared.only is not None:
        return [shared.only]
    problem = as_of_many_rows(problem)
    found = []
    for made in _candidates(replace(problem, m=max(problem.m, LEAST_M)), device):
        staged = persistent.staged(made, problem) if made.schedule == persistent.NAME else 0
        plan = fit_stages(replace(made, block_k=shared.block_k), problem, device, staged)
        if instruction(plan, problem, device) == shared.instruction and _refusal(plan, problem, device) is None:
            found.append(plan)
    return list(dict.fromkeys(found))


def belongs(plan: Plan, problem: Problem, device: Device) -> bool:
    """Whether the plan is one of the problem's family."""
    shared = family(problem, device)
    if shared is None or plan.schedule not in ORDERED or plan.split_k != 1:
        return False
    if shared.only is not None:
        return plan == shared.only
    return (instruction(plan, problem, device), plan.block_k) == (shared.instruction, shared.block_k)


def as_of_many_rows(problem: Problem) -> Problem:
    """The problem with the alignment that A would have if it had more rows: a single row has no row stride."""
    if problem.m != 1 or problem.layout[0] != "n":
        return problem
    row = problem.k * problem.dtype.itemsize
    return replace(problem, alignment=math.gcd(problem.alignment or ALIGNED, row))


def _candidates(problem: Problem, device: Device) -> list[Plan]:
    schedules = [SCHEDULES[name] for name in ORDERED if name in SCHEDULES]
    return [plan for s in schedules if s.supports(problem, device) is None for plan in s.candidates(problem, device)]


def _refusal(plan: Plan, problem: Problem, device: Device) -> str | None:
    if why := SCHEDULES[plan.schedule].refuses(plan, problem, device):
        return why
    if plan.schedule == "tile" and (problem.alignment or ALIGNED) < 4:
        # loads of 2 bytes cannot be asynchronous: slices wait in registers beside the sum, two elements in each
        waiting = (plan.block_m + plan.block_n) * plan.block_k // (2 * device.warp_size * plan.num_warps)
        if waiting + sum_registers(plan, problem, device) > MOST_HELD:
            return f"slices of {plan.block_k} would wait in {waiting} registers"
    return None
