"""Products by Triton kernels: launches that were made before, and the long way to a first one."""

from __future__ import annotations

import os
from typing import Any

import torch

from tilewright.gemm import planner
from tilewright.gemm.operands import Epilogue, Scales, canonical_views
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem, precision_of
from tilewright.gemm.schedules import SCHEDULES
from tilewright.gemm.schedules.common import PLACES
from tilewright.runtime import eager
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import launch

_OPERATIONS = eager.Cache()


def run(
    name: str,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    epilogue: Epilogue,
    precision: str | None,
    batch_invariant: bool,
    forced: Plan | None,
) -> None:
    """Compute the product of (.., m, k) and (.., k, n) operands into ``out`` with Triton kernels."""
    if out.numel() == 0:
        return
    e, device = epilogue, a.get_device()
    seed, seed_tensor = (e.seed, None) if isinstance(e.seed, int) else (0, e.seed)
    extras = (e.bias, e.pre, e.residual, seed_tensor if e.dropout_p else None, *scale_tensors(e.scales))
    key = None
    if e.custom is None and not eager.hooked() and eager.on_current(device):
        key = (
            *(None if t is None else described(t) for t in (a, b, out, *extras)), device, e.alpha, e.activation,
            e.dropout_p, precision_of(a.dtype, precision), batch_invariant, forced,
            e.scales is not None and e.scales.fast_accumulate,
        )  # fmt: skip
        entry = _OPERATIONS.get(key)
        if entry is not None:
            entry.run(device, a.data_ptr(), b.data_ptr(), out.data_ptr(), extras, seed)
            return
    entry = long_way(name, a, b, out, epilogue, precision, batch_invariant, forced)
    if key is not None and entry is not None:
        _OPERATIONS.put(key, entry)


def scale_tensors(scales: Scales | None) -> tuple[torch.Tensor | None, ...]:
    """Scales of a and b, and block scales of a and b, as ``PLACES`` has them."""
    if scales is None:
        return None, None, None, None
    return (None, None, scales.a, scales.b) if scales.granularity == "block" else (scales.a, scales.b, None, None)


def described(t: torch.Tensor) -> tuple[Any, ...]:
    """What of a tensor decides how a launch is made; Triton specialises by the low bits of its address."""
    return t.shape, t.stride(), t.dtype, t.data_ptr() & 15


def long_way(
    name: str,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    epilogue: Epilogue,
    precision: str | None = None,
    batch_invariant: bool = False,
    forced: Plan | None = None,
) -> eager.Entry | None:
    """Plan, compile and launch; what was launched, if it was one launch of a compiled kernel that can be repeated."""
    batch = out.shape[:-2]
    device = Device.current(a.device.index) if a.is_cuda else planner.device_or_default()
    made: list[eager.Entry | None] = []
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    for operands in canonical_views(a, b, out, epilogue, precision, batch_invariant):
        problem = operands.problem
        if forced is not None:
            planner.check(forced, problem, device, name)
        if forced is None and os.environ.get("TILEWRIGHT_TUNE") and eager.on_current(a.get_device()):
            _tune_first(problem, device)
        plan = forced or planner.plan(problem, device)
        call = SCHEDULES[plan.schedule].prepare(plan, operands, device)
        kernel = launch(call)
        # an entry knows only the first three arguments as descriptors
        again = kernel is not None and not any(hasattr(arg, "block_shape") for arg in call.args[3:])
        made.append(eager.Entry(call, kernel, _EXTRAS, out) if again else None)
    return made[0] if len(made) == 1 else None


def _tune_first(problem: Problem, device: Device) -> None:
    """Tune a problem before its first launch, where ``TILEWRIGHT_TUNE`` asks for it."""
    from tilewright.gemm import tuning  # which launches through this module

    if tuning.wanted():
        tuning.first_call(problem, device)


#: places of bias, pre, residual and seed tensor among the steps; a, b and out are a kernel's first three arguments
_EXTRAS = tuple(at[0] for at in PLACES[3:] if isinstance(at, tuple))
