"""Schedule ``stream``: the kernel of ``hopper``, with tiles dealt out slice by slice where whole ones do not fill the
device.

512 x 5120 is 80 tiles of 128 x 256: dealt out whole, 52 of 132 multiprocessors have nothing to do. Here the slices of
the first tiles, of one or two for each program, are one long row of which each program takes an equal share
("stream-K": Osama et al., "Stream-K: work-centric parallel decomposition for dense matrix-matrix multiplication on the
GPU", PPoPP 2023); tiles beyond those fill the device evenly and stay whole. The program that has the end of a tile adds
what those before it left in scratch memory, in their order, so the sum has the same bits on every run.

A program waits only for programs of a lower number. Those have started before it, so two such launches that share the
device cannot wait for each other.
"""

from __future__ import annotations

import triton

from tilewright.gemm.operands import Operands
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.schedules import hopper
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call
from tilewright.runtime.workspace import scratch

NAME = "stream"

supports = hopper.supports
staged = hopper.staged
resident = hopper.resident


def streamed(plan: Plan, m: int, n: int, device: Device) -> int:
    """Tiles that are dealt out slice by slice: what does not fill the device, and as many again as do."""
    tiles: int = triton.cdiv(m, plan.block_m) * triton.cdiv(n, plan.block_n)
    return tiles if tiles < 2 * device.sms else tiles % device.sms + device.sms


def refuses(plan: Plan, problem: Problem, device: Device) -> str | None:
    """Why this plan cannot run the problem on the device, or ``None``."""
    if why := hopper.refuses(plan, problem, device):
        return why
    if problem.batch_invariant:
        return "where it cuts k depends on the number of rows"
    if streamed(plan, problem.m, problem.n, device) % device.sms == 0:
        return f"whole tiles fill the {device.sms} multiprocessors evenly"
    return None


def candidates(problem: Problem, device: Device) -> list[Plan]:
    """Every plan worth trying."""
    return [p for p in hopper.tiled(NAME, problem, device) if refuses(p, problem, device) is None]


def prepare(plan: Plan, operands: Operands, device: Device) -> Call:
    """The launch of ``plan`` on ``operands``, which lie on ``device``."""
    m, k = operands.a.shape[-2:]
    count = streamed(plan, m, operands.b.shape[-1], device)
    slices = count * triton.cdiv(k, plan.block_k)
    programs = min(device.sms, slices)
    memory = scratch(operands.a.device, programs * plan.block_m * plan.block_n, programs * hopper.consumers(plan))
    return hopper.launch_of(plan, operands, device, programs, count, triton.cdiv(slices, programs), memory)


def signature(plan: Plan, problem: Problem, device: Device) -> Call:
    """The same launch over stand-ins, for offline compilation."""
    return prepare(plan, Operands.stand_in(problem), device)
