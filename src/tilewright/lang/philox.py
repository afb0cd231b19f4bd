"""Random bits from (seed, element index), so that a dropout mask is never stored.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): element ``i`` takes word
``i % 4`` of the counter ``i // 4`` under the key ``seed``. An element is kept when its word is at least p * 2^32, so
the mask depends on nothing but the seed, p and the element's index: not on layout, tile or schedule.
"""

import triton
import triton.language as tl


@triton.jit
def words(seed, counter):
    """The four 32-bit words of a 64-bit counter."""
    counter = counter.to(tl.uint64)
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    zero = low * 0
    return tl.philox(seed, low, high, zero, zero)


@triton.jit
def keep_each(seed, index, threshold):
    """Whether each element (64-bit index) is kept: one Philox call an element, for any index."""
    w0, w1, w2, w3 = words(seed, index >> 2)
    lane = index & 3
    word = tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))
    return word >= threshold


@triton.jit
def keep_quads(seed, first, threshold):
    """Whether elements 4 * q .. 4 * q + 3 are kept, for quads q = ``first`` (rows, quads): one Philox call for four.

    Returns a block (rows, 4 * quads).
    """
    w0, w1, w2, w3 = words(seed, first)
    even = tl.join((w0 >= threshold).to(tl.int8), (w2 >= threshold).to(tl.int8))
    odd = tl.join((w1 >= threshold).to(tl.int8), (w3 >= threshold).to(tl.int8))
    # join adds a last dimension: [.., (w0, w2)] with [.., (w1, w3)] reads w0 w1 w2 w3 once flattened
    return tl.reshape(tl.join(even, odd), (first.shape[0], 4 * first.shape[1])) != 0
