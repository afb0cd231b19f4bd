"""A new length must not be a new kernel. fla-org/flash-linear-attention#1147, #1037 and #533, triton-lang/triton#9263,
yhfgyyf/vllm-deepseek-v4-sm89#49."""

from __future__ import annotations

import random
import resource
import time

import pytest
import torch
import triton

import tilewright as tw
from support import DEVICE
from tilewright.gemm import planner
from tilewright.gemm.operands import Operands
from tilewright.gemm.schedules import SCHEDULES

LENGTHS = random.Random(0).sample(range(1, 2001), 200)
N, K = 512, 256


def variant(arg):
    """What Triton's JIT makes of an argument's value when it chooses a binary: 1, a multiple of 16, another."""
    if isinstance(arg, tuple):
        return tuple(variant(x) for x in arg)
    if isinstance(arg, int) and not isinstance(arg, bool):
        return 1 if arg == 1 else (arg % 16 == 0, abs(arg) >= 2**31)
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() % 16 == 0
    if hasattr(arg, "block_shape"):
        return arg.base.dtype, tuple(arg.block_shape)
    return type(arg)


def compiled_key(plan, call):
    """Everything that decides which binary a call needs."""
    free = {i for i, name in enumerate(call.fn.arg_names) if name in ("m", "batch_first")}  # kernels do not specialise
    args = tuple(None if i in free else variant(arg) for i, arg in enumerate(call.args))
    constexprs = tuple(sorted((key, str(value)) for key, value in call.constexprs.items()))
    return plan.schedule, args, constexprs, call.num_warps, call.num_stages


@pytest.mark.parametrize("options", [{}, {"activation": "gelu", "bias": True}, {"dropout_p": 0.5}], ids=str)
@pytest.mark.parametrize("rows", ["n", "t"])
def test_200_lengths_need_few_binaries(rows, options):
    device = tw.Device.named("h200")
    w = torch.empty(N, K, dtype=torch.bfloat16).t()
    options = dict(options)
    if options.pop("bias", False):
        options["bias"] = torch.empty(N, dtype=torch.bfloat16)
    keys, plans = set(), set()
    for m in LENGTHS:
        x = torch.empty(m, K, dtype=torch.bfloat16) if rows == "n" else torch.empty(K, m, dtype=torch.bfloat16).t()
        operands = Operands.of("matmul", x, w, **options)
        plan = planner.plan(operands.problem, device)
        plans.add(plan)
        schedule = SCHEDULES[plan.schedule]
        keys.add(compiled_key(plan, prepared(schedule, plan, operands, device)))
    assert 1 < len(plans) <= 40 and len(keys) <= 40


def prepared(schedule, plan, operands, device):
    import inspect

    takes = len(inspect.signature(schedule.prepare).parameters)
    return schedule.prepare(*(plan, operands, device)[:takes])


def test_the_declaration_that_this_counts_on():
    """m is an argument that Triton is told not to specialise on; every kernel of a schedule says so."""
    from tilewright.gemm.schedules.persistent import persistent_kernel
    from tilewright.gemm.schedules.tile import tile_kernel

    for kernel in (tile_kernel, persistent_kernel):
        assert "m" in kernel.arg_names
        told = getattr(kernel, "do_not_specialize", None)
        assert told is None or "m" in told  # an interpreted kernel does not keep the list


@pytest.mark.gpu
@pytest.mark.slow
def test_200_lengths_on_the_gpu(monkeypatch):
    compiled = []
    hook = lambda **kwargs: compiled.append(kwargs.get("key")) and None  # noqa: E731
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", hook)
    w = torch.randn(N, K, device=DEVICE).bfloat16()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for m in LENGTHS:
        tw.linear(torch.randn(m, K, device=DEVICE).bfloat16(), w)
    assert 1 <= len(compiled) <= 40
    count = len(compiled)
    slowest = 0.0
    for m in LENGTHS[-100:]:
        x = torch.randn(m, K, device=DEVICE).bfloat16()
        torch.cuda.synchronize()
        start = time.perf_counter()
        tw.linear(x, w)
        torch.cuda.synchronize()
        slowest = max(slowest, time.perf_counter() - start)
    assert len(compiled) == count and slowest < 5e-3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB
