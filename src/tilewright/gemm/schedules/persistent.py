"""Schedule ``persistent``: as many programs as the device holds, each walking tiles in one flat loop, through tensor
descriptors.

On a device with the bulk tensor copy engine (Hopper, Blackwell) a descriptor load is one instruction of one thread;
elsewhere Triton turns it into pointers. The loop over tiles and the loop over k are flattened into one, so that the
loads of the next tile are already on their way while the last one is finished: 5 to 6% on an H200.
"""

from __future__ import annotations

import itertools

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewright.gemm.operands import Operands, alignment, letter
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ALIGNED, Problem
from tilewright.gemm.schedules import common
from tilewright.lang.dot import dot
from tilewright.lang.epilogue import finish, offsets
from tilewright.lang.order import tile_of
from tilewright.lang.scales import dot_block
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call

NAME = "persistent"


@triton.jit
def load_block(desc, z, row, col, ROWS: tl.constexpr, COLS: tl.constexpr, TRANSPOSED: tl.constexpr,
               BATCHED: tl.constexpr):  # fmt: skip
    """The block (ROWS, COLS) at (row, col) of an operand whose descriptor has the unit stride last."""
    if BATCHED:
        if TRANSPOSED:
            block = tl.reshape(desc.load([z, col, row]), (COLS, ROWS)).T
        else:
            block = tl.reshape(desc.load([z, row, col]), (ROWS, COLS))
    else:
        if TRANSPOSED:
            block = desc.load([col, row]).T
        else:
            block = desc.load([row, col])
    return block


@triton.jit
def halves(block):
    """The left and the right half of the columns of a block."""
    return tl.split(tl.permute(tl.reshape(block, (block.shape[0], 2, block.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def columns(acc, PARTS: tl.constexpr):
    """``acc`` as PARTS blocks of neighbouring columns, so that the epilogue holds one at a time in registers."""
    if PARTS == 1:
        parts = (acc,)
    elif PARTS == 2:
        parts = halves(acc)
    else:
        left, right = halves(acc)
        parts = halves(left) + halves(right)
    return parts


@triton.jit(do_not_specialize=["m", "batch_first"])
def persistent_kernel(desc_a, desc_b, p_c, m, n, k, batch, batch_first, strides_c,
                      seed: tl.int64, threshold: tl.int64, steps,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
                      ORDER: tl.constexpr, BATCHED: tl.constexpr, TRANSPOSED_A: tl.constexpr,
                      TRANSPOSED_B: tl.constexpr, PARTS: tl.constexpr, STORE: tl.constexpr, ACC: tl.constexpr,
                      PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, DROPOUT: tl.constexpr,
                      CUSTOM: tl.constexpr):  # fmt: skip
    """C (batch, m, n) = epilogue(A (batch, m, k) @ B (batch, k, n)). Grid: programs that fit the device at once.

    The first of the two batch strides is always of a dimension of 1, and given as 0.
    STORE "descriptor": ``p_c`` is one; "pointer": ``p_c`` points to C, of any strides.
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    slices = tl.cdiv(k, BLOCK_K)
    WIDTH: tl.constexpr = BLOCK_N // PARTS
    for index in tl.range(tl.program_id(0), tiles * batch, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_of(index % tiles if BATCHED else index, tiles_m, tiles_n, GROUP, ORDER)
        z = index // tiles if BATCHED else index * 0
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
        for i in range(slices):
            a = load_block(desc_a, z, tile_m * BLOCK_M, i * BLOCK_K, BLOCK_M, BLOCK_K, TRANSPOSED_A, BATCHED)
            b = load_block(desc_b, z, i * BLOCK_K, tile_n * BLOCK_N, BLOCK_K, BLOCK_N, TRANSPOSED_B, BATCHED)
            if steps[8] is not None:
                rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
                cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
                acc = dot_block(a, b, acc, steps[8], steps[9], z, z, rows, cols, i, m, n)
            else:
                acc = dot(a, b, acc, PRECISION)
        parts = columns(acc, PARTS)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        for part in tl.static_range(PARTS):
            col = tile_n * BLOCK_N + part * WIDTH
            cols = col + tl.arange(0, WIDTH)
            out = finish(parts[part], batch_first + z, z, z, rows, cols, m, n, seed, threshold, steps, ACTIVATION,
                         DROPOUT, CUSTOM)  # fmt: skip
            if STORE == "descriptor":
                if BATCHED:
                    p_c.store([z, tile_m * BLOCK_M, col], tl.reshape(out.to(p_c.dtype), (1, BLOCK_M, WIDTH)))
                else:
                    p_c.store([tile_m * BLOCK_M, col], out.to(p_c.dtype))
            else:
                p_c_block = p_c + offsets(strides_c, z, z, rows, cols)
                tl.store(p_c_block, out.to(p_c.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


def supports(problem: Problem, device: Device) -> str | None:
    """Why this schedule cannot run the problem on the device, or ``None``."""
    if why := common.refuses_dtype(problem, device):
        return why
    if not device.has_tma:
        return f"{device.title} has no tensor copy engine; emulated descriptors spill, and the tile schedule is faster"
    if "s" in problem.layout:
        return "an operand has no dimension of stride 1, which a tensor descriptor needs"
    if problem.alignment != ALIGNED:
        return f"addresses and strides are multiples of {problem.alignment} bytes; tensor descriptors need {ALIGNED}"
    if problem.k == 0 or problem.m == 0 or problem.n == 0 or problem.batch == 0:
        return "a tensor descriptor cannot describe an empty operand"
    if problem.batch_dims == 2:
        return "the batch takes two strides; a tensor descriptor has room for one"
    if problem.dtype is torch.float64 or (problem.dtype is torch.float32 and problem.precision == "ieee"):
        return "it feeds tensor cores, and this precision has none; the tile schedule runs it"
    return None


def refuses(plan: Plan, problem: Problem, device: Device) -> str | None:
    """Why this plan cannot run the problem on the device, or ``None``."""
    return supports(problem, device) or common.refuses_plan(plan, problem, device, staged(plan, problem))


def resident(plan: Plan, problem: Problem, device: Device) -> int:
    """Programs that a multiprocessor holds at once, 1 or more."""
    return common.resident(plan, problem, device, staged(plan, problem))


def parts_of(plan: Plan, problem: Problem) -> int:
    """Pieces that the epilogue takes a tile in, so that what it holds beside the sum fits registers and shared memory:
    of 16,384 elements, or 1,024 a warp with a heavy epilogue (measured offline: no spills worth the name)."""
    piece = 1024 * plan.num_warps if common.is_heavy(problem) else 16384
    return max(1, min(4, plan.block_m * plan.block_n // piece, plan.block_n // 32))


def staged(plan: Plan, problem: Problem) -> int:
    """Bytes of shared memory through which a piece of C leaves, and what it loads or stores beside changes layout."""
    out = (problem.out_dtype or problem.dtype).itemsize
    piece = plan.block_m * plan.block_n // parts_of(plan, problem)
    return piece * out * (1 if common.EXCHANGED.isdisjoint(problem.epilogue) else 2)


#: (block_m, block_n, block_k, warps, stages) of operands of two bytes; ``common.block_k`` makes those of others
_TILES = (
    (128, 256, 64, 8, 4),
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 128, 64, 4, 4),
    (128, 128, 64, 4, 3),
    (128, 128, 128, 8, 3),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 6),
    (128, 64, 64, 4, 6),
    (64, 64, 128, 4, 5),
    (64, 64, 64, 4, 8),
)


#: the same where each slice has a sum of its own, which the program waits for: small enough that programs share a
#: multiprocessor, so that one multiplies while another adds
_SLICED_TILES = (
    (128, 128, 64, 8, 4),
    (128, 128, 64, 8, 3),
    (64, 256, 64, 8, 4),
    (64, 128, 64, 4, 4),
    (64, 128, 64, 4, 3),
    (64, 128, 64, 4, 2),
    (128, 64, 64, 4, 4),
    (128, 64, 64, 4, 3),
    (64, 64, 64, 4, 4),
)


#: tiles that are taken along m before the next column
GROUPS = (8, 16)


def candidates(problem: Problem, device: Device) -> list[Plan]:
    """Every plan worth trying; slices of k as long in bytes for every dtype."""
    wanted = _SLICED_TILES if common.sums_slices(problem, device) else _TILES
    tiles = [(bm, bn, common.block_k(bk, problem, device), warps, stages) for bm, bn, bk, warps, stages in wanted]
    made = (
        Plan(NAME, bm, bn, bk, group, warps, stages)
        for (bm, bn, bk, warps, stages), group in itertools.product(tiles, GROUPS)
    )
    fitted = [common.fit_stages(plan, problem, device, staged(plan, problem)) for plan in made]
    return [p for p in common.distinct(fitted, problem, GROUPS) if refuses(p, problem, device) is None]


def _descriptor(x: torch.Tensor, rows: int, cols: int, batched: bool) -> TensorDescriptor:
    """A descriptor of a (1, z, rows, cols) view whose last stride is 1, in blocks of (rows, cols)."""
    view = x[0] if batched else x[0, 0]
    block = [1, rows, cols] if batched else [rows, cols]
    strides = list(view.stride())
    # a dimension of one element is never stepped over, and torch lets it have any stride: give it a legal one
    strides[-1] = 1
    for d in range(len(strides) - 1):
        if view.shape[d] == 1:
            strides[d] = common.legal_stride(view)
    return TensorDescriptor(view, list(view.shape), strides, block)


def operand_descriptor(x: torch.Tensor, rows: int, cols: int, batched: bool) -> TensorDescriptor:
    """What :func:`load_block` takes for blocks (rows, cols) of a (1, z, .., ..) operand: its unit stride comes last."""
    if letter(x) == "t":
        return _descriptor(x.transpose(-1, -2), cols, rows, batched)
    return _descriptor(x, rows, cols, batched)


def prepare(plan: Plan, operands: Operands, device: Device) -> Call:
    """The launch of ``plan`` on ``operands``, which lie on ``device``."""
    a, b, c = operands.a, operands.b, operands.c
    z0, z1, m, k = a.shape
    if z0 > 1:  # one of the two batch dimensions is 1: let it be the first
        operands = operands.swapped_batch()
        a, b, c = operands.a, operands.b, operands.c
        z0, z1 = z1, z0
    n = b.shape[-1]
    batched = z1 > 1
    bm, bn, bk = plan.block_m, plan.block_n, plan.block_k
    desc_a, desc_b = operand_descriptor(a, bm, bk, batched), operand_descriptor(b, bk, bn, batched)
    problem = operands.problem
    parts = parts_of(plan, problem)
    by_descriptor = letter(c) == "n" and alignment(c) == ALIGNED
    out = _descriptor(c, bm, bn // parts, batched) if by_descriptor else c
    steps, seed, threshold, meta, writes = common.steps(operands, device, position=11)
    tiles = triton.cdiv(m, bm) * triton.cdiv(n, bn) * z1
    args = (desc_a, desc_b, out, m, n, k, z1, operands.first, c.stride(), seed, threshold, steps)
    constexprs = {
        "BLOCK_M": bm,
        "BLOCK_N": bn,
        "BLOCK_K": bk,
        "GROUP": plan.group_m,
        "ORDER": plan.order,
        "BATCHED": batched,
        "TRANSPOSED_A": letter(a) == "t",
        "TRANSPOSED_B": letter(b) == "t",
        "PARTS": parts,
        "STORE": "descriptor" if by_descriptor else "pointer",
        **meta,
    }
    programs = min(tiles, common.programs_at_once(plan, problem, device, staged(plan, problem)))
    return Call(persistent_kernel, (programs,), args, constexprs, plan.num_warps, plan.num_stages, (2, *writes))


def signature(plan: Plan, problem: Problem, device: Device) -> Call:
    """The same launch over stand-ins, for offline compilation."""
    return prepare(plan, Operands.stand_in(problem), device)
