"""Operands, layouts, and the float64 oracle that results are judged by."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tilewright.runtime.mode import INTERPRETED

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

#: whether this process compiles kernels for a GPU
GPU = torch.cuda.is_available() and not INTERPRETED
#: whether this process launches kernels at all
KERNELS = GPU or INTERPRETED
DEVICE = "cuda" if GPU else "cpu"

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NARROW = (torch.float16, torch.bfloat16)

#: sizes (m, n, k): one element, one off a tile, primes, whole tiles, one row, one column, long k
SIZES = [
    (1, 1, 1),
    (1, 40, 17),
    (33, 1, 64),
    (17, 33, 1),
    (31, 29, 37),
    (63, 65, 64),
    (64, 64, 64),
    (16, 48, 257),
    (3, 5, 1031),
]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------------------------ values


def integers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, most: int = 3) -> torch.Tensor:
    """Whole numbers from -most to most: their products and sums are exact in every dtype's accumulator."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator).to(dtype).to(DEVICE)


def normals(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal values. In float64 they lie on a grid of 2^-16, so that the oracle's own products and sums are exact."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if dtype is torch.float64:
        x = (x * 2**16).round() / 2**16
    return x.to(dtype).to(DEVICE)


# ----------------------------------------------------------------------------------------------------------- layouts

#: ways in which a matrix may lie in memory; each is a view into a larger buffer that is NaN outside the view
LAYOUTS = ("rows", "columns", "padded", "sliced", "sliced_rows", "offset_1", "offset_8", "both")


def laid(x: torch.Tensor, how: str) -> torch.Tensor:
    """``x`` (.., rows, cols) with the same values and other strides, in memory that is NaN (integers: 99) elsewhere."""
    *batch, r, c = x.shape
    nan = math.nan if x.is_floating_point() else 99
    if how == "rows":
        view = x.new_full((*batch, r, c), nan)
    elif how == "columns":
        view = x.new_full((*batch, c, r), nan).transpose(-1, -2)
    elif how == "padded":  # rows of a length that keeps 16-byte alignment
        view = x.new_full((*batch, r + 2, (c + 23) // 8 * 8), nan)[..., 1 : r + 1, 8 : c + 8]
    elif how == "sliced":
        view = x.new_full((*batch, r, 2 * c + 1), nan)[..., 1 : 2 * c + 1 : 2]
    elif how == "sliced_rows":
        view = x.new_full((*batch, 3 * r + 1, c), nan)[..., 1 : 3 * r + 1 : 3, :]
    elif how in ("offset_1", "offset_8"):
        start = int(how.removeprefix("offset_"))
        view = x.new_full((x.numel() + 2 * start,), nan)[start : start + x.numel()].view(x.shape)
    elif how == "both":  # no dimension of stride 1, and the longer stride last
        view = x.new_full((*batch, 2 * c, 3 * r), nan).transpose(-1, -2)[..., ::3, ::2]
    else:
        raise ValueError(how)
    return view.copy_(x)


class Guarded:
    """An output inside a buffer of sevens, whose surroundings no kernel may touch."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, how: str = "rows") -> None:
        numel = math.prod(shape)
        self.buffer = torch.full((4 * numel + 128,), 7.0, dtype=dtype, device=DEVICE)
        *batch, r, c = shape
        inner = self.buffer[64 : 64 + 4 * numel]
        if how == "rows":
            view = inner[:numel].view(shape)
        elif how == "columns":
            view = inner[:numel].view(*batch, c, r).transpose(-1, -2)
        elif how == "sliced":
            view = inner[: 2 * numel].view(*batch, r, 2 * c)[..., 1::2]
        elif how == "offset_1":
            view = inner[1 : numel + 1].view(shape)
        else:
            raise ValueError(how)
        self.out = view.fill_(math.nan)

    def untouched(self) -> bool:
        """Whether everything but the output is as it was. Overwrites the output."""
        self.out.fill_(7.0)
        return bool((self.buffer == 7.0).all())


# ------------------------------------------------------------------------------------------------------------ philox


def philox(counter: np.ndarray, key: tuple[int, int], rounds: int = 7) -> np.ndarray:
    """Philox4x32 (Salmon et al., SC 2011) in numpy: (.., 4) counters of 32 bits to (.., 4) words."""
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(rounds):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> np.uint64(32)) ^ c1 ^ k0, p1 & low, (p0 >> np.uint64(32)) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack([c0, c1, c2, c3], -1).astype(np.uint32)


def kept(shape: tuple[int, ...], p: float, seed: int, first: int = 0) -> torch.Tensor:
    """The dropout mask as documented, of the elements from index ``first`` on.

    Element 16 q + r takes, of counter 4 q + (r // 2) % 4 under the key ``seed``, word 2 (r // 8) + r % 2, and is kept
    when that is p * 2^32 or more.
    """
    index = np.arange(first, first + math.prod(shape), dtype=np.uint64)
    q, r = index // np.uint64(16), index % np.uint64(16)
    at = np.uint64(4) * q + r // np.uint64(2) % np.uint64(4)
    word = np.uint64(2) * (r // np.uint64(8)) + r % np.uint64(2)
    counter = np.stack([at & np.uint64(0xFFFFFFFF), at >> np.uint64(32), 0 * at, 0 * at], -1)
    words = philox(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    taken = np.take_along_axis(words, word[:, None].astype(np.int64), -1)[:, 0]
    return torch.from_numpy(taken.astype(np.int64) >= round(p * 2**32)).reshape(shape)


# ------------------------------------------------------------------------------------------------------------ oracle

ACTIVATIONS = {
    None: lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu2": lambda x: F.relu(x).square(),
}


def finished(
    product: torch.Tensor,
    *,
    alpha: float = 1.0,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    residual: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """The epilogue in the dtype and on the device of ``product``, by torch, in the order that is documented."""
    x = product * alpha
    if bias is not None:
        x = x + bias.to(x)
    x = ACTIVATIONS[activation](x)
    if dropout_p > 0.0:
        mask = kept(tuple(x.shape), dropout_p, seed).to(x.device)
        scale = 0.0 if dropout_p == 1.0 else 1.0 / (1.0 - dropout_p)
        x = torch.where(mask, x * scale, torch.zeros_like(x))
    return x if residual is None else x + residual.to(x)


def oracle(a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    """The result in float64 on the CPU."""
    moved = {key: v.detach().cpu() if isinstance(v, torch.Tensor) else v for key, v in options.items()}
    return finished(torch.matmul(a.detach().cpu().double(), b.detach().cpu().double()), **moved)


def round_tf32(x: torch.Tensor) -> torch.Tensor:
    """float32 rounded to tf32's 10 bits of fraction, ties away from zero."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def peer(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype, precision: str = "ieee", **options: Any
) -> torch.Tensor:
    """PyTorch's own product in the same dtypes; the epilogue in the accumulator's dtype, rounded once.

    That is the tightest yardstick that PyTorch offers: its eager operations would round after every step. A wider
    output comes out of the same tensor cores on a GPU; on a CPU, from wider operands.
    """
    if out_dtype.itemsize > a.dtype.itemsize:
        if a.is_cuda and a.ndim == b.ndim == 2 and out_dtype is torch.float32:
            return finished(torch.mm(a, b, out_dtype=out_dtype), **options)
        a, b = a.to(out_dtype), b.to(out_dtype)
    tf32 = a.dtype is torch.float32 and precision == "tf32"
    if tf32 and a.device.type == "cpu":
        a, b = round_tf32(a), round_tf32(b)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        product = torch.matmul(a, b)
    finally:
        torch.set_float32_matmul_precision(before)
    return finished(product.to(torch.promote_types(product.dtype, torch.float32)), **options).to(out_dtype)


def assert_exact(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Shape and every bit of value; for results that are exact before their one rounding."""
    assert tuple(result.shape) == tuple(expected.shape)
    torch.testing.assert_close(
        result.detach().cpu(), expected.detach().cpu().to(result.dtype), rtol=0, atol=0, equal_nan=True
    )


def assert_near(
    result: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, precision: str = "ieee", **options: Any
) -> None:
    """The error against float64 is at most twice that of PyTorch's own kernel, and one rounding.

    One rounding: of the result to its dtype, and of the sum (whose terms may cancel) to the accumulator's. float64 is
    its own oracle: there only the rounding (and 8 of them for an activation's own arithmetic) is allowed.
    """
    expected = oracle(a, b, **options)
    assert tuple(result.shape) == tuple(expected.shape)
    theirs = peer(a, b, result.dtype, precision, **options).detach().cpu().double()
    got = result.detach().cpu().double()
    assert not got.isnan().any(), "NaN, or an element that was not written"
    acc = torch.finfo(torch.promote_types(a.dtype, torch.float32))
    info = torch.finfo(result.dtype)
    a64, b64 = a.detach().cpu().double(), b.detach().cpu().double()
    scale = abs(options.get("alpha", 1.0)) / (1.0 - options.get("dropout_p", 0.0) or 1.0)
    allowed = 2 * float((theirs - expected).abs().max()) if expected.numel() else 0.0
    allowed = allowed + expected.abs() * info.eps / 2 + torch.matmul(a64.abs(), b64.abs()) * scale * acc.eps / 2
    if a.dtype is torch.float64:
        allowed = allowed + (8 * info.eps * expected.abs().max() if options.get("activation") else 0.0)
    if precision == "tf32x3":
        # by definition: of (hi + lo)(hi + lo) the product lo * lo is left out and each lo is rounded to tf32, so each
        # product is off by up to 3 * 2^-22; independent errors add as the root of their squares
        allowed = allowed + 3 * 2**-22 * scale * torch.matmul(a64.square(), b64.square()).sqrt()
    off = (got - expected).abs()
    worst = int((off - allowed).argmax()) if off.numel() else 0
    worst_allowed = float(torch.as_tensor(allowed).expand_as(off).flatten()[worst]) if off.numel() else 0.0
    assert bool((off <= allowed).all()), (
        f"{int((off > allowed).sum())} of {off.numel()} elements are off; the worst, at {worst}, by "
        f"{float(off.flatten()[worst]):.3e} where {worst_allowed:.3e} is allowed"
    )


# ----------------------------------------------------------------------------------------------------------- children


def child(code: str, *, interpret: bool = False, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    """``code`` in a process of its own, where a crash or a broken CUDA context stays."""
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    variables["PYTHONPATH"] = os.pathsep.join([str(SRC), str(ROOT / "tests"), variables.get("PYTHONPATH", "")])
    if interpret:
        variables["TRITON_INTERPRET"] = "1"
    variables.update(env)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=timeout, check=False
    )
