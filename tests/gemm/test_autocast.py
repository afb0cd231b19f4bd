"""Autocast: the dtypes that ``torch.matmul`` would have."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE, assert_exact, integers, name_of, oracle


def autocast(dtype=torch.bfloat16, enabled=True):
    return torch.autocast(DEVICE, dtype=dtype, enabled=enabled)


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16], ids=name_of)
@pytest.mark.parametrize("one", [torch.float32, torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16], ids=name_of)
def test_operands_are_cast(one, other, to):
    a, b = integers(5, 8, dtype=one, seed=1), integers(8, 6, dtype=other, seed=2)
    with autocast(to):
        result = tw.matmul(a, b)
        assert result.dtype is torch.matmul(a, b).dtype is to
        assert tw.matmul(a, b, out_dtype=torch.float32).dtype is torch.float32
    assert_exact(result, oracle(a, b))


def test_the_operands_really_are_rounded():
    a = torch.full((3, 1), 1 + 2.0**-12, device=DEVICE)
    b = torch.ones(1, 3, device=DEVICE)
    with autocast():
        assert_exact(tw.matmul(a, b, out_dtype=torch.float32), torch.ones(3, 3))
        with autocast(enabled=False):
            assert tw.matmul(a, b).dtype is torch.float32
    assert_exact(tw.matmul(a, b), a.cpu().expand(3, 3))


def test_float64_stays():
    a, b = integers(5, 8, dtype=torch.float64, seed=1), integers(8, 6, dtype=torch.float64, seed=2)
    with autocast():
        assert tw.matmul(a, b).dtype is torch.float64


def test_linear_with_float32_weights():
    x = integers(4, 8, dtype=torch.bfloat16, seed=1).requires_grad_()
    w, bias = integers(6, 8, seed=2).requires_grad_(), integers(6, seed=3).requires_grad_()
    residual = integers(4, 6, seed=4).requires_grad_()
    with autocast():
        y = tw.linear(x, w, bias, residual=residual, activation="relu")
    assert y.dtype is torch.bfloat16
    assert_exact(y, oracle(x, w.t(), bias=bias, residual=residual, activation="relu"))
    y.float().sum().backward()  # outside autocast
    assert [t.grad.dtype for t in (x, w, bias, residual)] == [torch.bfloat16, *[torch.float32] * 3]
    live = (x.detach().cpu().double() @ w.detach().cpu().double().t() + bias.detach().cpu()) > 0
    assert_exact(w.grad, live.double().t() @ x.detach().cpu().double())
    assert_exact(residual.grad, torch.ones(4, 6))


def test_addmm():
    x, a, b = integers(5, 6, seed=3), integers(5, 8, seed=1), integers(8, 6, seed=2)
    with autocast():
        result = tw.addmm(x, a, b, beta=2)
    assert result.dtype is torch.bfloat16
    assert_exact(result, 2 * x.cpu().double() + oracle(a, b))


def test_the_cache_of_calls_does_not_mix_modes():
    """The same tensors outside, inside and outside again."""
    a, b = integers(16, 16, seed=1), integers(16, 16, seed=2)
    dtypes = []
    for inside in (False, False, True, True, False):
        with autocast(enabled=inside):
            result = tw.matmul(a, b)
            dtypes.append(result.dtype)
            assert_exact(result, oracle(a, b))
    assert dtypes == [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]
