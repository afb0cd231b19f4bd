"""The launch layer: what the interpreter may see, what comes back rounded, and which device is entered."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from support import DEVICE
from tilewright.runtime import launch as module
from tilewright.runtime.launch import Call, launch

kernels = pytest.mark.kernels


@triton.jit
def add_kernel(p_x, p_y, p_out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(p_x + at, mask=at < n, other=0.0)
    y = tl.load(p_y + at, mask=at < n, other=0.0)
    tl.store(p_out + at, (x + y).to(p_out.dtype.element_ty), mask=at < n)


@triton.jit
def gather_kernel(pairs, p_out, n, BLOCK: tl.constexpr):
    """out = x + y of a tuple of (tensor, stride) pairs."""
    at = tl.arange(0, BLOCK)
    x = tl.load(pairs[0][0] + at * pairs[0][1], mask=at < n, other=0.0)
    if pairs[1] is not None:
        x += tl.load(pairs[1][0] + at * pairs[1][1], mask=at < n, other=0.0)
    tl.store(p_out + at, x.to(p_out.dtype.element_ty), mask=at < n)


@triton.jit
def tuple_store_kernel(p_x, outs, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(p_x + at, mask=at < n, other=0.0)
    tl.store(outs[0] + at, x.to(outs[0].dtype.element_ty), mask=at < n)
    tl.store(outs[1][0] + at, (2 * x).to(outs[1][0].dtype.element_ty), mask=at < n)


@triton.jit
def descriptor_kernel(desc_x, desc_out, BLOCK: tl.constexpr):
    x = desc_x.load([0, 0])
    desc_out.store([0, 0], (x + x).to(desc_out.dtype))


def add(x, y, out, n=None):
    launch(Call(add_kernel, (1,), (x, y, out, out.numel() if n is None else n), {"BLOCK": 32}, 1, 1, (2,)))
    return out


def values(*numbers, dtype=torch.bfloat16):
    return torch.tensor(numbers, dtype=torch.float64).to(dtype).to(DEVICE)


@kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_numbers_are_added_as_numbers(dtype):
    """An interpreter that adds the bit patterns of bfloat16 gets -2.9e-39 for 2.5 + 2."""
    out = add(values(2.5, -1.0, 0.5, dtype=dtype), values(2.0, 1.0, 0.25, dtype=dtype), values(9, 9, 9, dtype=dtype))
    assert out.tolist() == [4.5, 0.0, 0.75]


@kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_stores_round_to_nearest_even(dtype):
    generator = torch.Generator().manual_seed(0)
    step = torch.finfo(dtype).eps
    ties = torch.tensor([1 + (i + 0.5) * step for i in range(8)] + [1 + i * step / 4 for i in range(8)])
    random = torch.randn(16, generator=generator)
    x = torch.cat([ties, random]).to(DEVICE)
    out = torch.zeros(32, dtype=dtype, device=DEVICE)
    add(x, torch.zeros_like(x), out)
    assert torch.equal(out.cpu(), x.cpu().to(dtype))
    assert not torch.equal(out.cpu().float(), torch.trunc(x.cpu() / step) * step)  # truncation differs on these


@kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_poison_around_a_view_survives_and_is_not_read(dtype):
    buffer = torch.full((3, 12), float("nan"), dtype=dtype, device=DEVICE)
    x, out = buffer[1, 4:9], buffer[2, 4:9]
    x.copy_(torch.arange(5))
    expected = buffer.clone()
    expected[2, 4:9] = torch.arange(0, 10, 2)
    add(x, x, out)
    torch.testing.assert_close(buffer, expected, rtol=0, atol=0, equal_nan=True)


@kernels
def test_a_kernel_that_reads_past_its_view_meets_the_poison():
    """Widened copies keep what lies around a view: were it dropped, a missing mask would go unseen."""
    buffer = torch.full((64,), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    x = buffer[:5].copy_(torch.ones(5))
    out = torch.zeros(6, dtype=torch.bfloat16, device=DEVICE)
    add(x, torch.zeros(64, dtype=torch.bfloat16, device=DEVICE), out, n=6)
    assert out[:5].tolist() == [1.0] * 5 and out[5].isnan()


@kernels
def test_two_views_of_one_buffer_stay_one_buffer():
    """In place: what is written through one view is what the other one shows."""
    buffer = torch.arange(16, device=DEVICE).to(torch.bfloat16)
    add(buffer[:8], buffer[8:], buffer[:8])
    assert buffer.tolist() == [8, 10, 12, 14, 16, 18, 20, 22, 8, 9, 10, 11, 12, 13, 14, 15]


@kernels
def test_tensors_inside_tuples_and_none():
    x, y = torch.arange(20, device=DEVICE).to(torch.bfloat16)[::2], values(*range(10))
    for pairs, expected in [
        (((x, 2), (y, 1)), [3.0 * i for i in range(10)]),
        (((x, 2), None), [2.0 * i for i in range(10)]),
    ]:
        out = torch.zeros(10, dtype=torch.bfloat16, device=DEVICE)
        launch(Call(gather_kernel, (1,), (pairs, out, 10), {"BLOCK": 16}, 1, 1, (1,)))
        assert out.tolist() == expected


@kernels
def test_writes_into_tensors_inside_tuples_come_back():
    x, one, two = values(1, 2, 3), values(0, 0, 0), values(0, 0, 0, dtype=torch.float16)
    launch(Call(tuple_store_kernel, (1,), (x, (one, (two,)), 3), {"BLOCK": 16}, 1, 1, ((1, 0), (1, 1, 0))))
    assert one.tolist() == [1, 2, 3] and two.tolist() == [2, 4, 6]


@kernels
def test_descriptors_over_narrow_tensors():
    x = torch.arange(16 * 16, device=DEVICE).to(torch.bfloat16).view(16, 16) / 64
    out = torch.zeros_like(x)
    args = (TensorDescriptor.from_tensor(x, [16, 16]), TensorDescriptor.from_tensor(out, [16, 16]))
    if DEVICE == "cuda" and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("needs the tensor copy engine")
    launch(Call(descriptor_kernel, (1,), args, {"BLOCK": 16}, 4, 1, (1,)))
    assert torch.equal(out, x + x)


@pytest.mark.interpret
def test_what_is_not_written_is_not_touched():
    """Only what a call says it writes is copied back: a narrow input keeps its version, and autograd's trust."""
    x, y, out = values(1, 2), values(3, 4), values(0, 0)
    versions = x._version, y._version, out._version
    add(x, y, out)
    assert (x._version, y._version) == versions[:2] and out._version > versions[2]


# which device -----------------------------------------------------------------------------------------------------


class FakeDescriptor:
    """What a descriptor shows of its tensor, on a device that need not exist."""

    block_shape = (16, 16)

    def __init__(self, device):
        self.base = types.SimpleNamespace(device=torch.device(device))


class Recorder:
    """In place of a kernel: notes on which device it was launched."""

    def __init__(self, state):
        self.state = state

    def __getitem__(self, grid):
        def run(*args, **options):
            self.state["launched"].append((self.state["current"], grid, options))
            return "compiled"

        return run


@pytest.fixture
def two_gpus(monkeypatch):
    state = {"current": 0, "launched": [], "entered": []}

    @contextlib.contextmanager
    def enter(device):
        before, state["current"] = state["current"], torch.device(device).index
        state["entered"].append(state["current"])
        yield
        state["current"] = before

    monkeypatch.setattr(module, "INTERPRETED", False)
    monkeypatch.setattr(module, "missing_compiler", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: state["current"])
    monkeypatch.setattr(torch.cuda, "device", enter)
    return state


@pytest.mark.parametrize("index", [0, 1])
def test_a_launch_enters_its_tensors_device(two_gpus, index):
    call = Call(Recorder(two_gpus), (3,), (FakeDescriptor(f"cuda:{index}"), 5), {"BLOCK": 16}, 4, 2)
    assert launch(call) == "compiled"
    ((device, grid, options),) = two_gpus["launched"]
    assert device == index and grid == (3,) and two_gpus["current"] == 0
    assert two_gpus["entered"] == ([] if index == 0 else [1])
    assert options["num_warps"] == 4 and options["num_stages"] == 2 and options["BLOCK"] == 16


def test_a_launch_states_floating_point_fusion(two_gpus):
    """Triton's default for it changes between versions, and with it the bits of a result."""
    launch(Call(Recorder(two_gpus), (1,), (FakeDescriptor("cuda:0"),), {}, 4, 1))
    assert two_gpus["launched"][0][2]["enable_fp_fusion"] is True


def test_no_compiler_is_one_line(two_gpus, monkeypatch):
    monkeypatch.setattr(module, "missing_compiler", lambda: "no C compiler was found")
    with pytest.raises(RuntimeError, match=r"^tilewright\.launch: no C compiler was found$"):
        launch(Call(Recorder(two_gpus), (1,), (FakeDescriptor("cuda:0"),), {}, 4, 1))
    assert two_gpus["launched"] == []


def test_a_launch_without_tensors_is_refused(two_gpus):
    with pytest.raises(TypeError, match=r"^tilewright\.launch: args has no tensor"):
        launch(Call(Recorder(two_gpus), (1,), (1, 2.0, None, (3,)), {}, 4, 1))
