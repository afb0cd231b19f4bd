"""The short way of a plain eager product on a GPU: no checks that were made before, no dispatcher, one dict look-up."""

from __future__ import annotations

import torch

from tilewright.gemm import arguments, planner
from tilewright.gemm.operands import Epilogue, canonical_views
from tilewright.gemm.problem import ACTIVATIONS, FLOAT_DTYPES
from tilewright.gemm.schedules import SCHEDULES
from tilewright.gemm.schedules.common import STEP_BIAS
from tilewright.runtime import eager
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import launch

_CACHE = eager.Cache()
_FLOAT32 = torch.float32


def product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, transposed: bool
) -> torch.Tensor | None:
    """``activation(a @ b + bias)`` for b (.., k, n), or with ``transposed`` for b (n, k).

    ``None`` when this call has to go the long way.
    """
    if type(a) not in eager.PLAIN or type(b) not in eager.PLAIN or not eager.allowed():
        return None
    if eager.wants_grad(a, b, bias):
        return None
    try:
        pa, pb = a.data_ptr(), b.data_ptr()
        pc = 0 if bias is None else bias.data_ptr()
    except RuntimeError:  # a tensor of torch.func has no address
        return None
    device = a.get_device()
    key = (
        a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, device, b.get_device(), transposed, activation,
        (pa & 15) | (pb & 15) << 4 | (pc & 15) << 8,
        None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.get_device(), type(bias)),
        torch.get_float32_matmul_precision() if a.dtype is _FLOAT32 else None,
    )  # fmt: skip
    entry = _CACHE.get(key)
    if entry is None:
        entry = _first(a, b, bias, activation, transposed)
        if entry is None:
            return None
        _CACHE.put(key, entry)
    if not eager.on_current(device):
        return None
    out = entry.allocate()
    if bias is None:
        entry.run(device, a, b, out)
    else:
        entry.run(device, a, b, out, bias)
    return out


def _first(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, transposed: bool
) -> eager.Entry | None:
    """Plan, compile and run the product once; its launch, or ``None`` when it is not one plain launch."""
    if not a.is_cuda or a.device != b.device or a.dtype != b.dtype or a.ndim < 2 or b.ndim < 2:
        return None
    if a.dtype not in FLOAT_DTYPES or (activation is not None and activation not in ACTIVATIONS):
        return None
    if transposed:
        if b.ndim != 2:
            return None
        b = b.t()
    if a.shape[-1] != b.shape[-2] or not eager.on_current(a.get_device()):
        return None
    if bias is not None and (
        type(bias) not in eager.PLAIN
        or bias.device != a.device
        or bias.dtype not in FLOAT_DTYPES
        or tuple(bias.shape) != (b.shape[-1],)
    ):
        return None
    try:
        shape = arguments.result_shape(a, b)
    except RuntimeError:
        return None
    out = a.new_empty(shape)
    if out.numel() == 0:
        return None
    batch = shape[:-2]
    views = list(
        canonical_views(
            a.expand(*batch, *a.shape[-2:]),
            b.expand(*batch, *b.shape[-2:]),
            out,
            Epilogue(bias=bias, activation=activation),
            None,
        )
    )
    if len(views) != 1:
        return None
    plan = planner.plan(views[0].problem, Device.current(a.get_device()))
    call = SCHEDULES[plan.schedule].prepare(plan, views[0])
    kernel = launch(call)
    if bias is None:
        return eager.Entry(call, kernel, (0, 1, 2), out)
    return eager.Entry(call, kernel, (0, 1, 2, (len(call.args) - 1, STEP_BIAS)), out)
