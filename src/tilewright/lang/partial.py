"""Sums that several programs share: each leaves its part, and the one that comes last adds all of them in one order.

The counter says who is last and nothing else: whoever that is adds the same numbers in the same order, so that the bits
do not depend on timing. It is zero before a launch, and whoever is last sets it to zero again.
"""

import triton
import triton.language as tl


@triton.jit
def share(slices, part, SPLIT: tl.constexpr):
    """(first, end) of the slices of a part; the first parts take one more where they do not divide."""
    each = slices // SPLIT
    more = slices % SPLIT
    first = part * each + tl.minimum(part, more)
    return first, first + each + (part < more).to(tl.int32)


@triton.jit
def join(acc, p_parts, p_arrived, tile, part, SPLIT: tl.constexpr):
    """(the sum of the SPLIT parts of a block, whether this program came last and has it).

    acc: this program's part, float32. p_parts has room for SPLIT blocks for each tile, p_arrived a counter.
    """
    SIZE: tl.constexpr = acc.shape[0] * acc.shape[1]
    inside = tl.arange(0, acc.shape[0])[:, None] * acc.shape[1] + tl.arange(0, acc.shape[1])[None, :]
    p_block = p_parts + tile.to(tl.int64) * (SPLIT * SIZE) + inside
    tl.store(p_block + part * SIZE, acc)
    tl.debug_barrier()  # every thread's stores come before the one thread's announcement of them
    last = tl.atomic_add(p_arrived + tile, 1, sem="acq_rel", scope="gpu") == SPLIT - 1
    if last:
        # past the first-level cache, which no other multiprocessor writes to
        acc = tl.load(p_block, cache_modifier=".cg")
        for other in tl.static_range(1, SPLIT):
            acc += tl.load(p_block + other * SIZE, cache_modifier=".cg")
        tl.store(p_arrived + tile, 0)
    return acc, last
