"""Gradients: of every operand, through every step, for gradients that lie in memory in any way."""

from __future__ import annotations

import math

import pytest
import torch

import tilewright as tw
from support import ACTIVATIONS, DEVICE, LAYOUTS, assert_exact, finished, integers, laid, name_of, normals

M, N, K = 19, 24, 21


def copies(*tensors, dtype=torch.float64, device="cpu"):
    return [t.detach().to(device=device, dtype=dtype).requires_grad_() for t in tensors]


def reference_grads(operands, grad, *, dtype=torch.float64, device="cpu", **options):
    """torch's gradients of (a, b, bias, residual) where these are given; ``None`` stays."""
    a, b, bias, residual = (
        None if t is None else t.detach().to(device=device, dtype=dtype).requires_grad_() for t in operands
    )
    y = finished(torch.matmul(a, b), bias=bias, residual=residual, **options)
    y.backward(grad.to(device=device, dtype=dtype))
    return [None if t is None else t.grad for t in (a, b, bias, residual)]


def ours(operands, grad, **options):
    a, b, bias, residual = (None if t is None else t.detach().requires_grad_() for t in operands)
    tw.matmul(a, b, bias=bias, residual=residual, **options).backward(grad)
    return [None if t is None else t.grad for t in (a, b, bias, residual)]


def check_exact(operands, grad, **options):
    for got, expected in zip(ours(operands, grad, **options), reference_grads(operands, grad, **options), strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            assert_exact(got, expected)


def operands_of(dtype, size=(M, N, K), batch=()):
    m, n, k = size
    return (
        integers(*batch, m, k, dtype=dtype, seed=1),
        integers(*batch, k, n, dtype=dtype, seed=2),
        integers(n, dtype=dtype, seed=3),
        integers(*batch, m, n, dtype=dtype, seed=4),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("options", [
    {}, {"alpha": 2.0}, {"activation": "relu"}, {"dropout_p": 0.5, "seed": 7}, {"activation": "relu2"},
    {"activation": "relu", "dropout_p": 0.5, "seed": -3, "alpha": -1.0},
], ids=str)  # fmt: skip
def test_integers_are_exact(options, dtype):
    """Of values that bfloat16 holds: the sums stay below 256, or the gradient is rounded once."""
    operands = tuple(t.clamp(-1, 1) for t in operands_of(dtype, (M, N, 13)))
    check_exact(operands, integers(M, N, dtype=dtype, seed=9, most=1), **options)


@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=name_of)
def test_every_activation(activation, dtype):
    """Within twice the error of PyTorch's eager operations of the same dtype, and one rounding."""
    operands = tuple(normals(*s, dtype=dtype, seed=i) for i, s in enumerate([(M, K), (K, N), (N,), (M, N)]))
    grad = normals(M, N, dtype=dtype, seed=9)
    expected = reference_grads(operands, grad, activation=activation)
    theirs = reference_grads(operands, grad, activation=activation, dtype=dtype, device=DEVICE)
    for got, e, t in zip(ours(operands, grad, activation=activation), expected, theirs, strict=True):
        assert got.dtype is dtype
        eps = torch.finfo(dtype).eps
        allowed = 2 * float((t.cpu().double() - e).abs().max()) + e.abs() * eps / 2 + eps * float(e.abs().max()) / 2
        if dtype is torch.float64:  # its own oracle: a few roundings of the derivative, in each of M or N terms
            allowed = allowed + 32 * eps * float(e.abs().max())
        assert bool(((got.cpu().double() - e).abs() <= allowed).all())


POINTS = [
    -math.inf,
    -100.0,
    -30.0,
    -3.0,
    -1.0,
    -0.5,
    -1e-4,
    -0.0,
    0.0,
    1e-4,
    0.5,
    1.0,
    3.0,
    30.0,
    100.0,
    math.inf,
    math.nan,
]


@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name_of)
def test_derivatives_at_the_ends_and_at_zero(activation, dtype):
    """A product of k = 1 puts any value, NaN and infinity too, before the activation; its gradient is the slope."""
    x = torch.tensor(POINTS, dtype=dtype, device=DEVICE)[:, None].requires_grad_()
    tw.matmul(x, torch.ones(1, 1, dtype=dtype, device=DEVICE), activation=activation).sum().backward()
    (e,) = copies(x)
    ACTIVATIONS[activation](e).sum().backward()
    torch.testing.assert_close(x.grad.cpu().double(), e.grad, rtol=0, atol=16 * torch.finfo(dtype).eps, equal_nan=True)


# gradients that lie in memory in any way ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"activation": "relu", "dropout_p": 0.5, "seed": 3}], ids=["plain", "steps"])
def test_layouts_of_the_gradient(how, options):
    operands = operands_of(torch.float32)
    grad = laid(integers(M, N, seed=9), how)
    before = grad.clone()
    check_exact(operands, grad, **options)
    assert torch.equal(grad, before)


@pytest.mark.parametrize("options", [{}, {"activation": "relu", "dropout_p": 0.5, "seed": 3}], ids=["plain", "steps"])
def test_an_expanded_gradient(options):
    """What ``.sum().backward()`` hands in: every stride is 0."""
    operands = operands_of(torch.float32)
    a, b, bias, residual = copies(*operands, dtype=torch.float32, device=DEVICE)
    tw.matmul(a, b, bias=bias, residual=residual, **options).sum().backward()
    for got, e in zip((a, b, bias, residual), reference_grads(operands, torch.ones(M, N), **options), strict=True):
        assert_exact(got.grad, e)
    for grad in (integers(1, N).expand(M, N), integers(M, 1).expand(M, N), integers(2, 1, N)[1:, :].expand(1, M, N)[0]):
        check_exact(operands, grad, **options)


@pytest.mark.parametrize("how", ["rows", "columns", "sliced", "sliced_rows"])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)], ids=str)
def test_a_batched_gradient(how, order):
    operands = operands_of(torch.float32, (M, N, K), (3,))
    inverse = [order.index(i) for i in range(3)]
    grad = laid(integers(*[(3, M, N)[i] for i in inverse], seed=9), how).permute(order)
    assert grad.shape == (3, M, N)
    check_exact(operands, grad, activation="relu", dropout_p=0.5, seed=1)
    check_exact(operands, grad)


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((5,), (5,)), ((5,), (5, 7)), ((3, 5), (5,)), ((2, 3, 5), (5, 7)), ((2, 3, 5), (5,)), ((5,), (2, 5, 7)),
        ((3, 5), (2, 5, 7)), ((1, 3, 5), (2, 5, 7)), ((2, 1, 3, 5), (3, 5, 7)), ((2, 3, 1, 5), (2, 1, 5, 7)),
        ((2, 2, 3, 3, 5), (2, 1, 3, 5, 7)),
    ],
    ids=str,
)  # fmt: skip
def test_broadcast_operands_get_summed_gradients(shape_a, shape_b):
    a, b = integers(*shape_a, seed=1).requires_grad_(), integers(*shape_b, seed=2).requires_grad_()
    ea, eb = copies(a, b)
    y, e = tw.matmul(a, b), torch.matmul(ea, eb)
    grad = integers(*y.shape, seed=9)
    y.backward(grad)
    e.backward(grad.cpu().double())
    assert_exact(a.grad, ea.grad)
    assert_exact(b.grad, eb.grad)


@pytest.mark.parametrize("how", LAYOUTS)
def test_operands_lie_in_any_way(how):
    a, b, bias, residual = operands_of(torch.float32)
    check_exact((laid(a, how), laid(b, how), bias, laid(residual, how)), integers(M, N, seed=9), activation="relu")


def test_only_what_is_asked_for():
    for wanted in range(4):
        operands = operands_of(torch.float32)
        operands[wanted].requires_grad_()
        tw.matmul(operands[0], operands[1], bias=operands[2], residual=operands[3], activation="relu").sum().backward()
        expected = reference_grads(operands, torch.ones(M, N), activation="relu")
        assert [t.grad is not None for t in operands] == [i == wanted for i in range(4)]
        assert_exact(operands[wanted].grad, expected[wanted])


def test_backward_twice_adds_the_same_again():
    operands = [t.requires_grad_() for t in operands_of(torch.float32)]
    y = tw.matmul(operands[0], operands[1], bias=operands[2], residual=operands[3], activation="relu2", dropout_p=0.5)
    y.backward(integers(M, N, seed=9), retain_graph=True)
    once = [t.grad.clone() for t in operands]
    y.backward(integers(M, N, seed=9))
    for t, first in zip(operands, once, strict=True):
        assert torch.equal(t.grad, 2 * first)


def test_gradients_have_their_operands_dtype():
    a, b = integers(M, K, dtype=torch.bfloat16).requires_grad_(), integers(K, N, dtype=torch.float32).requires_grad_()
    bias = integers(N, dtype=torch.float16).requires_grad_()
    residual = integers(M, N, dtype=torch.float64).requires_grad_()
    tw.matmul(a, b, bias=bias, residual=residual, activation="relu", out_dtype=torch.float32).sum().backward()
    assert [t.grad.dtype for t in (a, b, bias, residual)] == [
        torch.bfloat16,
        torch.float32,
        torch.float16,
        torch.float64,
    ]


def test_a_bias_gradient_is_summed_in_float32():
    """4,096 rows of 1 in bfloat16: a sum in bfloat16 would end at 256."""
    bias = torch.zeros(8, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    x, w = (torch.zeros(s, dtype=torch.bfloat16, device=DEVICE) for s in [(4096, 16), (16, 8)])
    tw.matmul(x, w, bias=bias).sum().backward()
    assert_exact(bias.grad, torch.full((8,), 4096.0))


def test_nan_in_one_row_of_the_gradient_stays_there():
    operands = operands_of(torch.float32)
    grad = integers(M, N, seed=9)
    grad[3] = math.nan
    a, _, _, residual = ours(operands, grad, activation="relu")
    for got in (a, residual):
        assert got[3].isnan().all() and not got[:3].isnan().any() and not got[4:].isnan().any()


@pytest.mark.parametrize("size", [(0, 5, 4), (5, 0, 4), (5, 4, 0), (0, 0, 0), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_sizes_of_zero_and_one(size, activation):
    operands = operands_of(torch.float32, size)
    got = ours(operands, integers(*size[:2], seed=9), activation=activation)
    for g, t in zip(got, operands, strict=True):
        assert g.shape == t.shape
        if 0 in size and g is not got[3]:
            assert size == (5, 4, 0) or not g.any()
    if activation != "gelu":
        check_exact(operands, integers(*size[:2], seed=9), activation=activation)
