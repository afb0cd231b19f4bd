"""Products in CUDA graphs. Each test is a process of its own: a failed capture breaks its CUDA context."""

from __future__ import annotations

import pytest

from support import child

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

HEAD = """
import torch, tilewright as tw
torch.manual_seed(0)
def capture(f):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = f()
    return graph, out
a = torch.randint(-3, 4, (64, 40), device="cuda").half()
b = torch.randint(-3, 4, (40, 48), device="cuda").half()
w = torch.randint(-3, 4, (48, 40), device="cuda").half()
"""


def runs(code: str) -> None:
    done = child(HEAD + code)
    assert done.returncode == 0, done.stdout + done.stderr


def test_replay_uses_the_new_values():
    runs("""
tw.matmul(a, b)
graph, out = capture(lambda: tw.matmul(a, b))
for _ in range(3):
    a.copy_(torch.randint(-3, 4, a.shape, device="cuda"))
    b.copy_(torch.randint(-3, 4, b.shape, device="cuda"))
    graph.replay()
    assert torch.equal(out, a @ b)
""")


def test_a_first_call_inside_a_capture_works_or_says_what_to_do():
    """Compilation inside a capture; whichever it is, calls after it work."""
    runs("""
try:
    graph, out = capture(lambda: tw.matmul(a, b))
except Exception as error:
    assert str(error).startswith("tilewright."), error
    assert "warm" in str(error), error
else:
    a.copy_(a.flip(0))
    graph.replay()
    assert torch.equal(out, a @ b)
assert torch.equal(tw.matmul(a, b), a @ b)
""")


def test_every_step_in_a_graph():
    runs("""
bias, residual = torch.ones(48, device="cuda").half(), torch.ones(64, 48, device="cuda").half()
options = dict(bias=bias, activation="relu", residual=residual, dropout_p=0.5, seed=7, alpha=2.0)
expected = tw.matmul(a, b, **options)
graph, out = capture(lambda: tw.matmul(a, b, **options))
for _ in range(2):
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)
residual += 1
graph.replay()
assert torch.equal(out, expected + 1)
""")


@pytest.mark.parametrize("n", [48, 45])
def test_dropout_without_a_seed_draws_a_mask_at_each_replay(n):
    runs(f"""
x, w = torch.ones(64, 1, device="cuda"), torch.ones({n}, 1, device="cuda")
tw.linear(x, w, dropout_p=0.5)
graph, out = capture(lambda: tw.linear(x, w, dropout_p=0.5))
masks = []
for _ in range(4):
    graph.replay()
    masks.append(out.clone())
    assert set(out.unique().tolist()) == {{0.0, 2.0}}
    assert 0.44 < float((out != 0).float().mean()) < 0.56
for i in range(4):
    for j in range(i):
        assert 0.44 < float((masks[i] != masks[j]).float().mean()) < 0.56
""")


def test_forward_and_backward_in_one_graph():
    runs("""
w = w.float().requires_grad_()
x = torch.ones(64, 40, device="cuda")
def step():
    w.grad = None
    y = tw.linear(x, w, activation="relu", dropout_p=0.5)
    y.sum().backward()
    return y
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    step(); step()
torch.cuda.current_stream().wait_stream(stream)
w.grad = None
graph, y = capture(step)
before = None
for _ in range(3):
    graph.replay()
    live = (y != 0).float() * 2
    assert torch.equal(w.grad, live.t() @ x)
    assert before is None or not torch.equal(live, before)
    before = live
""")


def test_another_stream_and_eager_calls_between_replays():
    runs("""
tw.matmul(a, b)
graph, out = capture(lambda: tw.linear(a, w))
side = torch.cuda.Stream()
for i in range(5):
    a.copy_(torch.randint(-3, 4, a.shape, device="cuda"))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        aside = tw.matmul(a, b)
    torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    assert torch.equal(out, a @ w.t()) and torch.equal(aside, a @ b)
""")
