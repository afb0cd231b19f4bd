"""A first call inside the capture of a CUDA graph. triton-lang/triton#10596 and #10604, meta-pytorch/tritonparse#197.

Replay with new values and dropout in a graph are in tests/gemm/test_cuda_graph.py.
"""

from __future__ import annotations

import pytest

from support import child

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FIRST = """
import torch, tilewright as tw
a = torch.randint(-3, 4, (64, 40), device="cuda").half()
b = torch.randint(-3, 4, (40, 48), device="cuda").half()
graph = torch.cuda.CUDAGraph()
failed = None
try:
    with torch.cuda.graph(graph):
        out = tw.matmul(a, b)
except Exception as error:
    failed = str(error)
if failed is None:
    b.copy_(b.flip(1))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, a @ b)
    print("captured")
else:
    assert failed.startswith("tilewright.") and "warm" in failed, failed
    print("refused")
assert torch.equal(tw.matmul(a, b), a @ b)
again = torch.cuda.CUDAGraph()
with torch.cuda.graph(again):
    out = tw.matmul(a, b)
a.add_(1)
again.replay()
torch.cuda.synchronize()
assert torch.equal(out, a @ b)
"""


def test_a_fresh_process_captures_its_first_product(tmp_path):
    done = child(FIRST, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() in (["captured"], ["refused"])
