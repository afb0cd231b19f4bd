"""Autocast with float32 weights. linkedin/Liger-Kernel#305, huggingface/transformers#30236."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE, integers


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_two_layers_and_a_backward_outside(activation, x_dtype):
    x = integers(5, 16, dtype=x_dtype, seed=1)
    first, second = (integers(*s, seed=i).div(4).requires_grad_() for i, s in enumerate([(24, 16), (3, 24)]))
    bias = integers(24, seed=5).requires_grad_()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        hidden = tw.linear(x, first, bias, activation=activation)
        y = tw.matmul(hidden, second.t())
        loss = y.float().square().mean()
    assert hidden.dtype is y.dtype is torch.bfloat16
    loss.backward()
    assert [t.grad.dtype for t in (first, second, bias)] == [torch.float32] * 3

    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        h = torch.nn.functional.linear(x, first.detach(), bias.detach())
        h = torch.nn.functional.gelu(h) if activation else h
        expected = torch.matmul(h, second.detach().t())
    torch.testing.assert_close(y, expected, rtol=2**-5, atol=2**-4)
    assert all(bool(t.grad.abs().sum() > 0) for t in (first, second, bias))


def test_autocast_off_inside_on():
    a, b = integers(4, 8), integers(8, 4)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert tw.matmul(a, b).dtype is torch.bfloat16
        with torch.autocast(DEVICE, enabled=False):
            assert tw.matmul(a, b).dtype is torch.float32
            assert tw.matmul(a.bfloat16(), b.bfloat16()).dtype is torch.bfloat16
