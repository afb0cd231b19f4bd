"""float32 must not become tf32 unasked. triton-lang/triton#1190, triton-lang/triton#1800, pytorch/pytorch#187947."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE, KERNELS
from tilewright.gemm.problem import precision_of

VALUE = 1 + 2.0**-12  # a tf32 has 10 bits of fraction, and keeps 1


def operands():
    return torch.full((64, 64), VALUE, device=DEVICE), torch.eye(64, device=DEVICE)


def test_full_precision_is_exact_forward_and_backward():
    torch.set_float32_matmul_precision("highest")
    a, b = operands()
    a.requires_grad_()
    c = tw.matmul(a, b)
    assert bool((c == 1.000244140625).all())
    c.backward(torch.full((64, 64), VALUE, device=DEVICE))
    assert bool((a.grad == 1.000244140625).all())


@pytest.mark.parametrize("function", ["matmul", "linear"])
def test_the_setting_takes_effect_on_the_next_call(function):
    a, b = operands()
    rounded = {1.0} if KERNELS else {VALUE}  # a CPU's own product has no tf32
    for setting, expected in [("highest", {VALUE}), ("high", rounded), ("highest", {VALUE}), ("medium", rounded)]:
        torch.set_float32_matmul_precision(setting)
        for _ in range(2):
            assert set(getattr(tw, function)(a, b).unique().tolist()) == expected, setting


@pytest.mark.kernels
def test_an_explicit_precision_overrides_the_setting():
    a, b = operands()
    for setting in ("highest", "high"):
        torch.set_float32_matmul_precision(setting)
        assert set(tw.matmul(a, b, precision="ieee").unique().tolist()) == {VALUE}
        assert set(tw.matmul(a, b, precision="tf32").unique().tolist()) == {1.0}
        assert set(tw.matmul(a, b, precision="tf32x3").unique().tolist()) == {VALUE}


def test_the_setting_only_concerns_float32():
    for setting, expected in [("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")]:
        torch.set_float32_matmul_precision(setting)
        assert precision_of(torch.float32, None) == expected
        assert tw.Problem(1, 1, 1, dtype=torch.float32).precision == expected
        assert precision_of(torch.float64, None) == precision_of(torch.bfloat16, None) == "ieee"


@pytest.mark.kernels
def test_tf32_rounds_to_nearest():
    """The tensor core drops bits; rounding first removes that bias: 1 + 3 * 2^-12 is nearer to 1 + 2^-10 than to 1."""
    a, b = operands()
    a.fill_(1 + 3 * 2.0**-12)
    assert set(tw.matmul(a, b, precision="tf32").unique().tolist()) == {1 + 2.0**-10}
    assert set(tw.matmul(-a, b, precision="tf32").unique().tolist()) == {-1 - 2.0**-10}
