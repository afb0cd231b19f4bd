"""Schedule ``hopper``: warps with different jobs, in Gluon, on sm_90.

One warp copies slices of A and B into a ring in shared memory and does nothing else; two groups of four warps (or one)
multiply them, each its own rows of the tile, and take the tile out. Copies of the next tile are under way while a tile
leaves, and the multiplying warps have the registers that the copying one gives up. Programs stay, as many as the
device has multiprocessors, and walk the tiles.

The kernel can also deal tiles out slice by slice; schedule ``stream`` is that.

Gluon's interface moves between Triton versions: on one that this file was not compiled with, the schedule refuses and
``persistent`` takes its place.
"""

from __future__ import annotations

import itertools

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilewright.gemm.operands import Operands, alignment, letter
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ALIGNED, Problem
from tilewright.gemm.schedules import common, persistent
from tilewright.lang.epilogue import finish, offsets
from tilewright.lang.order import tile_of
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call
from tilewright.runtime.mode import INTERPRETED

NAME = "hopper"
#: versions of Triton whose Gluon this file was compiled with: from the first up to, not including, the second
TRITON = ((3, 6), (3, 10))


@gluon.jit
def segment(index, tiles, slices, streamed, share):
    """(tile, first slice, end) of the ``index``-th piece of work of this program.

    The first ``streamed`` tiles are one row of slices, of which each program has ``share``. A program starts with the
    tile after its first one and takes the first one last: of that one it has the end, whose beginning is then long done
    by the program before.
    """
    program = gl.program_id(0)
    low = gl.minimum(program * share, streamed * slices)
    high = gl.minimum(low + share, streamed * slices)
    first = low // slices
    count = gl.cdiv(high, slices) - first
    tile = streamed + program + (index - count) * gl.num_programs(0)
    begin = tile * 0
    end = begin + slices
    if index < count:
        tile = first + (index + 1) % count
        begin = gl.maximum(low - tile * slices, 0)
        end = gl.minimum(high - tile * slices, slices)
    return tile, begin, end


@gluon.jit
def segments(tiles, slices, streamed, share):
    """How many pieces of work this program has."""
    program = gl.program_id(0)
    low = gl.minimum(program * share, streamed * slices)
    high = gl.minimum(low + share, streamed * slices)
    whole = gl.cdiv(gl.maximum(tiles - streamed - program, 0), gl.num_programs(0))
    return gl.cdiv(high, slices) - low // slices + whole


@gluon.jit
def produce(desc_a, desc_b, ring_a, ring_b, full, empty, m, n, k, streamed, share,
            BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
            ORDER: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, TRANSPOSED_A: gl.constexpr,
            TRANSPOSED_B: gl.constexpr):  # fmt: skip
    """The copying warp: every slice of every piece of work into the ring, a stage when its last reader has left."""
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    slices = gl.cdiv(k, BLOCK_K)
    ROWS: gl.constexpr = BLOCK_M // CONSUMERS
    stage = 0
    phase = 1
    for index in range(segments(tiles_m * tiles_n, slices, streamed, share)):
        tile, begin, end = segment(index, tiles_m * tiles_n, slices, streamed, share)
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP, ORDER)
        for i in range(begin, end):
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(ready, CONSUMERS * desc_a.block_type.nbytes + desc_b.block_type.nbytes)
            for part in gl.static_range(CONSUMERS):
                row = tile_m * BLOCK_M + part * ROWS
                if TRANSPOSED_A:
                    at = [i * BLOCK_K, row]
                else:
                    at = [row, i * BLOCK_K]
                tma.async_copy_global_to_shared(desc_a, at, ready, ring_a.index(stage * CONSUMERS + part))
            if TRANSPOSED_B:
                at_b = [tile_n * BLOCK_N, i * BLOCK_K]
            else:
                at_b = [i * BLOCK_K, tile_n * BLOCK_N]
            tma.async_copy_global_to_shared(desc_b, at_b, ready, ring_b.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.constexpr_function
def part_layout(rows, cols):
    """Where the tensor cores leave the elements of a (rows, cols) part of a sum: 64 rows over four warps."""
    across = [[0, 8 << i] for i in range((cols // 8).bit_length() - 1)]
    down = [[64 << i, 0] for i in range((rows // 64).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [8, 0], *across, *down],
        lane_bases=[[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[rows, cols],
    )


@gluon.jit
def columns(acc, PARTS: gl.constexpr):
    """``acc`` as PARTS blocks of neighbouring columns. No element changes its thread."""
    parts = (acc,)
    for _ in gl.static_range(PARTS.bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts)):
            part = parts[i]
            halves += part.reshape(part.shape[0], 2, part.shape[1] // 2).permute(0, 2, 1).split()
        parts = halves  # type: ignore[assignment]
    # the layout has a simpler name, which an epilogue that deals a part out and joins it again arrives at as well
    named = ()
    LAYOUT: gl.constexpr = part_layout(acc.shape[0], acc.shape[1] // PARTS)
    for i in gl.static_range(PARTS):
        named += (gl.convert_layout(parts[i], LAYOUT, assert_trivial=True),)  # type: ignore[assignment]
    return named


@gluon.jit
def leave(acc, p_partial, p_flag, WIDTH: gl.constexpr, PARTS: gl.constexpr):
    """Put a sum of a part of k into scratch memory, and say that it is there."""
    parts = columns(acc, PARTS)
    for part in gl.static_range(PARTS):
        x = parts[part]
        rows = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, x.type.layout))
        cols = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, x.type.layout)) + part * x.shape[1]
        gl.store(p_partial + rows[:, None] * WIDTH + cols[None, :], x, cache_modifier=".cg")
    tl.debug_barrier()  # the flag is one thread's, the sums are all threads'
    gl.atomic_xchg(p_flag, 1, sem="release", scope="gpu")


@gluon.jit
def consume(p_c, p_partials, p_flags, ring_a, ring_b, out, full, empty, m, n, k, streamed, share, strides_c, seed,
            threshold, steps, MINE: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
            BLOCK_K: gl.constexpr, GROUP: gl.constexpr, ORDER: gl.constexpr, STAGES: gl.constexpr,
            CONSUMERS: gl.constexpr, TRANSPOSED_A: gl.constexpr, TRANSPOSED_B: gl.constexpr, PARTS: gl.constexpr,
            STREAM: gl.constexpr, STORE: gl.constexpr, ACTIVATION: gl.constexpr, DROPOUT: gl.constexpr):  # fmt: skip
    """Four multiplying warps: rows MINE * ROWS and on of every tile."""
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    slices = gl.cdiv(k, BLOCK_K)
    ROWS: gl.constexpr = BLOCK_M // CONSUMERS
    PART: gl.constexpr = BLOCK_N // PARTS
    BITS: gl.constexpr = ring_a.dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 256 // BITS]
    )
    program = gl.program_id(0)
    acc = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
    stage = 0
    phase = 0
    for index in range(segments(tiles_m * tiles_n, slices, streamed, share)):
        tile, begin, end = segment(index, tiles_m * tiles_n, slices, streamed, share)
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP, ORDER)
        before = stage + 0  # a plain copy would be taken for a value that the loop does not change
        for i in range(begin, end):
            mbarrier.wait(full.index(stage), phase)
            a = ring_a.index(stage * CONSUMERS + MINE)
            b = ring_b.index(stage)
            if TRANSPOSED_A:
                a = a.permute((1, 0))
            if TRANSPOSED_B:
                b = b.permute((1, 0))
            acc = warpgroup_mma(a, b, acc, use_acc=i > begin, is_async=True)
            # the product before this one has read its stage
            acc = warpgroup_mma_wait(1, (acc,))
            mbarrier.arrive(empty.index(before), count=1, pred=i > begin)
            before = stage
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
        acc = warpgroup_mma_wait(0, (acc,))
        mbarrier.arrive(empty.index(before), count=1)

        if STREAM and end < slices:
            leave(acc, p_partials + (program * CONSUMERS + MINE) * ROWS * BLOCK_N, p_flags + program * CONSUMERS + MINE,
                  BLOCK_N, PARTS)  # fmt: skip
        else:
            owner = program
            if STREAM and begin > 0:
                owner = tile * slices // share  # the program that has the tile's first slice
                for other in range(owner, program):
                    flag = p_flags + other * CONSUMERS + MINE
                    while gl.atomic_cas(flag, 1, 0, sem="acquire", scope="gpu") == 0:
                        pass
                tl.debug_barrier()
            row = tile_m * BLOCK_M + MINE * ROWS
            parts = columns(acc, PARTS)
            for part in gl.static_range(PARTS):
                x = parts[part]
                col = tile_n * BLOCK_N + part * PART
                rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, x.type.layout))
                cols = gl.arange(0, PART, layout=gl.SliceLayout(0, x.type.layout))
                if STREAM:
                    inside = rows[:, None] * BLOCK_N + (cols + part * PART)[None, :]
                    for other in range(owner, program):
                        p_partial = p_partials + (other * CONSUMERS + MINE) * ROWS * BLOCK_N
                        x += gl.load(p_partial + inside, cache_modifier=".cg")
                rows += row
                cols += col
                zero = tile * 0
                x = finish(x, zero, zero, zero, rows, cols, m, n, seed, threshold, steps, ACTIVATION, DROPOUT, None)
                if STORE == "descriptor":
                    leaving = out.index(MINE * 2 + part % 2)
                    tma.store_wait(pendings=1)
                    leaving.store(x.to(p_c.dtype))
                    fence_async_shared()
                    tma.async_copy_shared_to_global(p_c, [row, col], leaving)
                else:
                    p_block = p_c + offsets(strides_c, zero, zero, rows, cols)
                    gl.store(p_block, x.to(p_c.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))
    if STORE == "descriptor":
        tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["m", "streamed", "share"])
def hopper_kernel(desc_a, desc_b, p_c, p_partials, p_flags, m, n, k, streamed, share, strides_c,
                  seed: gl.int64, threshold: gl.int64, steps,
                  BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
                  ORDER: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, TRANSPOSED_A: gl.constexpr,
                  TRANSPOSED_B: gl.constexpr, PARTS: gl.constexpr, STREAM: gl.constexpr, STORE: gl.constexpr,
                  ACTIVATION: gl.constexpr, DROPOUT: gl.constexpr):  # fmt: skip
    """C (m, n) = epilogue(A (m, k) @ B (k, n)). Grid: programs that fit the device at once."""
    ring_a = gl.allocate_shared_memory(desc_a.dtype, [STAGES * CONSUMERS] + desc_a.block_type.shape, desc_a.layout)
    ring_b = gl.allocate_shared_memory(desc_b.dtype, [STAGES] + desc_b.block_type.shape, desc_b.layout)
    if STORE == "descriptor":
        out = gl.allocate_shared_memory(p_c.dtype, [CONSUMERS * 2] + p_c.block_type.shape, p_c.layout)
    else:
        out = ring_b
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=CONSUMERS)
    # strings cannot be in a tuple with a name, so the arguments are spelt out for each
    if CONSUMERS == 1:
        gl.warp_specialize([
            (consume, (p_c, p_partials, p_flags, ring_a, ring_b, out, full, empty, m, n, k, streamed, share, strides_c,
                       seed, threshold, steps, 0, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, ORDER, STAGES, CONSUMERS,
                       TRANSPOSED_A, TRANSPOSED_B, PARTS, STREAM, STORE, ACTIVATION, DROPOUT)),
            (produce, (desc_a, desc_b, ring_a, ring_b, full, empty, m, n, k, streamed, share, BLOCK_M, BLOCK_N, BLOCK_K,
                       GROUP, ORDER, STAGES, CONSUMERS, TRANSPOSED_A, TRANSPOSED_B)),
        ], [1], [24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (p_c, p_partials, p_flags, ring_a, ring_b, out, full, empty, m, n, k, streamed, share, strides_c,
                       seed, threshold, steps, 0, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, ORDER, STAGES, CONSUMERS,
                       TRANSPOSED_A, TRANSPOSED_B, PARTS, STREAM, STORE, ACTIVATION, DROPOUT)),
            (consume, (p_c, p_partials, p_flags, ring_a, ring_b, out, full, empty, m, n, k, streamed, share, strides_c,
                       seed, threshold, steps, 1, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, ORDER, STAGES, CONSUMERS,
                       TRANSPOSED_A, TRANSPOSED_B, PARTS, STREAM, STORE, ACTIVATION, DROPOUT)),
            (produce, (desc_a, desc_b, ring_a, ring_b, full, empty, m, n, k, streamed, share, BLOCK_M, BLOCK_N, BLOCK_K,
                       GROUP, ORDER, STAGES, CONSUMERS, TRANSPOSED_A, TRANSPOSED_B)),
        ], [4, 1], [240, 24])  # fmt: skip


_GLUON = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float32: gl.float32,
}
#: elements of a part of C, which leaves at a time: 32 of each thread. An epilogue has room for that many beside the sum
PART = 64 * 64


def consumers(plan: Plan) -> int:
    """Groups of four multiplying warps."""
    return plan.num_warps // 4


def supports(problem: Problem, device: Device) -> str | None:
    """Why this schedule cannot run the problem on the device, or ``None``."""
    if device.backend != "cuda" or device.arch != 90:
        return f"{device.title} is no Hopper GPU"
    if INTERPRETED:
        return "Triton's interpreter does not run Gluon"
    version = tuple(map(int, triton.__version__.split(".")[:2]))
    if not TRITON[0] <= version < TRITON[1]:
        return f"it was not compiled with the Gluon of Triton {triton.__version__}"
    if problem.dtype not in (torch.float16, torch.bfloat16) or problem.out_dtype not in _GLUON:
        return f"it multiplies float16 and bfloat16, not {str(problem.dtype).removeprefix('torch.')}"
    if problem.batch != 1:
        return "it multiplies two matrices, not a batch of them"
    if "custom" in problem.epilogue:
        return "the epilogue is a function in Triton, which may make blocks whose layout Gluon would have to be told"
    return persistent.supports(problem, device)


def refuses(plan: Plan, problem: Problem, device: Device) -> str | None:
    """Why this plan cannot run the problem on the device, or ``None``."""
    if why := supports(problem, device) or common.refuses_plan(plan, problem, device, staged(plan, problem)):
        return why
    if plan.num_warps not in (4, 8):
        return f"{plan.num_warps} warps are not one or two groups of four that multiply"
    rows = plan.block_m // consumers(plan)
    if rows not in (64, 128):
        return f"a group of four warps takes 64 or 128 rows, and here it would be {rows}"
    if not 64 <= plan.block_n <= 256:
        return f"a tile is 64 to 256 columns wide, not {plan.block_n}"
    if plan.block_k * problem.dtype.itemsize < 128:
        return f"a slice of k is 128 bytes or more, and here it would be {plan.block_k * problem.dtype.itemsize}"
    if plan.num_stages < 2:
        return "copies and products overlap, which takes two stages or more"
    return None


def staged(plan: Plan, problem: Problem) -> int:
    """Bytes of shared memory through which C leaves: two parts for each group of warps."""
    return 2 * consumers(plan) * PART * (problem.out_dtype or problem.dtype).itemsize


def resident(plan: Plan, problem: Problem, device: Device) -> int:
    """Programs that a multiprocessor holds at once: one, whose ring takes its shared memory."""
    return 1


#: (block_m, block_n, block_k, warps, stages) of operands of two bytes
_TILES = (
    (128, 256, 64, 8, 4),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 8, 6),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 7),
)
#: tiles that are taken along m before the next column
GROUPS = (4, 8, 16)


def tiled(name: str, problem: Problem, device: Device) -> list[Plan]:
    """The tiles and orders worth trying under the schedule of that name."""
    tiles = [(bm, bn, common.block_k(bk, problem, device), warps, stages) for bm, bn, bk, warps, stages in _TILES]
    made = (
        Plan(name, bm, bn, bk, group, warps, stages)
        for (bm, bn, bk, warps, stages), group in itertools.product(tiles, GROUPS)
    )
    fitted = [common.fit_stages(plan, problem, device, staged(plan, problem)) for plan in made]
    return common.distinct(fitted, problem, GROUPS)


def candidates(problem: Problem, device: Device) -> list[Plan]:
    """Every plan worth trying."""
    return [p for p in tiled(NAME, problem, device) if refuses(p, problem, device) is None]


def _descriptor(x: torch.Tensor, rows: int, cols: int, transposed: bool) -> TensorDescriptor:
    """A descriptor of the matrix of a (1, 1, rows, cols) view, in blocks of (rows, cols), turned where it is."""
    view = x[0, 0].t() if transposed else x[0, 0]
    block = [cols, rows] if transposed else [rows, cols]
    strides = [common.legal_stride(view) if view.shape[0] == 1 else view.stride(0), 1]
    layout = gl.NVMMASharedLayout.get_default_for(block, _GLUON[x.dtype])
    return TensorDescriptor(view, list(view.shape), strides, block, layout)


def prepare(plan: Plan, operands: Operands, device: Device) -> Call:
    """The launch of ``plan`` on ``operands``, which lie on ``device``."""
    tiles = triton.cdiv(operands.a.shape[-2], plan.block_m) * triton.cdiv(operands.b.shape[-1], plan.block_n)
    return launch_of(plan, operands, device, min(tiles, device.sms))


def launch_of(
    plan: Plan,
    operands: Operands,
    device: Device,
    programs: int,
    streamed: int = 0,
    share: int = 1,
    memory: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Call:
    """The launch with the first ``streamed`` tiles dealt out in shares of ``share`` slices through scratch memory."""
    a, b, c = operands.a, operands.b, operands.c
    m, k = a.shape[-2:]
    n = b.shape[-1]
    transposed_a, transposed_b = letter(a) == "t", letter(b) == "t"
    bm, bn, bk = plan.block_m, plan.block_n, plan.block_k
    rows = bm // consumers(plan)
    by_descriptor = letter(c) == "n" and alignment(c) == ALIGNED
    steps, seed, threshold, meta, writes = common.steps(operands, device, position=13)
    partials, flags = memory or (None, None)
    args = (
        _descriptor(a, rows, bk, transposed_a), _descriptor(b, bk, bn, transposed_b),
        _descriptor(c, rows, PART // rows, False) if by_descriptor else c,
        partials, flags, m, n, k, streamed, share, c.stride(), seed, threshold, steps,
    )  # fmt: skip
    constexprs = {
        "BLOCK_M": bm,
        "BLOCK_N": bn,
        "BLOCK_K": bk,
        "GROUP": plan.group_m,
        "ORDER": plan.order,
        "STAGES": plan.num_stages,
        "CONSUMERS": consumers(plan),
        "TRANSPOSED_A": transposed_a,
        "TRANSPOSED_B": transposed_b,
        "PARTS": bn * rows // PART,
        "STREAM": memory is not None,
        "STORE": "descriptor" if by_descriptor else "pointer",
        "ACTIVATION": meta["ACTIVATION"],
        "DROPOUT": meta["DROPOUT"],
    }
    used = None if memory is None else (3, programs * bm * bn, 4, programs * consumers(plan))
    # the launch's own warps are the first group; the others are added by the kernel
    return Call(hopper_kernel, (programs,), args, constexprs, 4, plan.num_stages, (2, *writes), used)


def signature(plan: Plan, problem: Problem, device: Device) -> Call:
    """The same launch over stand-ins, for offline compilation."""
    return prepare(plan, Operands.stand_in(problem), device)
