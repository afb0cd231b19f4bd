"""Operands, outputs and epilogue tensors that lie in memory in any way: values of the view, and nothing of what is
around it.

Every view lies in a buffer that is NaN outside it, so a lane that strays there shows in the result.
"""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE, LAYOUTS, Guarded, assert_exact, integers, laid, name_of, oracle

SIZE = (33, 24, 40)  # two tiles of m, and n and k that keep a descriptor's alignment where the layout does
AWKWARD = (17, 19, 21)


@pytest.mark.parametrize("how_b", LAYOUTS)
@pytest.mark.parametrize("how_a", LAYOUTS)
def test_every_pair_of_layouts(how_a, how_b):
    m, n, k = SIZE
    a = laid(integers(m, k, dtype=torch.float16, seed=1), how_a)
    b = laid(integers(k, n, dtype=torch.float16, seed=2), how_b)
    assert_exact(tw.matmul(a, b), oracle(a, b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=name_of)
@pytest.mark.parametrize("how", LAYOUTS)
def test_awkward_sizes_of_every_dtype(how, dtype):
    m, n, k = AWKWARD
    a, b = laid(integers(m, k, dtype=dtype, seed=1), how), laid(integers(k, n, dtype=dtype, seed=2), how)
    assert_exact(tw.matmul(a, b), oracle(a, b))
    weight = laid(integers(n, k, dtype=dtype, seed=3), how)
    assert_exact(tw.linear(a, weight), oracle(a, weight.t()))


@pytest.mark.parametrize("how", LAYOUTS)
def test_batches(how):
    a, b = laid(integers(3, 17, 24, seed=1), how), laid(integers(3, 24, 16, seed=2), how)
    assert_exact(tw.matmul(a, b), oracle(a, b))
    assert_exact(tw.matmul(a, b[0]), oracle(a, b[0]))
    assert_exact(tw.matmul(a[1], b), oracle(a[1], b))


@pytest.mark.parametrize(
    "order", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (3, 2, 1, 0), (0, 3, 1, 2)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name_of)
def test_permuted_batches(order, dtype):
    """Views of a permuted tensor: heads beside rows, as attention's projections have them."""
    inverse = [order.index(i) for i in range(4)]
    a = integers(*[(2, 3, 16, 8)[i] for i in inverse], dtype=dtype, seed=1).permute(order)
    b = integers(*[(2, 3, 8, 24)[i] for i in inverse], dtype=dtype, seed=2).permute(order)
    assert a.shape == (2, 3, 16, 8)
    assert_exact(tw.matmul(a, b), oracle(a, b))
    assert_exact(tw.matmul(a, b[0, 0]), oracle(a, b[0, 0]))
    assert_exact(tw.matmul(a[:, :1], b), oracle(a[:, :1], b))


def test_a_batch_that_three_strides_describe():
    """Sliced in each batch dimension, so that no two of them merge; with dropout, whose mask must not notice."""
    a = integers(4, 4, 4, 5, 8, seed=1)[::2, ::2, ::2]
    b = integers(4, 4, 4, 8, 6, seed=2)[::2, ::2, ::2]
    residual = integers(4, 4, 4, 5, 6, seed=3)[1::2, ::2, 1::2]
    options = dict(residual=residual, dropout_p=0.5, seed=11)
    assert_exact(tw.matmul(a, b, **options), oracle(a, b, **options))


def expanded_pairs():
    yield "scalar", integers(1, 1, seed=1).expand(33, 24), integers(24, 16, seed=2)
    yield "row", integers(1, 24, seed=1).expand(33, 24), integers(24, 16, seed=2)
    yield "column", integers(33, 1, seed=1).expand(33, 24), integers(24, 16, seed=2)
    yield "b_row", integers(33, 24, seed=1), integers(1, 16, seed=2).expand(24, 16)
    yield "b_column", integers(33, 24, seed=1), integers(24, 1, seed=2).expand(24, 16)
    yield "batch", integers(1, 9, 24, seed=1).expand(3, 9, 24), integers(3, 24, 16, seed=2)
    yield "b_batch", integers(3, 9, 24, seed=1), integers(1, 24, 16, seed=2).expand(3, 24, 16)
    yield "everything", integers(1, 1, 1, seed=1).expand(3, 9, 24), integers(1, 1, 1, seed=2).expand(3, 24, 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name_of)
@pytest.mark.parametrize(("a", "b"), [p[1:] for p in expanded_pairs()], ids=[p[0] for p in expanded_pairs()])
def test_expanded_operands(a, b, dtype):
    assert 0 in a.stride() or 0 in b.stride()
    a = a.to(dtype) if 0 not in a.stride() else integers(1, dtype=dtype, seed=5).expand_as(a)
    b = b.to(dtype) if 0 not in b.stride() else b[:, :].to(dtype).as_strided(b.shape, b.stride())
    assert_exact(tw.matmul(a, b), oracle(a, b))


@pytest.mark.parametrize("how", LAYOUTS)
def test_a_residual_lies_in_any_way(how):
    a, b = integers(2, 17, 24, dtype=torch.bfloat16, seed=1), integers(24, 40, dtype=torch.bfloat16, seed=2)
    residual = laid(integers(2, 17, 40, dtype=torch.bfloat16, seed=3), how)
    assert_exact(tw.matmul(a, b, residual=residual), oracle(a, b, residual=residual))
    shared = residual[:1].expand(2, 17, 40)
    assert_exact(tw.matmul(a, b, residual=shared), oracle(a, b, residual=shared))


@pytest.mark.parametrize(
    "bias",
    [
        integers(48, seed=3)[::2],
        integers(25, seed=3)[1:],
        integers(1, seed=3).expand(24),
        integers(24, 5, seed=3)[:, 2],
    ],
    ids=["every_other", "offset", "expanded", "column"],
)
def test_a_bias_lies_in_any_way(bias):
    a, b = integers(17, 40, seed=1), integers(40, 24, seed=2)
    assert_exact(tw.matmul(a, b, bias=bias), oracle(a, b, bias=bias))


@pytest.mark.parametrize("how_out", ["rows", "columns", "sliced", "offset_1"])
@pytest.mark.parametrize("how", ["rows", "columns", "both", "offset_1"])
def test_out_and_residual_lie_differently(how, how_out):
    a, b = integers(2, 17, 24, dtype=torch.float16, seed=1), integers(2, 24, 40, dtype=torch.float16, seed=2)
    residual = laid(integers(2, 17, 40, dtype=torch.float16, seed=3), how)
    guarded = Guarded((2, 17, 40), torch.float16, how_out)
    tw.matmul(a, b, residual=residual, out=guarded.out)
    assert_exact(guarded.out, oracle(a, b, residual=residual))
    assert guarded.untouched()


def test_strides_of_dimensions_of_one_element_are_free():
    """torch lets them be anything, and a kernel or a tensor descriptor must not believe them."""
    for shape_a, shape_b, strides_a, strides_b in [
        ((1, 40), (40, 24), (3, 1), (24, 1)),
        ((33, 1), (1, 24), (1, 7), (5, 1)),
        ((33, 40), (40, 1), (40, 1), (1, 9)),
        ((1, 1), (1, 1), (11, 13), (17, 19)),
    ]:
        a = torch.ones(4096, dtype=torch.float16, device=DEVICE).as_strided(shape_a, strides_a)
        b = torch.full((4096,), 2.0, dtype=torch.float16, device=DEVICE).as_strided(shape_b, strides_b)
        assert_exact(tw.matmul(a, b), oracle(a, b))


def test_overlapping_windows():
    """Rows that share elements (a sliding window), as convolutions by products use."""
    signal = integers(80, dtype=torch.bfloat16, seed=1)
    a = signal.as_strided((40, 24), (1, 1))
    b = integers(24, 16, dtype=torch.bfloat16, seed=2)
    assert_exact(tw.matmul(a, b), oracle(a, b))
    a = integers(400, dtype=torch.bfloat16, seed=1).as_strided((33, 24), (8, 1))
    assert_exact(tw.matmul(a, b), oracle(a, b))
