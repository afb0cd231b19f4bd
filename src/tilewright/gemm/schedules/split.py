"""Schedule ``split``: the programs of a tile share its k. For products of few tiles and long k, and of few rows.

One program a tile would leave most of the device without work. So ``split_k`` programs take the slices of k in turn,
leave their sums in scratch memory, and the one that comes last adds them (``lang.partial``) and finishes the tile.

``swap`` computes C^T = B^T A^T. The tensor cores of Hopper and Blackwell take 64 rows or more at a time, and 8 columns
or more: with few rows of A, the weights are the side to put there.

Slices come through tensor descriptors where the device and the operands allow it, else through pointers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from tilewright.gemm.operands import Operands, letter
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ALIGNED, Problem
from tilewright.gemm.schedules import common
from tilewright.gemm.schedules.persistent import load_block, operand_descriptor
from tilewright.lang.dot import dot
from tilewright.lang.epilogue import finish, offsets
from tilewright.lang.order import tile_of
from tilewright.lang.partial import join, share
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call

NAME = "split"


@triton.jit(do_not_specialize=["m", "batch_first"])
def split_kernel(a, b, p_c, m, n, k, batch_first, batch_inner, strides_a, strides_b, strides_c, p_parts, p_arrived,
                 seed: tl.int64, threshold: tl.int64, steps,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
                 ORDER: tl.constexpr, SPLIT: tl.constexpr, SWAP: tl.constexpr, DESCRIPTORS: tl.constexpr,
                 TRANSPOSED_A: tl.constexpr, TRANSPOSED_B: tl.constexpr, EVEN_K: tl.constexpr, BATCHED: tl.constexpr,
                 ACC: tl.constexpr, PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, DROPOUT: tl.constexpr,
                 CUSTOM: tl.constexpr):  # fmt: skip
    """C (z0, z1, m, n) = epilogue(A (z0, z1, m, k) @ B (z0, z1, k, n)). Grid: parts of k, each with all tiles of C.

    DESCRIPTORS: ``a`` and ``b`` are tensor descriptors, of one batch dimension at most; else they are pointers.
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tl.num_programs(0) // SPLIT
    tile = tl.program_id(0) % tiles  # of all products of the batch
    part = tl.program_id(0) // tiles
    index = tile
    z = index * 0
    if BATCHED:
        z = index // (tiles_m * tiles_n)
        index = index % (tiles_m * tiles_n)
    z0 = z // batch_inner
    z1 = z % batch_inner
    tile_m, tile_n = tile_of(index, tiles_m, tiles_n, GROUP, ORDER)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    first, end = share(tl.cdiv(k, BLOCK_K), part, SPLIT)

    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), dtype=ACC)
    if not DESCRIPTORS:
        ks = tl.arange(0, BLOCK_K)
        step_a = tl.full((), BLOCK_K, tl.int64) * strides_a[3]
        step_b = tl.full((), BLOCK_K, tl.int64) * strides_b[2]
        p_a_block = a + offsets(strides_a, z0, z1, rows, ks) + first * step_a
        p_b_block = b + offsets(strides_b, z0, z1, ks, cols) + first * step_b
        m_a = rows[:, None] < m
        m_b = cols[None, :] < n
    for i in range(first, end):
        if DESCRIPTORS:
            a_block = load_block(a, z, tile_m * BLOCK_M, i * BLOCK_K, BLOCK_M, BLOCK_K, TRANSPOSED_A, BATCHED)
            b_block = load_block(b, z, i * BLOCK_K, tile_n * BLOCK_N, BLOCK_K, BLOCK_N, TRANSPOSED_B, BATCHED)
        else:
            if EVEN_K:
                a_block = tl.load(p_a_block, mask=m_a, other=0.0)
                b_block = tl.load(p_b_block, mask=m_b, other=0.0)
            else:
                left = k - i * BLOCK_K
                a_block = tl.load(p_a_block, mask=m_a & (ks[None, :] < left), other=0.0)
                b_block = tl.load(p_b_block, mask=m_b & (ks[:, None] < left), other=0.0)
            p_a_block += step_a
            p_b_block += step_b
        if SWAP:
            acc = dot(b_block.T, a_block.T, acc, PRECISION)
        else:
            acc = dot(a_block, b_block, acc, PRECISION)

    if SPLIT > 1:
        acc, last = join(acc, p_parts, p_arrived, tile, part, SPLIT)
        if not last:
            return
    if SWAP:
        acc = acc.T
    acc = finish(acc, batch_first + z, z0, z1, rows, cols, m, n, seed, threshold, steps, ACTIVATION, DROPOUT, CUSTOM)
    p_c_block = p_c + offsets(strides_c, z0, z1, rows, cols)
    tl.store(p_c_block, acc.to(p_c.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


def by_descriptor(problem: Problem, device: Device) -> bool:
    """Whether slices come through tensor descriptors.

    Not for batch-invariant products: whether a single row is aligned is chance, and the way decides how it is
    multiplied.
    """
    return (
        device.has_tma
        and not problem.batch_invariant
        and "s" not in problem.layout
        and problem.alignment == ALIGNED
        and min(problem.m, problem.n, problem.k, problem.batch) > 0
        and problem.batch_dims != 2
    )


def supports(problem: Problem, device: Device) -> str | None:
    """Why this schedule cannot run the problem on the device, or ``None``."""
    if problem.dtype is torch.float64:
        return "its partial sums are float32; the tile schedule runs float64"
    if problem.scaled:
        return "it sums no codes"
    if (problem.alignment or ALIGNED) < 4:
        return f"operands are aligned to {problem.alignment} bytes; loads that narrow cannot be asynchronous"
    return common.refuses_dtype(problem, device)


def refuses(plan: Plan, problem: Problem, device: Device) -> str | None:
    """Why this plan cannot run the problem on the device, or ``None``."""
    if why := supports(problem, device) or common.refuses_plan(plan, problem, device, splits=True):
        return why
    loaded = (plan.block_m + plan.block_n) * plan.block_k * problem.dtype.itemsize // 4
    if device.backend == "cuda" and not device.has_tma and loaded > 64 * device.warp_size * plan.num_warps:
        # before Hopper operands pass through registers (Triton 3.9 spills 216 bytes at 80 of them)
        return f"slices of {plan.block_k} do not fit the registers of {plan.num_warps} warps"
    if common.sum_registers(plan, problem, device) > 64 and common.is_heavy(problem):
        tile = f"{plan.block_m}x{plan.block_n} tile"
        return f"the epilogue of a {tile} does not fit the registers of {plan.num_warps} warps"
    return common.refuses_split(plan, problem)


def resident(plan: Plan, problem: Problem, device: Device) -> int:
    """Programs that a multiprocessor holds at once, 1 or more."""
    return common.resident(plan, problem, device)


#: (block_m, block_n, block_k, warps, stages, swap) of operands of two bytes: a few rows of A, and enough slices in
#: flight to keep device memory busy from one program a multiprocessor
_TILES = (
    (16, 64, 256, 4, 4, True),
    (16, 64, 128, 4, 6, True),
    (16, 128, 128, 4, 5, True),
    (32, 64, 256, 4, 4, True),
    (32, 64, 128, 4, 6, True),
    (32, 128, 128, 4, 4, True),
    (16, 64, 128, 4, 5, False),
    (64, 64, 128, 4, 6, False),
    (64, 64, 64, 4, 8, False),
    (64, 128, 128, 4, 4, False),
    (64, 128, 64, 4, 6, False),
    (128, 64, 64, 4, 6, False),
    (128, 128, 64, 8, 5, False),
)

#: tiles from which on one program a tile is enough: two thirds of the H200's multiprocessors (measured there)
_ENOUGH = 2 / 3
#: m from which on the other schedules have everything that this one has without a split
_MANY_ROWS = 128


def candidates(problem: Problem, device: Device) -> list[Plan]:
    """Every plan worth trying: no split where tiles nearly fill the device, and no more parts than it can hold."""
    found = []
    for bm, bn, bk, warps, stages, swap in _TILES:
        plan = Plan(NAME, bm, bn, common.block_k(bk, problem, device), 1, warps, stages, swap=swap)
        plan = common.fit_stages(plan, problem, device)
        tiles = triton.cdiv(problem.m, bm) * triton.cdiv(problem.n, bn) * problem.batch
        if problem.m < _MANY_ROWS:
            found.append(plan)
        if tiles <= _ENOUGH * device.sms:
            found += [replace(plan, split_k=s) for s in common.splits(plan, problem, tiles, 4 * device.sms)]
    return [p for p in common.distinct(found, problem, (1,)) if refuses(p, problem, device) is None]


def prepare(plan: Plan, operands: Operands, device: Device) -> Call:
    """The launch of ``plan`` on ``operands``, which lie on ``device``."""
    problem = operands.problem
    descriptors = by_descriptor(problem, device)
    if descriptors and operands.a.shape[0] > 1:  # of the two batch dimensions, let the one of size 1 be the first
        operands = operands.swapped_batch()
    a, b, c = operands.a, operands.b, operands.c
    z0, z1, m, k = a.shape
    n = b.shape[-1]
    bm, bn, bk = plan.block_m, plan.block_n, plan.block_k
    batched = z0 * z1 > 1
    steps, seed, threshold, meta, writes = common.steps(operands, device, position=15)
    tiles = triton.cdiv(m, bm) * triton.cdiv(n, bn) * z0 * z1
    parts, arrived, held = common.shared_sum(plan, tiles, c.device, position=11)
    args = (
        operand_descriptor(a, bm, bk, batched) if descriptors else a,
        operand_descriptor(b, bk, bn, batched) if descriptors else b,
        c, m, n, k, operands.first, z1, a.stride(), b.stride(), c.stride(), parts, arrived, seed, threshold, steps,
    )  # fmt: skip
    constexprs = {
        "BLOCK_M": bm,
        "BLOCK_N": bn,
        "BLOCK_K": bk,
        "GROUP": plan.group_m,
        "ORDER": plan.order,
        "SPLIT": plan.split_k,
        "SWAP": plan.swap,
        "DESCRIPTORS": descriptors,
        "TRANSPOSED_A": letter(a) == "t",
        "TRANSPOSED_B": letter(b) == "t",
        "EVEN_K": k % bk == 0,
        "BATCHED": batched,
        **meta,
    }
    grid = (tiles * plan.split_k,)
    return Call(split_kernel, grid, args, constexprs, plan.num_warps, plan.num_stages, (2, *writes), held)


def signature(plan: Plan, problem: Problem, device: Device) -> Call:
    """The same launch over stand-ins, for offline compilation."""
    return prepare(plan, Operands.stand_in(problem), device)
