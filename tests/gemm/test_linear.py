"""``tw.linear``: shapes and values as ``torch.nn.functional.linear``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
from support import DEVICE, DTYPES, assert_exact, assert_near, integers, name_of, normals, oracle


@pytest.mark.parametrize("shape", [(24,), (5, 24), (2, 5, 24), (2, 1, 5, 24), (0, 24), (2, 0, 24)], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_shapes_of_torch(shape, with_bias):
    x, w = integers(*shape, seed=1), integers(9, 24, seed=2)
    bias = integers(9, seed=3) if with_bias else None
    expected = F.linear(x.cpu().double(), w.cpu().double(), None if bias is None else bias.cpu().double())
    assert_exact(tw.linear(x, w, bias), expected)


def test_a_weight_of_one_dimension():
    x, w = integers(4, 5, 24, seed=1), integers(24, seed=2)
    assert_exact(tw.linear(x, w), F.linear(x.cpu().double(), w.cpu().double()))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("activation", [None, "gelu", "silu"])
def test_error_is_within_twice_pytorchs(dtype, activation):
    x, w, bias = (
        normals(37, 72, dtype=dtype, seed=1),
        normals(48, 72, dtype=dtype, seed=2),
        normals(48, dtype=dtype, seed=3),
    )
    result = tw.linear(x, w, bias, activation=activation)
    assert_near(result, x, w.t(), bias=bias, activation=activation)


def test_every_option_at_once():
    x, w = integers(3, 11, 40, dtype=torch.bfloat16, seed=1), integers(20, 40, dtype=torch.bfloat16, seed=2)
    bias, residual = integers(20, dtype=torch.float32, seed=3), integers(3, 11, 20, dtype=torch.float16, seed=4)
    options = dict(alpha=-2.0, activation="relu2", dropout_p=0.5, seed=-5)
    result = tw.linear(x, w, bias, residual=residual, out_dtype=torch.float32, **options)
    assert_exact(result, oracle(x, w.t(), bias=bias, residual=residual, **options))


def test_the_modules_own_parameters_are_used_as_they_lie():
    module = torch.nn.Linear(40, 24).to(DEVICE)
    x = normals(7, 40, seed=1)
    with torch.no_grad():
        assert_near(tw.linear(x, module.weight, module.bias), x, module.weight.t(), bias=module.bias)
