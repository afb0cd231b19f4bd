"""Tensors on a GPU that is not the current one. triton-lang/triton#2441, linkedin/Liger-Kernel#593.

Where there is one GPU or none, tests/runtime/test_launch.py checks by a stand-in that a launch enters its
tensors' device.
"""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import GPU, integers

two_gpus = pytest.mark.skipif(not GPU or torch.cuda.device_count() < 2, reason="needs two GPUs")


@two_gpus
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_everything_on_the_second(dtype):
    a, b = (integers(33, 40, dtype=dtype, seed=1).to("cuda:1"), integers(40, 24, dtype=dtype, seed=2).to("cuda:1"))
    a.requires_grad_()
    for _ in range(2):
        with torch.cuda.device(0):
            got = tw.matmul(a, b, activation="relu", dropout_p=0.5, seed=3)
            assert torch.cuda.current_device() == 0
        assert got.device == a.device
        expected = tw.matmul(a.detach().to("cuda:0"), b.to("cuda:0"), activation="relu", dropout_p=0.5, seed=3)
        assert torch.equal(got.detach().cpu(), expected.cpu())
    got.sum().backward()
    assert a.grad.device == a.device


@two_gpus
def test_one_on_each():
    a, b = integers(5, 8).to("cuda:0"), integers(8, 6).to("cuda:1")
    with pytest.raises(ValueError, match=r"^tilewright\.matmul: b is on cuda:1; it must be on cuda:0"):
        tw.matmul(a, b)


def test_a_device_that_is_not_there():
    a, b = integers(5, 8), torch.empty(8, 6, device="meta")
    with pytest.raises(ValueError, match=r"^tilewright\.matmul: b is on meta; it must be on "):
        tw.matmul(a, b)
