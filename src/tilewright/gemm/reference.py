"""The same products as a composition of PyTorch's operations: for CPU tensors, and to differentiate twice."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tilewright.gemm.operands import Scales, dropout_threshold
from tilewright.gemm.problem import SCALE_BLOCK

_M0, _M1 = 0xD2511F53, 0xCD9E8D57  # multipliers and Weyl constants of Philox4x32 (Salmon et al., SC 2011)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF
ROUNDS = 7


def _mulhilo(x: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of x * multiplier, for x of 32 bits in int64 (whose product may wrap)."""
    low16, high16 = x & 0xFFFF, x >> 16
    cross = low16 * multiplier
    upper = high16 * multiplier + (cross >> 16)
    return (upper >> 16) & _LOW, ((upper << 16) | (cross & 0xFFFF)) & _LOW


def keep_mask(shape: tuple[int, ...], p: float, seed: int | torch.Tensor, device: torch.device) -> torch.Tensor:
    """The dropout mask that ``lang.philox`` makes for a contiguous tensor of ``shape``."""
    count = 1
    for size in shape:
        count *= size
    index = torch.arange(count, dtype=torch.int64, device=device)
    counter = (index >> 4 << 2) + (index >> 1 & 3)
    lane = (index >> 3 & 1) * 2 + (index & 1)
    zero = torch.zeros_like(counter)
    c0, c1, c2, c3 = counter & _LOW, (counter >> 32) & _LOW, zero, zero
    key = seed.reshape(()).to(device) if isinstance(seed, torch.Tensor) else torch.tensor(seed, device=device)
    k0, k1 = key & _LOW, (key >> 32) & _LOW
    for _ in range(ROUNDS):
        h0, l0 = _mulhilo(c0, _M0)
        h1, l1 = _mulhilo(c2, _M1)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    word = torch.stack((c0, c1, c2, c3), -1).gather(-1, lane.unsqueeze(-1)).squeeze(-1)
    return (word >= dropout_threshold(p)).reshape(shape)


_SIMPLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def activate(x: torch.Tensor, activation: str | None) -> torch.Tensor:
    """The activation of that name."""
    if activation is None:
        return x
    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if activation == "relu2":
        return F.relu(x).square()
    return _SIMPLE[activation](x)


def activate_backward(grad: torch.Tensor, x: torch.Tensor, activation: str) -> torch.Tensor:
    """``grad`` times the activation's derivative at ``x``, by operations that can be differentiated again."""
    aten = torch.ops.aten
    if activation in ("gelu", "gelu_tanh"):
        result = aten.gelu_backward(grad, x, approximate="none" if activation == "gelu" else "tanh")
    elif activation == "silu":  # silu_backward itself has no derivative
        s = torch.sigmoid(x)
        result = grad * (s * (1 + x * (1 - s)))
    elif activation == "sigmoid":
        result = aten.sigmoid_backward(grad, torch.sigmoid(x))
    elif activation == "tanh":
        result = aten.tanh_backward(grad, torch.tanh(x))
    else:
        result = aten.threshold_backward(grad if activation == "relu" else 2 * grad * x, x, 0)
    return result  # type: ignore[no-any-return]


def dropout(x: torch.Tensor, p: float, seed: int | torch.Tensor) -> torch.Tensor:
    """``x`` with elements zeroed with probability p by the mask of ``seed``, the others divided by 1 - p."""
    if p == 0.0:
        return x
    scale = 0.0 if p >= 1.0 else 1.0 / (1.0 - p)
    return torch.where(keep_mask(tuple(x.shape), p, seed, x.device), x * scale, torch.zeros_like(x))


def _row_by_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``torch.matmul``, which sums a row in an order that depends on how many there are, of one row at a time."""
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if 0 in shape:
        return torch.matmul(a, b)
    a = a.expand(*shape[:-1], a.shape[-1]).reshape(-1, *a.shape[-2:])
    b = b.expand(*shape[:-2], *b.shape[-2:]).flatten(0, -3) if b.ndim > 2 else b.expand(len(a), *b.shape)
    return torch.cat([row[None] @ bz for az, bz in zip(a, b, strict=True) for row in az]).reshape(shape)


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str | None,
    alpha: float,
    dropout_p: float,
    seed: int | torch.Tensor,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(result, value before the activation), unrounded: float64 for float64 operands, else float32."""
    wide = torch.float64 if a.dtype is torch.float64 else torch.float32
    pre = (_row_by_row if batch_invariant else torch.matmul)(a.to(wide), b.to(wide))
    if alpha != 1.0:
        pre = pre * alpha
    if bias is not None:
        pre = pre + bias.to(wide)
    out = dropout(activate(pre, activation), dropout_p, seed)
    if residual is not None:
        out = out + residual.to(wide)
    return out, pre


def scaled(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: Scales,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(result, value before the activation) of a product of codes, in float32 as the kernels have it."""
    # float64 holds every sum of int8 products that memory has room for
    exact = torch.float64 if a.dtype is torch.int8 else torch.float32
    if scales.granularity == "block":
        k, n = b.shape[-2:]
        of_a = scales.a.repeat_interleave(SCALE_BLOCK, -1)[..., :k]
        of_b = scales.b.repeat_interleave(SCALE_BLOCK, 0)[:k].repeat_interleave(SCALE_BLOCK, 1)[:, :n]
        pre = torch.matmul(a.to(exact) * of_a, b.to(exact) * of_b).to(torch.float32)
    else:
        pre = torch.matmul(a.to(exact), b.to(exact)).to(torch.float32)
        if scales.granularity == "tensor":
            pre = pre * (scales.a.reshape(()) * scales.b.reshape(()))
        else:
            pre = pre * scales.a * scales.b
    if bias is not None:
        pre = pre + bias.to(torch.float32)
    out = activate(pre, activation)
    return (out if residual is None else out + residual.to(torch.float32)), pre
