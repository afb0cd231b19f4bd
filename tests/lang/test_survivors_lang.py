"""Device functions at the values where one wrong bit shows: a word on the threshold, a tie, a NaN of many bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from support import DEVICE, philox, round_tf32
from tilewright.lang import dot
from tilewright.lang.activations import gelu_rounded
from tilewright.lang.philox import drop_sixteens, keep_each

pytestmark = pytest.mark.kernels


@triton.jit
def round_kernel(p_x, p_out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(p_x + at, mask=at < n, other=0.0)
    tl.store(p_out + at, dot.round_tf32(x), mask=at < n)


def rounded(x):
    out = torch.full_like(x, -7.0)
    round_kernel[(1,)](x, out, x.numel(), triton.next_power_of_2(x.numel()))
    return out.cpu()


def of_bits(*bits):
    return torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32)).to(DEVICE)


def test_tf32_takes_the_nearest_and_ties_away_from_zero():
    for low, up in ((0x0000, 0), (0x0FFF, 0), (0x1000, 1), (0x1001, 1), (0x1FFF, 1)):
        for high in (0x3F800000, 0xBF802000, 0x00000000, 0x7F7FC000):
            got = rounded(of_bits(high + low)).numpy().view(np.uint32)[0]
            assert got == high + 0x2000 * up, (hex(high), hex(low))


def test_tf32_of_random_values_is_the_yardsticks():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert torch.equal(rounded(x), round_tf32(x.cpu()))
    assert not torch.equal(rounded(x), x.cpu())


def test_tf32_of_infinity_and_of_every_nan_stays():
    """A NaN whose fraction is all ones carries into its sign when it is rounded, and ends as -0."""
    assert rounded(of_bits(0x7F800000, 0xFF800000)).tolist() == [float("inf"), -float("inf")]
    assert rounded(of_bits(0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800FFF)).isnan().all()


@triton.jit
def gelu_kernel(p_x, p_out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(p_out + at, gelu_rounded(tl.load(p_x + at)))


def test_gelu_for_16_bits_has_the_error_of_its_source():
    """1.5e-7 of the error function (Abramowitz and Stegun 7.1.26) and a few roundings: far below what 16 bits show."""
    x = torch.linspace(-6, 6, 4096, device=DEVICE)
    out = torch.full_like(x, -7.0)
    gelu_kernel[(1,)](x, out, x.numel())
    x = x.cpu().double()
    off = (out.cpu().double() - torch.nn.functional.gelu(x)).abs()
    assert bool((off <= x.abs() * (1.5e-7 / 2 + 4 * torch.finfo(torch.float32).eps)).all())


@triton.jit
def edge_kernel(p_each, p_sixteens, seed: tl.int64, threshold: tl.int64, first: tl.int64):
    """What is kept of the sixteen elements from ``first`` on, both ways."""
    zero = tl.zeros((), tl.int64)  # 64-bit whatever the interpreter makes of the annotation, as the kernels do
    seed, threshold, first = seed + zero, threshold + zero, first + zero
    starts = tl.arange(0, 1).to(tl.int64)[:, None] + first
    cols = tl.arange(0, 16)[None, :]
    tl.store(p_each + cols, tl.where(keep_each(seed, starts + cols, threshold), 1.0, 0.0))
    tl.store(p_sixteens + cols, drop_sixteens(tl.full((1, 16), 1.0, tl.float32), seed, starts + cols, threshold, 1.0))


@pytest.mark.parametrize("element", range(16))
def test_a_word_on_the_threshold_is_kept(element):
    """One word in 2^32 lies there, so that only a threshold made from the word itself shows which way it goes."""
    seed, first = 2**33 + 5, 48
    index = first + element
    counter = np.array([4 * (index // 16) + index // 2 % 4, 0, 0, 0], dtype=np.uint64)
    word = int(philox(counter, (seed & 0xFFFFFFFF, seed >> 32))[2 * (index // 8 % 2) + index % 2])
    for threshold, kept in ((word - 1, 1.0), (word, 1.0), (word + 1, 0.0)):
        each, sixteens = (torch.full((1, 16), -1.0, device=DEVICE) for _ in range(2))
        edge_kernel[(1,)](each, sixteens, seed, threshold, first)
        assert each[0, element] == kept and sixteens[0, element] == kept
        assert torch.equal(each, sixteens)
