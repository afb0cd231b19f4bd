"""Random bits from (seed, element index), so that a dropout mask is never stored.

Philox4x32 with 7 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: the fewest rounds that
pass their test of randomness, BigCrush) makes four 32-bit words of a counter under the key ``seed``. An element is
kept when its word is at least p * 2^32, so the mask depends on nothing but the seed, p and the element's index: not on
layout, tile or schedule.

Which word an element takes is chosen so that a thread uses all four of a counter. In a tensor core's accumulator a
thread holds columns c, c + 1, c + 8 and c + 9 of every 16. So element i = 16 * q + r takes counter 4 * q + r // 2 % 4,
and of its words number 2 * (r // 8) + r % 2.
"""

import triton
import triton.language as tl

ROUNDS = tl.constexpr(7)
_M0, _M1 = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)  # multipliers
_W0, _W1 = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)  # what a round adds to the key


@triton.jit
def words(seed, counter):
    """The four 32-bit words of a 64-bit counter under a 64-bit seed."""
    counter = counter.to(tl.uint64)
    seed = seed.to(tl.uint64)
    c0 = counter.to(tl.uint32)
    c1 = (counter >> 32).to(tl.uint32)
    c2 = c0 * 0
    c3 = c2
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        # one 64-bit product for both halves: a wide multiply-add on the GPU, where high and low would be two
        p0 = c0.to(tl.uint64) * _M0
        p1 = c2.to(tl.uint64) * _M1
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = p1.to(tl.uint32)
        c3 = p0.to(tl.uint32)
        k0 += _W0
        k1 += _W1
    return c0, c1, c2, c3


@triton.jit
def keep_each(seed, index, threshold):
    """Whether each element (64-bit index) is kept: one Philox call an element, for any index."""
    w0, w1, w2, w3 = words(seed, (index >> 4 << 2) + (index >> 1 & 3))
    even = tl.where((index & 8) == 0, w0, w2)
    odd = tl.where((index & 8) == 0, w1, w3)
    return tl.where((index & 1) == 0, even, odd) >= threshold


@triton.jit
def dealt(block):
    """(rows, cols) as four (rows, cols / 16, 4) blocks: the elements of every 16 that take word 0, 1, 2, 3."""
    rows: tl.constexpr = block.shape[0]
    sixteens: tl.constexpr = block.shape[1] // 16
    # (.., half, pair, odd) -> (.., pair, half, odd): of a tensor core's accumulator, the last two lie in one thread
    even, odd = tl.split(tl.permute(tl.reshape(block, (rows, sixteens, 2, 4, 2)), (0, 1, 3, 2, 4)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def drop_sixteens(block, seed, index, threshold, scale):
    """``block`` (rows, cols) with each element scaled or 0: one Philox call for four elements.

    index: (rows, cols) 64-bit index of each element; a row starts at a multiple of 16 and has a multiple of 16.
    """
    x0, x1, x2, x3 = dealt(block)
    first, _, _, _ = dealt(index)
    # A zero that the compiler cannot see (a threshold is 2^32 at most), mixed with the block's own bits: it makes
    # Triton compute the words in the threads that hold the block, where it would compute them in others and exchange
    # them through shared memory (46 instructions an element for 29).
    zero = (threshold >> 33).to(tl.int32)
    hidden = x0.to(tl.float32).to(tl.int32, bitcast=True) & zero
    w0, w1, w2, w3 = words(seed, (first >> 4 << 2) + (first >> 1 & 3) + hidden)
    threshold = tl.minimum(threshold, 0xFFFFFFFF).to(tl.uint32)
    x0 = tl.where(w0 >= threshold, x0 * scale, 0.0)
    x1 = tl.where(w1 >= threshold, x1 * scale, 0.0)
    x2 = tl.where(w2 >= threshold, x2 * scale, 0.0)
    x3 = tl.where(w3 >= threshold, x3 * scale, 0.0)
    parts = tl.join(tl.join(x0, x2), tl.join(x1, x3))
    return tl.reshape(tl.permute(parts, (0, 1, 3, 2, 4)), (block.shape[0], block.shape[1]))
