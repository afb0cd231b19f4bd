"""Second derivatives: right, never silently zero. pytorch/pytorch#116350, NVIDIA/apex#410."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import ACTIVATIONS, finished, normals

OPTIONS = [{"activation": a} for a in ACTIVATIONS] + [
    {"dropout_p": 0.5, "seed": 3},
    {"activation": "gelu", "dropout_p": 0.5, "seed": 3, "alpha": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_gradient_penalty(options):
    """The gradient of the norm of a gradient, in float64, against torch's."""
    tensors = [normals(*s, dtype=torch.float64, seed=i) for i, s in enumerate([(3, 4), (4, 5), (5,), (3, 5)])]

    def penalty(product):
        a, b, bias, residual = (t.clone().requires_grad_() for t in tensors)
        y = product(a, b, bias, residual)
        inner = torch.autograd.grad(y.square().sum(), (a, b, bias, residual), create_graph=True)
        sum(g.square().sum() for g in inner).backward()
        return a.grad, b.grad, bias.grad, residual.grad

    ours = penalty(lambda a, b, bias, residual: tw.matmul(a, b, bias=bias, residual=residual, **options))
    theirs = penalty(lambda a, b, bias, residual: finished(a @ b, bias=bias, residual=residual, **options))
    for got, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        assert got.abs().sum() > 0


def test_third_derivatives_of_a_plain_product():
    a, b = (normals(3, 3, dtype=torch.float64, seed=s).requires_grad_() for s in (1, 2))
    y = tw.matmul(tw.matmul(a, b), a).sum() ** 3
    for _ in range(3):
        (y,) = torch.autograd.grad(y, a, create_graph=True)
        y = y.sum()
    e = ((a @ b) @ a).sum() ** 3
    for _ in range(3):
        (e,) = torch.autograd.grad(e, a, create_graph=True)
        e = e.sum()
    torch.testing.assert_close(y, e)
