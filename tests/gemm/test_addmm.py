"""``tw.addmm``: ``beta * input + alpha * (a @ b)``."""

from __future__ import annotations

import math

import pytest
import torch

import tilewright as tw
from support import DEVICE, DTYPES, assert_exact, integers, name_of


@pytest.mark.parametrize("shape", [(17, 24), (24,), (1, 24), (17, 1), (1,), ()], ids=str)
@pytest.mark.parametrize(("beta", "alpha"), [(1.0, 1.0), (2.0, -1.0), (0.5, 0.0), (-3, 2)])
def test_input_is_broadcast(shape, beta, alpha):
    x, a, b = integers(*shape, seed=3), integers(17, 40, seed=1), integers(40, 24, seed=2)
    expected = torch.addmm(x.cpu().double(), a.cpu().double(), b.cpu().double(), beta=beta, alpha=alpha)
    assert_exact(tw.addmm(x, a, b, beta=beta, alpha=alpha), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_dtypes(dtype):
    x, a, b = (integers(*s, dtype=dtype, seed=i) for i, s in enumerate([(17, 24), (17, 40), (40, 24)]))
    result = tw.addmm(x, a, b, beta=2, alpha=3)
    assert result.dtype is dtype
    assert_exact(result, torch.addmm(x.cpu().double(), a.cpu().double(), b.cpu().double(), beta=2, alpha=3))


def test_input_is_scaled_before_anything_is_rounded():
    """257 is no bfloat16: a beta * input that is rounded before the sum is 256 or 258."""
    x, a, b = (
        torch.full(s, v, dtype=torch.bfloat16, device=DEVICE) for s, v in [((2, 3), 1), ((2, 1), -1), ((1, 3), 256)]
    )
    assert_exact(tw.addmm(x, a, b, beta=257), torch.ones(2, 3))


def test_beta_zero_does_not_read_the_input():
    a, b = integers(17, 40, seed=1), integers(40, 24, seed=2)
    x = torch.full((17, 24), math.nan, device=a.device)
    assert_exact(tw.addmm(x, a, b, beta=0, alpha=2), 2 * (a.cpu().double() @ b.cpu().double()))


def test_sizes_of_zero():
    x = integers(3, 4)
    assert_exact(tw.addmm(x, integers(3, 0), integers(0, 4), beta=2), 2 * x)
    assert tw.addmm(integers(0, 4), integers(0, 5), integers(5, 4)).shape == (0, 4)


@pytest.mark.parametrize("shape", [(5, 6), (6,), (5, 1)], ids=str)
def test_gradients(shape):
    ours = [integers(*s, seed=i).requires_grad_() for i, s in enumerate([shape, (5, 7), (7, 6)])]
    theirs = [t.detach().cpu().double().requires_grad_() for t in ours]
    grad = integers(5, 6, seed=9)
    tw.addmm(*ours, beta=2, alpha=3).backward(grad)
    torch.addmm(*theirs, beta=2, alpha=3).backward(grad.cpu().double())
    for x, y in zip(ours, theirs, strict=True):
        assert_exact(x.grad, y.grad)


def test_gradients_with_beta_zero():
    x = integers(5, 6).requires_grad_()
    a, b = integers(5, 7, seed=1).requires_grad_(), integers(7, 6, seed=2)
    tw.addmm(x, a, b, beta=0).sum().backward()
    assert_exact(a.grad, b.cpu().sum(1).expand(5, 7))
    assert x.grad is None or not x.grad.any()
