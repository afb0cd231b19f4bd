"""A matrix product as a value: what is asked, before any decision about how to run it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.runtime.errors import bad

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
#: dtypes of codes, which mean nothing without their scale
CODE_DTYPES = (torch.int8, *FP8_DTYPES)
#: what shares a scale: all of an operand; a row of A and a column of B; 128 of k in a row of A and 128 x 128 of B
GRANULARITIES = ("tensor", "row", "block")
#: k, and columns of B, that share a scale of granularity "block"; also the k that a promoted float8 sum takes at once
SCALE_BLOCK = 128
PRECISIONS = ("ieee", "tf32x3", "tf32")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2")
EPILOGUE_STEPS = ("alpha", "bias", *ACTIVATIONS, "dropout", "residual", "pre", "custom")

#: the alignment, in bytes, that the copy engine and 16-byte loads need
ALIGNED = 16

#: the longest k of which no sum of products of two int8 passes 32 bits: -128 * -128 * k < 2^31
INT32_K = 2**17 - 1


def precision_of(dtype: torch.dtype, precision: str | None) -> str:
    """The input precision of a product of ``dtype`` operands.

    ``None`` follows ``torch.get_float32_matmul_precision()``: "highest" is "ieee"; "high" and "medium" are "tf32".
    It only concerns float32: every other dtype multiplies exactly as it is stored ("ieee").
    """
    if dtype is not torch.float32:
        return "ieee"
    if precision is not None:
        return precision
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@dataclass(frozen=True)
class Problem:
    """C (batch, m, n) = A (batch, m, k) @ B (batch, k, n), and what happens to C on its way out.

    Args:
        m, n, k: sizes, each 0 or more.
        batch: how many independent products.
        dtype: of both operands: float16, bfloat16, float32 or float64; or of codes, int8 or float8 (of A where a pair
            of float8 is mixed: no plan depends on which).
        out_dtype: of C; ``None`` is ``dtype``, and bfloat16 for codes.
        layout: a letter for A and one for B, as torch sees them: "n" is row-major, "t" column-major (``x @ weight.T``
            is "nt"), "s" has no dimension of stride 1 (only made from tensors).
        epilogue: the steps applied to the fp32 sum, in order, out of ``EPILOGUE_STEPS``.
        precision: of float32 operands: "ieee", "tf32x3", "tf32" or ``None`` (torch's setting when the problem is made).
        batch_invariant: a row's bits may not depend on m.
        alignment: bytes (16 or less) that divide the addresses of A and B and every stride but their unit one.
        batch_dims: batch dimensions left after merging those that can be: a schedule walks 0, 1 or 2 of them.
        scaled: granularity of the codes' scales, out of ``GRANULARITIES``; ``None`` is "tensor" for codes. "" is no
            scales, and all that floats may have.
        fast_accumulate: of float8 operands without block scales: the tensor core keeps the whole sum, in fewer bits
            than float32 where it has fewer. Otherwise its sums of 128 of k are added in float32.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: torch.dtype = torch.bfloat16
    out_dtype: torch.dtype | None = None
    layout: str = "nt"
    epilogue: tuple[str, ...] = ()
    precision: str | None = None
    batch_invariant: bool = False
    alignment: int | None = None
    batch_dims: int | None = None
    scaled: str | None = None
    fast_accumulate: bool = False

    def __post_init__(self) -> None:
        name = "Problem"
        for field in ("m", "n", "k", "batch"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
                raise bad(name, field, repr(value), "an integer from 0 to 2^31 - 1")
        codes = self.dtype in CODE_DTYPES
        if self.dtype not in FLOAT_DTYPES and not codes:
            must = "float16, bfloat16, float32, float64, int8, float8_e4m3fn or float8_e5m2"
            raise bad(name, "dtype", self.dtype, must, TypeError)
        if self.scaled is None:
            object.__setattr__(self, "scaled", "tensor" if codes else "")
        elif self.scaled not in (GRANULARITIES if codes else ("",)):
            must = f"one of {', '.join(GRANULARITIES)}" if codes else "'' or None, for operands that are no codes"
            raise bad(name, "scaled", repr(self.scaled), must)
        # as precision, it is nothing where there is nothing to choose
        fast = self.fast_accumulate and self.dtype in FP8_DTYPES and self.scaled != "block"
        object.__setattr__(self, "fast_accumulate", fast)
        if self.out_dtype is None:
            object.__setattr__(self, "out_dtype", torch.bfloat16 if codes else self.dtype)
        elif self.out_dtype not in FLOAT_DTYPES:
            raise bad(name, "out_dtype", self.out_dtype, "float16, bfloat16, float32 or float64", TypeError)
        if not isinstance(self.layout, str) or len(self.layout) != 2 or set(self.layout) - set("nts"):
            raise bad(name, "layout", repr(self.layout), "two letters, n or t, such as 'nt'")
        object.__setattr__(self, "epilogue", tuple(self.epilogue))
        for step in self.epilogue:
            if step not in EPILOGUE_STEPS:
                raise bad(name, "epilogue", repr(step), f"made of {', '.join(EPILOGUE_STEPS)}")
        if self.precision is not None and self.precision not in PRECISIONS:
            raise bad(name, "precision", repr(self.precision), "'ieee', 'tf32x3', 'tf32' or None")
        object.__setattr__(self, "precision", precision_of(self.dtype, self.precision))
        if self.alignment is None:
            object.__setattr__(self, "alignment", self._dense_alignment())
        if self.batch_dims is None:
            object.__setattr__(self, "batch_dims", int(self.batch != 1))

    def _dense_alignment(self) -> int:
        """The alignment of freshly allocated, dense operands of these sizes."""
        rows = (self.k if self.layout[0] == "n" else self.m, self.n if self.layout[1] == "n" else self.k)
        size = self.dtype.itemsize
        return math.gcd(ALIGNED, *(r * size for r in rows))

    @classmethod
    def of(cls, a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> Problem:
        """The problem that ``tw.matmul(a, b, **kwargs)`` solves; with scales, ``tw.scaled_matmul``."""
        from tilewright.gemm import scaled
        from tilewright.gemm.operands import Operands

        if "scale_a" in kwargs:
            return scaled.operands(a, b, **kwargs).problem

        return Operands.of("Problem.of", a, b, **kwargs).problem

    @property
    def flops(self) -> int:
        """Floating-point operations of the product: a multiplication and an addition for each m, n and k."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """The fewest bytes that device memory must move: A and B read once, C written once, extra tensors once."""
        size, out = self.dtype.itemsize, (self.out_dtype or self.dtype).itemsize
        extra = self.epilogue.count("residual") + self.epilogue.count("pre")
        operands = self.m * self.k + self.k * self.n
        bias = self.n * (size if self.scaled == "" else out) if "bias" in self.epilogue else 0
        return self.batch * (operands * size + self.m * self.n * out * (1 + extra)) + bias + self.scale_bytes

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of both operands."""
        blocks_k = -(-self.k // SCALE_BLOCK)
        counts = {
            "": 0,
            "tensor": 2,
            "row": self.batch * self.m + self.n,
            "block": blocks_k * (self.batch * self.m + -(-self.n // SCALE_BLOCK)),
        }
        return 4 * counts[str(self.scaled)]

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in operations per byte of device memory."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def accumulator(self) -> torch.dtype:
        """The dtype of the running sum."""
        if self.dtype is torch.int8 and self.scaled != "block":  # those are scaled, so floats, 128 of k at a time
            return torch.int32 if self.k <= INT32_K else torch.int64
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        parts = [f"{self.m}x{self.n}x{self.k}", name, self.layout]
        if self.batch != 1:
            parts.append(f"batch={self.batch}")
        if self.dtype is torch.float32:
            parts.append(str(self.precision))
        if self.scaled:
            parts.append(f"scaled={self.scaled}")
        if self.fast_accumulate:
            parts.append("fast")
        if self.out_dtype is not self.dtype:
            parts.append(f"-> {str(self.out_dtype).removeprefix('torch.')}")
        if self.epilogue:
            parts.append("+".join(self.epilogue))
        return " ".join(parts)
