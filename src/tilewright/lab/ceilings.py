"""What the device can do at most, measured in the same run as the kernels, and the least time that this allows."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tilewright.gemm.problem import Problem
from tilewright.lab import reading
from tilewright.lab.inputs import random
from tilewright.lab.peers import tf32
from tilewright.tune.timing import Timer

#: the ceiling of arithmetic for a dtype: its key in a result file, and whether float32 runs as tf32
KEYS = {
    torch.bfloat16: "bf16_tflops",
    torch.float16: "fp16_tflops",
    torch.float32: "fp32_tflops",
    torch.float64: "fp64_tflops",
    torch.float8_e4m3fn: "fp8_tflops",
    torch.float8_e5m2: "fp8_tflops",
    torch.int8: "int8_tops",
}
TF32 = "tf32_tflops"
COPY = "copy_tbps"
READ = "read_tbps"

#: products of so few rows wait for the weight to be read, and are compared with a kernel that only reads
FEW_ROWS = 64


def key(problem: Problem) -> str:
    """The ceiling of arithmetic that binds a problem: float32 as tf32 or tf32x3 runs on the tf32 units."""
    if problem.dtype is torch.float32 and problem.precision != "ieee":
        return TF32
    return KEYS[problem.dtype]


def needed(problems: Iterable[Problem]) -> list[str]:
    """The ceilings that the roofs of those problems are made of."""
    problems = list(problems)
    few = {READ} if any(problem.m <= FEW_ROWS for problem in problems) else set()
    return sorted({COPY, *few, *(key(problem) for problem in problems)})


def measure(timer: Timer, device: torch.device, names: Iterable[str], seconds: float = 0.5) -> dict[str, float]:
    """Measure ceilings, each sustained for about ``seconds``.

    ``copy_tbps`` is a device copy of 2 GiB in TB/s, bytes read plus bytes written; ``read_tbps`` a kernel that reads
    2 GiB and writes next to nothing, the fastest of a few block sizes. A rate is that of torch.matmul (cuBLAS; of
    torch._scaled_mm with fast accumulation for float8, torch._int_mm for int8) on 8192x8192x8192 random operands in
    TFLOP/s: what the vendor's library holds at the power cap.
    """
    big = device.type == "cuda"
    found: dict[str, float] = {}
    for name in names:
        if name == COPY:
            found[name] = round(_copy(timer, device, 2**30 if big else 2**12, seconds / 2), 4)
        elif name == READ:
            found[name] = round(reading.bandwidth(timer, device, 2**29 if big else 2**14, seconds / 2), 4)
        else:
            found[name] = round(_rate(timer, device, name, 8192 if big else 16, seconds), 2)
    return found


def _copy(timer: Timer, device: torch.device, elements: int, seconds: float) -> float:
    source = torch.randint(256, (elements,), device=device, dtype=torch.uint8).view(torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * elements / timer.sustained(lambda _: target.copy_(source), seconds) / 1e12


def _rate(timer: Timer, device: torch.device, name: str, size: int, seconds: float) -> float:
    dtype = torch.float32 if name == TF32 else next(dtype for dtype, k in KEYS.items() if k == name)
    a, b = (random(size * size, dtype, device).view(size, size) for _ in range(2))
    one = torch.ones((), device=device)

    def product(_: int) -> object:
        if dtype is torch.int8:
            return torch._int_mm(a, b.t())
        if name == KEYS[torch.float8_e4m3fn]:
            return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        return a @ b

    with tf32(name == TF32):
        return 2 * size**3 / timer.sustained(product, seconds) / 1e12


def roof_us(problem: Problem, ceilings: dict[str, float]) -> float:
    """The least time in microseconds: max(operations / rate, bytes / bandwidth). tf32x3 does three products for one."""
    products = 3 if problem.dtype is torch.float32 and problem.precision == "tf32x3" else 1
    compute = products * problem.flops / (ceilings[key(problem)] * 1e12)
    memory = problem.bytes / (ceilings[COPY] * 1e12)
    return max(compute, memory) * 1e6
