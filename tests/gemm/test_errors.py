"""Every bad call: one line that names the argument, what it was and what it must be; nothing written."""

from __future__ import annotations

import math
import re

import pytest
import torch
import triton
import triton.language as tl

import tilewright as tw
from support import DEVICE, GPU, KERNELS, child, integers
from tilewright.runtime.mode import INTERPRETED

A, W, X = integers(5, 8, seed=1), integers(7, 8, seed=2), integers(5, 7, seed=3)
B = W.t()


@triton.jit
def same(acc, rows, cols, m, n, args):
    return tl.maximum(acc, acc)


TILE = tw.Plan("tile", 16, 16, 16)
PERSISTENT = tw.Plan("persistent", 16, 16, 16)
META, FAR = torch.empty(8, 7, device="meta"), torch.empty(5, 7, device="meta")
SQUARE = integers(8, 8)
SPARSE = torch.eye(8, device=DEVICE).to_sparse()

#: (what is wrong, function, arguments, options, kind of error, argument that the line names)
BAD = [
    ("inner size", "matmul", (A, B[:6]), {}, ValueError, "b"),
    ("inner size of a vector", "matmul", (A, A[0, :3]), {}, ValueError, "b"),
    ("inner size of linear", "linear", (A[:, :6], W), {}, ValueError, "x"),
    ("inner size of addmm", "addmm", (X, A, B[:6]), {}, ValueError, "b"),
    ("batch", "matmul", (A.expand(2, 5, 8), B.expand(3, 8, 7)), {}, ValueError, "b"),
    ("integers", "matmul", (A.long(), B.long()), {}, TypeError, "a"),
    ("one integer operand", "matmul", (A, B.int()), {}, TypeError, "b"),
    ("bool", "linear", (A.bool(), W), {}, TypeError, "x"),
    ("complex", "matmul", (A.to(torch.complex64), B), {}, TypeError, "a"),
    ("complex weight", "linear", (A, W.to(torch.complex64)), {}, TypeError, "weight"),
    ("complex addmm", "addmm", (X, A, B.to(torch.complex64)), {}, TypeError, "b"),
    ("float8", "matmul", (A.to(torch.float8_e4m3fn), B), {}, TypeError, "a"),
    ("not a tensor", "matmul", (A, [[1.0]]), {}, TypeError, "b"),
    ("no tensor at all", "linear", (None, W), {}, TypeError, "x"),
    ("sparse", "matmul", (A, SPARSE), {}, TypeError, "b"),
    ("0-dimensional", "matmul", (A, A[0, 0]), {}, ValueError, "b"),
    ("weight of 3 dimensions", "linear", (A, W[None]), {}, ValueError, "weight"),
    ("weight of 0 dimensions", "linear", (A, W[0, 0]), {}, ValueError, "weight"),
    ("addmm of a batch", "addmm", (X, A[None], B), {}, ValueError, "a"),
    ("mixed devices", "matmul", (A, META), {}, ValueError, "b"),
    ("mixed devices, bias", "linear", (A, W), {"bias": META[0]}, ValueError, "bias"),
    ("mixed devices, residual", "matmul", (A, B), {"residual": FAR}, ValueError, "residual"),
    ("mixed devices, out", "matmul", (A, B), {"out": FAR}, ValueError, "out"),
    ("mixed devices, input", "addmm", (META[:5], A, B), {}, ValueError, "input"),
    ("bias too short", "linear", (A, W), {"bias": X[0, :6]}, ValueError, "bias"),
    ("bias of one", "linear", (A, W), {"bias": X[0, :1]}, ValueError, "bias"),
    ("bias of 2 dimensions", "matmul", (A, B), {"bias": X[:1]}, ValueError, "bias"),
    ("bias of integers", "matmul", (A, B), {"bias": X[0].int()}, TypeError, "bias"),
    ("bias a number", "matmul", (A, B), {"bias": 1.0}, TypeError, "bias"),
    ("residual of another shape", "matmul", (A, B), {"residual": X[:1]}, ValueError, "residual"),
    ("input of another shape", "addmm", (X[:, :6], A, B), {}, ValueError, "input"),
    ("input of integers", "addmm", (X.int(), A, B), {}, TypeError, "input"),
    ("input a number", "addmm", (1.0, A, B), {}, TypeError, "input"),
    ("beta", "addmm", (X, A, B), {"beta": "2"}, TypeError, "beta"),
    ("beta complex", "addmm", (X, A, B), {"beta": 1j}, TypeError, "beta"),
    ("activation", "matmul", (A, B), {"activation": "swish9"}, ValueError, "activation"),
    ("activation a function", "matmul", (A, B), {"activation": torch.relu}, ValueError, "activation"),
    ("p above 1", "matmul", (A, B), {"dropout_p": 1.5}, ValueError, "dropout_p"),
    ("p below 0", "matmul", (A, B), {"dropout_p": -0.1}, ValueError, "dropout_p"),
    ("p NaN", "matmul", (A, B), {"dropout_p": math.nan}, ValueError, "dropout_p"),
    ("p a bool", "matmul", (A, B), {"dropout_p": True}, ValueError, "dropout_p"),
    ("seed a float", "matmul", (A, B), {"dropout_p": 0.5, "seed": 1.5}, TypeError, "seed"),
    ("seed too large", "matmul", (A, B), {"dropout_p": 0.5, "seed": 2**63}, ValueError, "seed"),
    ("alpha", "matmul", (A, B), {"alpha": "two"}, TypeError, "alpha"),
    ("alpha complex", "matmul", (A, B), {"alpha": 2j}, TypeError, "alpha"),
    ("out_dtype", "matmul", (A, B), {"out_dtype": torch.int32}, TypeError, "out_dtype"),
    ("out_dtype a string", "matmul", (A, B), {"out_dtype": "float16"}, TypeError, "out_dtype"),
    ("precision", "matmul", (A, B), {"precision": "bf16x9"}, ValueError, "precision"),
    ("out of another shape", "matmul", (A, B), {"out": X[:4].clone()}, ValueError, "out"),
    ("out of integers", "matmul", (A, B), {"out": X.int()}, TypeError, "out"),
    ("out and another out_dtype", "matmul", (A, B), {"out": X.half(), "out_dtype": torch.float32}, TypeError, "out"),
    ("out expanded", "matmul", (A, B), {"out": X[:1].clone().expand(5, 7)}, ValueError, "out"),
    ("out is an operand", "matmul", (SQUARE, SQUARE), {"out": SQUARE}, ValueError, "out"),
    ("epilogue", "matmul", (A, B), {"epilogue": lambda x: x}, TypeError, "epilogue"),
    ("epilogue_args alone", "matmul", (A, B), {"epilogue_args": (X,)}, ValueError, "epilogue_args"),
    ("epilogue_args no tuple", "matmul", (A, B), {"epilogue": same, "epilogue_args": 3}, TypeError, "epilogue_args"),
    ("epilogue_args of 3", "matmul", (A, B), {"epilogue": same, "epilogue_args": (3,)}, TypeError, "epilogue_args"),
    ("batch_invariant a number", "matmul", (A, B), {"batch_invariant": 3}, TypeError, "batch_invariant"),
    ("plan as text", "matmul", (A, B), {"plan": "tile 16x16x16"}, TypeError, "plan"),
    ("plan of no schedule", "linear", (A, W), {"plan": tw.Plan("magic", 16, 16, 16)}, ValueError, "plan.schedule"),
    ("plan that splits", "linear", (A, W), {"plan": tw.Plan("tile", 16, 16, 16, split_k=2)}, ValueError, "plan"),
    ("plan too large", "matmul", (A, B), {"plan": tw.Plan("tile", 256, 256, 256, num_warps=32)}, ValueError, "plan"),
    ("plan for float64", "matmul", (A.double(), B.double()), {"plan": PERSISTENT}, ValueError, "plan"),
    ("plan for strides", "matmul", (A.half()[:, ::2], B.half()[::2]), {"plan": PERSISTENT}, ValueError, "plan"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "args", "options", "kind", "named"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_one_line_that_names_the_argument(function, args, options, kind, named):
    before = [t.clone() for t in args if isinstance(t, torch.Tensor) and t.device.type != "meta" and not t.is_sparse]
    with pytest.raises(kind) as error:
        getattr(tw, function)(*args, **options)
    line = str(error.value)
    assert type(error.value) is kind and "\n" not in line
    assert re.match(rf"tilewright\.{function}: {re.escape(named)} (is|of) \S", line), line
    assert "must be" in line or "cannot run" in line, line
    after = [t for t in args if isinstance(t, torch.Tensor) and t.device.type != "meta" and not t.is_sparse]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "wrong",
    [
        {"bias": X[0, :6]}, {"residual": X[:1]}, {"activation": "swish9"}, {"dropout_p": 2.0}, {"precision": "half"},
        {"plan": tw.Plan("magic", 16, 16, 16)}, {"plan": tw.Plan("tile", 16, 16, 16, split_k=2)}, {"alpha": "two"},
        {"out_dtype": torch.float64},
    ],
    ids=lambda w: next(iter(w)),
)  # fmt: skip
def test_nothing_is_written_to_out(wrong):
    out = torch.full((5, 7), 7.0, device=DEVICE)
    with pytest.raises((ValueError, TypeError), match=r"^tilewright\.matmul: "):
        tw.matmul(A, B, out=out, **wrong)
    assert bool((out == 7.0).all())
    tw.matmul(A, B, out=out)
    assert bool((out != 7.0).any())


def test_out_in_the_memory_of_an_operand():
    memory = integers(4, 8, 8)
    for out, a, b in [
        (memory[0], memory[0], memory[1]),
        (memory[1], memory[0], memory[1].t()),
        (memory.flatten()[60:124].view(8, 8), memory[0], memory[3]),
    ]:
        before = memory.clone()
        with pytest.raises(ValueError, match=r"^tilewright\.matmul: out is in the memory of an input; it must be "):
            tw.matmul(a, b, out=out)
        assert torch.equal(memory, before)
    # beside an operand, or in the gaps of one, is another matter
    expected = memory[0] @ memory[1]
    tw.matmul(memory[0], memory[1], out=memory[2])
    assert torch.equal(memory[2], expected)
    wide = integers(8, 16)
    expected = wide[:, :8] @ memory[1]
    tw.matmul(wide[:, :8], memory[1], out=wide[:, 8:])
    assert torch.equal(wide[:, 8:], expected)


def test_a_residual_may_be_out_itself():
    out = X.clone()
    tw.matmul(A, B, residual=out, out=out)
    assert torch.equal(out, X + A @ B)


def test_out_and_a_gradient():
    with pytest.raises(
        ValueError, match=r"^tilewright\.matmul: out is given; it must be None where a gradient is wanted"
    ):
        tw.matmul(A.clone().requires_grad_(), B, out=torch.zeros(5, 7, device=DEVICE))
    with pytest.raises(ValueError, match=r"^tilewright\.matmul: out is given"):
        tw.matmul(A, B, out=torch.zeros(5, 7, device=DEVICE, requires_grad=True))
    with torch.no_grad():
        out = torch.zeros(5, 7, device=DEVICE)
        tw.matmul(A.clone().requires_grad_(), B, out=out)
    assert torch.equal(out, A @ B)


@pytest.mark.kernels
def test_a_callers_function_and_a_gradient():
    with pytest.raises(ValueError, match=r"^tilewright\.matmul: epilogue is .*no derivative") as error:
        tw.matmul(A.clone().requires_grad_(), B, epilogue=same)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(KERNELS, reason="needs CPU tensors and no interpreter")
def test_a_callers_function_needs_kernels():
    with pytest.raises(ValueError, match=r"^tilewright\.matmul: epilogue is .*TRITON_INTERPRET=1"):
        tw.matmul(A, B, epilogue=same)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_good_call_after_a_bad_one(activation):
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^tilewright\.matmul: "):
            tw.matmul(A, B[:6], activation=activation)
        assert torch.equal(tw.matmul(A, B), A @ B)


@pytest.mark.gpu
def test_a_cpu_tensor_among_gpu_tensors():
    for args, named in [((A, B.cpu()), "b"), ((A.cpu(), B), "b")]:
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"^tilewright\.matmul: {named} is on ") as error:
                tw.matmul(*args)
            assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"^tilewright\.linear: bias is on cpu; it must be on cuda"):
        tw.linear(A, W, X[0].cpu())
    assert torch.equal(tw.matmul(A, B), A @ B)


NO_COMPILER = """
import torch, tilewright as tw
a = torch.ones(16, 16, device="cuda", dtype=torch.float16)
try:
    tw.matmul(a, a)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.gpu
@pytest.mark.slow
def test_no_compiler_in_a_process_of_its_own(tmp_path):
    done = child(NO_COMPILER, PATH=str(tmp_path), CC="", TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"tilewright\.\w+: no C compiler was found.*CC.*\n", done.stdout), done.stdout


NO_GPU = """
import torch, tilewright as tw
a, b = torch.ones(5, 8), torch.ones(8, 7)
assert torch.equal(tw.matmul(a, b), torch.full((5, 7), 8.0))
print(tw.plan(tw.Problem(64, 64, 64)).schedule)
try:
    tw.Device.current()
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slow
def test_no_gpu_in_a_process_of_its_own(tmp_path):
    """Import, planning and products of CPU tensors work without a GPU and without a compiler."""
    done = child(NO_GPU, CUDA_VISIBLE_DEVICES="", PATH=str(tmp_path), CC="")
    assert done.returncode == 0, done.stderr
    schedule, line = done.stdout.splitlines()
    assert schedule in ("tile", "persistent")
    assert line.startswith("tilewright.Device.current: no GPU is visible; ")


def test_this_process_is_what_it_says():
    """The rest of this suite means something only if the mode of the process is the one that was asked for."""
    assert (GPU or INTERPRETED) == KERNELS and not (GPU and INTERPRETED)
    assert (DEVICE == "cuda") == GPU
