"""The arguments of a product: checked, promoted and cast before anything runs."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.gemm.operands import Epilogue, Operands, canonical_views
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ACTIVATIONS, FLOAT_DTYPES, PRECISIONS
from tilewright.runtime.errors import bad

_FLOATS = "float16, bfloat16, float32 or float64"


def check_operands(name: str, a: torch.Tensor, b: torch.Tensor, names: tuple[str, str] = ("a", "b")) -> None:
    """Refuse what is not a pair of float tensors on one device."""
    for label, t in zip(names, (a, b), strict=True):
        if not isinstance(t, torch.Tensor):
            raise bad(name, label, type(t).__name__, "a torch.Tensor", TypeError)
        if t.dtype not in FLOAT_DTYPES:
            raise bad(name, label, t.dtype, _FLOATS, TypeError)
        if t.layout is not torch.strided:
            raise bad(name, label, str(t.layout).removeprefix("torch."), "a dense tensor (torch.strided)", TypeError)
        if t.ndim == 0:
            raise bad(name, label, "0-dimensional", "of 1 dimension or more")
    if a.device != b.device:
        raise bad(name, names[1], f"on {b.device}", f"on {a.device}, where {names[0]} is")


def check_inner(name: str, a: torch.Tensor, b: torch.Tensor, names: tuple[str, str] = ("a", "b")) -> None:
    """Refuse operands of which the inner sizes differ, or whose batches do not broadcast."""
    k = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != k:
        raise bad(
            name,
            names[1],
            f"of shape {tuple(b.shape)}",
            f"of inner size {a.shape[-1]}, as {names[0]} of {tuple(a.shape)}",
        )
    for da, db in zip(reversed(a.shape[:-2]), reversed(b.shape[:-2]), strict=False):
        if da != db and da != 1 and db != 1:
            raise bad(
                name, names[1], f"of shape {tuple(b.shape)}", f"broadcastable with {names[0]} of {tuple(a.shape)}"
            )


def check_options(
    name: str,
    *,
    activation: str | None,
    dropout_p: float,
    seed: int | None,
    alpha: float,
    out_dtype: torch.dtype | None,
    precision: str | None,
    batch_invariant: bool,
    plan: Plan | None,
    epilogue: Any,
    epilogue_args: tuple[Any, ...],
) -> None:
    """Refuse options that no product has."""
    if activation is not None and activation not in ACTIVATIONS:
        raise bad(name, "activation", repr(activation), f"None or one of {', '.join(ACTIVATIONS)}")
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, (int, float)) or not 0.0 <= dropout_p <= 1.0:
        raise bad(name, "dropout_p", repr(dropout_p), "a number from 0 to 1")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, torch.SymInt))):
        raise bad(name, "seed", repr(seed), "an integer or None", TypeError)
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise bad(name, "seed", seed, "an integer of 64 bits")
    if isinstance(alpha, (bool, complex)) or not isinstance(alpha, (int, float, torch.SymInt, torch.SymFloat)):
        raise bad(name, "alpha", repr(alpha), "a number", TypeError)
    if out_dtype is not None and out_dtype not in FLOAT_DTYPES:
        raise bad(name, "out_dtype", out_dtype, _FLOATS, TypeError)
    if precision is not None and precision not in PRECISIONS:
        raise bad(name, "precision", repr(precision), f"None or one of {', '.join(PRECISIONS)}")
    if not isinstance(batch_invariant, bool):
        raise bad(name, "batch_invariant", repr(batch_invariant), "True or False", TypeError)
    if plan is not None and not isinstance(plan, Plan):
        raise bad(name, "plan", type(plan).__name__, "a tilewright.Plan or None", TypeError)
    if not isinstance(epilogue_args, (tuple, list)):
        raise bad(name, "epilogue_args", type(epilogue_args).__name__, "a tuple of tensors", TypeError)
    if epilogue is None and epilogue_args:
        raise bad(name, "epilogue_args", "given without epilogue", "() when epilogue is None")
    if epilogue is not None and not hasattr(epilogue, "arg_names"):
        raise bad(name, "epilogue", type(epilogue).__name__, "a @triton.jit function or None", TypeError)


def check_extra(name: str, label: str, t: Any, shape: tuple[int, ...], like: torch.Tensor) -> None:
    """Refuse a bias, residual or out that does not fit the result."""
    if not isinstance(t, torch.Tensor):
        raise bad(name, label, type(t).__name__, "a torch.Tensor or None", TypeError)
    if t.dtype not in FLOAT_DTYPES:
        raise bad(name, label, t.dtype, _FLOATS, TypeError)
    if tuple(t.shape) != tuple(shape):
        raise bad(name, label, f"of shape {tuple(t.shape)}", f"of shape {tuple(shape)}")
    if t.device != like.device:
        raise bad(name, label, f"on {t.device}", f"on {like.device}, where the operands are")


def check_out(name: str, out: torch.Tensor, *read: torch.Tensor | None) -> None:
    """Refuse an out whose elements share memory, with each other or with a tensor that is read.

    As in torch, views with gaps are only refused when they start at one address: whether gaps interlock is not decided.
    """
    if torch._debug_has_internal_overlap(out) == 1:
        raise bad(name, "out", "expanded, so that elements share memory", "a tensor of distinct elements")
    first, end = _span(out)
    for t in read:
        if t is not None and t.numel() and out.numel():
            start, stop = _span(t)
            if start == first or (start < end and first < stop and _dense(out) and _dense(t)):
                raise bad(name, "out", "in the memory of an input", "a tensor of its own")


def _span(t: torch.Tensor) -> tuple[int, int]:
    """Addresses of a tensor's first byte, and of the one after its last."""
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


def _dense(t: torch.Tensor) -> bool:
    start, stop = _span(t)
    return stop - start == t.numel() * t.element_size()


def cast(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands in one dtype: autocast's where it is on (float64 stays, as in torch), else the promoted one."""
    kind = a.device.type
    if (
        kind != "meta"
        and torch.is_autocast_enabled(kind)
        and a.dtype is not torch.float64
        and b.dtype is not torch.float64
    ):
        dtype = torch.get_autocast_dtype(kind)
    elif a.dtype is b.dtype:
        return a, b
    else:
        dtype = torch.promote_types(a.dtype, b.dtype)
    return a.to(dtype), b.to(dtype)


def result_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """Shape of the product of two operands of 2 or more dimensions."""
    return (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def canonical(name: str, a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> Operands:
    """What ``tw.matmul(a, b, **kwargs)`` would run first, with a C that has no memory: for planning."""
    check_operands(name, a, b)
    check_inner(name, a, b)
    a, b = cast(a, b)
    a = a.unsqueeze(0) if a.ndim == 1 else a
    b = b.unsqueeze(1) if b.ndim == 1 else b
    shape = result_shape(a, b)
    c = torch.empty(shape, dtype=kwargs.get("out_dtype") or a.dtype, device="meta")
    residual = kwargs.get("residual")
    epilogue = Epilogue(
        alpha=kwargs.get("alpha", 1.0),
        bias=kwargs.get("bias"),
        activation=kwargs.get("activation"),
        dropout_p=kwargs.get("dropout_p", 0.0),
        residual=None if residual is None else residual.reshape(shape),
        custom=kwargs.get("epilogue"),
        custom_args=tuple(kwargs.get("epilogue_args", ())),
    )
    batch = shape[:-2]
    views = canonical_views(
        a.expand(*batch, *a.shape[-2:]),
        b.expand(*batch, *b.shape[-2:]),
        c,
        epilogue,
        kwargs.get("precision"),
        kwargs.get("batch_invariant", False),
    )
    return next(views)
