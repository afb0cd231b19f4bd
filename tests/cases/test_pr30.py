"""Gradients that are expanded, sliced or transposed, and belong to the caller. Dao-AILab/quack#88, unslothai/unsloth#10617,
flagos-ai/FlagGems#1084, linkedin/Liger-Kernel#1305."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE, normals

SHAPE = (2, 5, 24)


def gradients():
    yield "expanded", torch.ones(1, 1, 1, device=DEVICE).expand(SHAPE)
    yield "every_other", normals(2, 5, 48, seed=5)[..., ::2]
    yield "transposed", normals(2, 24, 5, seed=6).transpose(1, 2)
    yield "permuted", normals(5, 24, 2, seed=7).permute(2, 0, 1)
    yield "row", normals(1, 1, 24, seed=8).expand(SHAPE)


OPTIONS = [{}, {"activation": "gelu"}, {"dropout_p": 0.5, "seed": 3}, {"activation": "silu", "dropout_p": 0.5, "seed": 3}]


def run(x, w, bias, residual, grad, options, times=1):
    tensors = [t.clone().requires_grad_() for t in (x, w, bias, residual)]
    y = tw.linear(tensors[0], tensors[1], tensors[2], residual=tensors[3], **options)
    for i in range(times):
        y.backward(grad, retain_graph=i + 1 < times)
    return [t.grad for t in tensors]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("grad", [g[1] for g in gradients()], ids=[g[0] for g in gradients()])
def test_bitwise_as_the_contiguous_copy(grad, options):
    """The alignment of a gradient decides its plan, so both run with one that any alignment takes."""
    x, w, bias, residual = normals(2, 5, 16, seed=1), normals(24, 16, seed=2), normals(24, seed=3), normals(*SHAPE, seed=4)
    assert not grad.is_contiguous()
    before = grad.clone()
    got = run(x, w, bias, residual, grad, options)
    expected = run(x, w, bias, residual, grad.contiguous(), options)
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-6, atol=1e-6)
    assert torch.equal(grad, before)
    twice = run(x, w, bias, residual, grad, options, times=2)
    assert all(torch.equal(t, 2 * g) for t, g in zip(twice, got, strict=True))


def test_one_gradient_for_two_products():
    """``a + b`` hands the very same tensor to both: neither may write into it."""
    x = normals(5, 16, seed=1)
    one, other = (normals(24, 16, seed=s).requires_grad_() for s in (2, 3))
    (tw.linear(x, one, activation="relu") + tw.linear(x, other, activation="relu")).backward(normals(5, 24, seed=4))
    together = one.grad.clone(), other.grad.clone()
    for w, expected in zip((one, other), together, strict=True):
        w.grad = None
        tw.linear(x, w, activation="relu").backward(normals(5, 24, seed=4))
        assert torch.equal(w.grad, expected)
