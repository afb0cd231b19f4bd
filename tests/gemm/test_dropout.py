"""Dropout inside a product: the mask is a function of seed and element, and of nothing else."""

from __future__ import annotations

import math

import pytest
import torch

import tilewright as tw
from support import DEVICE, LAYOUTS, assert_exact, finished, integers, kept, laid, name_of, oracle
from tilewright.gemm import planner

SEEDS = [0, 1, -1, 2**31, 2**32 + 5, 2**63 - 1, -(2**63)]


def ones(*shape, dtype=torch.float32):
    """Operands (m, 1) and (1, n) whose product is all ones, so that what is left of it is the mask."""
    *batch, m, n = shape
    return torch.ones(*batch, m, 1, dtype=dtype, device=DEVICE), torch.ones(1, n, dtype=dtype, device=DEVICE)


def drawn(*shape, **options):
    a, b = ones(*shape)
    return tw.matmul(a, b, **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [(5, 48), (5, 7), (1, 1), (33, 65), (3, 5, 16), (2, 3, 5, 6)], ids=str)
def test_the_mask_is_the_documented_one(shape, seed):
    """Rows that start on a multiple of 16 (n = 48) and rows that do not take different paths to the same mask."""
    assert_exact(drawn(*shape, dropout_p=0.5, seed=seed), 2.0 * kept(shape, 0.5, seed))


@pytest.mark.parametrize("p", [0.1, 0.25, 0.75, 1 - 2**-20, 2**-33])
def test_the_kept_share_and_the_scale(p):
    result = drawn(64, 64, dropout_p=p, seed=5)
    expected = finished(torch.ones(64, 64), dropout_p=p, seed=5)
    assert_exact(result, expected)
    assert abs(float((result != 0).float().mean()) - (1 - p)) < 4 * math.sqrt(p * (1 - p) / 4096) + 1e-9


@pytest.mark.parametrize("n", [16, 32, 24, 21])
@pytest.mark.parametrize("p", [0.5, 0.75])
def test_the_mask_does_not_know_the_values(p, n):
    a, b = integers(17, 40, seed=1), integers(40, n, seed=2)
    options = dict(dropout_p=p, seed=2**31 + 7, alpha=-0.5)
    assert_exact(tw.matmul(a, b, **options), oracle(a, b, **options))


def test_the_ends_of_p():
    a, b = integers(17, 24, seed=1), integers(24, 20, seed=2)
    assert_exact(tw.matmul(a, b, dropout_p=0.0, seed=3), a.cpu() @ b.cpu())
    a[3, 4] = math.nan
    gone = tw.matmul(a, b, dropout_p=1.0, seed=3)
    assert_exact(gone, torch.zeros(17, 20))
    a = integers(17, 24, seed=1).requires_grad_()
    tw.matmul(a, b, dropout_p=1.0, seed=3).sum().backward()
    assert_exact(a.grad, torch.zeros(17, 24))


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("n", [48, 21])
def test_the_mask_does_not_know_the_layout(how, n):
    a, b = ones(3, 17, n)
    a, out = laid(a, how), laid(torch.zeros(3, 17, n, device=DEVICE), how)
    tw.matmul(a, b, dropout_p=0.5, seed=9, out=out)
    assert_exact(out, 2.0 * kept((3, 17, n), 0.5, 9))


@pytest.mark.kernels
@pytest.mark.parametrize("n", [48, 38])
def test_the_mask_does_not_know_the_plan(n):
    a, b = ones(40, n, dtype=torch.bfloat16)
    a, b = a.expand(40, 16).contiguous() / 16, b.expand(16, n).contiguous()
    problem = tw.Problem.of(a, b, dropout_p=0.5)
    expected = 2.0 * kept((40, n), 0.5, 9)
    for plan in planner.plans(problem):
        assert torch.equal(tw.matmul(a, b, dropout_p=0.5, seed=9, plan=plan).cpu().float(), expected), str(plan)


def test_a_batch_has_the_mask_of_its_rows_laid_end_to_end():
    assert torch.equal(drawn(4, 5, 8, dropout_p=0.5, seed=1).flatten(0, 1), drawn(20, 8, dropout_p=0.5, seed=1))


def test_two_seeds_are_two_masks():
    one, other = (drawn(64, 64, dropout_p=0.5, seed=s) != 0 for s in (3, 4))
    assert 0.45 < float((one != other).float().mean()) < 0.55


def test_without_a_seed_torchs_generator_decides():
    def draw():
        return drawn(32, 32, dropout_p=0.5)

    torch.manual_seed(0)
    first, second = draw(), draw()
    torch.manual_seed(0)
    again = draw()
    assert torch.equal(first, again)
    assert 0.4 < float((first != second).float().mean()) < 0.6


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("n", [48, 21])
def test_the_backward_draws_the_mask_of_the_forward(seed, dtype, n):
    a = torch.eye(n, dtype=dtype, device=DEVICE)[:17]
    b = torch.ones(n, n, dtype=dtype, device=DEVICE, requires_grad=True)
    residual = torch.zeros(17, n, dtype=dtype, device=DEVICE, requires_grad=True)
    y = tw.matmul(a, b, residual=residual, dropout_p=0.5, seed=seed)
    y.sum().backward()
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(b.grad[:17], y) and torch.equal(b.grad[17:], torch.zeros_like(b.grad[17:]))
    assert torch.equal(residual.grad, torch.ones_like(residual))


def test_the_gradient_of_a_batch_draws_the_same_mask():
    a = torch.ones(2, 3, 5, 1, device=DEVICE, requires_grad=True)
    b = torch.ones(1, 6, device=DEVICE, requires_grad=True)
    y = tw.matmul(a, b, dropout_p=0.5, seed=4, activation="relu")
    y.backward(torch.ones(2, 3, 6, 5, device=DEVICE).transpose(-1, -2))
    assert torch.equal(a.grad[..., 0], y.sum(-1)) and torch.equal(b.grad[0], y.sum((0, 1, 2)))
