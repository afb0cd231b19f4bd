"""Offsets that 32 bits do not hold, without the memory: views of a sparse file, of which only the pages in use exist.

On a GPU, tests/gemm/test_large.py does the same with real tensors.
"""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import assert_exact, integers, oracle

pytestmark = pytest.mark.interpret

PLANS = {"ieee": tw.Plan("tile", 16, 16, 16, num_stages=1), "tf32": tw.Plan("persistent", 16, 16, 16, num_stages=1)}
FAR = 2**31 // 16  # a step of 16 passes 2^31, one of 15 does not


@pytest.fixture
def far(tmp_path):
    """(shape, strides) to a float32 view of zeros in a sparse file."""

    def make(shape, strides):
        extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        path = tmp_path / f"sparse{len(list(tmp_path.iterdir()))}"
        try:
            with path.open("wb") as file:
                file.truncate(4 * extent)
            memory = torch.from_file(str(path), shared=True, size=extent, dtype=torch.float32)
        except (OSError, RuntimeError) as error:
            pytest.skip(f"no sparse file of {4 * extent} bytes here: {error}")
        return memory.as_strided(shape, strides)

    return make


@pytest.mark.parametrize("precision", PLANS)
def test_rows_far_apart(far, precision):
    a = far((20, 24), (FAR, 1)).copy_(integers(20, 24, seed=1))
    b = integers(24, 16, seed=2)
    assert (a.shape[0] - 1) * a.stride(0) > 2**31
    options = dict(precision=precision, plan=PLANS[precision])
    assert_exact(tw.matmul(a, b, **options), oracle(a, b))
    assert_exact(tw.matmul(b.t(), a.t(), **options), oracle(b.t(), a.t()))


@pytest.mark.parametrize("precision", PLANS)
def test_columns_far_apart(far, precision):
    """A step along k is a whole slice long: 16 times the stride."""
    a = far((16, 36), (1, FAR)).copy_(integers(16, 36, seed=1))
    b = integers(36, 16, seed=2)
    options = dict(precision=precision, plan=PLANS[precision])
    assert_exact(tw.matmul(a, b, **options), oracle(a, b))
    assert_exact(tw.matmul(b.t(), a.t(), **options), oracle(b.t(), a.t()))


@pytest.mark.parametrize("precision", PLANS)
def test_a_batch_far_apart(far, precision):
    a = far((3, 16, 24), (2**30 + 16, 24, 1)).copy_(integers(3, 16, 24, seed=1))
    b = far((3, 24, 16), (2**30 + 16, 16, 1)).copy_(integers(3, 24, 16, seed=2))
    assert_exact(tw.matmul(a, b, precision=precision, plan=PLANS[precision]), oracle(a, b))


@pytest.mark.parametrize("precision", PLANS)
@pytest.mark.parametrize(("rows", "cols"), [(FAR, 1), (1, FAR)], ids=["rows", "columns"])
def test_out_residual_and_bias_far_apart(far, rows, cols, precision):
    a, b = integers(20, 24, seed=1), integers(24, 20, seed=2)
    residual = far((20, 20), (rows, cols)).copy_(integers(20, 20, seed=3))
    bias = far((20,), (FAR,)).copy_(integers(20, seed=4))
    out = far((20, 20), (rows, cols))
    tw.matmul(a, b, residual=residual, bias=bias, out=out, precision=precision, plan=PLANS[precision])
    assert_exact(out, oracle(a, b, residual=residual, bias=bias))


def test_a_gradient_far_apart(far):
    a, b = integers(20, 24, seed=1).requires_grad_(), integers(24, 20, seed=2)
    grad = far((20, 20), (FAR, 1)).copy_(integers(20, 20, seed=3))
    tw.matmul(a, b, activation="relu", precision="ieee").backward(grad)
    live = (a.detach().double() @ b.double() > 0).double()
    assert_exact(a.grad, (grad.double() * live) @ b.double().t())
