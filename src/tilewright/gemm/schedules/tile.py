"""Schedule ``tile``: one program, one tile of C, through pointers. Any stride, any alignment, every target."""

from __future__ import annotations

import itertools

import triton
import triton.language as tl

from tilewright.gemm.operands import Operands
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ALIGNED, Problem
from tilewright.gemm.schedules import common
from tilewright.lang.dot import dot
from tilewright.lang.epilogue import finish, offsets
from tilewright.lang.order import tile_of
from tilewright.lang.scales import dot_block
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call

NAME = "tile"


@triton.jit(do_not_specialize=["m", "batch_first"])
def tile_kernel(p_a, p_b, p_c, m, n, k, batch_first, batch_inner, strides_a, strides_b, strides_c,
                seed: tl.int64, threshold: tl.int64, steps,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
                ORDER: tl.constexpr, EVEN_K: tl.constexpr, BATCHED: tl.constexpr, ACC: tl.constexpr,
                PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, DROPOUT: tl.constexpr,
                CUSTOM: tl.constexpr):  # fmt: skip
    """C (z0, z1, m, n) = epilogue(A (z0, z1, m, k) @ B (z0, z1, k, n)). Grid: tiles of C, z0 * z1 times.

    The batch shares the grid's first dimension with the tiles: the others end at 65,535.
    """
    index = tl.program_id(0)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    if BATCHED:
        z = index // (tiles_m * tiles_n)
        index = index % (tiles_m * tiles_n)
        z0 = z // batch_inner
        z1 = z % batch_inner
    else:
        z = index * 0
        z0 = z
        z1 = z
    tile_m, tile_n = tile_of(index, tiles_m, tiles_n, GROUP, ORDER)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)

    p_a_block = p_a + offsets(strides_a, z0, z1, rows, ks)
    p_b_block = p_b + offsets(strides_b, z0, z1, ks, cols)
    step_a = tl.full((), BLOCK_K, tl.int64) * strides_a[3]
    step_b = tl.full((), BLOCK_K, tl.int64) * strides_b[2]
    m_a = rows[:, None] < m
    m_b = cols[None, :] < n

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for i in range(0, tl.cdiv(k, BLOCK_K)):
        if EVEN_K:
            a = tl.load(p_a_block, mask=m_a, other=0.0)
            b = tl.load(p_b_block, mask=m_b, other=0.0)
        else:
            left = k - i * BLOCK_K
            a = tl.load(p_a_block, mask=m_a & (ks[None, :] < left), other=0.0)
            b = tl.load(p_b_block, mask=m_b & (ks[:, None] < left), other=0.0)
        if steps[8] is not None:
            acc = dot_block(a, b, acc, steps[8], steps[9], z0, z1, rows, cols, i, m, n)
        else:
            acc = dot(a, b, acc, PRECISION)
        p_a_block += step_a
        p_b_block += step_b

    acc = finish(acc, batch_first + z, z0, z1, rows, cols, m, n, seed, threshold, steps, ACTIVATION, DROPOUT, CUSTOM)
    p_c_block = p_c + offsets(strides_c, z0, z1, rows, cols)
    tl.store(p_c_block, acc.to(p_c.dtype.element_ty), mask=m_a & m_b)


def supports(problem: Problem, device: Device) -> str | None:
    """Why this schedule cannot run the problem on the device, or ``None``."""
    return common.refuses_dtype(problem, device)


def refuses(plan: Plan, problem: Problem, device: Device) -> str | None:
    """Why this plan cannot run the problem on the device, or ``None``."""
    if why := supports(problem, device) or common.refuses_plan(plan, problem, device):
        return why
    held = common.sum_registers(plan, problem, device)
    tile = f"{plan.block_m}x{plan.block_n} tile does not fit the registers of {plan.num_warps} warps"
    if held > 64 and common.is_heavy(problem):
        return f"the epilogue of a {tile}"
    if held > 64 and plan.block_k > 32 and device.backend == "cuda" and not device.has_tma:
        # operands pass through registers: Triton 3.6 spills 24 to 56 bytes, 3.9 none
        return f"with slices of {plan.block_k}, a {tile}"
    if held > (32 if problem.scaled == "block" else 64) and (problem.alignment or ALIGNED) < 4:
        # such loads cannot be asynchronous: the slices in flight wait in registers
        return f"with operands aligned to {problem.alignment} bytes, a {tile}"
    return None


def resident(plan: Plan, problem: Problem, device: Device) -> int:
    """Programs that a multiprocessor holds at once, 1 or more."""
    return common.resident(plan, problem, device)


#: (block_m, block_n, block_k, warps, stages) by bytes of an element; of one byte, those of two with twice the slice
_TILES = {
    2: (
        (128, 256, 64, 8, 3),
        (128, 256, 32, 8, 4),
        (128, 128, 64, 8, 3),
        (128, 128, 64, 4, 4),
        (128, 128, 32, 4, 4),
        (64, 256, 64, 8, 3),
        (64, 128, 64, 4, 4),
        (128, 64, 64, 4, 4),
        (64, 64, 64, 4, 4),
        (64, 64, 128, 4, 3),
        (64, 32, 128, 4, 4),
        (32, 64, 128, 4, 4),
        (32, 32, 128, 4, 4),
        (16, 128, 64, 4, 5),
        (16, 64, 128, 4, 5),
        (16, 32, 256, 4, 4),
        (16, 16, 256, 4, 4),
    ),
    4: (
        (128, 128, 64, 8, 3),
        (128, 128, 32, 8, 4),
        (128, 128, 32, 4, 3),
        (128, 64, 32, 4, 4),
        (64, 128, 32, 4, 4),
        (64, 64, 64, 4, 3),
        (64, 64, 32, 4, 4),
        (64, 32, 64, 4, 4),
        (32, 64, 64, 4, 4),
        (32, 32, 64, 4, 4),
        (16, 64, 64, 4, 4),
        (16, 32, 128, 4, 4),
        (16, 16, 128, 4, 4),
    ),
    8: (
        (128, 64, 16, 8, 3),
        (64, 64, 16, 4, 3),
        (64, 32, 32, 4, 3),
        (32, 32, 32, 4, 3),
        (16, 16, 64, 4, 3),
    ),
}


#: where loads are narrower than 4 bytes (elements of 1 or 2 bytes, unaligned): they cannot be asynchronous, so the
#: slices wait in registers, and one is as long as those allow
_NARROW_TILES = (
    (128, 128, 32, 8, 2),
    (64, 128, 32, 4, 2),
    (128, 64, 32, 4, 2),
    (64, 64, 32, 4, 2),
    (64, 32, 64, 4, 2),
    (32, 64, 64, 4, 2),
    (32, 32, 64, 4, 2),
    (16, 64, 64, 4, 2),
    (16, 32, 128, 4, 2),
    (16, 16, 128, 4, 2),
)


#: tiles that are taken along m before the next column
GROUPS = (1, 8)


def candidates(problem: Problem, device: Device) -> list[Plan]:
    """Every plan worth trying."""
    narrow = (problem.alignment or ALIGNED) < 4
    if problem.scaled:
        tiles = tuple(
            (bm, bn, common.block_k(bk // 2 if narrow else bk, problem, device), warps, stages)
            for bm, bn, bk, warps, stages in (_NARROW_TILES if narrow else _TILES[2])
        )
    else:
        tiles = _NARROW_TILES if narrow else _TILES[problem.dtype.itemsize]
    made = (
        Plan(NAME, bm, bn, bk, group, warps, stages)
        for (bm, bn, bk, warps, stages), group in itertools.product(tiles, GROUPS)
    )
    fitted = [common.fit_stages(plan, problem, device) for plan in made]
    return [p for p in common.distinct(fitted, problem, GROUPS) if refuses(p, problem, device) is None]


def prepare(plan: Plan, operands: Operands, device: Device) -> Call:
    """The launch of ``plan`` on ``operands``, which lie on ``device``."""
    a, b, c = operands.a, operands.b, operands.c
    z0, z1, m, k = a.shape
    n = b.shape[-1]
    steps, seed, threshold, meta, writes = common.steps(operands, device, position=13)
    tiles = triton.cdiv(m, plan.block_m) * triton.cdiv(n, plan.block_n)
    args = (a, b, c, m, n, k, operands.first, z1, a.stride(), b.stride(), c.stride(), seed, threshold, steps)
    constexprs = {
        "BLOCK_M": plan.block_m,
        "BLOCK_N": plan.block_n,
        "BLOCK_K": plan.block_k,
        "GROUP": plan.group_m,
        "ORDER": plan.order,
        "EVEN_K": k % plan.block_k == 0,
        "BATCHED": z0 * z1 > 1,
        **meta,
    }
    return Call(tile_kernel, (tiles * z0 * z1,), args, constexprs, plan.num_warps, plan.num_stages, (2, *writes))


def signature(plan: Plan, problem: Problem, device: Device) -> Call:
    """The same launch over stand-ins, for offline compilation."""
    return prepare(plan, Operands.stand_in(problem), device)
