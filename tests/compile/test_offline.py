"""``runtime.offline``: the same specialisation as Triton's JIT, on every target."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call
from tilewright.runtime.offline import compile_call, name_of, source, target_of

from .sample import sample_call, sample_kernel

SM_80, SM_90, SM_100 = (GPUTarget("cuda", arch, 32) for arch in (80, 90, 100))
GFX942 = GPUTarget("hip", "gfx942", 64)
TARGETS = [SM_80, SM_90, SM_100, GFX942]


class StandInDriver:
    """Just enough of a driver for Triton's JIT to bind and specialise arguments."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that launches a Call through Triton's JIT and returns what it would have compiled."""
    seen: dict[str, Any] = {}

    def instead(
        self: Any, key: str, signature: Any, device: int, consts: Any, options: Any, attrs: Any, _: Any
    ) -> None:
        # no kernel: the JIT stops here, nothing is compiled or launched
        seen.update(signature=signature, constants=consts, attrs=attrs, options=options)

    # where the JIT has decided what to compile. Its public hook is later, and 3.6 cannot print a function for it
    monkeypatch.setattr(JITFunction, "_do_compile", instead)

    def ask(call: Call, target: GPUTarget) -> dict[str, Any]:
        seen.clear()
        monkeypatch.setattr(driver, "_active", StandInDriver(target))  # the public setter cannot restore "none"
        call.fn.device_caches.clear()  # bound to the driver of the launch before
        call.fn[call.grid](*call.args, **call.constexprs, **call.options)
        return dict(seen)

    yield ask
    sample_kernel.device_caches.clear()


VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "unaligned address": {"offset": 1},
    "address on 16 bytes": {"offset": 8},
    "sizes that are no multiples": {"n": 250, "k": 104},
    "a row": {"n": 1},
    "no bias": {"bias": False},
    "large seed": {"seed": 2**40},
    "seed 1": {"seed": 1},
    "no seed": {"seed": None},
    "float": {"rate": 1.0},
    "int for a float": {"rate": 3},
    "wide int": {"rate": 2**33},
    "flag off": {"flag": False},
    "deep tuple": {"steps": ((torch.empty(32, device="meta"), 16), (1, None, (2.0, 1)))},
}


@pytest.mark.parametrize("target", [SM_90, GFX942], ids=name_of)
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_source_is_what_the_jit_would_compile(changes: dict[str, Any], target: GPUTarget, asked: Any) -> None:
    call = sample_call(**changes)
    ours, theirs = source(call, target), asked(call, target)
    assert ours.signature == theirs["signature"]
    assert ours.constants == theirs["constants"]
    assert ours.attrs == theirs["attrs"]
    assert theirs["options"].enable_fp_fusion is True


def test_stand_ins_specialise_as_real_tensors_do() -> None:
    real, meta = source(sample_call(device="cpu")), source(sample_call(device="meta"))
    assert (real.signature, real.attrs) == (meta.signature, meta.attrs)


def test_specialisation_by_kind_of_argument() -> None:
    src = source(sample_call())
    names = list(sample_kernel.arg_names)
    known = {path for path, attrs in src.attrs.items() if ["tt.divisibility", 16] in attrs}
    assert src.signature["desc_a"] == "tensordesc<bf16[128, 64]>"
    assert src.signature["strides_b"] == ("constexpr", "i32")  # (1, 128)
    assert src.constants[(names.index("strides_b"), 0)] == 1
    assert src.signature["seed"] == "i64"  # by annotation
    assert src.signature["flag"] == "u1"
    assert src.signature["rate"] == "fp32"
    assert src.signature["steps"] == (("*fp32", "constexpr"), ("fp32",))
    assert (names.index("p_b"),) in known
    assert (names.index("n"),) in known
    assert (names.index("m"),) not in known  # do_not_specialize
    assert (names.index("k"),) not in known  # do_not_specialize_on_alignment
    assert (names.index("strides_b"), 1) in known
    assert not source(sample_call(offset=1)).attrs.get((names.index("p_b"),))


def test_wide_numbers_get_64_bits() -> None:
    assert source(sample_call(rate=2**31)).signature["rate"] == "i64"
    assert source(sample_call(rate=2**31 - 1)).signature["rate"] == "i32"


@pytest.mark.parametrize("target", TARGETS, ids=name_of)
def test_compiles_without_a_gpu(target: GPUTarget) -> None:
    kernel = compile_call(sample_call(), target)
    assert kernel.metadata.num_warps == 4
    assert kernel.metadata.enable_fp_fusion is True
    text = kernel.asm["amdgcn" if target.backend == "hip" else "ptx"]
    wanted = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma", "gfx942": "v_mfma"}
    assert wanted[name_of(target)] in text


def test_target_of_every_sheet() -> None:
    for name in Device.names():
        target = target_of(Device.named(name))
        assert (target.backend, target.warp_size) in {("cuda", 32), ("hip", 64)}
        assert isinstance(target.arch, int if target.backend == "cuda" else str)


def test_a_compiler_error_is_one_line() -> None:
    call = sample_call()
    broken = Call(call.fn, call.grid, call.args, {**call.constexprs, "BLOCK_N": 100}, 4, 3)
    with pytest.raises(RuntimeError, match=r"^tilewright\.offline: sample_kernel for sm_90: .*power of 2") as raised:
        compile_call(broken, SM_90)
    assert "\n" not in str(raised.value)


def test_a_missing_assembler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(triton.knobs.NvidiaTool, "from_path", lambda path: None)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"^tilewright\.offline: .*ptxas") as raised:
        compile_call(sample_call(n=384), SM_80)
    assert "\n" not in str(raised.value)


def test_interpreted_kernels_are_refused_in_one_line() -> None:
    script = (
        "from sample import sample_call\n"
        "from tilewright.runtime.offline import source\n"
        "try:\n    source(sample_call())\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", script], cwd=here, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "without TRITON_INTERPRET" in done.stdout


def test_descriptor_of_a_stand_in() -> None:
    base = torch.empty(4, 256, 64, dtype=torch.float16, device="meta")
    call = sample_call()
    desc = TensorDescriptor(base, [4, 256, 64], [256 * 64, 64, 1], [1, 128, 64])
    moved = Call(call.fn, call.grid, (desc, *call.args[1:]), call.constexprs, 4, 3)
    assert source(moved).signature["desc_a"] == "tensordesc<fp16[1, 128, 64]>"
