"""Plain calls, from the caller straight to a kept launch; and their derivative, which is two more of them.

A call is plain when nothing but autograd watches it and its options are at most a bias, an activation, a residual and
alpha. Of its host time (9 microseconds on an H200's host, where ``torch.mm`` takes 12.5) the driver has 4, the
allocation 1 to 2, and what stands here the rest: what could be left out or done once is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewright.gemm import arguments, ops
from tilewright.gemm.eager import described, long_way
from tilewright.gemm.operands import Epilogue
from tilewright.gemm.problem import ACTIVATIONS, FLOAT_DTYPES
from tilewright.runtime import eager

_CALLS = eager.Cache()
_GRADIENTS = eager.Cache()

# bound once: a look-up in a module costs as much as a check
_PLAIN, _FLOAT32 = eager.PLAIN, torch.float32
_allowed, _on_current, _grad_enabled = eager.allowed, eager.on_current, eager.grad_enabled
_float32_precision = torch.get_float32_matmul_precision


def product(
    kind: str,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    residual: torch.Tensor | None,
    alpha: float,
) -> torch.Tensor | None:
    """``activation(alpha * (a @ b) + bias) + residual``, by the rules of ``tw.<kind>``: "linear" has b (n, k), "addmm"
    operands of two dimensions and a residual that broadcasts.

    ``None`` when the call has to go the long way: it is not plain, or not good, or something watches it.
    """
    if type(a) not in _PLAIN or type(b) not in _PLAIN or not _allowed():
        return None
    device, dtype = a.get_device(), a.dtype
    # compared, and not in the key: that costs a fifth of hashing one more thing
    if not _on_current(device) or b.get_device() != device or b.dtype is not dtype:
        return None
    further, wanted = None, a.requires_grad or b.requires_grad
    try:
        at_a, at_b = a.data_ptr(), b.data_ptr()
        if bias is not None or activation is not None or residual is not None or alpha != 1.0:
            if type(alpha) not in (float, int) or not all(_good(t, device) for t in (bias, residual)):
                return None
            further = (activation, alpha, *(None if t is None else described(t) for t in (bias, residual)))
            wanted = eager.wants_grad(a, b, bias, residual)
    except RuntimeError:  # a tensor of torch.func has no address
        return None
    graded = wanted and _grad_enabled()
    if graded and (activation is not None or not (b.ndim == 2 or a.shape[:-2] == b.shape[:-2])):
        return None
    key = (
        kind, a.shape, a.stride(), b.shape, b.stride(), dtype, device, at_a & 15, at_b & 15, further,
        _float32_precision() if dtype is _FLOAT32 else None,
    )  # fmt: skip
    entry = _CALLS.get(key)
    if entry is not None:
        out = entry.allocate()
        entry.run(device, at_a, at_b, out.data_ptr(), (bias, None, residual, None))
    else:
        out = _first(key, a, b, bias, activation, residual, alpha)
        if out is None:
            return None
    return _record(a, b, bias, residual, (out, kind == "linear", alpha)) if graded else out


def _good(t: Any, device: int) -> bool:
    return t is None or (type(t) in _PLAIN and t.get_device() == device and t.dtype in FLOAT_DTYPES)


@torch.no_grad()
def _first(
    key: tuple[Any, ...],
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    residual: torch.Tensor | None,
    alpha: float,
) -> torch.Tensor | None:
    """Run a call that is a plain product of good operands, and keep its launch; ``None`` for any other."""
    kind = key[0]
    if a.ndim < 2 or b.ndim < 2 or a.dtype not in FLOAT_DTYPES or (kind != "matmul" and b.ndim != 2):
        return None
    b = b.t() if kind == "linear" else b
    if a.shape[-1] != b.shape[-2] or (activation is not None and activation not in ACTIVATIONS):
        return None
    try:
        shape = arguments.result_shape(a, b)
        if kind == "addmm" and residual is not None and a.ndim == 2:
            residual = residual.expand(shape)
    except RuntimeError:  # of sizes that do not broadcast
        return None
    if (bias is not None and bias.shape != shape[-1:]) or (residual is not None and residual.shape != shape):
        return None
    out = a.new_empty(shape)
    if out.numel() == 0:
        return None
    entry = long_way(kind, a, b, out, Epilogue(float(alpha), bias, None, activation, residual=residual))
    if entry is not None:
        _CALLS.put(key, entry)
    return out


# ---------------------------------------------------------------------------------------------------------- derivative


class _Product(torch.autograd.Function):
    """Autograd's record of a plain product that has run, without an activation."""

    @staticmethod
    def forward(
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        made: tuple[torch.Tensor, bool, float],
    ) -> torch.Tensor:
        of_a, of_b, of_bias, of_residual, _ = ctx.needs_input_grad
        ctx.save_for_backward(a if of_b else None, b if of_a else None)
        out, transposed, alpha = made
        ctx.how = (transposed, b.ndim == 2, alpha)
        if of_bias or of_residual:
            ctx.extras = [None if t is None else (t.shape, t.dtype) for t in (bias, residual)]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        a, b = ctx.saved_tensors
        transposed, flat, alpha = ctx.how
        of_a, of_b, of_bias, of_residual, _ = ctx.needs_input_grad
        found: list[torch.Tensor | None] = [None] * 5
        if of_a:
            found[0] = _gradient(_of_input if transposed else _of_a, grad, b, alpha)
        if of_b and transposed:
            found[1] = _gradient(_of_weight, grad, a, alpha)
        elif of_b:
            found[1] = _gradient(_of_matrix if flat else _of_batch, a, grad, alpha)
        for i, wanted in ((0, of_bias), (1, of_residual)):
            if wanted:
                shape, dtype = ctx.extras[i]
                found[2 + i] = ops.summed(grad, shape, dtype)
        return tuple(found)


#: ``_Product.apply`` without its Python (1.7 of 5 microseconds), which looks for transforms of torch.func: none is on
_record: Callable[..., torch.Tensor] = super(torch.autograd.Function, _Product).apply

# of two tensors, the operands whose product is a gradient


def _of_a(grad: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return grad, b.transpose(-1, -2)


def _of_input(grad: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return grad, weight


def _of_batch(a: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return a.transpose(-1, -2), grad


def _of_matrix(a: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # one long sum over all rows, rather than a product for each batch and a sum
    return a.reshape(-1, a.shape[-1]).t(), grad.reshape(-1, grad.shape[-1])


def _of_weight(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return grad.reshape(-1, grad.shape[-1]).t(), x.reshape(-1, x.shape[-1])


def _gradient(
    operands: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    x: torch.Tensor,
    y: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """``alpha`` times the product of ``operands(x, y)``: a kept launch needs no views, only addresses."""
    device, dtype = x.get_device(), x.dtype
    plain = (
        not _grad_enabled()  # where a second derivative is wanted, by operations that have one
        and type(x) in _PLAIN and type(y) in _PLAIN and _allowed() and _on_current(device) and y.dtype is dtype
    )  # fmt: skip
    if not plain:
        return ops.plain(*operands(x, y), alpha)
    at_x, at_y = x.data_ptr(), y.data_ptr()
    key = (
        operands, x.shape, x.stride(), y.shape, y.stride(), dtype, device, at_x & 15, at_y & 15, alpha,
        _float32_precision() if dtype is _FLOAT32 else None,
    )  # fmt: skip
    entry: eager.Entry | None = _GRADIENTS.get(key)
    if entry is not None:
        out = entry.allocate()
        entry.run(device, at_x, at_y, out.data_ptr())
        return out
    a, b = operands(x, y)
    out = a.new_empty(arguments.result_shape(a, b))
    if out.numel():
        entry = long_way("matmul", a, b, out, Epilogue(float(alpha)))
        # a view that had to be copied lies elsewhere: its launch is not one of x and y
        if entry is not None and (a.data_ptr(), b.data_ptr()) == (at_x, at_y):
            _GRADIENTS.put(key, entry)
    return out
