"""CPU tensors in a process without the interpreter: the same interface, by PyTorch's own operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
from support import ACTIVATIONS, DTYPES, finished, kept, name_of
from tilewright.runtime.mode import INTERPRETED, runs_kernels

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="needs a process without TRITON_INTERPRET")


def whole(*shape, dtype=torch.float32, seed=0):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(result, expected):
    torch.testing.assert_close(result, expected.to(result.dtype), rtol=0, atol=0, equal_nan=True)


def test_this_process_composes():
    assert not runs_kernels(CPU)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.float16], ids=str)
def test_every_option(dtype, out_dtype):
    a, b = whole(2, 9, 20, dtype=dtype, seed=1), whole(20, 6, dtype=dtype, seed=2)
    options = dict(
        bias=whole(6, seed=3), residual=whole(2, 9, 6, dtype=torch.bfloat16, seed=4), activation="relu2",
        alpha=-0.5, dropout_p=0.5, seed=-11,
    )  # fmt: skip
    result = tw.matmul(a, b, out_dtype=out_dtype, **options)
    assert result.dtype is (out_dtype or dtype) and result.is_contiguous()
    exact(result, finished(a.double() @ b.double(), **options))
    out = torch.full((2, 6, 9), float("nan"), dtype=result.dtype).transpose(1, 2)
    assert tw.matmul(a, b, out=out, **options) is out
    assert torch.equal(out, result)


@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a])
def test_activations_and_their_gradients(activation):
    x, w = torch.randn(7, 12, dtype=torch.float64, requires_grad=True), torch.randn(5, 12, dtype=torch.float64)
    y = tw.linear(x, w, activation=activation)
    torch.testing.assert_close(y, ACTIVATIONS[activation](F.linear(x, w)))
    (ours,) = torch.autograd.grad(y.sum(), x)
    (theirs,) = torch.autograd.grad(ACTIVATIONS[activation](F.linear(x, w)).sum(), x)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("n", [32, 21])
@pytest.mark.parametrize("seed", [0, -1, 2**40 + 1])
def test_the_mask_is_the_kernels(n, seed):
    """The same elements as a kernel keeps: the documented mask, which tests/lang holds the kernels to."""
    result = tw.matmul(torch.ones(9, 1), torch.ones(1, n), dropout_p=0.5, seed=seed)
    exact(result, 2.0 * kept((9, n), 0.5, seed))
    a = torch.ones(9, 1, requires_grad=True)
    y = tw.matmul(a, torch.ones(1, n), dropout_p=0.5, seed=seed)
    y.sum().backward()
    assert torch.equal(a.grad[:, 0], y.sum(1))


@pytest.mark.parametrize("seed_torch", [0, 1])
def test_without_a_seed_torchs_generator_decides(seed_torch):
    a, b = torch.ones(32, 1), torch.ones(1, 32)
    torch.manual_seed(seed_torch)
    first, second = tw.matmul(a, b, dropout_p=0.5), tw.matmul(a, b, dropout_p=0.5)
    torch.manual_seed(seed_torch)
    assert torch.equal(tw.matmul(a, b, dropout_p=0.5), first) and not torch.equal(first, second)


def test_sizes_of_zero_and_shapes_of_torch():
    for shape_a, shape_b in [
        ((0, 4), (4, 3)),
        ((3, 0), (0, 4)),
        ((4,), (4,)),
        ((2, 3, 4), (4,)),
        ((2, 0, 4), (2, 4, 3)),
    ]:
        a, b = whole(*shape_a, seed=1), whole(*shape_b, seed=2)
        exact(tw.matmul(a, b), torch.matmul(a, b))
    exact(
        tw.matmul(whole(3, 0), whole(0, 4), bias=whole(4, seed=3), activation="relu"),
        F.relu(whole(4, seed=3)).expand(3, 4),
    )


def test_numerical_gradients():
    def f(a, b, bias, residual):
        return tw.matmul(a, b, bias=bias, residual=residual, activation="silu", alpha=0.5, dropout_p=0.25, seed=3)

    tensors = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in [(3, 4), (4, 5), (5,), (3, 5)]]
    assert torch.autograd.gradcheck(f, tensors)
    assert torch.autograd.gradgradcheck(f, tensors)


def test_batch_invariance():
    a, b = torch.randn(97, 200), torch.randn(200, 50)
    all_rows = tw.matmul(a, b, batch_invariant=True)
    torch.testing.assert_close(all_rows, a @ b)
    for m in (1, 2, 33):
        assert torch.equal(tw.matmul(a[:m], b, batch_invariant=True), all_rows[:m])
    batched = tw.matmul(a.view(1, 97, 200).expand(2, 97, 200), b.expand(2, 200, 50), batch_invariant=True)
    assert torch.equal(batched[1], tw.matmul(a, b.expand(1, 200, 50), batch_invariant=True)[0])
    assert tw.matmul(a[:0], b, batch_invariant=True).shape == (0, 50)


def test_addmm_and_linear():
    x, a, b = whole(6, seed=1), whole(5, 8, seed=2), whole(8, 6, seed=3)
    exact(tw.addmm(x, a, b, beta=2, alpha=-1), torch.addmm(x, a, b, beta=2, alpha=-1))
    exact(tw.linear(a, b.t(), x), F.linear(a, b.t(), x))


def test_a_bad_plan_is_refused_here_too():
    a, b = whole(5, 8), whole(8, 6)
    for plan in (tw.Plan("magic", 16, 16, 16), tw.Plan("tile", 16, 16, 16, split_k=3)):
        with pytest.raises(ValueError, match=r"^tilewright\.matmul: plan"):
            tw.matmul(a, b, plan=plan)
    exact(tw.matmul(a, b, plan=tw.Plan("tile", 16, 16, 16)), a @ b)


def test_a_module_trains_as_with_torch():
    def losses(linear, gelu_linear):
        torch.manual_seed(0)
        first, second = torch.nn.Linear(4, 16), torch.nn.Linear(16, 1)
        x = torch.randn(64, 4)
        target = x.sum(1, keepdim=True).tanh()
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        found = []
        for _ in range(30):
            loss = F.mse_loss(linear(gelu_linear(x, first.weight, first.bias), second.weight, second.bias), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return torch.stack(found)

    ours = losses(tw.linear, lambda x, w, b: tw.linear(x, w, b, activation="gelu"))
    theirs = losses(F.linear, lambda x, w, b: F.gelu(F.linear(x, w, b)))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    assert ours[-1] < 0.5 * ours[0]


@pytest.mark.slow
def test_compiled_whole():
    torch._dynamo.reset()
    f = torch.compile(
        lambda x, w: tw.linear(x, w, activation="gelu").sum(), fullgraph=True, backend="aot_eager", dynamic=True
    )
    w = torch.randn(6, 8, requires_grad=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 8)
        (ours,) = torch.autograd.grad(f(x, w), w)
        (theirs,) = torch.autograd.grad(F.gelu(x @ w.t()).sum(), w)
        torch.testing.assert_close(ours, theirs)
