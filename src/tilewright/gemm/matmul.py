"""``matmul``, ``linear`` and ``addmm``: what a caller sees of a product."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.gemm import arguments, ops, planner, short
from tilewright.gemm.plan import Plan
from tilewright.runtime.devices import Device
from tilewright.runtime.eager import PLAIN
from tilewright.runtime.errors import bad

_DOC = """
    Args:
        bias: (n,), added to every row.
        activation: "relu", "gelu" (erf), "gelu_tanh", "silu", "sigmoid", "tanh", "relu2" (relu squared) or None.
        residual: of the result's shape, any strides; added last.
        dropout_p: probability that an element is zeroed, 0 to 1; the others are divided by 1 - dropout_p.
        seed: of the dropout mask. The same seed gives the same mask whatever the layout, tile or schedule. ``None``
            draws one from torch's generator of the operands' device (a new one at each replay of a CUDA graph).
        alpha: factor of the product.
        out_dtype: of the result; by default the operands' promoted dtype.
        out: a tensor of the result's shape (any strides) to write into; not differentiable.
        precision: of float32 operands: "ieee", "tf32x3" (float32-accurate on tensor cores: three tf32 products,
            or six bfloat16 ones where b is row-major), "tf32"; ``None`` follows
            ``torch.get_float32_matmul_precision()`` at every call ("highest": ieee, else tf32).
        batch_invariant: a row's bits do not depend on how many other rows there are.
        epilogue: a ``@triton.jit`` function ``(acc, rows, cols, m, n, args) -> acc`` that is applied last, before the
            cast: ``acc`` a block of sums, ``rows`` and ``cols`` its 1-D indices, ``args`` the tuple ``epilogue_args``
            of tensors. It has no derivative.
        plan: the plan to use; ``ValueError`` with the reason if it cannot run the product.

    The order is ``alpha * product``, bias, activation, dropout, residual, epilogue, cast; the sum and all of these are
    float32 (float64 for float64 operands).
"""


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    epilogue: Any = None,
    epilogue_args: tuple[Any, ...] = (),
    plan: Plan | None = None,
) -> torch.Tensor:
    """Product of two tensors: ``torch.matmul``'s shapes (1-D, 2-D, batched, broadcast), any strides, an epilogue."""
    if (
        out is None and plan is None and epilogue is None and out_dtype is None and precision is None
        and dropout_p == 0.0 and not batch_invariant and not epilogue_args
    ):  # fmt: skip
        result = short.product("matmul", a, b, bias, activation, residual, alpha)
        if result is not None:
            return result
    return _product(
        "matmul", ("a", "b"), a, b, bias, activation, residual, dropout_p, seed, alpha, out_dtype, out, precision,
        batch_invariant, epilogue, epilogue_args, plan,
    )  # fmt: skip


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    epilogue: Any = None,
    epilogue_args: tuple[Any, ...] = (),
    plan: Plan | None = None,
) -> torch.Tensor:
    """``x`` (.., K) times ``weight`` (N, K) transposed, as ``torch.nn.functional.linear``, with an epilogue."""
    if (
        out is None and plan is None and epilogue is None and out_dtype is None and precision is None
        and dropout_p == 0.0 and not batch_invariant and not epilogue_args
    ):  # fmt: skip
        result = short.product("linear", x, weight, bias, activation, residual, alpha)
        if result is not None:
            return result
    if isinstance(weight, torch.Tensor):
        if weight.ndim not in (1, 2):
            raise bad("linear", "weight", f"{weight.ndim}-dimensional", "(N, K)")
        if isinstance(x, torch.Tensor) and x.ndim and x.shape[-1] != weight.shape[-1]:
            raise bad("linear", "x", f"of shape {tuple(x.shape)}", f"(.., {weight.shape[-1]}), the K of weight")
        if weight.ndim == 2:
            weight = weight.t()
    return _product(
        "linear", ("x", "weight"), x, weight, bias, activation, residual, dropout_p, seed, alpha, out_dtype, out,
        precision, batch_invariant, epilogue, epilogue_args, plan,
    )  # fmt: skip


def addmm(
    input: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> torch.Tensor:
    """``beta * input + alpha * (a @ b)``, as ``torch.addmm``: a (m, k), b (k, n), ``input`` broadcastable to (m, n).

    With ``beta=0`` the values of ``input`` are not read: NaN and infinity in it do not reach the result.
    """
    if type(beta) in (float, int) and beta == 1:
        result = short.product("addmm", a, b, None, None, input, alpha)
        if result is not None:
            return result
    arguments.check_operands("addmm", a, b)
    for label, t in (("a", a), ("b", b)):
        if t.ndim != 2:
            raise bad("addmm", label, f"{t.ndim}-dimensional", "2-dimensional")
    arguments.check_inner("addmm", a, b)
    if not isinstance(input, torch.Tensor):
        raise bad("addmm", "input", type(input).__name__, "a torch.Tensor", TypeError)
    shape = (a.shape[0], b.shape[1])
    try:
        residual = input.expand(shape)
    except RuntimeError:
        raise bad("addmm", "input", f"of shape {tuple(input.shape)}", f"broadcastable to {shape}") from None
    for label, number in (("beta", beta), ("alpha", alpha)):
        if isinstance(number, (bool, complex)) or not isinstance(number, (int, float, torch.SymInt, torch.SymFloat)):
            raise bad("addmm", label, repr(number), "a number", TypeError)
    arguments.check_extra("addmm", "input", residual, shape, a)
    if beta == 0:
        return _product("addmm", ("a", "b"), a, b, alpha=alpha)
    a_cast, b_cast = arguments.cast(a, b)
    if beta != 1 or residual.dtype != a_cast.dtype:
        # scaled in the accumulator's dtype, so that nothing is rounded twice
        wide = torch.float64 if a_cast.dtype is torch.float64 else torch.float32
        residual = residual.to(wide) * beta if beta != 1 else residual.to(wide)
    return _product("addmm", ("a", "b"), a_cast, b_cast, residual=residual, alpha=alpha)


matmul.__doc__ = str(matmul.__doc__).rstrip() + "\n" + _DOC
linear.__doc__ = str(linear.__doc__).rstrip() + "\n" + _DOC


@torch.compiler.assume_constant_result
def _registered(function: Any) -> str:
    """The name under which ``ops`` finds an epilogue function."""
    name = f"{function.__module__}.{function.__name__}:{id(function)}"
    ops.CUSTOM[name] = function
    return name


def _product(
    name: str,
    names: tuple[str, str],
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    epilogue: Any = None,
    epilogue_args: tuple[Any, ...] = (),
    plan: Plan | None = None,
) -> torch.Tensor:
    """Check, bring both operands to (.., m, k) and (.., k, n), run, and give the result torch.matmul's shape."""
    arguments.check_operands(name, a, b, names)
    arguments.check_inner(name, a, b, names)
    arguments.check_options(
        name, activation=activation, dropout_p=dropout_p, seed=seed, alpha=alpha, out_dtype=out_dtype,
        precision=precision, batch_invariant=batch_invariant, plan=plan, epilogue=epilogue, epilogue_args=epilogue_args,
    )  # fmt: skip
    a, b = arguments.cast(a, b)
    vector_a, vector_b = a.ndim == 1, b.ndim == 1
    a = a.unsqueeze(0) if vector_a else a
    b = b.unsqueeze(1) if vector_b else b
    full = arguments.result_shape(a, b)
    shape = full
    if vector_b:
        shape = shape[:-1]
    if vector_a:
        shape = (*shape[:-2], shape[-1]) if not vector_b else shape[:-1]

    if bias is not None:
        arguments.check_extra(name, "bias", bias, (full[-1],), a)
    if residual is not None:
        arguments.check_extra(name, "residual", residual, shape, a)
        residual = _lift(residual, vector_a, vector_b)
    if out is not None:
        arguments.check_extra(name, "out", out, shape, a)
        if out_dtype is not None and out.dtype != out_dtype:
            raise bad(name, "out", out.dtype, f"{out_dtype}, as out_dtype", TypeError)
        if not torch.compiler.is_compiling():
            # a residual that is out itself is read where it is written, by the same program
            same = residual is not None and residual.data_ptr() == out.data_ptr() and residual.stride() == out.stride()
            arguments.check_out(name, out, a, b, bias, None if same else residual, *epilogue_args)
    for t in epilogue_args:
        if not isinstance(t, torch.Tensor):
            raise bad(name, "epilogue_args", f"with a {type(t).__name__}", "a tuple of tensors", TypeError)

    if plan is not None and type(a) in PLAIN and type(b) in PLAIN and not torch.compiler.is_compiling():
        asked = arguments.canonical(
            name, a, b, alpha=alpha, bias=bias, activation=activation, dropout_p=dropout_p, residual=residual,
            out_dtype=out_dtype if out is None else out.dtype, precision=precision, epilogue=epilogue,
            epilogue_args=epilogue_args, batch_invariant=batch_invariant,
        )  # fmt: skip
        where = Device.current(a.device.index) if a.is_cuda else planner.device_or_default()
        planner.check(plan, asked.problem, where, name)

    seed_tensor, number = None, 0
    if dropout_p > 0.0:
        if seed is None:
            # on the operands' device, so that a captured CUDA graph draws a new one at each replay
            seed_tensor = torch.randint(-(2**63), 2**63 - 1, (1,), device=a.device)
        else:
            number = seed
    wants_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (a, b, bias, residual))
    common = (
        a, b, bias, residual, seed_tensor, activation, float(alpha), float(dropout_p), number, precision,
        batch_invariant, None if plan is None else str(plan), None if epilogue is None else _registered(epilogue),
        list(epilogue_args),
    )  # fmt: skip
    if out is not None:
        if wants_grad or (out.requires_grad and torch.is_grad_enabled()):
            raise bad(name, "out", "given", "None where a gradient is wanted: writing into it is not differentiable")
        ops.matmul_out(*common, _lift(out, vector_a, vector_b))
        return out
    result = ops.call(*common, a.dtype if out_dtype is None else out_dtype, wants_grad and activation is not None)
    return result.reshape(shape) if vector_a or vector_b else result


def _lift(t: torch.Tensor, vector_a: bool, vector_b: bool) -> torch.Tensor:
    """A result-shaped tensor with the dimensions of 1 that a vector operand stood for."""
    if vector_b:
        t = t.unsqueeze(-1)
    return t.unsqueeze(-2) if vector_a else t
