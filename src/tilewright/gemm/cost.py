"""How long a plan takes, without running it: waves, bytes through L2 and device memory, roofs, fixed costs.

A program walks k in slices. Its multiprocessor needs for a slice the longest of four times: to multiply it at the rate
that the tile sustains, to bring it from the L2, to issue its loads where they are narrow, and to wait for it when too
few slices are in flight. A wave is as many slices as k has, and a fixed part in which the pipeline fills and the tile
leaves. The last wave may hold fewer programs. Device memory bounds the whole from below.

The constants are fitted to recorded times of every candidate (``benchmarks/fit_cost.py``) and live in the device's
sheet under ``model``; a device without them takes ``DEFAULTS``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ALIGNED, Problem
from tilewright.gemm.schedules import SCHEDULES, gemv, stream
from tilewright.gemm.schedules.common import is_heavy
from tilewright.lang.activations import FORWARD
from tilewright.runtime.devices import Device

#: constants of a device that has not been calibrated (the H200's, rounded); a sheet's ``model`` overrides them
DEFAULTS: dict[str, float] = {
    "launch_us": 1.5,
    "fill_us": 1.1,
    "wait_us": 1.1,
    "narrow_wait_us": 2.1,
    "narrow_load_ns": 0.06,
    "l2_gbps_per_sm": 110.0,
    "store_gbps_per_sm": 160.0,
    "heavy_us_per_mb": 40.0,
    "memory_efficiency": 0.81,
    "join_us": 1.0,
    "l2_effective": 0.6,
    "rate": 0.55,
}

#: the same for schedules whose own differ much: a vector's product has little to fill, and reads in one sweep
_OF_SCHEDULE: dict[str, dict[str, float]] = {"gemv": {"fill_us": 0.5, "wait_us": 0.6, "memory_efficiency": 0.88}}

#: exponent of the norm that joins times which overlap: near the largest, and a little above where two are equal
_OVERLAP = 6.0


@dataclass(frozen=True)
class Cost:
    """A plan's predicted time and what it is made of; times in seconds.

    Args:
        seconds: the whole.
        compute, hbm, l2: what arithmetic, device memory and the L2 would each take alone.
        fixed: launch, pipeline fill, the tile's way out.
        waves: rounds of resident programs, the last one whole.
        tiles: tiles of C over the batch; each has ``split_k`` programs.
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


class Features(NamedTuple):
    """What the model needs to know of a plan for a problem: numbers, or arrays of them when constants are fitted."""

    full_waves: Any  # waves that fill every multiprocessor
    per_sm: Any  # programs of a full wave on a multiprocessor
    last: Any  # 1 when there is a last, partial wave, else 0
    last_per_sm: Any  # its programs on the busiest multiprocessor
    slices: Any  # slices of k
    slice_us: Any  # microseconds to multiply one slice at the peak rate
    slice_kb: Any  # kilobytes of one slice of A and B
    tile_kb: Any  # kilobytes of a tile of C and what is read beside it
    in_flight: Any  # slices in flight beside the one in use
    narrow: Any  # 1 when loads are narrower than 4 bytes and cannot be asynchronous
    loads: Any  # thousands of loads of a slice where they are narrower than 16 bytes, else 0
    memory_us: Any  # microseconds of device memory at the sheet's bandwidth
    joins: Any  # 1 when the programs of a tile add up their sums, else 0
    heavy_mb: Any  # megabytes of sums of a tile that pass through a heavy epilogue


#: steps of tens of instructions an element
COMPUTED = frozenset({*FORWARD, "dropout", "custom"}) - {"relu", "relu2"}


def keys(problem: Problem, plan: Plan) -> tuple[str, str]:
    """Names of a plan's tile in the sheet's tables, the one with the layout first.

    The layout matters where the copy into shared memory has to turn an operand: float32 and codes, whose tensor cores
    take only k-major operands, and unaligned elements of one or two bytes, which come one by one. An epilogue that
    computes much ("computed") is kinder to tiles of which several overlap.
    """
    kind = {torch.float32: str(problem.precision), torch.float64: "float64"}.get(problem.dtype, "16-bit")
    if problem.scaled:
        kind = "int8" if problem.dtype is torch.int8 else "float8 fast" if problem.fast_accumulate else "float8"
        kind += " block" if problem.scaled == "block" else ""
    narrow = plan.schedule == "tile" and problem.alignment != ALIGNED
    tile = f"{kind} {plan.schedule} {plan.block_m}x{plan.block_n}x{plan.block_k} {plan.num_warps}"
    tile += " unaligned" if narrow else ""
    if narrow or problem.dtype is torch.float32 or problem.scaled:
        return f"{tile} {problem.layout}", tile
    return (f"{tile} computed" if not COMPUTED.isdisjoint(problem.epilogue) else tile), tile


def features(problem: Problem, plan: Plan, device: Device) -> Features:
    """The features of running ``problem`` by ``plan`` on ``device``."""
    size = problem.dtype.itemsize
    programs = count_tiles(problem, plan) * plan.split_k
    per_sm = SCHEDULES[plan.schedule].resident(plan, problem, device)
    slots = device.sms * per_sm
    full, rest = divmod(programs, slots)
    last_per_sm: float = -(-rest // device.sms)
    if plan.schedule == stream.NAME:  # the tiles that are dealt out slice by slice fill every multiprocessor equally
        dealt = stream.streamed(plan, problem.m, problem.n, device)
        full, last_per_sm = (programs - dealt) // device.sms, dealt / device.sms
    slices = math.ceil(math.ceil(problem.k / plan.block_k) / plan.split_k)
    slice_bytes = (plan.block_m + plan.block_n) * plan.block_k * size
    flops = 2 * plan.block_m * plan.block_n * plan.block_k
    out = (problem.out_dtype or problem.dtype).itemsize
    moved = out * (1 + problem.epilogue.count("residual") + problem.epilogue.count("pre"))
    moved += 8 if plan.split_k > 1 else 0  # a sum's part is written and read
    alignment = problem.alignment or ALIGNED
    memory = memory_bytes(problem, plan, device, max(1, min(slots, programs) // plan.split_k))
    # without tensor cores what counts is the accumulator's dtype
    dtype = problem.accumulator if plan.schedule == gemv.NAME else problem.dtype
    precision = "ieee" if plan.schedule == gemv.NAME else str(problem.precision)
    return Features(
        full_waves=full,
        per_sm=per_sm,
        last=int(last_per_sm > 0),
        last_per_sm=last_per_sm,
        slices=slices,
        slice_us=flops / (device.peak(dtype, precision) * 1e6 / device.sms),
        slice_kb=slice_bytes / 1e3,
        tile_kb=plan.block_m * plan.block_n * moved / 1e3,
        in_flight=max(1, plan.num_stages - 1),
        narrow=int(plan.schedule == "tile" and alignment < 4),
        loads=slice_bytes / alignment / 1e3 if plan.schedule == "tile" and alignment < ALIGNED else 0.0,
        memory_us=memory / (device.memory_tbps * 1e6),
        joins=int(plan.split_k > 1 or plan.schedule == stream.NAME),
        heavy_mb=plan.block_m * plan.block_n * 4 / 1e6 if is_heavy(problem) else 0.0,
    )


def wave_us(f: Features, programs: Any, c: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(microseconds of a wave with that many programs on a multiprocessor, of it arithmetic alone, L2 alone)."""
    compute = programs * f.slice_us / c["rate"]
    l2 = programs * f.slice_kb / c["l2_gbps_per_sm"]
    wait = c["wait"] * (f.narrow * c["narrow_wait_us"] + (1 - f.narrow) * c["wait_us"] / f.in_flight)
    issue = programs * f.loads * c["narrow_load_ns"]
    a_slice = overlap(compute, l2, wait, issue)
    out = c["fill_us"] + programs * (f.tile_kb / c["store_gbps_per_sm"] + f.heavy_mb * c["heavy_us_per_mb"])
    return f.slices * a_slice + out, f.slices * compute, f.slices * l2


def overlap(*times: Any) -> Any:
    """One time for times that overlap."""
    return sum(t**_OVERLAP for t in times) ** (1 / _OVERLAP)


def total_us(f: Features, c: dict[str, Any]) -> Any:
    """Microseconds of the whole product; ``c`` has ``DEFAULTS``' names, and "wait", a tile's own factor."""
    body = f.full_waves * wave_us(f, f.per_sm, c)[0] + f.last * wave_us(f, f.last_per_sm, c)[0]
    return c["launch_us"] + f.joins * c["join_us"] + overlap(body, f.memory_us / c["memory_efficiency"])


def constants(problem: Problem, plan: Plan, device: Device) -> dict[str, float]:
    """The constants of the model for a plan on a device: the sheet's, the schedule's, the tile's."""
    found = {**DEFAULTS, "wait": 1.0, **device.model.get("constants", {}), **_OF_SCHEDULE.get(plan.schedule, {})}
    found.update(device.model.get("schedules", {}).get(plan.schedule, {}))
    tiles = device.model.get("tiles", {})
    rate, wait = next((tiles[key] for key in keys(problem, plan) if key in tiles), (None, 1.0))
    # a tile that was never measured: small ones reuse less of what they load, and sustain less
    area = min(1.0, plan.block_m * plan.block_n / 16384) ** 0.25 if plan.schedule != gemv.NAME else 1.0
    found["rate"] = rate if rate is not None else found["rate"] * area
    found["wait"] = wait
    return found


def default(schedule: str, name: str) -> float:
    """A constant of a schedule on a device that has not been calibrated."""
    return _OF_SCHEDULE.get(schedule, {}).get(name, DEFAULTS[name])


def predict(problem: Problem, plan: Plan, device: Device) -> Cost:
    """The predicted cost of running ``problem`` by ``plan`` on ``device``."""
    tiles = count_tiles(problem, plan)
    programs = device.sms * SCHEDULES[plan.schedule].resident(plan, problem, device)
    if tiles == 0:
        return Cost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, programs, 1.0, 0, 0, "fixed")
    f, c = features(problem, plan, device), constants(problem, plan, device)
    waves = f.full_waves + f.last
    even = plan.schedule == stream.NAME
    fill = 1.0 if even else (tiles * plan.split_k - (waves - 1) * programs) / programs
    _, full_compute, full_l2 = wave_us(f, f.per_sm, c)
    _, last_compute, last_l2 = wave_us(f, f.last_per_sm, c)
    compute = f.full_waves * full_compute + f.last * last_compute
    l2 = f.full_waves * full_l2 + f.last * last_l2
    hbm = f.memory_us / c["memory_efficiency"]
    fixed = c["launch_us"] + c["fill_us"] * waves + f.joins * c["join_us"]
    parts = {"compute": compute, "hbm": hbm, "l2": l2, "fixed": fixed}
    return Cost(
        seconds=total_us(f, c) * 1e-6,
        compute=compute * 1e-6,
        hbm=hbm * 1e-6,
        l2=l2 * 1e-6,
        fixed=fixed * 1e-6,
        waves=waves,
        tiles=tiles,
        programs=programs,
        fill=fill,
        hbm_bytes=round(f.memory_us * device.memory_tbps * 1e6),
        l2_bytes=round(tiles * plan.split_k * f.slices * f.slice_kb * 1e3),
        bound=max(parts, key=lambda name: parts[name]),
    )


def count_tiles(problem: Problem, plan: Plan) -> int:
    """Tiles of C over the batch."""
    return -(-problem.m // plan.block_m) * -(-problem.n // plan.block_n) * problem.batch


def memory_bytes(problem: Problem, plan: Plan, device: Device, programs: int) -> float:
    """Bytes that device memory moves, in closed form (``gemm/traffic.py`` simulates the same, step by step).

    A wave's programs cover a band of ``group`` tiles one way and ``programs / group`` the other, and share what they
    read in step. What the cache keeps from one wave to the next is what fits beside the wave's own reads.
    """
    size = problem.dtype.itemsize
    out = problem.batch * problem.m * problem.n * (problem.out_dtype or problem.dtype).itemsize
    out *= 1 + problem.epilogue.count("residual") + problem.epilogue.count("pre")
    tiles_m, tiles_n = -(-problem.m // plan.block_m), -(-problem.n // plan.block_n)
    a, b = problem.m * problem.k * size, problem.k * problem.n * size
    capacity = float(device.model.get("constants", {}).get("l2_effective", DEFAULTS["l2_effective"])) * device.l2_bytes
    outer, inner, held, streamed = (tiles_m, tiles_n, a, b) if plan.order == "m" else (tiles_n, tiles_m, b, a)
    if not outer or not inner:
        return 0.0
    band = min(plan.group_m, outer)
    along = min(inner, max(1.0, programs / band))
    bands = max(1.0, programs / (band * inner))
    per_wave = held / outer * min(outer, band * bands) + streamed / inner * along
    if a + b <= capacity:
        read = float(a + b)
    elif per_wave <= capacity:
        # the band's outer slabs stay while the inner ones stream past, once a band
        read = held + streamed * max(1.0, outer / (band * bands))
    else:
        read = per_wave * max(1.0, tiles_m * tiles_n / programs)
    return problem.batch * max(read, float(a + b)) + out
