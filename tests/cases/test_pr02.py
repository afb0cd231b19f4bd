"""Sizes of 1 and 0. triton-lang/triton#934, triton-lang/triton#10427, pytorch/pytorch#140967."""

from __future__ import annotations

import math

import pytest
import torch

import tilewright as tw
from support import DEVICE, assert_exact, finished, integers

SIZES = [(1, 1, 1), (1, 128, 1), (5, 1, 3), (17, 33, 1), (0, 8, 4), (8, 0, 4), (4, 8, 0)]


def dirty(*shape):
    """Freed memory of the result's size that holds NaN."""
    del [torch.full(shape, math.nan, device=DEVICE) for _ in range(4)][:]


@pytest.mark.parametrize("batch", [(), (0,), (2,)], ids=str)
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_forward_and_backward_equal_torch(size, biased, activation, batch):
    m, n, k = size
    a, b = integers(*batch, m, k, seed=1), integers(*batch, k, n, seed=2)
    bias = torch.arange(1, n + 1, dtype=torch.float32, device=DEVICE) if biased else None
    ours = [t.requires_grad_() if t is not None else None for t in (a, b, bias)]
    theirs = [t.detach().cpu().double().requires_grad_() if t is not None else None for t in ours]
    dirty(*batch, m, n)
    result = tw.matmul(ours[0], ours[1], bias=ours[2], activation=activation)
    expected = finished(theirs[0] @ theirs[1], bias=theirs[2], activation=activation)
    assert result.shape == (*batch, m, n) and result.dtype is torch.float32
    assert_exact(result, expected)
    grad = integers(*batch, m, n, seed=9)
    dirty(*batch, m, k)
    result.backward(grad)
    expected.backward(grad.cpu().double())
    for x, y in zip(ours, theirs, strict=True):
        if x is not None:
            assert_exact(x.grad, y.grad)
    if k == 0:
        row = torch.zeros(n) if bias is None else bias.detach().cpu()
        assert_exact(result, finished(row, activation=activation).expand(*batch, m, n))


@pytest.mark.parametrize("size", [(0, 8, 4), (8, 0, 4), (4, 8, 0), (0, 0, 0)], ids=str)
def test_empty_results_keep_their_dtype_and_out(size):
    m, n, k = size
    a, b = integers(m, k, dtype=torch.bfloat16), integers(k, n, dtype=torch.bfloat16)
    assert tw.matmul(a, b).dtype is torch.bfloat16
    out = torch.full((m, n), math.nan, device=DEVICE)
    assert tw.matmul(a, b, out=out, dropout_p=0.5, seed=1) is out
    assert_exact(out, torch.zeros(m, n))
    assert tw.linear(a, b.t()).shape == (m, n)
