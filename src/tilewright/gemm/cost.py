"""How long a plan takes, without running it: waves, bytes through L2 and device memory, roofs, fixed costs.

The model is a sum over waves. In one wave every resident program walks its k in step: it multiplies at the rate that
its tile sustains, and waits when the cache or the memory cannot bring the slices as fast. What is left is fixed: the
launch, filling the pipeline, writing the tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.schedules import SCHEDULES
from tilewright.gemm.schedules.common import resident
from tilewright.runtime.devices import Device

#: constants of a device that has not been calibrated; a sheet's ``model`` overrides them one by one
DEFAULTS: dict[str, Any] = {
    "launch_us": 3.0,
    "fill_us": 1.2,
    "slice_us": 0.05,
    "memory_efficiency": 0.85,
    "memory_reach": 1.6,
    "l2_effective": 0.6,
    "l2_tbps": 5.5,
    "rate": {"tile": 0.62, "persistent": 0.80},
    "tile_rate": {},
    "fma_rate": 0.4,
}


@dataclass(frozen=True)
class Cost:
    """A plan's predicted time and what it is made of; times in seconds.

    Args:
        seconds: the whole.
        compute, hbm, l2: what arithmetic, device memory and the L2 would each take alone.
        fixed: launch, pipeline fill and drain.
        waves: rounds of resident programs, the last one whole.
        tiles: tiles of C over the batch.
        programs: programs resident at once.
        fill: useful share of the last wave, 0 to 1.
        hbm_bytes, l2_bytes: bytes that device memory and the L2 move.
        bound: "compute", "hbm", "l2" or "fixed": the largest of the four.
    """

    seconds: float
    compute: float
    hbm: float
    l2: float
    fixed: float
    waves: float
    tiles: int
    programs: int
    fill: float
    hbm_bytes: int
    l2_bytes: int
    bound: str


def constant(device: Device, name: str) -> Any:
    """A constant of the model for the device."""
    return device.model.get(name, DEFAULTS[name])


def predict(problem: Problem, plan: Plan, device: Device) -> Cost:
    """The predicted cost of running ``problem`` by ``plan`` on ``device``."""
    size = problem.dtype.itemsize
    out = (problem.out_dtype or problem.dtype).itemsize
    tiles_m, tiles_n = -(-problem.m // plan.block_m), -(-problem.n // plan.block_n)
    tiles = tiles_m * tiles_n * problem.batch
    per_sm = resident(plan, problem, device, SCHEDULES[plan.schedule].staged(plan, problem))
    programs = device.sms * per_sm
    if tiles == 0:
        return Cost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, programs, 1.0, 0, 0, "fixed")
    rounds = math.ceil(tiles / programs)
    fill = (tiles - (rounds - 1) * programs) / programs
    slices = -(-problem.k // plan.block_k)

    # arithmetic: the busiest multiprocessor does `deepest` tiles, at the rate its tile sustains
    deepest = math.ceil(tiles / device.sms)
    tile_flops = 2.0 * plan.block_m * plan.block_n * plan.block_k * slices
    rate = device.peak(problem.dtype, str(problem.precision)) * 1e12 / device.sms * efficiency(problem, plan, device)
    compute = deepest * tile_flops / rate

    # bytes: every program reads its slices through the L2; device memory serves what no neighbour has just read
    l2_bytes = tiles * slices * plan.block_k * (plan.block_m + plan.block_n) * size
    hbm_bytes = memory_bytes(problem, plan, device, min(programs, tiles)) + problem.batch * problem.m * problem.n * out
    active = min(1.0, tiles / device.sms)
    l2 = l2_bytes / (constant(device, "l2_tbps") * 1e12 * active)
    reach = min(1.0, active * constant(device, "memory_reach"))
    hbm = hbm_bytes / (device.memory_tbps * 1e12 * constant(device, "memory_efficiency") * reach)

    waves = math.ceil(deepest / per_sm)
    per_slice = constant(device, "slice_us") * slices * waves
    fixed = (constant(device, "launch_us") + constant(device, "fill_us") * waves) * 1e-6
    seconds = max(compute, hbm, l2, per_slice * 1e-6) + fixed
    parts = {"compute": compute, "hbm": hbm, "l2": l2, "fixed": fixed}
    bound = max(parts, key=lambda name: parts[name])
    return Cost(seconds, compute, hbm, l2, fixed, rounds, tiles, programs, fill, int(hbm_bytes), int(l2_bytes), bound)


def efficiency(problem: Problem, plan: Plan, device: Device) -> float:
    """The share of the peak rate that the plan's tile sustains once its slices are in shared memory."""
    if problem.dtype is torch.float32 and problem.precision == "ieee":
        return float(constant(device, "fma_rate"))
    area = plan.block_m * plan.block_n
    known = constant(device, "tile_rate").get(f"{plan.schedule} {plan.block_m}x{plan.block_n}")
    if known is not None:
        return float(known)
    return float(constant(device, "rate")[plan.schedule]) * min(1.0, (area / 16384) ** 0.25)


def memory_bytes(problem: Problem, plan: Plan, device: Device, programs: int) -> float:
    """Bytes of A and B that device memory serves.

    A wave's programs cover a band of ``group`` tiles one way and ``programs / group`` the other, and share what they
    read in step. What the cache keeps from one wave to the next is what fits beside the wave's own reads.
    """
    size = problem.dtype.itemsize
    tiles_m, tiles_n = -(-problem.m // plan.block_m), -(-problem.n // plan.block_n)
    a, b = problem.m * problem.k * size, problem.k * problem.n * size
    effective = constant(device, "l2_effective") * device.l2_bytes
    total = 0.0
    outer, inner = (tiles_m, tiles_n) if plan.order == "m" else (tiles_n, tiles_m)
    band = min(plan.group_m, outer)
    along = min(inner, max(1.0, programs / band))
    bands_at_once = max(1.0, programs / (band * inner))
    slab_outer = (a if plan.order == "m" else b) / outer
    slab_inner = (b if plan.order == "m" else a) / inner
    per_wave = slab_outer * min(outer, band * bands_at_once) + slab_inner * along
    waves = max(1.0, tiles_m * tiles_n / programs)
    if a + b <= effective:
        total = a + b
    elif per_wave <= effective:
        # the band's outer slabs stay while the inner ones stream past, once a band
        total = slab_outer * outer + slab_inner * inner * max(1.0, outer / (band * bands_at_once))
    else:
        total = per_wave * waves
    return problem.batch * max(total, float(a + b))
