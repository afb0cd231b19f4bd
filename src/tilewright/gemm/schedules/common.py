"""What every schedule shares on the host: the epilogue's arguments, and what fits a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from tilewright.gemm.operands import Operands, Scales, dropout_threshold, float_parts, letter
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ALIGNED, FP8_DTYPES, SCALE_BLOCK, Problem
from tilewright.lang.activations import FORWARD, FORWARD_16BIT
from tilewright.runtime.devices import Device
from tilewright.runtime.mode import INTERPRETED
from tilewright.runtime.workspace import scratch

#: the least that a product of two blocks takes along m, n and k on every target
LEAST_BLOCK = 16

#: float32 partial sums of a launch, at the most
MOST_PARTIAL = 2**26

#: programs of a persistent launch in interpreter mode: few, so that every program walks several tiles
INTERPRETED_PROGRAMS = 3


#: where a kernel's arguments hold a, b, c, and (in a tuple: place among the steps) bias, pre, residual, seed tensor,
#: scales of a and b, block scales of a and b. The steps are every schedule's last run-time argument, after seed and
#: threshold.
PLACES: tuple[int | tuple[int], ...] = (0, 1, 2, (1,), (2,), (3,), (4,), (6,), (7,), (8,), (9,))


def steps(
    operands: Operands, device: Device, position: int
) -> tuple[tuple[Any, ...], int, int, dict[str, Any], tuple[Any, ...]]:
    """The epilogue as ``lang.epilogue.finish`` takes it: (steps, seed, threshold, constexprs, what it writes).

    ``position`` is the place of ``steps`` among the kernel's arguments.
    """
    e = operands.epilogue
    acc = operands.problem.accumulator
    seed = e.seed if isinstance(e.seed, int) else 0
    dropout, threshold = None, 0
    if e.dropout_p > 0.0:
        scale = 0.0 if e.dropout_p >= 1.0 else 1.0 / (1.0 - e.dropout_p)
        dropout = (None if isinstance(e.seed, int) else e.seed, float_parts(scale, acc))
        threshold = dropout_threshold(e.dropout_p)
    taken = (
        float_parts(e.alpha, acc) if e.alpha != 1.0 else None,
        None if e.bias is None else (e.bias, e.bias.stride(0)),
        None if e.pre is None else (e.pre, e.pre.stride()),
        None if e.residual is None else (e.residual, e.residual.stride()),
        dropout,
        e.custom_args or None,
        *scales(e.scales),
    )
    functions = FORWARD_16BIT if operands.c.dtype.itemsize == 2 else FORWARD
    constexprs = {
        "ACC": _ACC[acc],
        "PRECISION": input_precision(operands, device),
        "ACTIVATION": None if e.activation is None else functions[e.activation],
        "DROPOUT": 0 if dropout is None else dropout_way(e.dropout_p, operands.b.shape[-1]),
        "CUSTOM": e.custom,
    }
    writes = () if e.pre is None else ((position, 2, 0),)
    return taken, seed, threshold, constexprs, writes


_ACC = {torch.float32: tl.float32, torch.float64: tl.float64, torch.int32: tl.int32, torch.int64: tl.int64}


def scales(given: Scales | None) -> tuple[Any, Any, Any, Any]:
    """(scales of A, of B, block scales of A, of B) as ``lang.scales`` takes them; ``None`` for those there are not."""
    if given is None:
        return None, None, None, None
    if given.granularity == "tensor":
        return (given.a,), (given.b,), None, None
    a = (given.a, given.a.stride())
    if given.granularity == "row":
        return a, (given.b, given.b.stride(1)), None, None
    return None, None, a, (given.b, given.b.stride())


def input_precision(operands: Operands, device: Device) -> str:
    """``lang.dot``'s PRECISION. Hopper's tf32 instruction takes B only k-major, and turning it costs more than the
    product: there, a row-major B is split into three bfloat16 parts instead of two tf32 ones, and the six largest of
    their products are summed (measured at 4096 cubed: 1.38 against 1.12 of cuBLAS fp32, at a lower error)."""
    if operands.a.dtype in FP8_DTYPES and sums_slices(operands.problem, device):
        return "promoted"
    turned = operands.precision == "tf32x3" and letter(operands.b) == "n"
    return "bf16x6" if turned and device.arch == 90 and not INTERPRETED else operands.precision


def dropout_way(p: float, n: int) -> int:
    """``lang.epilogue.dropped``'s DROPOUT: 16 where rows of n elements allow it, else 1 (as for p = 1)."""
    return 16 if n % 16 == 0 and p < 1.0 else 1


#: steps that hold a second block beside the sum: their addresses, loaded values or random words
HEAVY = frozenset({*FORWARD, "pre", "dropout", "residual", "custom"}) - {"relu"}


#: steps that pass through shared memory, because they load or store beside the sum
EXCHANGED = frozenset({"pre", "residual", "custom"})


def is_heavy(problem: Problem) -> bool:
    """Whether the epilogue needs about as many registers again as the sum it works on."""
    return not HEAVY.isdisjoint(problem.epilogue)


def smem_bytes(plan: Plan, problem: Problem, device: Device, staged: int) -> int:
    """Shared memory of a program: the slices in flight, and what C leaves through.

    Hopper's and Blackwell's products read every stage from shared memory; before them, and on AMD, the youngest slice
    is still in flight to registers and takes no room.
    """
    in_flight = plan.num_stages if device.has_tma or plan.num_stages == 1 else plan.num_stages - 1
    slices = in_flight * (plan.block_m + plan.block_n) * plan.block_k * problem.dtype.itemsize
    return slices + staged + (256 if device.has_tma else 0)


def sum_registers(plan: Plan, problem: Problem, device: Device) -> int:
    """Registers of a thread that hold its share of the sum."""
    words = problem.accumulator.itemsize // 4
    return words * plan.block_m * plan.block_n // (device.warp_size * plan.num_warps)


def most_sum_registers(problem: Problem, device: Device) -> int:
    """How many registers the sum may take before what else a thread holds spills (seen in compiled candidates)."""
    asynchronous = device.has_tma  # products read shared memory themselves; before Hopper, through registers
    if problem.dtype.itemsize == 1 and not asynchronous:  # operands pass through registers, 32 of k at once
        return 32 if problem.dtype in FP8_DTYPES and device.backend == "hip" else 64  # there as float16
    if sums_slices(problem, device):  # a slice's own sum beside the whole
        return 64
    if problem.dtype is torch.float32:
        if problem.precision == "tf32x3":  # each operand's parts
            return 64 if asynchronous else 32
        if problem.precision == "ieee":  # a slice's own sum, and its operands
            return 32
        return 128 if asynchronous else 64
    return 128 if asynchronous or problem.layout[0] == "n" else 64


def resident(plan: Plan, problem: Problem, device: Device, staged: int = 0) -> int:
    """Programs that a multiprocessor holds at once, 1 or more."""
    by_memory = device.smem_per_sm // (smem_bytes(plan, problem, device, staged) + 1024)
    threads = device.warp_size * plan.num_warps
    # addresses, masks and operands in flight take about 48 registers beside the sum (60 to 90 with a heavy epilogue)
    held = sum_registers(plan, problem, device)
    each = held + (90 if is_heavy(problem) else 48)
    if sums_slices(problem, device):  # a second sum, until the epilogue
        each = max(each, 2 * held + 32)
    each = min(255, each)
    by_registers = device.registers_per_sm // (each * threads)
    return max(1, min(by_memory, by_registers, device.threads_per_sm // threads, device.blocks_per_sm))


def programs_at_once(plan: Plan, problem: Problem, device: Device, staged: int) -> int:
    """Programs of a persistent launch on the device."""
    return INTERPRETED_PROGRAMS if INTERPRETED else device.sms * resident(plan, problem, device, staged)


def block_k(wanted: int, problem: Problem, device: Device) -> int:
    """A slice of k of as many bytes as ``wanted`` elements of two bytes, 16 or more elements; no more than float8 may
    sum at once, and all that shares a scale."""
    longer = max(16, wanted * 2 // problem.dtype.itemsize)
    if problem.scaled == "block":
        return SCALE_BLOCK
    return min(SCALE_BLOCK, longer) if problem.dtype in FP8_DTYPES and sums_slices(problem, device) else longer


def sums_slices(problem: Problem, device: Device) -> bool:
    """Whether each slice of k has a sum of its own, in registers beside the whole: block scales differ from slice to
    slice; int8 of very long k leaves int32; and of float8, Ada's and Hopper's tensor cores keep about 14 bits of a
    running sum (promoted to float32 every 128 of k, a relative error of 1e-3 becomes 1e-5)."""
    if problem.scaled == "block" or problem.accumulator is torch.int64:
        return True
    imprecise = device.backend == "cuda" and isinstance(device.arch, int) and not 100 <= device.arch < 120
    return problem.dtype in FP8_DTYPES and not problem.fast_accumulate and imprecise


def fit_stages(plan: Plan, problem: Problem, device: Device, staged: int = 0) -> Plan:
    """``plan`` with as many stages as the device's shared memory has room for (1 or more)."""
    while plan.num_stages > 1 and smem_bytes(plan, problem, device, staged) > device.smem_per_block:
        plan = replace(plan, num_stages=plan.num_stages - 1)
    return plan


def distinct(plans: Iterable[Plan], problem: Problem, groups: tuple[int, ...]) -> list[Plan]:
    """The plans worth trying, each order of programs once."""
    found = (p for p in plans if worth_trying(p, problem) and not repeats(p, problem, groups))
    return list(dict.fromkeys(found))


def worth_trying(plan: Plan, problem: Problem) -> bool:
    """Whether a tile is no more than twice the problem along m and n, the smallest tiles excepted."""
    return (plan.block_m <= 16 or plan.block_m < 2 * problem.m) and (plan.block_n <= 16 or plan.block_n < 2 * problem.n)


def repeats(plan: Plan, problem: Problem, groups: tuple[int, ...]) -> bool:
    """Whether a smaller group of ``groups`` already makes the same order: no band has that many tiles."""
    bands = triton.cdiv(
        problem.m if plan.order == "m" else problem.n, plan.block_m if plan.order == "m" else plan.block_n
    )
    smaller = [g for g in groups if g < plan.group_m]
    return bool(smaller) and bands <= max(smaller)


#: programs that may share a tile: the last one's loop over their sums is unrolled
MOST_PARTS = 32


def refuses_split(plan: Plan, problem: Problem) -> str | None:
    """Why the programs of a tile cannot share its sum, or ``None``."""
    if plan.split_k == 1:
        return None
    if plan.split_k > MOST_PARTS:
        return f"k is split among {MOST_PARTS} programs at most"
    if problem.accumulator is torch.float64:
        return "partial sums are kept in float32"
    tiles = triton.cdiv(problem.m, plan.block_m) * triton.cdiv(problem.n, plan.block_n) * problem.batch
    if tiles * plan.split_k * plan.block_m * plan.block_n > MOST_PARTIAL:
        return f"its partial sums take more than {MOST_PARTIAL * 4 >> 20} MB"
    return None


#: numbers of programs that are tried for a tile
SPLITS = (2, 3, 4, 6, 8, 16, 32)


def splits(plan: Plan, problem: Problem, tiles: int, most: int) -> list[int]:
    """Numbers of programs worth trying for each of so many tiles: ``most`` programs in all, two slices each or more.

    Fewer than an eighth of ``most`` programs are worth it only where k has room for no more.
    """
    fit = [s for s in SPLITS if tiles * s <= most and problem.k >= 2 * s * plan.block_k]
    return [s for s in fit if s == fit[-1] or 8 * tiles * s > most]


def shared_sum(plan: Plan, tiles: int, device: torch.device, position: int) -> tuple[Any, Any, Any]:
    """What ``lang.partial.join`` takes: (partial sums, counters, ``Call.scratch``), each ``None`` without a split.

    ``position`` is the place of the partial sums among the kernel's arguments; the counters follow.
    """
    if plan.split_k == 1:
        return None, None, None
    floats = tiles * plan.split_k * plan.block_m * plan.block_n
    return *scratch(device, floats, tiles), (position, floats, position + 1, tiles)


def refuses_dtype(problem: Problem, device: Device) -> str | None:
    """Why the device cannot multiply the problem's dtype, or ``None``."""
    if problem.precision in ("tf32", "tf32x3") and problem.dtype is torch.float32 and device.backend != "cuda":
        return f"{device.title} has no tf32; use precision='ieee'"
    if problem.dtype in FP8_DTYPES and "float8" not in device.peak_tflops:
        return f"{device.title} has no float8 arithmetic"
    return None


def refuses_plan(plan: Plan, problem: Problem, device: Device, staged: int = 0, *, splits: bool = False) -> str | None:
    """Why no schedule of tensor-core tiles can run the plan's numbers on the device, or ``None``.

    ``splits``: the schedule is one that splits k and swaps operands.
    """
    if min(plan.block_m, plan.block_n, plan.block_k) < LEAST_BLOCK:
        return f"a product of two blocks takes {LEAST_BLOCK} or more along m, n and k"
    needs = smem_bytes(plan, problem, device, staged)
    if needs > device.smem_per_block:
        return f"it needs {needs} bytes of shared memory and {device.title} gives a program {device.smem_per_block}"
    if problem.dtype.itemsize == 1 and plan.block_k < 32:
        return f"slices of {plan.block_k} of k are shorter than the 32 of a product of codes"
    if problem.scaled == "block" and plan.block_k != SCALE_BLOCK:
        return f"block scales hold for {SCALE_BLOCK} of k, and a slice is {plan.block_k}"
    if problem.dtype in FP8_DTYPES and sums_slices(problem, device) and plan.block_k > SCALE_BLOCK:
        return f"float8 is summed {SCALE_BLOCK} of k at a time without fast_accumulate, and a slice is {plan.block_k}"
    held = sum_registers(plan, problem, device)
    if held > most_sum_registers(problem, device):
        return f"a tile of {plan.block_m}x{plan.block_n} does not fit the registers of {plan.num_warps} warps"
    if plan.split_k != 1 and not splits:
        return f"the {plan.schedule} schedule does not split k"
    if plan.swap and not splits:
        return f"the {plan.schedule} schedule does not swap its operands"
    if plan.num_warps * device.warp_size > 1024:
        return f"{plan.num_warps} warps are more than a program may have"
    return refuses_grid(plan, problem)


def refuses_grid(plan: Plan, problem: Problem) -> str | None:
    """Why one launch cannot have a program for each part of each tile, or ``None``."""
    tiles = triton.cdiv(problem.m, plan.block_m) * triton.cdiv(problem.n, plan.block_n)
    if tiles * max(1, problem.batch) * plan.split_k >= 2**31:
        return "it makes 2^31 tiles or more"
    return None


def legal_stride(view: torch.Tensor) -> int:
    """A stride that a tensor descriptor accepts for a dimension of one element, over rows of ``view``: it is never
    stepped over, and torch lets it have any."""
    unit = ALIGNED // view.element_size()
    return -(-view.shape[-1] // unit) * unit
