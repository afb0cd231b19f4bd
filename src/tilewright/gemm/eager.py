"""Launches of products that were made before: no planning, no argument binding, and for plain calls no dispatcher."""

from __future__ import annotations

import os
from typing import Any

import torch

from tilewright.gemm import arguments, planner
from tilewright.gemm.operands import Epilogue, canonical_views
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ACTIVATIONS, FLOAT_DTYPES, Problem, precision_of
from tilewright.gemm.schedules import SCHEDULES
from tilewright.gemm.schedules.common import PLACES
from tilewright.runtime import eager
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import launch

_OPERATIONS = eager.Cache()
_CALLS = eager.Cache()
_FLOAT32 = torch.float32


def product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, transposed: bool
) -> torch.Tensor | None:
    """``activation(a @ b + bias)`` for b (.., k, n), or with ``transposed`` for b (n, k).

    ``None`` when the call has to go the long way: it is not plain, or not good, or something watches it.
    """
    if type(a) not in eager.PLAIN or type(b) not in eager.PLAIN or not eager.allowed():
        return None
    if bias is not None and type(bias) not in eager.PLAIN:
        return None
    if eager.wants_grad(a, b, bias):
        return None
    device = a.get_device()
    try:
        key = (
            a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, device, b.get_device(), transposed, activation,
            a.data_ptr() & 15, b.data_ptr() & 15,
            None if bias is None else (bias.get_device(), _described(bias)),
            torch.get_float32_matmul_precision() if a.dtype is _FLOAT32 else None,
        )  # fmt: skip
    except RuntimeError:  # a tensor of torch.func has no address
        return None
    entry = _CALLS.get(key)
    if entry is None:
        return _first(key, a, b, bias, activation, transposed)
    if not eager.on_current(device):
        return None
    out = entry.allocate()
    entry.run(device, (a, b, out, bias))
    return out


def _first(
    key: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    transposed: bool,
) -> torch.Tensor | None:
    """Run a call that is a plain product of good operands, and keep its launch; ``None`` for any other."""
    if not eager.on_current(a.get_device()) or a.device != b.device or a.ndim < 2 or b.ndim < 2:
        return None
    if a.dtype is not b.dtype or a.dtype not in FLOAT_DTYPES or (transposed and b.ndim != 2):
        return None
    b = b.t() if transposed else b
    if a.shape[-1] != b.shape[-2] or (activation is not None and activation not in ACTIVATIONS):
        return None
    if bias is not None and (
        bias.device != a.device or bias.dtype not in FLOAT_DTYPES or tuple(bias.shape) != (b.shape[-1],)
    ):
        return None
    try:
        shape = arguments.result_shape(a, b)
    except RuntimeError:  # batches that do not broadcast
        return None
    out = a.new_empty(shape)
    if out.numel() == 0:
        return None
    tensors = (a, b, out, bias, None, None, None)
    entry = _long_way("matmul", tensors, Epilogue(bias=bias, activation=activation), None, False, None)
    if entry is not None:
        _CALLS.put(key, entry)
    return out


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
    tensors = (a, b, out, e.bias, e.pre, e.residual, seed_tensor if e.dropout_p else None)
    key = None
    if e.custom is None and not eager.hooked() and eager.on_current(device):
        key = (
            *(None if t is None else _described(t) for t in tensors), device, e.alpha, e.activation, e.dropout_p,
            precision_of(a.dtype, precision), batch_invariant, forced,
        )  # fmt: skip
        entry = _OPERATIONS.get(key)
        if entry is not None:
            entry.run(device, tensors, seed)
            return
    entry = _long_way(name, tensors, epilogue, precision, batch_invariant, forced)
    if key is not None and entry is not None:
        _OPERATIONS.put(key, entry)


def _described(t: torch.Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.dtype, t.data_ptr() & 15


def _long_way(
    name: str,
    tensors: tuple[torch.Tensor | None, ...],
    epilogue: Epilogue,
    precision: str | None,
    batch_invariant: bool,
    forced: Plan | None,
) -> eager.Entry | None:
    """Plan, compile and launch; what was launched, if it was one launch of a compiled kernel."""
    a, b, out, *_ = tensors
    assert a is not None and b is not None and out is not None
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
        if kernel is None:
            made.append(None)
            continue
        last = len(call.args) - 1
        places = tuple(
            None if t is None else at if isinstance(at, int) else (last, at[0])
            for t, at in zip(tensors, PLACES, strict=True)
        )
        made.append(eager.Entry(call, kernel, places, last - 2, out))
    return made[0] if len(made) == 1 else None


def _tune_first(problem: Problem, device: Device) -> None:
    """Tune a problem before its first launch, where ``TILEWRIGHT_TUNE`` asks for it."""
    from tilewright.gemm import tuning  # which launches through this module

    if tuning.wanted():
        tuning.first_call(problem, device)


def forget() -> None:
    """Plan every product anew at its next call: stored plans have changed."""
    _OPERATIONS.clear()
    _CALLS.clear()
