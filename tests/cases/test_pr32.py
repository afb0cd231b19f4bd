"""The seed of dropout. facebookresearch/xformers#173, Dao-AILab/flash-attention#2088, flagos-ai/FlagGems#23."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE
from tilewright.gemm import planner

ROWS, COLS = 256, 256  # 2^16 elements


def drawn(seed=None, p=0.5, **options):
    x, w = torch.ones(ROWS, 1, device=DEVICE), torch.ones(COLS, 1, device=DEVICE)
    return tw.linear(x, w, dropout_p=p, seed=seed, **options)


def differ(one, other):
    return float(((one != 0) != (other != 0)).float().mean())


def test_same_seed_same_mask_next_seed_another():
    one, again, other = drawn(7), drawn(7), drawn(8)
    assert torch.equal(one, again)
    assert abs(differ(one, other) - 0.5) < 0.01
    assert abs(float((one != 0).float().mean()) - 0.5) < 0.008
    assert abs(differ(one[: ROWS // 2], one[ROWS // 2 :]) - 0.5) < 0.02
    assert abs(differ(one[:, : COLS // 2], one[:, COLS // 2 :]) - 0.5) < 0.02
    assert abs(differ(one[:-1], one[1:]) - 0.5) < 0.02


def test_no_seed_follows_torchs_generator():
    masks = []
    for _ in range(2):
        torch.manual_seed(0)
        masks.append((drawn(), drawn()))
    assert torch.equal(masks[0][0], masks[1][0]) and torch.equal(masks[0][1], masks[1][1])
    assert abs(differ(*masks[0]) - 0.5) < 0.01


def test_p_of_0_and_of_1():
    assert bool((drawn(3, p=0.0) == 1).all())
    assert bool((drawn(3, p=1.0) == 0).all())


def test_the_gradient_is_2_exactly_where_the_output_is():
    x = torch.eye(64, device=DEVICE).requires_grad_()
    w = torch.ones(64, 64, device=DEVICE)
    residual = torch.zeros(64, 64, device=DEVICE)
    y = tw.matmul(x, w, residual=residual, dropout_p=0.5, seed=5)
    probe = torch.zeros(64, 64, device=DEVICE)
    probe[:, 17] = 1
    (y * probe).sum().backward()  # one column alone, so that the gradient of each row shows one element
    assert torch.equal(x.grad[:, 0], y[:, 17]) and set(y.unique().tolist()) == {0.0, 2.0}


@pytest.mark.kernels
def test_every_plan_and_layout_draws_the_same_mask():
    x = torch.ones(70, 16, dtype=torch.bfloat16, device=DEVICE) / 16
    w = torch.ones(96, 16, dtype=torch.bfloat16, device=DEVICE)
    expected = tw.linear(x, w, dropout_p=0.5, seed=11)
    for plan in planner.plans(tw.Problem.of(x, w.t(), dropout_p=0.5)):
        assert torch.equal(tw.linear(x, w, dropout_p=0.5, seed=11, plan=plan), expected), str(plan)
    columns = torch.empty(16, 70, dtype=torch.bfloat16, device=DEVICE).t().copy_(x)
    out = torch.empty(96, 70, dtype=torch.bfloat16, device=DEVICE).t()
    assert torch.equal(tw.linear(columns, w, dropout_p=0.5, seed=11), expected)
    assert torch.equal(tw.linear(x, w, dropout_p=0.5, seed=11, out=out), expected)
