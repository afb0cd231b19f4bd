"""What happens to a sum on its way out: every step, their order, values at the ends, and a caller's own function."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import triton
import triton.language as tl

import tilewright as tw
from support import ACTIVATIONS, DEVICE, DTYPES, assert_exact, assert_near, integers, name_of, normals, oracle
from tilewright.gemm import planner

NAMES = [a for a in ACTIVATIONS if a]
POINTS = [
    -math.inf, -1e30, -100.0, -30.0, -11.0, -3.0, -1.0, -0.26, -0.24, -1e-3, -1e-20, -0.0,
    0.0, 1e-20, 1e-3, 0.24, 0.26, 1.0, 3.0, 11.0, 30.0, 100.0, 1e30, math.inf, math.nan,
]  # fmt: skip


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_every_activation_is_within_twice_pytorchs_error(activation, dtype):
    a, b, bias = (
        normals(33, 24, dtype=dtype, seed=1),
        normals(24, 40, dtype=dtype, seed=2),
        normals(40, dtype=dtype, seed=3),
    )
    options = dict(activation=activation, bias=bias, alpha=0.5)
    assert_near(tw.matmul(a, b, **options), a, b, **options)


@pytest.mark.kernels  # the composition is torch's own, whose float32 gelu of infinity differs from its float64
@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name_of)
def test_values_at_the_ends_and_around_zero(activation, dtype):
    """A product of k = 1 puts any value, NaN and infinity too, before the activation."""
    x = torch.tensor(POINTS, dtype=dtype, device=DEVICE)
    got = tw.matmul(x[:, None], torch.ones(1, 3, dtype=dtype, device=DEVICE), activation=activation)
    expected = ACTIVATIONS[activation](x.cpu().double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        got.cpu().double(),
        expected[:, None].expand(-1, 3).to(dtype).double(),
        rtol=8 * eps,
        atol=2 * eps,
        equal_nan=True,
    )


STEPS = {
    "alpha": {"alpha": -2.0},
    "bias": {"bias": integers(24, seed=3)},
    "activation": {"activation": "relu"},
    "dropout": {"dropout_p": 0.5, "seed": 77},
    "residual": {"residual": integers(33, 24, seed=4)},
}
SUBSETS = [c for r in range(len(STEPS) + 1) for c in itertools.combinations(STEPS, r)]


@pytest.mark.parametrize("steps", SUBSETS, ids="+".join)
def test_every_combination_of_steps(steps):
    """Each of the 32; the steps do not commute on these integers, so the order shows."""
    a, b = integers(33, 40, seed=1), integers(40, 24, seed=2)
    options = {key: value for step in steps for key, value in STEPS[step].items()}
    assert_exact(tw.matmul(a, b, **options), oracle(a, b, **options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=name_of)
def test_tensors_of_other_dtypes_are_used_as_they_are(dtype):
    """A bias of 2^-12 beside 1 is lost in bfloat16, and must not be when the result is float32."""
    a = torch.ones(17, 1, dtype=torch.bfloat16, device=DEVICE)
    extra = torch.full((20,), 2.0**-12, dtype=dtype, device=DEVICE)
    result = tw.matmul(a, a[:1].expand(1, 20), bias=extra, out_dtype=torch.float32)
    assert_exact(result, torch.full((17, 20), 1 + 2.0**-12))
    result = tw.matmul(a, a[:1].expand(1, 20), residual=extra.expand(17, 20), out_dtype=torch.float32)
    assert_exact(result, torch.full((17, 20), 1 + 2.0**-12))


@pytest.mark.parametrize("alpha", [0.0, 1, -1.0, 1 / 3, 1e-30, math.inf, math.nan])
def test_alpha(alpha):
    a, b = integers(17, 24, seed=1), integers(24, 20, seed=2)
    expected = (a.cpu() @ b.cpu()) * torch.tensor(alpha, dtype=torch.float32)
    assert_exact(tw.matmul(a, b, alpha=alpha), expected)


def test_alpha_and_dropouts_scale_keep_a_float64_whole():
    a, b = integers(17, 24, dtype=torch.float64, seed=1), integers(24, 20, dtype=torch.float64, seed=2)
    options = dict(alpha=1 / 3, dropout_p=0.3, seed=2)
    got = tw.matmul(a, b, **options).cpu()
    torch.testing.assert_close(got, oracle(a, b, **options), rtol=4 * torch.finfo(torch.float64).eps, atol=0)


def test_nothing_is_rounded_between_the_steps():
    """257 in bfloat16 is 256 or 258: bias and residual that cancel it must meet the unrounded sum."""
    a = torch.ones(17, 257, dtype=torch.bfloat16, device=DEVICE)
    b = torch.ones(257, 20, dtype=torch.bfloat16, device=DEVICE)
    bias = torch.full((20,), -256.0, dtype=torch.bfloat16, device=DEVICE)
    assert_exact(tw.matmul(a, b, bias=bias), torch.ones(17, 20))
    assert_exact(tw.matmul(a, b, residual=bias.expand(17, 20)), torch.ones(17, 20))


def test_padding_does_not_reach_the_result_through_an_activation():
    """k = 0: every row is activation(bias), where padding might have left anything."""
    bias = normals(20, seed=3)
    a, b = integers(17, 0), integers(0, 20)
    assert_near(tw.matmul(a, b, bias=bias, activation="gelu"), a, b, bias=bias, activation="gelu")


# a caller's own function -------------------------------------------------------------------------------------------


@triton.jit
def scale_rows_and_columns(acc, rows, cols, m, n, args):
    by_row = tl.load(args[0] + rows, mask=rows < m, other=0.0)
    by_col = tl.load(args[1] + cols, mask=cols < n, other=0.0)
    return acc * by_row[:, None] * by_col[None, :]


@triton.jit
def clamp(acc, rows, cols, m, n, args):
    return tl.minimum(tl.maximum(acc, -2.0), 2.0)


@triton.jit
def where_above_the_diagonal(acc, rows, cols, m, n, args):
    return tl.where(rows[:, None] < cols[None, :], acc, m * 1000.0 + n)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_a_callers_function_with_tensors(dtype):
    a, b = integers(33, 40, dtype=dtype, seed=1), integers(40, 24, dtype=dtype, seed=2)
    by_row, by_col = integers(33, seed=3), integers(24, seed=4)
    got = tw.matmul(a, b, epilogue=scale_rows_and_columns, epilogue_args=(by_row, by_col))
    assert_exact(got, oracle(a, b) * by_row.cpu().double()[:, None] * by_col.cpu().double())


@pytest.mark.kernels
def test_a_callers_function_comes_last_and_under_every_plan():
    a, b = integers(33, 40, dtype=torch.bfloat16, seed=1), integers(40, 24, dtype=torch.bfloat16, seed=2)
    options = dict(bias=integers(24, seed=3), activation="relu", residual=integers(33, 24, seed=4))
    expected = oracle(a, b, **options).clamp(-2, 2)
    for plan in planner.plans(tw.Problem.of(a, b, epilogue=clamp, **options)):
        assert torch.equal(tw.matmul(a, b, epilogue=clamp, plan=plan, **options).cpu().double(), expected), str(plan)


@pytest.mark.kernels
def test_a_callers_function_gets_the_indices_of_the_element():
    a, b = integers(37, 16, seed=1), integers(16, 40, seed=2)
    expected = torch.where(torch.ones(37, 40).triu(1) > 0, oracle(a, b), 37 * 1000.0 + 40)
    assert_exact(tw.matmul(a, b, epilogue=where_above_the_diagonal), expected)


@pytest.mark.kernels
def test_two_functions_of_one_name_are_two_functions():
    def make(constant):
        if constant == 1:

            @triton.jit
            def shift(acc, rows, cols, m, n, args):
                return acc + 1.0
        else:

            @triton.jit
            def shift(acc, rows, cols, m, n, args):
                return acc + 2.0

        return shift

    a, b = integers(17, 16, seed=1), integers(16, 20, seed=2)
    for constant in (1, 2, 1):
        assert_exact(tw.matmul(a, b, epilogue=make(constant)), oracle(a, b) + constant)
