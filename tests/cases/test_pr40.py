"""The interpreter computes other numbers. triton-lang/triton#11584, #10945, #3566 and #10291,
linkedin/Liger-Kernel#507."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import ACTIVATIONS, DEVICE, assert_exact, integers, name_of, normals, oracle


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)
def test_integers_from_minus_2_to_2_are_exact(dtype):
    a, b = integers(16, 16, dtype=dtype, seed=1, most=2), integers(16, 16, dtype=dtype, seed=2, most=2)
    assert_exact(tw.matmul(a, b), oracle(a, b))


def test_a_sum_of_two_and_a_half_and_two():
    one = torch.ones(1, 1, dtype=torch.bfloat16, device=DEVICE)
    got = tw.matmul(one * 2.5, one, residual=one * 2.0)
    assert got.item() == 4.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)
def test_results_round_to_nearest_even(dtype):
    """4,096 float32 values through a product with 1: each as torch's own cast."""
    x = normals(4096, seed=1)
    got = tw.matmul(x[:, None], torch.ones(1, 1, device=DEVICE), out_dtype=dtype)
    assert torch.equal(got[:, 0], x.to(dtype))
    ties = torch.tensor([1 + (i + 0.5) * torch.finfo(dtype).eps for i in range(64)], device=DEVICE)
    got = tw.matmul(ties[:, None], torch.ones(1, 1, device=DEVICE), out_dtype=dtype)
    assert torch.equal(got[:, 0], ties.to(dtype))


@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a])
def test_activations_in_bfloat16_are_within_an_ulp(activation):
    x = normals(512, dtype=torch.bfloat16, seed=1)
    got = tw.matmul(x[:, None], torch.ones(1, 1, dtype=torch.bfloat16, device=DEVICE), activation=activation)[:, 0]
    expected = ACTIVATIONS[activation](x.cpu().double())
    spacing = 2.0 ** (torch.floor(torch.log2(expected.abs().clamp(min=2.0**-126))) - 7)
    assert bool(((got.cpu().double() - expected).abs() <= spacing).all())


def test_one_buffer_under_two_names():
    """A residual that is out, and operands that are one tensor."""
    a = integers(16, 16, dtype=torch.bfloat16, seed=1)
    assert_exact(tw.matmul(a, a), oracle(a, a))
    out = integers(16, 16, dtype=torch.bfloat16, seed=2)
    expected = oracle(a, a, residual=out.clone())
    tw.matmul(a, a, residual=out, out=out)
    assert_exact(out, expected)
