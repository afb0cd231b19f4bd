"""``scaled_matmul``: products of codes, int8 or float8, whose scales are applied inside the kernel."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.gemm import arguments, eager, ops, planner, reference
from tilewright.gemm.operands import Epilogue, Operands, Scales, canonical_views
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ACTIVATIONS, CODE_DTYPES, FP8_DTYPES, SCALE_BLOCK
from tilewright.runtime import eager as shortcut
from tilewright.runtime.devices import Device
from tilewright.runtime.errors import bad
from tilewright.runtime.library import define
from tilewright.runtime.mode import runs_kernels

OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

_NAME = "scaled_matmul"
_CALLS = shortcut.Cache()


def scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | float,
    scale_b: torch.Tensor | float,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    fast_accumulate: bool = False,
    plan: Plan | None = None,
) -> torch.Tensor:
    """Product of two quantised matrices: ``activation((a * scale_a) @ (b * scale_b) + bias) + residual``.

    Args:
        a: (.., m, k) codes, int8 or float8 (e4m3fn, e5m2), any strides.
        b: (k, n) codes, int8 where a is, float8 where a is (the two kinds may be mixed), any strides. Tensor cores are
            fastest where both have k as their dimension of stride 1: a as it comes, b as the transpose of (n, k).
        scale_a, scale_b: float32, of three granularities. One element (or a number) each; (.., m, 1) for each row of a
            and (1, n) for each column of b; (.., m, ceil(k / 128)) and (ceil(k / 128), ceil(n / 128)) for blocks of
            128 of k in a row of a, and of 128 x 128 of b. One element stands for a scale of either other kind, too.
        bias: (n,), added to every row. It may want a gradient, as may ``residual``; scales may not.
        activation: "relu", "gelu" (erf), "gelu_tanh", "silu", "sigmoid", "tanh", "relu2" (relu squared) or None.
        residual: of the result's shape, any strides; added last.
        out_dtype: of the result: bfloat16, float16 or float32.
        fast_accumulate: for float8, let the tensor core keep the running sum, which on Ada and Hopper has about 14
            bits: faster, with a relative error of 1e-3 or more on long sums. By default its sums of 128 of k are added
            in float32. Block scales are applied every 128 of k, and always add so.
        plan: the plan to use; ``ValueError`` with the reason if it cannot run the product.

    The sum of int8 products is exact (int32, and int64 where k passes 2^17), and is rounded once, to float32, before
    it is scaled; with block scales each 128 of k are. All that follows is float32.
    """
    key = (
        None
        if plan is not None
        else _key(a, b, scale_a, scale_b, bias, residual, activation, out_dtype, fast_accumulate)
    )
    entry = None if key is None else _CALLS.get(key)
    if entry is not None:
        out: torch.Tensor = entry.allocate()
        extras: Any = (bias, None, residual, None, scale_a, scale_b, scale_a, scale_b)
        entry.run(a.get_device(), a.data_ptr(), b.data_ptr(), out.data_ptr(), extras)
        return out
    scale_a, scale_b = _check(a, b, scale_a, scale_b, bias, residual, activation, out_dtype, fast_accumulate, plan)
    if (
        plan is not None
        and type(a) in shortcut.PLAIN
        and type(b) in shortcut.PLAIN
        and not torch.compiler.is_compiling()
    ):
        asked = operands(
            a, b, scale_a, scale_b, bias=bias, residual=residual, activation=activation, out_dtype=out_dtype,
            fast_accumulate=fast_accumulate,
        )  # fmt: skip
        where = Device.current(a.device.index) if a.is_cuda else planner.device_or_default()
        planner.check(plan, asked.problem, where, _NAME)
    if key is not None:
        return _first(key, a, b, scale_a, scale_b, bias, residual, activation, out_dtype, fast_accumulate)
    if shortcut.transformed():  # torch.func looks into no custom operation
        scales = scales_of(a, b, scale_a, scale_b, fast_accumulate)
        return reference.scaled(a, b, scales, bias, residual, activation)[0].to(out_dtype)
    keep_pre = activation is not None and torch.is_grad_enabled() and bias is not None and bias.requires_grad
    result: torch.Tensor = operation(
        a, b, scale_a, scale_b, bias, residual, activation, fast_accumulate, None if plan is None else str(plan),
        out_dtype, keep_pre,
    )[0]  # fmt: skip
    return result


# --------------------------------------------------------------------------------------------------------- arguments


def granularity(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> str:
    """ "tensor", "row" or "block", by the shapes of the scales; ``ValueError`` for shapes that are none of them."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    blocks_k, blocks_n = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
    one_a, one_b = scale_a.numel() == 1, scale_b.numel() == 1
    if one_a and one_b:
        return "tensor"
    shape_a, shape_b = tuple(scale_a.shape), tuple(scale_b.shape)
    rows, blocks = (*batch, m, 1), (*batch, m, blocks_k)
    row_a, row_b = one_a or shape_a == rows, one_b or shape_b == (1, n)
    block_a, block_b = one_a or shape_a == blocks, one_b or shape_b == (blocks_k, blocks_n)
    if row_a and row_b:
        return "row"
    if block_a and block_b:
        return "block"
    if not row_a and not block_a:
        raise bad(_NAME, "scale_a", f"of shape {shape_a}", f"of one element, of shape {rows}, or {blocks} for blocks")
    must = (1, n) if row_a else (blocks_k, blocks_n)
    raise bad(_NAME, "scale_b", f"of shape {shape_b}", f"of one element or of shape {must}, to go with scale_a")


def scales_of(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, fast_accumulate: bool
) -> Scales:
    """The scales as an epilogue takes them: where one element stands for many, it is repeated with strides of 0."""
    kind = granularity(a, b, scale_a, scale_b)
    *batch, m, k = a.shape
    n = b.shape[-1]
    if kind != "tensor":
        blocks_k = -(-k // SCALE_BLOCK)
        shape_a = (*batch, m, 1 if kind == "row" else blocks_k)
        shape_b = (1, n) if kind == "row" else (blocks_k, -(-n // SCALE_BLOCK))
        scale_a = scale_a if tuple(scale_a.shape) == shape_a else scale_a.reshape(()).expand(shape_a)
        scale_b = scale_b if tuple(scale_b.shape) == shape_b else scale_b.reshape(()).expand(shape_b)
    return Scales(scale_a, scale_b, kind, fast_accumulate and a.dtype in FP8_DTYPES and kind != "block")


def _check(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | float, scale_b: torch.Tensor | float,
    bias: torch.Tensor | None, residual: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype,
    fast_accumulate: bool, plan: Plan | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Refuse what is no product of codes; the scales as tensors."""
    for label, t in (("a", a), ("b", b)):
        if not isinstance(t, torch.Tensor):
            raise bad(_NAME, label, type(t).__name__, "a torch.Tensor", TypeError)
        if t.dtype not in CODE_DTYPES:
            raise bad(_NAME, label, t.dtype, "int8, float8_e4m3fn or float8_e5m2", TypeError)
        if t.layout is not torch.strided:
            raise bad(_NAME, label, str(t.layout).removeprefix("torch."), "a dense tensor (torch.strided)", TypeError)
    if (a.dtype is torch.int8) != (b.dtype is torch.int8):
        raise bad(_NAME, "b", b.dtype, "int8" if a.dtype is torch.int8 else "a float8, as a is", TypeError)
    if a.ndim < 2:
        raise bad(_NAME, "a", f"{a.ndim}-dimensional", "of 2 dimensions or more, (.., m, k)")
    if b.ndim != 2:
        raise bad(_NAME, "b", f"{b.ndim}-dimensional", "2-dimensional, (k, n)")
    if a.device != b.device:
        raise bad(_NAME, "b", f"on {b.device}", f"on {a.device}, where a is")
    arguments.check_inner(_NAME, a, b)
    made = []
    for label, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if isinstance(scale, (int, float)) and not isinstance(scale, bool):
            made.append(torch.full((), scale, dtype=torch.float32, device=a.device))
            continue
        if not isinstance(scale, torch.Tensor):
            raise bad(_NAME, label, type(scale).__name__, "a torch.Tensor of float32 or a number", TypeError)
        if scale.dtype is not torch.float32:
            raise bad(_NAME, label, scale.dtype, "float32", TypeError)
        if scale.device != a.device:
            raise bad(_NAME, label, f"on {scale.device}", f"on {a.device}, where the operands are")
        if scale.requires_grad and torch.is_grad_enabled():
            raise bad(_NAME, label, "a tensor that wants a gradient", "detached: scales have no derivative here")
        made.append(scale)
    granularity(a, b, made[0], made[1])
    if activation is not None and activation not in ACTIVATIONS:
        raise bad(_NAME, "activation", repr(activation), f"None or one of {', '.join(ACTIVATIONS)}")
    if out_dtype not in OUT_DTYPES:
        raise bad(_NAME, "out_dtype", out_dtype, "bfloat16, float16 or float32", TypeError)
    if not isinstance(fast_accumulate, bool):
        raise bad(_NAME, "fast_accumulate", repr(fast_accumulate), "True or False", TypeError)
    if plan is not None and not isinstance(plan, Plan):
        raise bad(_NAME, "plan", type(plan).__name__, "a tilewright.Plan or None", TypeError)
    shape = (*a.shape[:-1], b.shape[-1])
    if bias is not None:
        arguments.check_extra(_NAME, "bias", bias, shape[-1:], a)
    if residual is not None:
        arguments.check_extra(_NAME, "residual", residual, shape, a)
    return made[0], made[1]


def operands(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, *, bias: torch.Tensor | None = None,
    activation: str | None = None, residual: torch.Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16,
    fast_accumulate: bool = False,
) -> Operands:  # fmt: skip
    """What ``tw.scaled_matmul`` with these arguments would run first, with a C that has no memory: for planning."""
    scale_a, scale_b = _check(a, b, scale_a, scale_b, bias, residual, activation, out_dtype, fast_accumulate, None)
    scales = scales_of(a, b, scale_a, scale_b, fast_accumulate)
    out = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=out_dtype, device="meta")
    epilogue = Epilogue(bias=bias, activation=activation, residual=residual, scales=scales)
    return next(canonical_views(a, b.expand(*a.shape[:-2], *b.shape), out, epilogue, None))


# ---------------------------------------------------------------------------------------------------- repeated calls


def _key(
    a: torch.Tensor, b: torch.Tensor, scale_a: Any, scale_b: Any, bias: torch.Tensor | None,
    residual: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype, fast_accumulate: bool,
) -> Any:  # fmt: skip
    """What a launch depends on; ``None`` when something has to see the operation, or not all is on the current GPU."""
    tensors = (a, b, scale_a, scale_b, bias, residual)
    if not shortcut.allowed():
        return None
    if any(t is not None and type(t) not in shortcut.PLAIN for t in tensors) or shortcut.wants_grad(*tensors):
        return None
    device = a.get_device()
    if not shortcut.on_current(device) or any(t is not None and t.get_device() != device for t in tensors):
        return None
    described = tuple(None if t is None else eager.described(t) for t in tensors)
    return described, device, activation, out_dtype, fast_accumulate


def _first(
    key: Any, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor,
    bias: torch.Tensor | None, residual: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype,
    fast_accumulate: bool,
) -> torch.Tensor:  # fmt: skip
    """Run a checked call that nothing watches, and keep its launch."""
    out = a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=out_dtype)
    if out.numel() == 0:
        return out
    scales = scales_of(a, b, scale_a, scale_b, fast_accumulate)
    epilogue = Epilogue(bias=bias, activation=activation, residual=residual, scales=scales)
    entry = eager.long_way(_NAME, a, b, out, epilogue)
    if entry is not None:
        _CALLS.put(key, entry)
    return out


# --------------------------------------------------------------------------------------------------------- operation


def _scaled_matmul(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None,
    residual: torch.Tensor | None, activation: str | None, fast_accumulate: bool, plan: str | None,
    out_dtype: torch.dtype, keep_pre: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    scales = scales_of(a, b, scale_a, scale_b, fast_accumulate)
    shape = (*a.shape[:-1], b.shape[-1])
    if not runs_kernels(a.device):
        out, pre = reference.scaled(a, b, scales, bias, residual, activation)
        kept = pre.to(out_dtype).contiguous() if keep_pre else a.new_empty(0, dtype=out_dtype)
        return out.to(out_dtype).contiguous(), kept
    out = a.new_empty(shape, dtype=out_dtype)
    pre = a.new_empty(shape if keep_pre else (0,), dtype=out_dtype)
    epilogue = Epilogue(
        bias=bias, pre=pre if keep_pre else None, activation=activation, residual=residual, scales=scales
    )
    eager.run(_NAME, a, b, out, epilogue, None, False, None if plan is None else Plan.parse(plan))
    return out, pre


def _fake(
    a: torch.Tensor, b: torch.Tensor, scale_a: Any, scale_b: Any, bias: Any, residual: Any, activation: Any,
    fast_accumulate: Any, plan: Any, out_dtype: torch.dtype, keep_pre: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    shape = (*a.shape[:-1], b.shape[-1])
    return a.new_empty(shape, dtype=out_dtype), a.new_empty(shape if keep_pre else (0,), dtype=out_dtype)


operation = define(
    "scaled_matmul(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, Tensor? residual, "
    "str? activation, bool fast_accumulate, str? plan, ScalarType out_dtype, bool keep_pre) -> (Tensor, Tensor)",
    _scaled_matmul,
    _fake,
)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, _, _, _, bias, residual, activation, _, _, _, keep_pre = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1] if keep_pre else None)
    ctx.activation = activation
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.residual_dtype = None if residual is None else residual.dtype


def _backward(ctx: Any, grad: torch.Tensor | None, _: Any) -> tuple[Any, ...]:
    """Gradients of bias and residual: codes are integers or too coarse to have any."""
    grads: list[Any] = [None] * 11
    if grad is None:
        return tuple(grads)
    if ctx.needs_input_grad[5]:
        grads[5] = grad.to(ctx.residual_dtype)
    if ctx.needs_input_grad[4]:
        if ctx.activation is not None:
            (pre,) = ctx.saved_tensors
            grad = ops.epilogue_backward(grad, pre, None, ctx.activation, 0.0, 0, torch.float32)
        assert grad is not None
        grads[4] = grad.sum(tuple(range(grad.ndim - 1)), dtype=torch.float32).to(ctx.bias_dtype)
    return tuple(grads)


torch.library.register_autograd("tilewright::scaled_matmul", _backward, setup_context=_setup)
