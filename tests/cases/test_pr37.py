"""A compiler that changes strides. pytorch/pytorch#130243, #132102, #147828 and #120801, NVIDIA/cuEquivariance#223."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import tilewright as tw
from support import DEVICE, GPU, laid, normals

pytestmark = pytest.mark.slow
BACKEND = "inductor" if GPU else "aot_eager"


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield CompileCounterWithBackend(BACKEND)
    torch._dynamo.reset()


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_an_intermediate_whose_strides_matter(counter, activation):
    w = normals(10, 8, seed=2)

    def f(x):
        return tw.matmul(x.t().contiguous().t().sin(), w, activation=activation).t()

    compiled = torch.compile(f, fullgraph=True, backend=counter, dynamic=True)
    for rows in (6, 7, 9, 16):
        x = normals(rows, 10, seed=rows)
        got, expected = compiled(x), f(x)
        torch.testing.assert_close(got, expected, rtol=2**-22, atol=2**-22)
        assert got.stride() == expected.stride()
    assert counter.frame_count <= 2


def test_inputs_of_other_layouts(counter):
    b = normals(10, 8, seed=2)
    compiled = torch.compile(lambda x: tw.linear(x, b.t(), activation="relu"), fullgraph=True, backend=counter)
    for how in ("rows", "columns", "sliced", "offset_1"):
        x = laid(normals(6, 10, seed=1), how)
        torch.testing.assert_close(compiled(x), tw.linear(x, b.t(), activation="relu"), rtol=2**-22, atol=2**-22)


def test_gradients_through_a_permuted_intermediate(counter):
    w = normals(10, 8, seed=2)

    def f(x, w):
        return (tw.matmul(x.sin().permute(1, 0, 2), w, activation="gelu").permute(1, 2, 0) * 2).sum()

    grads = []
    for g in (f, torch.compile(f, fullgraph=True, backend=counter)):
        x, v = normals(3, 4, 10, seed=1).requires_grad_(), w.clone().requires_grad_()
        grads.append(torch.autograd.grad(g(x, v), (x, v)))
    for got, expected in zip(*grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert DEVICE in str(got.device)
