"""Random words: the published answers, and one mask whichever way it is made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from support import DEVICE, kept, philox
from tilewright.gemm import reference
from tilewright.lang.philox import drop_sixteens, keep_each, words

#: counter, key, and the words after 7 and after 10 rounds, as the authors of Philox4x32 publish them with it
KNOWN = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "after_7", "after_10"), KNOWN)
def test_the_yardstick_gives_the_published_answers(counter, key, after_7, after_10):
    assert tuple(philox(np.array(counter, dtype=np.uint64), key, 7).tolist()) == after_7
    assert tuple(philox(np.array(counter, dtype=np.uint64), key, 10).tolist()) == after_10


@triton.jit
def words_kernel(p_out, p_counter, seed: tl.int64, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    w0, w1, w2, w3 = words(seed, tl.load(p_counter + at))
    tl.store(p_out + 4 * at, w0.to(tl.int64))
    tl.store(p_out + 4 * at + 1, w1.to(tl.int64))
    tl.store(p_out + 4 * at + 2, w2.to(tl.int64))
    tl.store(p_out + 4 * at + 3, w3.to(tl.int64))


COUNTERS = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**61, 2**62 - 1, 3, 4, 5, 6, 7]
SEEDS = [0, 1, 7, 16, -1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -(2**63)]


@pytest.mark.kernels
@pytest.mark.parametrize("seed", SEEDS)
def test_the_kernels_words(seed):
    counters = torch.tensor(COUNTERS, dtype=torch.int64, device=DEVICE)
    out = torch.full((len(COUNTERS), 4), -1, dtype=torch.int64, device=DEVICE)
    words_kernel[(1,)](out, counters, seed, len(COUNTERS))
    c = np.array([(x & 0xFFFFFFFF, x >> 32, 0, 0) for x in COUNTERS], dtype=np.uint64)
    expected = philox(c, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    assert out.tolist() == expected.astype(np.int64).tolist()
    if seed == 0:
        assert tuple(out[0].tolist()) == KNOWN[0][2]


@triton.jit
def keep_kernel(
    p_each, p_sixteens, seed: tl.int64, threshold: tl.int64, first: tl.int64, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """1 where an element is kept, -1 elsewhere, both ways; the rows follow on, and the first starts at ``first``."""
    # 64-bit whatever the interpreter makes of the annotation, as the kernels do
    zero = tl.zeros((), tl.int64)
    seed, threshold, first = seed + zero, threshold + zero, first + zero
    starts = tl.arange(0, ROWS).to(tl.int64)[:, None] * COLS + first
    cols = tl.arange(0, COLS)[None, :]
    at = tl.arange(0, ROWS)[:, None] * COLS + cols
    tl.store(p_each + at, tl.where(keep_each(seed, starts + cols, threshold), 1.0, -1.0))
    # any bits: the words are not to depend on the block's values
    values = tl.where(cols % 2 == 0, 0.5, -3e38) * tl.full((ROWS, COLS), 1.0, tl.float32)
    dropped = drop_sixteens(values, seed, starts + cols, threshold, 1.0)
    tl.store(p_sixteens + at, tl.where(dropped == values, 1.0, -1.0))


def both(seed, p, first, rows, cols):
    each, sixteens = (torch.full((rows, cols), float("nan"), device=DEVICE) for _ in range(2))
    keep_kernel[(1,)](each, sixteens, seed, round(p * 2**32), first, rows, cols)
    assert set(each.unique().tolist()) <= {1.0, -1.0}
    return each.cpu() > 0, sixteens.cpu() > 0


@pytest.mark.kernels
@pytest.mark.parametrize("seed", [0, 5, 16, -9, 2**40 + 3])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.75, 1 - 2**-20])
@pytest.mark.parametrize(("first", "rows", "cols"), [(0, 1, 16), (16, 4, 32), (160, 2, 64)])
def test_one_word_an_element_and_four_words_a_call_agree(seed, p, first, rows, cols):
    each, sixteens = both(seed, p, first, rows, cols)
    expected = kept((rows, cols), p, seed, first)
    assert torch.equal(each, expected) and torch.equal(sixteens, expected)


@pytest.mark.kernels
@pytest.mark.parametrize("far", [2**31, 2**32, 2**34, 2**35 + 16])
def test_an_index_beyond_32_bits(far):
    """A mask that forgot the high word of the counter, or of the index, would repeat."""
    each, sixteens = both(3, 0.5, far, 1, 64)
    expected = kept((1, 64), 0.5, 3, far)
    assert torch.equal(each, expected) and torch.equal(sixteens, expected)
    assert not torch.equal(expected, kept((1, 64), 0.5, 3, far % 2**31))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [(0,), (1,), (5, 7), (3, 4, 8), (1000,)], ids=str)
def test_pytorchs_composition_makes_the_same_mask(shape, seed):
    for p in (0.0, 0.3, 1.0):
        made = reference.keep_mask(shape, p, seed, torch.device(DEVICE))
        assert torch.equal(made.cpu(), kept(shape, p, seed))
    assert torch.equal(
        reference.keep_mask(shape, 0.5, torch.tensor([seed], device=DEVICE), torch.device(DEVICE)).cpu(),
        kept(shape, 0.5, seed),
    )
