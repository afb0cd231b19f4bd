"""No GPU, no compiler, mixed devices: a line that helps. triton-lang/triton#525, #5570 and #5205,
jamiepine/voicebox#877, AnswerDotAI/ModernBERT#152."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from support import GPU, child

pytestmark = pytest.mark.slow


def lines(code: str, **env: str) -> list[str]:
    start = time.monotonic()
    done = child(code, **env)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 30  # torch's import is most of it
    return done.stdout.splitlines()


CALLS = """
import torch, tilewright as tw
a, b = torch.ones(4, 8), torch.ones(8, 6)
for call in (
    lambda: tw.matmul(a, b),
    lambda: tw.matmul(a.long(), b.long()),
    lambda: tw.matmul(a.to(torch.complex64), b),
    lambda: tw.matmul(a, b[:7]),
    lambda: tw.matmul(a, b.to("meta")),
    lambda: tw.Device.current(),
):
    try:
        print("ok", tuple(call().shape))
    except (TypeError, ValueError, RuntimeError) as error:
        print(type(error).__name__, error)
"""

EXPECTED = [
    r"ok \(4, 6\)",
    r"TypeError tilewright\.matmul: a is torch\.int64; it must be .*float32.*",
    r"TypeError tilewright\.matmul: a is torch\.complex64; it must be .*",
    r"ValueError tilewright\.matmul: b is of shape \(7, 6\); it must be of inner size 8.*",
    r"ValueError tilewright\.matmul: b is on meta; it must be on cpu.*",
]


@pytest.mark.parametrize("env", [{}, {"PATH": "/nowhere", "CC": ""}], ids=["compiler", "no_compiler"])
def test_without_a_gpu(env):
    got = lines(CALLS, CUDA_VISIBLE_DEVICES="", **env)
    assert len(got) == len(EXPECTED) + 1
    for line, pattern in zip(
        got, [*EXPECTED, r"RuntimeError tilewright\.Device\.current: no GPU is visible; .*"], strict=True
    ):
        assert re.fullmatch(pattern, line), line


def test_a_users_kernel_function_on_cpu_tensors():
    code = """
import torch, triton, tilewright as tw
@triton.jit
def f(acc, rows, cols, m, n, args):
    return acc
try:
    tw.matmul(torch.ones(4, 4), torch.ones(4, 4), epilogue=f)
except ValueError as error:
    print(error)
"""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:  # Triton reads a kernel's source from its file
        (Path(folder) / "users.py").write_text(code)
        (line,) = lines(f"import sys; sys.path.insert(0, {folder!r}); import users", CUDA_VISIBLE_DEVICES="")
    assert re.fullmatch(r"tilewright\.matmul: epilogue is .*GPU.*TRITON_INTERPRET=1.*", line), line


def test_the_command_line_without_a_gpu():
    import os

    from support import SRC

    env = {**os.environ, "PYTHONPATH": str(SRC), "CUDA_VISIBLE_DEVICES": ""}
    env.pop("TRITON_INTERPRET", None)
    for args, status in [(["--help"], 0), (["plan", "64x64x64", "--device", "abacus"], 2), (["nonsense"], 2)]:
        done = subprocess.run(
            [sys.executable, "-m", "tilewright", *args], capture_output=True, text=True, env=env, check=False
        )
        assert done.returncode == status, (args, done.stderr)
        assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_mixed_devices_on_a_gpu():
    code = """
import torch, tilewright as tw
a, b = torch.ones(4, 8, device="cuda"), torch.ones(8, 6)
for x, y in ((a, b), (a.cpu(), b.cuda())):
    try:
        tw.matmul(x, y)
    except ValueError as error:
        print(error)
print(float(tw.matmul(a, b.cuda()).sum()))
"""
    got = lines(code)
    assert re.fullmatch(r"tilewright\.matmul: b is on cpu; it must be on cuda:0.*", got[0])
    assert re.fullmatch(r"tilewright\.matmul: b is on cuda:0; it must be on cpu.*", got[1])
    assert got[2] == "192.0"
