"""What torch's machinery asks of an operation: opcheck, numerical gradients, tracing, dynamic shapes."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import tilewright as tw
from support import DEVICE, GPU, assert_exact, finished, integers, laid, normals, oracle
from tilewright.gemm import ops

BACKEND = "inductor" if GPU else "aot_eager"


def arguments(a, b, *, bias=None, residual=None, activation=None, alpha=1.0, dropout_p=0.0, seed=0, keep_pre=False):
    return (
        a, b, bias, residual, None, activation, alpha, dropout_p, seed, None, False, None, None, [], a.dtype, keep_pre,
    )  # fmt: skip


@pytest.mark.parametrize("how", ["rows", "columns", "sliced", "offset_1"])
@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(how, grad):
    a, b = (laid(normals(*s, seed=i), how).requires_grad_(grad) for i, s in enumerate([(5, 8), (8, 6)]))
    bias, residual = normals(6, seed=3).requires_grad_(grad), laid(normals(5, 6, seed=4), how).requires_grad_(grad)
    torch.library.opcheck(ops.matmul, arguments(a, b))
    torch.library.opcheck(
        ops.matmul,
        arguments(
            a, b, bias=bias, residual=residual, activation="gelu", alpha=0.5, dropout_p=0.5, seed=3, keep_pre=grad
        ),
    )


@pytest.mark.parametrize(
    "shapes", [((2, 5, 8), (8, 6)), ((2, 5, 8), (2, 8, 6)), ((0, 8), (8, 6)), ((3, 1, 5, 8), (2, 8, 6))], ids=str
)
def test_opcheck_of_batches(shapes):
    a, b = (normals(*s, seed=i).requires_grad_() for i, s in enumerate(shapes))
    torch.library.opcheck(ops.matmul, arguments(a, b))


@pytest.mark.parametrize("how", ["rows", "columns", "sliced"])
def test_opcheck_of_out_and_of_the_backward(how):
    a, b = normals(5, 8, seed=1), normals(8, 6, seed=2)
    out = laid(normals(5, 6), how)
    torch.library.opcheck(ops.matmul_out, (*arguments(a, b)[:14], out))
    grad = laid(normals(5, 6, seed=5), how)
    torch.library.opcheck(ops.epilogue_backward, (grad, normals(5, 6, seed=6), None, "gelu", 0.5, 3, torch.float32))


def doubles(*shapes):
    return tuple(normals(*s, dtype=torch.float64, seed=i).requires_grad_() for i, s in enumerate(shapes))


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2"])
def test_gradcheck(activation):
    def f(a, b, bias, residual):
        return tw.matmul(a, b, bias=bias, residual=residual, activation=activation, alpha=0.5, dropout_p=0.25, seed=3)

    assert torch.autograd.gradcheck(f, doubles((3, 4), (4, 2), (2,), (3, 2)), fast_mode=True)


@pytest.mark.parametrize("activation", [None, "gelu", "silu", "tanh", "relu2"])
def test_gradgradcheck(activation):
    def f(a, b, bias, residual):
        return tw.matmul(a, b, bias=bias, residual=residual, activation=activation, alpha=0.5, dropout_p=0.25, seed=3)

    assert torch.autograd.gradgradcheck(f, doubles((3, 4), (4, 2), (2,), (3, 2)), fast_mode=True)


@pytest.mark.parametrize(
    "shapes", [((2, 3, 4), (4, 2)), ((2, 3, 4), (2, 4, 2)), ((4,), (4, 2)), ((3, 4), (4,))], ids=str
)
def test_gradcheck_of_batches_and_vectors(shapes):
    assert torch.autograd.gradcheck(tw.matmul, doubles(*shapes), fast_mode=True)
    assert torch.autograd.gradgradcheck(tw.matmul, doubles(*shapes), fast_mode=True)


def block(x, w, bias):
    return tw.linear(x.sin(), w, bias, activation="gelu") * 2


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield CompileCounterWithBackend(BACKEND)
    torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_whole_and_equal_to_eager(counter):
    x, w, bias = normals(6, 16, seed=1), normals(8, 16, seed=2), normals(8, seed=3)
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    torch.testing.assert_close(compiled(x, w, bias), block(x, w, bias), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_dynamic_shapes_compile_at_most_twice(counter):
    w, bias = normals(8, 16, seed=2), normals(8, seed=3)
    compiled = torch.compile(block, fullgraph=True, backend=counter, dynamic=True)
    for rows in (6, 7, 9, 16):
        x = normals(rows, 16, seed=rows)
        torch.testing.assert_close(compiled(x, w, bias), block(x, w, bias), rtol=1e-6, atol=1e-6)
    assert counter.frame_count <= 2


@pytest.mark.slow
def test_compiled_gradients(counter):
    def f(a, b, bias, residual):
        return tw.matmul(a, b, bias=bias, residual=residual, activation="relu", dropout_p=0.5, seed=3, alpha=2.0).sum()

    tensors = [integers(*s, seed=i) for i, s in enumerate([(5, 8), (8, 6), (6,), (5, 6)])]
    ours, theirs = ([t.clone().requires_grad_() for t in tensors] for _ in range(2))
    torch.compile(f, fullgraph=True, backend=counter)(*ours).backward()
    f(*theirs).backward()
    for x, y in zip(ours, theirs, strict=True):
        assert_exact(x.grad, y.grad)


@pytest.mark.slow
def test_compiled_out_precision_and_plan(counter):
    plan = tw.Plan("tile", 16, 16, 16)

    def f(a, b):
        out = a.new_empty(a.shape[0], b.shape[1])
        tw.matmul(a, b, out=out, precision="ieee")
        return out + tw.matmul(a, b, plan=plan, out_dtype=torch.float32)

    a, b = integers(5, 8, seed=1), integers(8, 6, seed=2)
    assert_exact(torch.compile(f, fullgraph=True, backend=counter)(a, b), 2 * oracle(a, b))


@pytest.mark.slow
def test_compiled_dropout_without_a_seed_draws_each_time(counter):
    compiled = torch.compile(lambda a, b: tw.matmul(a, b, dropout_p=0.5), fullgraph=True, backend=counter)
    a, b = torch.ones(32, 1, device=DEVICE), torch.ones(1, 32, device=DEVICE)
    one, other = compiled(a, b), compiled(a, b)
    assert set(one.unique().tolist()) == {0.0, 2.0} and not torch.equal(one, other)


def test_exported_and_traced():
    """torch.export and make_fx see one operation, whose fake result has the strides of the real one."""
    from torch.fx.experimental.proxy_tensor import make_fx

    a, b = integers(5, 8, seed=1), integers(8, 6, seed=2)
    graph = make_fx(lambda a, b: tw.matmul(a, b, activation="relu"), tracing_mode="fake")(a, b)
    assert next(n.target for n in graph.graph.nodes if n.op == "call_function") is ops.matmul
    assert_exact(graph(a, b), finished(a.cpu().double() @ b.cpu().double(), activation="relu"))

    class Module(torch.nn.Module):
        def forward(self, a, b):
            return tw.matmul(a, b)

    program = torch.export.export(Module(), (a, b))
    assert_exact(program.module()(a, b), oracle(a, b))


@pytest.mark.parametrize("how", ["rows", "columns", "sliced"])
def test_the_result_is_contiguous_and_so_is_its_fake(how):
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = laid(integers(2, 5, 8, seed=1), how), laid(integers(2, 8, 6, seed=2), how)
    real = tw.matmul(a, b)
    with FakeTensorMode() as mode:
        fake = tw.matmul(mode.from_tensor(a), mode.from_tensor(b))
    assert (
        real.is_contiguous()
        and fake.stride() == real.stride()
        and fake.shape == real.shape
        and fake.dtype is real.dtype
    )


def test_meta_tensors_give_shapes():
    result = tw.matmul(torch.empty(3, 5, 8, device="meta"), torch.empty(8, 6, device="meta"), out_dtype=torch.float16)
    assert result.shape == (3, 5, 6) and result.dtype is torch.float16 and result.device.type == "meta"
