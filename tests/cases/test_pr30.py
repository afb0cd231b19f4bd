"""Gradients that are expanded, sliced or transposed, and belong to the caller. Dao-AILab/quack#88,
unslothai/unsloth#10617, flagos-ai/FlagGems#1084, linkedin/Liger-Kernel#1305."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE, integers, normals

SHAPE = (2, 5, 24)


def gradients(make):
    yield "expanded", torch.ones(1, 1, 1, device=DEVICE).expand(SHAPE)
    yield "every_other", make(2, 5, 48, seed=5)[..., ::2]
    yield "transposed", make(2, 24, 5, seed=6).transpose(1, 2)
    yield "permuted", make(5, 24, 2, seed=7).permute(2, 0, 1)
    yield "row", make(1, 1, 24, seed=8).expand(SHAPE)


NAMES = [name for name, _ in gradients(integers)]


EXACT = [
    {},
    {"activation": "relu"},
    {"dropout_p": 0.5, "seed": 3},
    {"activation": "relu2", "dropout_p": 0.5, "seed": 3},
]
SMOOTH = [{"activation": "gelu"}, {"activation": "silu", "dropout_p": 0.5, "seed": 3}]


def run(x, w, bias, residual, grad, options, times=1):
    tensors = [t.clone().requires_grad_() for t in (x, w, bias, residual)]
    y = tw.linear(tensors[0], tensors[1], tensors[2], residual=tensors[3], **options)
    for i in range(times):
        y.backward(grad, retain_graph=i + 1 < times)
    return [t.grad for t in tensors]


def check(make, grad, options, same):
    x, w, bias, residual = make(2, 5, 16, seed=1), make(24, 16, seed=2), make(24, seed=3), make(*SHAPE, seed=4)
    assert not grad.is_contiguous()
    before = grad.clone()
    got = run(x, w, bias, residual, grad, options)
    expected = run(x, w, bias, residual, grad.contiguous(), options)
    assert all(same(g, e) for g, e in zip(got, expected, strict=True))
    assert torch.equal(grad, before)
    twice = run(x, w, bias, residual, grad, options, times=2)
    assert all(torch.equal(t, 2 * g) for t, g in zip(twice, got, strict=True))


@pytest.mark.parametrize("options", EXACT, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_bitwise_as_the_contiguous_copy(name, options):
    """On whole numbers, where no order of summation rounds: a gradient's strides may choose another plan."""
    check(integers, dict(gradients(integers))[name], options, torch.equal)


@pytest.mark.parametrize("options", SMOOTH, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_as_the_contiguous_copy(name, options):
    check(normals, dict(gradients(normals))[name], options, lambda g, e: torch.allclose(g, e, rtol=1e-5, atol=1e-5))


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
