"""A batch above 65,535. pytorch/pytorch#178617, fla-org/flash-linear-attention#172 and #1077."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE
from tilewright.gemm.operands import Operands
from tilewright.gemm.schedules import SCHEDULES


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_the_last_of_70000_products(dtype):
    a, b = (torch.randint(-3, 4, (70_000, 16, 16), device=DEVICE).to(dtype) for _ in range(2))
    a.requires_grad_()
    got = tw.matmul(a, b)
    expected = torch.matmul(a.detach()[-3:].double(), b[-3:].double()).to(dtype)
    assert torch.equal(got.detach()[-3:], expected)
    got.backward(torch.ones((), dtype=dtype, device=DEVICE).expand_as(got))
    assert torch.equal(a.grad[-1], b[-1].sum(1).expand(16, 16))


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_no_grid_ends_at_65535(schedule):
    """CUDA's second and third dimensions hold 65,535 programs: a batch must not be in them."""
    import inspect

    device = tw.Device.named("h200")
    a, b = (torch.empty(70_000, 16, 16, dtype=torch.float16, device="meta") for _ in range(2))
    operands = Operands.of("matmul", a, b)
    plan = tw.Plan(schedule, 16, 16, 16, num_warps=1, num_stages=2)
    if why := SCHEDULES[schedule].refuses(plan, operands.problem, device):
        pytest.skip(why)
    prepare = SCHEDULES[schedule].prepare
    call = prepare(*(plan, operands, device)[: len(inspect.signature(prepare).parameters)])
    assert all(size <= 65_535 for size in call.grid[1:]) and 0 < call.grid[0] < 2**31
