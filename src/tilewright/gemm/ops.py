"""``tilewright::matmul`` and its backward, as torch sees them: schema, kernels, fake, autograd."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tilewright.gemm import eager, reference
from tilewright.gemm.operands import Epilogue, dropout_threshold, float_parts
from tilewright.gemm.plan import Plan
from tilewright.gemm.schedules.common import dropout_way
from tilewright.lang.activations import BACKWARD
from tilewright.lang.epilogue import dropped, scalar
from tilewright.runtime import eager as shortcut
from tilewright.runtime.errors import bad
from tilewright.runtime.launch import Call, launch
from tilewright.runtime.library import define
from tilewright.runtime.mode import runs_kernels

#: epilogue functions of callers by the name they are passed under: a torch schema has no room for a function
CUSTOM: dict[str, Any] = {}

_OPTIONS = (
    "Tensor a, Tensor b, Tensor? bias, Tensor? residual, Tensor? seed_tensor, str? activation, float alpha, "
    "float dropout_p, SymInt seed, str? precision, bool batch_invariant, str? plan, str? custom, Tensor[] custom_args"
)


def _matmul(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None,
    seed_tensor: torch.Tensor | None, activation: str | None, alpha: float, dropout_p: float, seed: int,
    precision: str | None, batch_invariant: bool, plan: str | None, custom: str | None,
    custom_args: list[torch.Tensor], out_dtype: torch.dtype, keep_pre: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    shape = _shape(a, b)
    key = seed if seed_tensor is None else seed_tensor
    _check_runs(custom, a.device)
    if not runs_kernels(a.device):
        out, pre = reference.product(a, b, bias, residual, activation, alpha, dropout_p, key, batch_invariant)
        return _fresh(out, out_dtype), _fresh(pre, out_dtype) if keep_pre else a.new_empty(0, dtype=out_dtype)
    out = a.new_empty(shape, dtype=out_dtype)
    pre = a.new_empty(shape if keep_pre else (0,), dtype=out_dtype)
    epilogue = Epilogue(
        alpha, bias, pre if keep_pre else None, activation, dropout_p, key, residual,
        None if custom is None else CUSTOM[custom], tuple(custom_args),
    )  # fmt: skip
    eager.run("matmul", a, b, out, epilogue, precision, batch_invariant, None if plan is None else Plan.parse(plan))
    return out, pre


def _check_runs(custom: str | None, device: torch.device) -> None:
    if custom is not None and not runs_kernels(device):
        raise bad(
            "matmul", "epilogue", f"a Triton function and the operands are on {device}",
            "None there, or the operands on a GPU, or TRITON_INTERPRET=1 set before tilewright is imported",
        )  # fmt: skip


def _fresh(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).contiguous()


def _shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    return (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def _matmul_fake(
    a: torch.Tensor, b: torch.Tensor, bias: Any, residual: Any, seed_tensor: Any, activation: Any, alpha: Any,
    dropout_p: Any, seed: Any, precision: Any, batch_invariant: Any, plan: Any, custom: Any, custom_args: Any,
    out_dtype: torch.dtype, keep_pre: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    shape = _shape(a, b)
    return a.new_empty(shape, dtype=out_dtype), a.new_empty(shape if keep_pre else (0,), dtype=out_dtype)


def _matmul_out(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None,
    seed_tensor: torch.Tensor | None, activation: str | None, alpha: float, dropout_p: float, seed: int,
    precision: str | None, batch_invariant: bool, plan: str | None, custom: str | None,
    custom_args: list[torch.Tensor], out: torch.Tensor,
) -> None:  # fmt: skip
    key = seed if seed_tensor is None else seed_tensor
    _check_runs(custom, a.device)
    if not runs_kernels(a.device):
        out.copy_(reference.product(a, b, bias, residual, activation, alpha, dropout_p, key, batch_invariant)[0])
        return
    epilogue = Epilogue(
        alpha, bias, None, activation, dropout_p, key, residual,
        None if custom is None else CUSTOM[custom], tuple(custom_args),
    )  # fmt: skip
    eager.run("matmul", a, b, out, epilogue, precision, batch_invariant, None if plan is None else Plan.parse(plan))


matmul = define(f"matmul({_OPTIONS}, ScalarType out_dtype, bool keep_pre) -> (Tensor, Tensor)", _matmul, _matmul_fake)
matmul_out = define(f"matmul_out({_OPTIONS}, Tensor(a!) out) -> ()", _matmul_out, lambda *args: None)


# ---------------------------------------------------------------------------------------------------------- backward


@triton.jit
def epilogue_backward_kernel(p_grad, p_pre, p_out, rows, n, stride_row, stride_col, p_seed, seed: tl.int64,
                             threshold: tl.int64, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                             DERIVATIVE: tl.constexpr, DROPOUT: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """Gradient of (dropout of) the activation: out = grad * mask / (1 - p) * activation'(pre). ``pre`` and ``out`` are
    contiguous (rows, n); ``grad`` has any strides. Grid: (blocks of rows, blocks of n)."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row[:, None] < rows) & (col[None, :] < n)
    grad = tl.load(p_grad + row[:, None] * stride_row + col[None, :] * stride_col, mask=inside, other=0.0).to(ACC)
    if DROPOUT != 0:
        if p_seed is not None:
            seed = tl.load(p_seed)
        seed, threshold = seed.to(tl.int64) + tl.zeros((), tl.int64), threshold.to(tl.int64) + tl.zeros((), tl.int64)
        grad = dropped(grad, seed, threshold, scalar(scale, grad), row[:, None] * n, col[None, :], DROPOUT)
    at = row[:, None] * n + col[None, :]
    if DERIVATIVE is not None:
        grad *= DERIVATIVE(tl.load(p_pre + at, mask=inside, other=0.0).to(ACC))
    tl.store(p_out + at, grad.to(p_out.dtype.element_ty), mask=inside)


def _epilogue_backward(
    grad: torch.Tensor, pre: torch.Tensor, seed_tensor: torch.Tensor | None, activation: str | None,
    dropout_p: float, seed: int, dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    wide = torch.float64 if grad.dtype is torch.float64 else torch.float32
    key = seed if seed_tensor is None else seed_tensor
    out = torch.empty(grad.shape, dtype=dtype, device=grad.device)
    if grad.numel() == 0:
        return out
    if not runs_kernels(grad.device):
        return out.copy_(_composed(grad.to(wide), pre.to(wide) if activation else None, activation, dropout_p, key))
    # rows that follow one another with one stride are one dimension; anything else is walked in pieces
    n = grad.shape[-1]
    flat = grad if grad.ndim == 2 else _as_rows(grad, n)
    rows = flat.shape[0]
    block_n = min(256, max(16, triton.next_power_of_2(n)))
    block_m = 4096 // block_n
    scale = 0.0 if dropout_p >= 1.0 else 1.0 / (1.0 - dropout_p)
    args = (
        flat, pre if activation else None, out, rows, n, *flat.stride(),
        seed_tensor, seed, dropout_threshold(dropout_p), float_parts(scale, wide),
    )  # fmt: skip
    constexprs = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "DERIVATIVE": BACKWARD[activation] if activation else None,
        "DROPOUT": 0 if dropout_p == 0.0 else dropout_way(dropout_p, n),
        "ACC": tl.float64 if wide is torch.float64 else tl.float32,
    }
    grid = (triton.cdiv(rows, block_m), triton.cdiv(n, block_n))
    launch(Call(epilogue_backward_kernel, grid, args, constexprs, 4, 1, (2,)))
    return out


def _as_rows(grad: torch.Tensor, n: int) -> torch.Tensor:
    """(.., n) as (rows, n): a view where the strides allow it, else a copy (a batch sliced or permuted inside)."""
    return grad.reshape(-1, n)


def _composed(
    grad: torch.Tensor, pre: torch.Tensor | None, activation: str | None, dropout_p: float, seed: int | torch.Tensor
) -> torch.Tensor:
    """The same as :func:`epilogue_backward_kernel` in PyTorch, differentiable."""
    grad = reference.dropout(grad, dropout_p, seed)
    if activation is None or pre is None:
        return grad
    return reference.activate_backward(grad, pre, activation)


epilogue_backward = define(
    "epilogue_backward(Tensor grad, Tensor pre, Tensor? seed_tensor, str? activation, float dropout_p, SymInt seed, "
    "ScalarType dtype) -> Tensor",
    _epilogue_backward,
    lambda grad, pre, seed_tensor, activation, dropout_p, seed, dtype: torch.empty(
        grad.shape, dtype=dtype, device=grad.device
    ),
)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    (a, b, bias, residual, seed_tensor, activation, alpha, dropout_p, seed, precision, batch_invariant, _, custom,
     custom_args, _, keep_pre) = inputs  # fmt: skip
    if custom is not None:
        raise ValueError(
            "tilewright.matmul: epilogue is a function of the caller's, which has no derivative; it must be None where "
            "a gradient is wanted (or call under torch.no_grad())"
        )
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(a, b, bias, seed_tensor, output[1] if keep_pre else None)
    ctx.options = (activation, alpha, dropout_p, seed, precision, batch_invariant)
    ctx.custom_count = len(custom_args)
    ctx.residual_dtype = None if residual is None else residual.dtype


def plain(
    a: torch.Tensor, b: torch.Tensor, alpha: float, precision: str | None = None, invariant: bool = False
) -> torch.Tensor:
    """``alpha * (a @ b)``, differentiable, of operands of one dtype."""
    return call(a, b, None, None, None, None, alpha, 0.0, 0, precision, invariant, None, None, [], a.dtype, False)


def summed(grad: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of what was broadcast from ``shape``, summed in the accumulator's dtype."""
    if grad.shape != shape:
        lead = grad.ndim - len(shape)
        repeated = [lead + i for i, size in enumerate(shape) if size != grad.shape[lead + i]]
        wide = torch.float64 if grad.dtype is torch.float64 else torch.float32
        grad = grad.sum([*range(lead), *repeated], dtype=wide).reshape(shape)
    return grad.to(dtype)


def _backward(ctx: Any, grad: torch.Tensor | None, _: Any) -> tuple[Any, ...]:
    a, b, bias, seed_tensor, pre = ctx.saved_tensors
    activation, alpha, dropout_p, seed, precision, invariant = ctx.options
    grads: list[Any] = [None] * 16
    grads[13] = [None] * ctx.custom_count
    if grad is None:
        return tuple(grads)
    if ctx.needs_input_grad[3]:
        grads[3] = grad.to(ctx.residual_dtype)
    if activation is not None or dropout_p > 0.0:
        twice = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if twice:  # a second derivative is wanted: from the operands, by operations that have one
            wide = torch.float64 if a.dtype is torch.float64 else torch.float32
            z = plain(a, b, alpha, precision, invariant).to(wide)
            z = z if bias is None else z + bias.to(wide)
            key = seed if seed_tensor is None else seed_tensor
            grad = _composed(grad.to(wide), z, activation, dropout_p, key).to(a.dtype)
        else:
            empty = grad.new_empty(0) if pre is None else pre
            grad = epilogue_backward(grad, empty, seed_tensor, activation, dropout_p, seed, a.dtype)
    assert grad is not None
    if ctx.needs_input_grad[2]:
        grads[2] = summed(grad, bias.shape, bias.dtype)
    grad = grad.to(a.dtype)
    if ctx.needs_input_grad[0]:
        grads[0] = plain(grad, b.transpose(-1, -2), alpha, precision, invariant).sum_to_size(a.shape)
    if ctx.needs_input_grad[1]:
        if b.ndim == 2 and a.ndim > 2:  # one long sum over all rows, rather than a product for each batch and a sum
            grads[1] = plain(
                a.reshape(-1, a.shape[-1]).transpose(0, 1), grad.reshape(-1, grad.shape[-1]), alpha, precision, False
            )
        else:
            grads[1] = plain(a.transpose(-1, -2), grad, alpha, precision, False).sum_to_size(b.shape)
    return tuple(grads)


torch.library.register_autograd("tilewright::matmul", _backward, setup_context=_setup)


class _Product(torch.autograd.Function):
    """The same operation and derivative for eager calls that nothing watches: the dispatcher's Python costs more host
    time than a small product."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output = _matmul(*inputs)
        _setup(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        found = list(_backward(ctx, *grads))
        found[13] = None  # of a list, which only the dispatcher looks into
        return tuple(found)


def call(*inputs: Any) -> torch.Tensor:
    """``matmul``'s first result, by the shortest way that sees all who have to see it.

    The transforms of ``torch.func`` look into no custom operation: they get the composition.
    """
    a, b, bias, residual = inputs[:4]
    out: torch.Tensor
    if shortcut.transformed() and inputs[12] is None:
        seed_tensor, activation, alpha, dropout_p, seed = inputs[4:9]
        key = seed if seed_tensor is None else seed_tensor
        out = reference.product(a, b, bias, residual, activation, alpha, dropout_p, key)[0].to(inputs[14])
    elif a.is_cuda and shortcut.allowed() and all(t is None or type(t) in shortcut.PLAIN for t in inputs[:4]):
        if shortcut.wants_grad(a, b, bias, residual):
            out = _Product.apply(*inputs)[0]
        else:
            out = _matmul(*inputs)[0]
    else:
        out = matmul(*inputs)[0]
    return out
