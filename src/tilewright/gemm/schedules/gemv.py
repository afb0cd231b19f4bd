"""Schedule ``gemv``: a matrix times a vector, or a few of them, without tensor cores. For products bound by memory.

A tensor core takes 16 rows or so at a time; with one row all it could do is wait. Here a program reads a few rows of
weights in wide loads, multiplies them with the vector element by element, and keeps a running sum for each place of a
slice of k. At the end those are added as a tree: an element has k / BLOCK_K roundings and the tree's depth behind it,
where a chain would have k, so that float32 comes out more accurate than from a tile.

Where the weights lie k-major (B of "nt") a slice is a few rows, long in k; where they lie row-major (B of "nn") it is
many columns, short in k. One row of A, or one column of B: the block's side of 1 says which.
"""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from tilewright.gemm.operands import Operands
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.schedules import common
from tilewright.lang.epilogue import finish, offsets
from tilewright.lang.order import tile_of
from tilewright.lang.partial import join, share
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call

NAME = "gemv"


@triton.jit(do_not_specialize=["m", "batch_first"])
def gemv_kernel(p_a, p_b, p_c, m, n, k, batch_first, batch_inner, strides_a, strides_b, strides_c, p_parts, p_arrived,
                seed: tl.int64, threshold: tl.int64, steps,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
                ORDER: tl.constexpr, SPLIT: tl.constexpr, EVEN_K: tl.constexpr, BATCHED: tl.constexpr,
                ACC: tl.constexpr, ACTIVATION: tl.constexpr, DROPOUT: tl.constexpr, CUSTOM: tl.constexpr):  # fmt: skip
    """C (z0, z1, m, n) = epilogue(A (z0, z1, m, k) @ B (z0, z1, k, n)). Grid: parts of k, each with all tiles of C."""
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
    ks = tl.arange(0, BLOCK_K)
    first, end = share(tl.cdiv(k, BLOCK_K), part, SPLIT)

    # (rows, 1, slice of k) and (1, columns, slice of k)
    step_a = tl.full((), BLOCK_K, tl.int64) * strides_a[3]
    step_b = tl.full((), BLOCK_K, tl.int64) * strides_b[2]
    turned = (strides_b[0], strides_b[1], strides_b[3], strides_b[2])
    p_a_slice = p_a + offsets(strides_a, z0, z1, rows, ks)[:, None, :] + first * step_a
    p_b_slice = p_b + offsets(turned, z0, z1, cols, ks)[None, :, :] + first * step_b
    m_a = (rows < m)[:, None, None]
    m_b = (cols < n)[None, :, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N, BLOCK_K), dtype=ACC)
    for i in range(first, end):
        if EVEN_K:
            a = tl.load(p_a_slice, mask=m_a, other=0.0)
            b = tl.load(p_b_slice, mask=m_b, other=0.0)
        else:
            m_k = (ks < k - i * BLOCK_K)[None, None, :]
            a = tl.load(p_a_slice, mask=m_a & m_k, other=0.0)
            b = tl.load(p_b_slice, mask=m_b & m_k, other=0.0)
        sums += a.to(ACC) * b.to(ACC)
        p_a_slice += step_a
        p_b_slice += step_b

    acc = tl.sum(sums, axis=2)
    if SPLIT > 1:
        acc, last = join(acc, p_parts, p_arrived, tile, part, SPLIT)
        if not last:
            return
    acc = finish(acc, batch_first + z, z0, z1, rows, cols, m, n, seed, threshold, steps, ACTIVATION, DROPOUT, CUSTOM)
    p_c_block = p_c + offsets(strides_c, z0, z1, rows, cols)
    tl.store(p_c_block, acc.to(p_c.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


#: rows of A, or columns of B, that are few
MOST_VECTORS = 8
#: running sums of a thread, at the most: beside them it holds as much again of the operands
_MOST_SUMS = 64


def supports(problem: Problem, device: Device) -> str | None:
    """Why this schedule cannot run the problem on the device, or ``None``."""
    if problem.batch_invariant:
        return "it is for few rows, and a batch-invariant product runs the same whatever their number"
    if problem.scaled:
        return "it sums no codes"
    if min(problem.m, problem.n) > MOST_VECTORS:
        return f"it is for {MOST_VECTORS} rows of A or columns of B at the most"
    return common.refuses_dtype(problem, device)


def refuses(plan: Plan, problem: Problem, device: Device) -> str | None:
    """Why this plan cannot run the problem on the device, or ``None``."""
    if why := supports(problem, device):
        return why
    if plan.swap:
        return f"the {NAME} schedule does not swap its operands; a block of one column does what that is for"
    threads = device.warp_size * plan.num_warps
    if threads > 1024:
        return f"{plan.num_warps} warps are more than a program may have"
    if plan.block_m * plan.block_n * plan.block_k > _MOST_SUMS * threads:
        block = f"{plan.block_m}x{plan.block_n}x{plan.block_k}"
        return f"the sums of a block of {block} do not fit the registers of {plan.num_warps} warps"
    return common.refuses_grid(plan, problem) or common.refuses_split(plan, problem)


def resident(plan: Plan, problem: Problem, device: Device) -> int:
    """Programs that a multiprocessor holds at once, 1 or more: sums, operands on their way, and 16 registers more."""
    threads = device.warp_size * plan.num_warps
    sums = plan.block_m * plan.block_n * plan.block_k * problem.accumulator.itemsize // 4
    operands = (plan.block_m + plan.block_n) * plan.block_k * problem.dtype.itemsize // 4
    each = min(255, (sums + operands) // threads + 16)
    fit = min(device.registers_per_sm // (each * threads), device.threads_per_sm // threads, device.blocks_per_sm)
    return max(1, fit)


#: (vectors, rows of weights, block_k, warps) of weights that lie k-major, by bytes of an element
_LONG = {
    2: ((4, 1024, 4), (8, 512, 8), (8, 1024, 8), (2, 2048, 4), (4, 512, 4), (8, 256, 8), (16, 256, 4)),
    4: ((4, 512, 4), (8, 256, 8), (8, 512, 8), (2, 1024, 4), (4, 256, 4), (8, 128, 8), (16, 128, 4)),
    8: ((4, 256, 4), (8, 128, 8), (8, 256, 8), (2, 512, 4), (4, 128, 4), (8, 64, 8), (16, 64, 4)),
}
#: (columns of weights, block_k, warps) of weights that lie row-major: rows of 64 bytes or more
_WIDE = ((64, 64, 4), (32, 128, 4), (128, 32, 4), (64, 128, 8), (32, 256, 8))


def candidates(problem: Problem, device: Device) -> list[Plan]:
    """Every plan worth trying: blocks long in the weights' contiguous dimension, and programs to fill the device."""
    one_column = problem.n < problem.m
    vectors, outer = (problem.n, problem.m) if one_column else (problem.m, problem.n)
    k_major = problem.layout[0] != "t" if one_column else problem.layout[1] != "n"
    found = []
    for wide, block_k, warps in _LONG[problem.dtype.itemsize] if k_major else _WIDE:
        few = min(MOST_VECTORS, triton.next_power_of_2(max(1, vectors)))
        block_m, block_n = (wide, few) if one_column else (few, wide)
        plan = Plan(NAME, block_m, block_n, block_k, 1, warps, 1)
        tiles = triton.cdiv(outer, wide) * problem.batch
        found += [replace(plan, split_k=s) for s in (1, *common.splits(plan, problem, tiles, 8 * device.sms))]
    return [p for p in common.distinct(found, problem, (1,)) if refuses(p, problem, device) is None]


def prepare(plan: Plan, operands: Operands, device: Device) -> Call:
    """The launch of ``plan`` on ``operands``, which lie on ``device``."""
    a, b, c = operands.a, operands.b, operands.c
    z0, z1, m, k = a.shape
    n = b.shape[-1]
    steps, seed, threshold, meta, writes = common.steps(operands, device, position=15)
    tiles = triton.cdiv(m, plan.block_m) * triton.cdiv(n, plan.block_n) * z0 * z1
    parts, arrived, held = common.shared_sum(plan, tiles, c.device, position=11)
    args = (
        a, b, c, m, n, k, operands.first, z1, a.stride(), b.stride(), c.stride(), parts, arrived, seed, threshold,
        steps,
    )  # fmt: skip
    del meta["PRECISION"]  # float32 is multiplied as it is: that costs nothing here
    if plan.block_n < 16:
        meta["DROPOUT"] = min(meta["DROPOUT"], 1)  # a block of so few columns starts inside a sixteen
    constexprs = {
        "BLOCK_M": plan.block_m,
        "BLOCK_N": plan.block_n,
        "BLOCK_K": plan.block_k,
        "GROUP": plan.group_m,
        "ORDER": plan.order,
        "SPLIT": plan.split_k,
        "EVEN_K": k % plan.block_k == 0,
        "BATCHED": z0 * z1 > 1,
        **meta,
    }
    grid = (tiles * plan.split_k,)
    return Call(gemv_kernel, grid, args, constexprs, plan.num_warps, plan.num_stages, (2, *writes), held)


def signature(plan: Plan, problem: Problem, device: Device) -> Call:
    """The same launch over stand-ins, for offline compilation."""
    return prepare(plan, Operands.stand_in(problem), device)
