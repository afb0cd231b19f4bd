"""One product to prove: its operands, its float64 result, and how far a right result may be from that."""

from __future__ import annotations

import math
from functools import cached_property

import torch

from tilewright.gemm import reference
from tilewright.gemm.matmul import matmul
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import ACTIVATIONS, Problem

#: elements before and after ``out`` that no kernel may touch: a multiple of 16 bytes for every dtype
GUARD = 64
#: steps that round nothing when their inputs are small integers (alpha is 1/2, dropout keeps half)
EXACT_STEPS = {"alpha", "bias", "relu", "relu2", "dropout", "residual"}
_SEED = 1234
_DROPOUT = 0.5
_ALPHA = 0.5
_INTEGERS = 3


class Trial:
    """A problem with its operands, the float64 result, and how far a right result may be from it."""

    def __init__(self, problem: Problem, device: torch.device, integers: bool = False, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.integers = integers
        z, m, n, k = problem.batch, problem.m, problem.n, problem.k
        self.out_dtype = problem.out_dtype or problem.dtype
        batch = () if z == 1 else (z,)
        steps = problem.epilogue
        a = self._operand(batch, m, k, problem.layout[0], problem.dtype)
        b = self._operand(batch, k, n, problem.layout[1], problem.dtype)
        bias = self._draw((n,), problem.dtype) if "bias" in steps else None
        residual = self._draw((*batch, m, n), self.out_dtype) if "residual" in steps else None
        self.activation = next((step for step in steps if step in ACTIVATIONS), None)
        self.alpha = _ALPHA if "alpha" in steps else 1.0
        self.dropout_p = _DROPOUT if "dropout" in steps else 0.0
        self.a, self.b = a.to(device), b.to(device)
        self.bias = None if bias is None else bias.to(device)
        self.residual = None if residual is None else residual.to(device)
        self.shape = (*batch, m, n)
        self.problem = Problem.of(
            self.a, self.b, out_dtype=self.out_dtype, bias=self.bias, activation=self.activation, alpha=self.alpha,
            residual=self.residual, dropout_p=self.dropout_p, precision=problem.precision,
        )  # fmt: skip

    @cached_property
    def expected(self) -> torch.Tensor:
        """The float64 result, made on the CPU whatever device the product runs on."""
        bias = None if self.bias is None else self.bias.cpu()
        residual = None if self.residual is None else self.residual.cpu()
        return self._finish(torch.matmul(self.a.cpu().double(), self.b.cpu().double()), bias, residual)

    @cached_property
    def scale(self) -> float:
        """Largest absolute value of the float64 result, or 1 where that is 0."""
        return float(self.expected.abs().max()) or 1.0 if self.expected.numel() else 1.0

    @cached_property
    def peer_error(self) -> float:
        """Largest absolute error of PyTorch's own product."""
        return self._largest(self._peer().cpu())

    def _draw(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.integers:
            return torch.randint(-_INTEGERS, _INTEGERS + 1, shape, generator=self.generator).to(dtype)
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        if dtype is torch.float64:
            # on this grid every product and sum of the oracle is exact, so that it can judge its own dtype
            x = (x * 2**16).round() / 2**16
        return x.to(dtype)

    def _operand(self, batch: tuple[int, ...], rows: int, cols: int, letter: str, dtype: torch.dtype) -> torch.Tensor:
        if letter == "t":
            return self._draw((*batch, cols, rows), dtype).transpose(-1, -2)
        if letter == "s":
            return self._draw((*batch, rows, 2 * cols), dtype)[..., ::2]
        return self._draw((*batch, rows, cols), dtype)

    def _finish(self, x: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None) -> torch.Tensor:
        """The epilogue in the dtype of ``x``."""
        x = x * self.alpha
        if bias is not None:
            x = x + bias.to(x.dtype)
        x = reference.dropout(reference.activate(x, self.activation), self.dropout_p, _SEED)
        return x if residual is None else x + residual.to(x.dtype)

    def _peer(self) -> torch.Tensor:
        """PyTorch's own product, in the operands' dtype (or the output's, where that is wider), then the epilogue in
        the accumulator's dtype: the tightest yardstick that PyTorch offers."""
        a, b = self.a, self.b
        if self.out_dtype.itemsize > a.dtype.itemsize:
            if a.is_cuda and a.ndim == b.ndim == 2 and self.out_dtype is torch.float32:  # the same tensor cores
                return self._finish(torch.mm(a, b, out_dtype=self.out_dtype), self.bias, self.residual)
            a, b = a.to(self.out_dtype), b.to(self.out_dtype)
        before = torch.get_float32_matmul_precision()
        tf32 = a.dtype is torch.float32 and self.problem.precision == "tf32"
        if tf32 and a.device.type != "cuda":
            # a CPU has no tf32: its product of operands that were rounded to tf32
            a, b = _round_tf32(a), _round_tf32(b)
        try:
            torch.set_float32_matmul_precision("high" if tf32 and a.device.type == "cuda" else "highest")
            product = torch.matmul(a, b)
        finally:
            torch.set_float32_matmul_precision(before)
        finished = self._finish(product.to(self.problem.accumulator), self.bias, self.residual)
        return finished.to(self.out_dtype)

    def _largest(self, result: torch.Tensor) -> float:
        """Largest absolute error; NaN where the result has one that float64 has not."""
        return float((result.double() - self.expected).abs().max()) if result.numel() else 0.0

    def run(self, plan: Plan) -> tuple[torch.Tensor, bool]:
        """The result of ``plan`` in a NaN-filled ``out``, on the CPU, and whether what lies around it is untouched."""
        count = math.prod(self.shape)
        memory = torch.full((count + 2 * GUARD,), math.nan, dtype=self.out_dtype, device=self.a.device)
        memory[:GUARD] = memory[GUARD + count :] = _INTEGERS
        out = memory[GUARD : GUARD + count].view(self.shape)
        matmul(
            self.a, self.b, bias=self.bias, activation=self.activation, residual=self.residual, alpha=self.alpha,
            dropout_p=self.dropout_p, seed=_SEED, precision=self.problem.precision, out=out, plan=plan,
        )  # fmt: skip
        memory = memory.cpu()
        around = torch.cat((memory[:GUARD], memory[GUARD + count :]))
        return memory[GUARD : GUARD + count].view(self.shape), bool((around == _INTEGERS).all())

    def allowed(self) -> torch.Tensor:
        """How far each element may be from float64: twice PyTorch's largest error, and one rounding."""
        info = torch.finfo(self.out_dtype)
        allowed = 2 * self.peer_error + self.expected.abs() * info.eps / 2 + info.smallest_normal * info.eps
        if self.a.dtype is torch.float64 and not set(self.problem.epilogue) <= EXACT_STEPS:
            # the oracle's own dtype: its product is exact (see _draw), its activation is rounded a few times as ours is
            allowed = allowed + 8 * info.eps * self.scale
        if self.a.dtype is torch.float32 and self.problem.precision == "tf32x3":
            # its definition: of (hi + lo)(hi + lo), lo * lo is left out and each lo is rounded to tf32, so that every
            # product is off by up to 3 * 2^-22; independent errors add as the root of their squares
            spread = torch.matmul(self.a.cpu().double().square(), self.b.cpu().double().square()).sqrt()
            allowed = allowed + 3 * 2**-22 * abs(self.alpha) * spread
        return allowed

    def judge(self, plan: Plan) -> tuple[float, str]:
        """(largest error, why it does not pass or "")."""
        result, untouched = self.run(plan)
        error = self._largest(result)
        if not untouched:
            return error, "it wrote outside the output"
        if self.integers:
            wrong = int((result != self.expected.to(self.out_dtype)).sum())
            return error, f"{wrong} of {result.numel()} elements are not exact for integers" if wrong else ""
        if bool(result.isnan().any()):
            return error, f"{int(result.isnan().sum())} of {result.numel()} elements are NaN or were not written"
        over = int(((result.double() - self.expected).abs() > self.allowed()).sum())
        return error, f"{over} of {result.numel()} elements are off by more than is allowed" if over else ""


def _round_tf32(x: torch.Tensor) -> torch.Tensor:
    """To tf32's 10 bits of fraction, ties away from zero as the hardware's conversion does."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
