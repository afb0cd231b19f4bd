"""An unaligned address after an aligned one. pytorch/pytorch#151859, vllm-project/vllm#57669,
triton-lang/triton#1330."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE, GPU, child, integers

M, N, K = (33, 1185, 64) if GPU else (17, 37, 64)


def views(values):
    """The same matrix at elements 0, 1 and 8 of a buffer."""
    for start in (0, 1, 8):
        buffer = torch.full((values.numel() + 8,), float("nan"), dtype=values.dtype, device=DEVICE)
        yield buffer[start : start + values.numel()].view(values.shape).copy_(values)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_in_any_order(order):
    a, b = integers(M, K, dtype=torch.float16, seed=1), integers(K, N, dtype=torch.float16, seed=2)
    expected = (a.float() @ b.float()).half()
    of_a, of_b = list(views(a)), list(views(b))
    for i in order:
        assert torch.equal(tw.matmul(of_a[i], b), expected)
        assert torch.equal(tw.matmul(a, of_b[i]), expected)
        assert torch.equal(tw.matmul(of_a[i], of_b[i]), expected)
        assert torch.equal(tw.linear(of_a[i], of_b[i].t()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=str)
def test_compiled(order):
    torch._dynamo.reset()
    a, b = integers(M, K, dtype=torch.float16, seed=1), integers(K, N, dtype=torch.float16, seed=2)
    expected = (a.float() @ b.float()).half()
    compiled = torch.compile(tw.matmul, fullgraph=True, backend="inductor" if GPU else "aot_eager")
    of_a = list(views(a))
    for i in order:
        assert torch.equal(compiled(of_a[i], b), expected)


@pytest.mark.gpu
@pytest.mark.slow
def test_in_a_cuda_graph():
    code = """
import torch, tilewright as tw
b = torch.randint(-3, 4, (64, 1185), device="cuda").half()
for starts in ((0, 1, 8), (8, 1, 0)):
    graphs = []
    for s in starts:
        a = torch.randint(-3, 4, (33 * 64 + 8,), device="cuda").half()[s : s + 33 * 64].view(33, 64)
        tw.matmul(a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = tw.matmul(a, b)
        graphs.append((graph, a, out))
    for graph, a, out in graphs:
        a.copy_(torch.randint(-3, 4, a.shape, device="cuda"))
        graph.replay()
        assert torch.equal(out, (a.float() @ b.float()).half())
"""
    done = child(code)
    assert done.returncode == 0, done.stderr
