"""Sizes that only a GPU reaches in time: many products, and offsets that 32 bits do not hold."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE
from tilewright.gemm import planner
from tilewright.gemm.schedules import SCHEDULES

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

BIG = 2**31
PLANS = [tw.Plan(schedule, 64, 64, 64, num_stages=3) for schedule in sorted(SCHEDULES)]


def small(*shape, seed=0):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, device=DEVICE).half()


def enough(gigabytes):
    if torch.cuda.mem_get_info()[0] < gigabytes * 2**30:
        pytest.skip(f"needs {gigabytes} GiB of free GPU memory")


def runs(plan, a, b):
    if why := SCHEDULES[plan.schedule].refuses(plan, tw.Problem.of(a, b), planner.device_or_default(None)):
        pytest.skip(why)


@pytest.mark.parametrize("plan", [None, *PLANS], ids=str)
def test_a_batch_beyond_the_grids_second_dimension(plan):
    a, b = small(70_000, 16, 16, seed=1), small(70_000, 16, 16, seed=2)
    if plan is not None:
        runs(plan, a, b)
    got = tw.matmul(a, b, plan=plan)
    for part in (slice(0, 10), slice(65_530, 65_540), slice(69_990, 70_000)):
        assert torch.equal(got[part], torch.matmul(a[part].float(), b[part].float()).half())
    assert torch.equal(got, torch.matmul(a, b))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_rows_beyond_32_bits(plan):
    """A tall a: the last rows lie past 2^31 elements of a and, with a wide b, of c."""
    enough(24)
    k = 64
    rows = BIG // k + 200
    a = torch.zeros(rows, k, dtype=torch.float16, device=DEVICE)
    tail = small(100, k, seed=1)
    a[-100:] = tail
    b = small(k, 64, seed=2)
    runs(plan, a, b)
    got = tw.matmul(a, b, plan=plan)
    assert torch.equal(got[-100:], tail @ b)
    assert not got[:1000].any() and not got[-200:-100].any()
    head = tw.matmul(b, a.t(), plan=plan)  # the same memory as columns
    assert torch.equal(head[:, -100:], b @ tail.t()) and not head[:, :1000].any()


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_stride_beyond_32_bits_in_k(plan):
    """Column-major, so that a step along k is long: the k-th column starts past 2^31."""
    enough(16)
    m, k = 2**22, 600
    a = torch.zeros(k, m, dtype=torch.float16, device=DEVICE).t()
    tail = small(64, k, seed=1)
    a[-64:] = tail
    b = small(k, 32, seed=2)
    runs(plan, a, b)
    got = tw.matmul(a, b, plan=plan)
    assert torch.equal(got[-64:], (tail.float() @ b.float()).half())
    assert not got[:-64].any()


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_an_output_and_a_residual_beyond_32_bits(plan):
    enough(24)
    n = 2**16
    m = BIG // n + 70
    a, b = torch.zeros(m, 16, dtype=torch.float16, device=DEVICE), small(16, n, seed=2)
    tail = small(70, 16, seed=1)
    a[-70:] = tail
    residual = torch.ones(1, dtype=torch.float16, device=DEVICE).expand(m, n)
    runs(plan, a, b)
    got = tw.matmul(a, b, residual=residual, plan=plan)
    assert torch.equal(got[-70:], tail @ b + 1)
    assert bool((got[:-70] == 1).all())
    del residual
    real = got.clone()
    got = tw.matmul(a, b, residual=real, plan=plan)
    assert torch.equal(got[-70:], 2 * (tail @ b) + 1)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_batch_stride_beyond_32_bits(plan):
    enough(16)
    buffer = torch.zeros(3, 2**30 + 1024, dtype=torch.float16, device=DEVICE)
    a = buffer[:, :4096].view(3, 64, 64)
    a.copy_(small(3, 64, 64, seed=1))
    assert a.stride(0) * 2 > BIG
    b = small(3, 64, 64, seed=2)
    runs(plan, a, b)
    assert torch.equal(tw.matmul(a, b, plan=plan), torch.matmul(a, b))


def test_dropout_beyond_32_bits():
    """The mask goes on past element 2^32: its halves differ, and the backward's has the same end."""
    from support import kept

    enough(40)
    n = 2**16
    m = 2**16 + 64
    a = torch.ones(m, 1, dtype=torch.float16, device=DEVICE, requires_grad=True)
    b = torch.full((1, n), 0.5, dtype=torch.float16, device=DEVICE)  # what is kept is 1: 2^16 of them fit a float16
    got = tw.matmul(a, b, dropout_p=0.5, seed=3)
    for row in (0, 2**15, 2**16, m - 1):
        assert torch.equal(got[row].cpu().float(), 1.0 * kept((n,), 0.5, 3, row * n))
    grad = torch.ones(1, dtype=torch.float16, device=DEVICE).expand(m, n)
    got.backward(grad)
    share = got[-64:].float().sum(1)
    torch.testing.assert_close(a.grad[-64:, 0].float(), share, rtol=2**-10, atol=0)


def test_a_gradient_beyond_32_bits():
    """The backward of an activation over more than 2^31 elements writes the last one too."""
    enough(48)
    n = 2**16
    m = BIG // n + 64
    a = torch.zeros(m, 16, dtype=torch.float16, device=DEVICE)
    a[-64:] = small(64, 16, seed=1)
    b = small(16, n, seed=2)
    b[:, 7:] = 0
    a.requires_grad_()
    got = tw.matmul(a, b, activation="relu")
    got.backward(torch.ones(1, dtype=torch.float16, device=DEVICE).expand(m, n))
    live = (a.detach()[-64:].float() @ b.float() > 0).float()
    assert torch.equal(a.grad[-64:].float(), live @ b.t().float())
    assert not a.grad[:-64].any()


def test_a_long_float32_sum_keeps_its_digits():
    """A single chain of multiply-adds loses nearly three times the digits of cuBLAS's at this length."""
    torch.manual_seed(0)
    a, b = torch.randn(256, 4096, device=DEVICE), torch.randn(4096, 512, device=DEVICE)
    expected = a.double() @ b.double()

    def error(c):
        return float((c.double() - expected).norm() / expected.norm())

    for plan in tw.plans(tw.Problem.of(a, b, precision="ieee")):
        assert error(tw.matmul(a, b, precision="ieee", plan=plan)) <= 2 * error(a @ b), plan
