"""Operands of a case: random, laid out as fresh tensors are, and the same in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tilewright.gemm.problem import CODE_DTYPES, SCALE_BLOCK
from tilewright.lab.suites import Case
from tilewright.tune import timing

#: standard deviation of whole numbers from -127 to 127
INT8_SPREAD = 73.3

#: makes that many elements
Fill = Callable[[int, torch.dtype, torch.device], torch.Tensor]


@dataclass(frozen=True)
class Inputs:
    """The tensors of one call: ``a`` (m, k), ``b`` (k, n) as torch sees them, ``bias`` (n,), ``residual`` (m, n).

    ``scale_a`` and ``scale_b`` belong to codes, in shapes that ``tw.scaled_matmul`` takes.
    """

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None

    @property
    def scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both scales; only codes have them."""
        assert self.scale_a is not None and self.scale_b is not None
        return self.scale_a, self.scale_b


def random(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal numbers; whole numbers from -127 to 127 for int8."""
    if dtype is torch.int8:
        return torch.randint(-127, 128, (count,), dtype=dtype, device=device)
    if dtype in CODE_DTYPES:
        return torch.randn(count, dtype=torch.float16, device=device).to(dtype)
    return torch.randn(count, dtype=dtype, device=device)


def _norm(case: Case) -> float:
    """What B, or its scales, are multiplied with to make results of order 1."""
    spread = INT8_SPREAD**2 if case.torch_dtype is torch.int8 else 1.0
    return 1.0 / (math.sqrt(max(1, case.k)) * spread)


def _scales(case: Case, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Scales from 0.5 to 1.5 (B's normed). Those of blocks lie as ``torch._scaled_mm`` wants them: k outermost for A,
    and innermost for B, in columns padded to a multiple of 4."""
    if case.op != "scaled_matmul":
        return None, None
    blocks_k, blocks_n = -(-case.k // SCALE_BLOCK), -(-case.n // SCALE_BLOCK)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "tensor": ((), ()),
        "row": ((case.m, 1), (1, case.n)),
        "block": ((blocks_k, case.m), (blocks_n, -(-blocks_k // 4) * 4)),
    }
    a, b = (torch.rand(shape, device=device) + 0.5 for shape in shapes[case.scales or "tensor"])
    b *= _norm(case)
    return (a.t(), b[:, :blocks_k].t()) if case.scales == "block" else (a, b)


def wide_a(x: Inputs, rows: slice) -> torch.Tensor:
    """Those rows of A in float64, times their scales."""
    a = x.a[rows].double()
    if x.scale_a is None:
        return a
    scale = x.scale_a if x.scale_a.ndim == 0 else x.scale_a[rows]
    return a * _spread(scale, 1, a.shape[1], 0)


def wide_b(x: Inputs, cols: slice) -> torch.Tensor:
    """Those columns of B in float64, times their scales."""
    b = x.b[:, cols].double()
    if x.scale_b is None:
        return b
    if x.scale_b.ndim == 0 or (x.scale_b.shape[0] == 1 and x.scale_b.shape[1] == x.b.shape[1]):
        return b * (x.scale_b if x.scale_b.ndim == 0 else x.scale_b[:, cols])
    return b * _spread(_spread(x.scale_b, 0, b.shape[0], 0), 1, b.shape[1], cols.start or 0)


def _spread(scale: torch.Tensor, dim: int, size: int, start: int) -> torch.Tensor:
    """Scales of blocks as one for each element of a dimension; what is no block's stays as it is."""
    if scale.ndim == 0 or scale.shape[dim] == 1:
        return scale
    block = torch.arange(start, start + size, device=scale.device) // SCALE_BLOCK
    return scale.index_select(dim, block)


def make_inputs(case: Case, device: torch.device, sets: int = 1) -> list[Inputs]:
    """Fresh random inputs. B, or its scales, are divided by sqrt(k): results are of order 1 in every dtype."""
    found = _allocate(case, device, sets, random)
    if case.op != "scaled_matmul":
        for x in found:
            x.b.mul_(_norm(case))
    return found


def empty(case: Case, device: torch.device) -> Inputs:
    """Inputs of whatever values the memory holds: compiling needs no others."""
    return _allocate(case, device, 1, lambda count, dtype, where: torch.empty(count, dtype=dtype, device=where))[0]


def _allocate(case: Case, device: torch.device, sets: int, fill: Fill) -> list[Inputs]:
    def matrices(rows: int, cols: int, letter: str, dtype: torch.dtype) -> torch.Tensor:
        """(sets, rows, cols), each matrix dense in its layout and aligned as a fresh allocation would be."""
        if letter == "t":
            return matrices(cols, rows, "n", dtype).transpose(-1, -2)
        pitch = -(-rows * cols // 128) * 128
        return fill(sets * pitch, dtype, device).as_strided((sets, rows, cols), (pitch, cols, 1))

    a = matrices(case.m, case.k, case.layout[0], case.torch_dtype)
    b = matrices(case.k, case.n, case.layout[1], case.torch_dtype)
    bias = matrices(1, case.n, "n", case.result_dtype)[:, 0] if "bias" in case.epilogue else None
    added = "residual" in case.epilogue or case.op == "addmm"
    residual = matrices(case.m, case.n, "n", case.result_dtype) if added else None

    def of(t: torch.Tensor | None, i: int) -> torch.Tensor | None:
        return None if t is None else t[i]

    return [Inputs(a[i], b[i], of(bias, i), of(residual, i), *_scales(case, device)) for i in range(sets)]


def input_bytes(case: Case) -> int:
    """Bytes of one input set and its result."""
    return case.problem().bytes


def input_sets(case: Case, l2_bytes: int) -> int:
    """How many input sets a measurement rotates over, so that no call finds its operands in the cache."""
    return timing.input_sets(input_bytes(case), l2_bytes, case.m)
