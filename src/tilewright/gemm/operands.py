"""The tensors of a product in the one shape that every schedule takes, and the epilogue's tensors and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilewright.gemm.problem import ALIGNED, SCALE_BLOCK, Problem, precision_of
from tilewright.lang.activations import FORWARD


@dataclass(frozen=True)
class Scales:
    """What the codes of A and B stand for: value = code * scale; all float32, of any strides.

    Args:
        a: (.., m, 1) of a row of A; (.., m, ceil(k / 128)) of blocks; one element of the whole.
        b: (1, n) of a column of B; (ceil(k / 128), ceil(n / 128)) of blocks; one element of the whole.
        granularity: "tensor", "row" or "block", as in a ``Problem``.
        fast_accumulate: as in a ``Problem``.
    """

    a: torch.Tensor
    b: torch.Tensor
    granularity: str
    fast_accumulate: bool = False


@dataclass(frozen=True)
class Epilogue:
    """What happens to the sum, in this order. A step left at its default costs nothing.

    ``scales`` come first (those of blocks, within the sum). ``bias`` is (n,); ``residual`` and ``pre`` have C's shape
    and any strides. ``pre`` receives the value before the activation. ``seed`` is an int or a one-element int64 tensor
    on the operands' device.
    """

    alpha: float = 1.0
    bias: torch.Tensor | None = None
    pre: torch.Tensor | None = None
    activation: str | None = None
    dropout_p: float = 0.0
    seed: int | torch.Tensor = 0
    residual: torch.Tensor | None = None
    custom: Any = None
    custom_args: tuple[Any, ...] = ()
    scales: Scales | None = None

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps that do something, as a ``Problem`` has them."""
        wanted = (
            ("alpha", self.alpha != 1.0),
            ("bias", self.bias is not None),
            ("pre", self.pre is not None),
            (self.activation, self.activation is not None),
            ("dropout", self.dropout_p > 0.0),
            ("residual", self.residual is not None),
            ("custom", self.custom is not None),
        )
        return tuple(str(name) for name, used in wanted if used)


def float_parts(value: float, dtype: torch.dtype) -> tuple[float, ...]:
    """``value`` as float32 numbers: one, or three whose sum is the float64 (Triton passes floats as float32)."""
    if dtype is not torch.float64:
        return (float(value),)
    parts = []
    for _ in range(3):
        part = float(torch.tensor(value, dtype=torch.float32)) if math.isfinite(value) else value
        parts.append(part)
        value = value - part if math.isfinite(part) else 0.0
    return tuple(parts)


def dropout_threshold(p: float) -> int:
    """Words below this are dropped: p in units of 2^-32, from 0 to 2^32."""
    return round(p * 2**32)


@dataclass(frozen=True)
class Operands:
    """A (z0, z1, m, k), B (z0, z1, k, n), C (z0, z1, m, n): views, with stride 0 where an operand repeats.

    ``first`` is the index of the first product in the whole batch: a batch that cannot be walked with two strides is
    cut into pieces (:meth:`pieces`), and a dropout mask must not know.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    epilogue: Epilogue = field(default_factory=Epilogue)
    precision: str = "ieee"
    batch_invariant: bool = False
    first: int = 0

    @property
    def problem(self) -> Problem:
        """What these operands ask."""
        z0, z1, m, k = self.a.shape
        n = self.b.shape[-1]
        scales = self.epilogue.scales
        return Problem(
            m,
            n,
            k,
            batch=z0 * z1,
            dtype=self.a.dtype,
            out_dtype=self.c.dtype,
            layout=letter(self.a) + letter(self.b),
            epilogue=self.epilogue.steps,
            precision=self.precision if self.a.dtype is torch.float32 else None,
            batch_invariant=self.batch_invariant,
            alignment=math.gcd(alignment(self.a), alignment(self.b)),
            batch_dims=(z0 > 1) + (z1 > 1),
            scaled=None if scales is None else scales.granularity,
            fast_accumulate=scales is not None and scales.fast_accumulate,
        )

    def swapped_batch(self) -> Operands:
        """The same products with the two batch dimensions exchanged (their order matters only when both are walked)."""

        def swap(t: torch.Tensor | None) -> torch.Tensor | None:
            return None if t is None else t.transpose(0, 1)

        e = self.epilogue
        scales = e.scales
        if scales is not None and scales.granularity != "tensor":
            scales = replace(scales, a=scales.a.transpose(0, 1))
        return replace(
            self,
            a=self.a.transpose(0, 1),
            b=self.b.transpose(0, 1),
            c=self.c.transpose(0, 1),
            epilogue=replace(e, residual=swap(e.residual), pre=swap(e.pre), scales=scales),
        )

    @staticmethod
    def of(name: str, a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> Operands:
        """The operands of ``tw.matmul(a, b, **kwargs)``, with C on no device (for planning)."""
        from tilewright.gemm.arguments import canonical

        return canonical(name, a, b, **kwargs)

    @classmethod
    def stand_in(cls, problem: Problem, device: torch.device | str = "meta") -> Operands:
        """Operands of a problem: shapes, strides and dtypes; no values, and on torch's meta device no memory.

        ``pre`` and dropout's seed are there where the problem has those steps; a function of the caller's is not.
        """
        z, m, n, k = problem.batch, problem.m, problem.n, problem.k
        dense = replace(problem, alignment=None).alignment == problem.alignment

        def padding(cols: int, size: int) -> int:
            """Elements between rows that give A and B the problem's alignment; a dense C has its own."""
            fits = (p for p in range(ALIGNED) if math.gcd(ALIGNED, (cols + p) * size) == problem.alignment)
            return next(fits, 1)

        def make(rows: int, cols: int, letter: str, dtype: torch.dtype, operand: bool = False) -> torch.Tensor:
            pad = padding(cols, dtype.itemsize) if operand and not dense and rows > 1 else 0
            if letter == "s":
                return torch.empty(1, z, rows, 2 * cols, dtype=dtype, device=device)[..., ::2]
            if letter == "t":
                return make(cols, rows, "n", dtype, operand).transpose(-1, -2)
            return torch.empty(1, z, rows, cols + pad, dtype=dtype, device=device)[..., :cols]

        out = problem.out_dtype or problem.dtype
        steps = problem.epilogue
        activation = next((s for s in steps if s in FORWARD), None)
        epilogue = Epilogue(
            alpha=0.5 if "alpha" in steps else 1.0,
            bias=torch.empty(n, dtype=out if problem.scaled else problem.dtype, device=device)
            if "bias" in steps
            else None,
            pre=make(m, n, "n", out) if "pre" in steps else None,
            activation=activation,
            dropout_p=0.5 if "dropout" in steps else 0.0,
            residual=make(m, n, "n", out) if "residual" in steps else None,
            scales=stand_in_scales(problem, device) if problem.scaled else None,
        )
        return cls(
            a=make(m, k, problem.layout[0], problem.dtype, operand=True),
            b=make(k, n, problem.layout[1], problem.dtype, operand=True),
            c=make(m, n, "n", out),
            epilogue=epilogue,
            precision=str(problem.precision),
            batch_invariant=problem.batch_invariant,
        )


def stand_in_scales(problem: Problem, device: torch.device | str) -> Scales:
    """Scales of a problem of codes, without values."""
    blocks_k, blocks_n = -(-problem.k // SCALE_BLOCK), -(-problem.n // SCALE_BLOCK)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "tensor": ((1,), (1,)),
        "row": ((1, problem.batch, problem.m, 1), (1, problem.n)),
        "block": ((1, problem.batch, problem.m, blocks_k), (blocks_k, blocks_n)),
    }
    a, b = (torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes[str(problem.scaled)])
    return Scales(a, b, str(problem.scaled), problem.fast_accumulate)


def letter(x: torch.Tensor) -> str:
    """How a (.., rows, cols) operand lies: "n" row-major, "t" column-major, "s" neither."""
    rows, cols = x.shape[-2:]
    by_row, by_col = x.stride()[-2:]
    if cols <= 1:
        return "t" if by_row == 1 or rows <= 1 else "n"
    if rows <= 1:
        return "n" if by_col == 1 else "t"
    return "n" if by_col == 1 else "t" if by_row == 1 else "s"


def alignment(x: torch.Tensor) -> int:
    """Bytes, 16 at most, that divide the address and every stride but the contiguous dimension's."""
    size = x.element_size()
    contiguous = {"n": x.ndim - 1, "t": x.ndim - 2, "s": -1}[letter(x)]
    strides = [s * size for i, (s, d) in enumerate(zip(x.stride(), x.shape, strict=True)) if d > 1 and i != contiguous]
    address = x.data_ptr() if x.device.type != "meta" else x.storage_offset() * size
    return math.gcd(ALIGNED, address, *strides)


def merged(*tensors: torch.Tensor | None) -> tuple[list[int], list[list[int]]]:
    """Batch dimensions of tensors (.., rows, cols) of one batch shape, merged where every tensor allows it.

    Returns the sizes and, for each tensor, the strides. Two neighbours merge when, in each tensor, a step of the outer
    one is as long as the whole inner one.
    """
    present = [t for t in tensors if t is not None]
    shape = present[0].shape[:-2]
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in present]
    for d, size in enumerate(shape):
        if size == 1:
            continue
        steps = [t.stride(d) for t in present]
        if sizes and all(s[-1] == step * size for s, step in zip(strides, steps, strict=True)):
            sizes[-1] *= size
            for s, step in zip(strides, steps, strict=True):
                s[-1] = step
        else:
            sizes.append(size)
            for s, step in zip(strides, steps, strict=True):
                s.append(step)
    return sizes, strides


def canonical_views(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    epilogue: Epilogue,
    precision: str | None,
    batch_invariant: bool = False,
) -> Iterator[Operands]:
    """Cut A (.., m, k), B (.., k, n) and C (.., m, n), of one batch shape, into operands: one piece nearly always.

    Batch dimensions are folded into m where B repeats over them and the rows of A, C and the residual follow on. What
    is left is walked with two strides; further dimensions, which no merge could remove, take a launch each.
    """
    scales = epilogue.scales
    rows_scale = scales.a if scales is not None and scales.granularity != "tensor" else None
    tensors: list[torch.Tensor | None] = [a, b, c, epilogue.residual, epilogue.pre, rows_scale]
    sizes, strides = merged(*tensors)
    views = iter(strides)
    held: list[tuple[torch.Tensor, list[int], list[int]] | None] = []
    for t in tensors:
        held.append(None if t is None else (t, next(views), [t.stride(-2), t.stride(-1)]))
    m, k = a.shape[-2:]
    n = b.shape[-1]
    rows = m
    # fold: only the innermost merged dimension can continue the rows
    outer = [h for i, h in enumerate(held) if h is not None and i != 1]
    b_held = held[1]
    assert b_held is not None
    if sizes and b_held[1][-1] == 0 and (m == 1 or all(h[1][-1] == h[2][0] * m for h in outer)):
        rows = m * sizes.pop()
        for h in outer:
            last = h[1].pop()
            h[2][0] = last if m == 1 else h[2][0]
        b_held[1].pop()

    inner = sizes[-2:]
    pad = 2 - len(inner)
    shape = [1] * pad + inner
    lead = sizes[: len(sizes) - len(inner)]
    per_piece = shape[0] * shape[1]

    def view(h: tuple[torch.Tensor, list[int], list[int]] | None, r: int, q: int, at: list[int]) -> torch.Tensor | None:
        if h is None:
            return None
        t, batch, last = h
        offset = t.storage_offset() + sum(i * s for i, s in zip(at, batch, strict=False))
        return t.as_strided([*shape, r, q], [*[0] * pad, *batch[len(lead) :], *last], offset)

    for index in range(math.prod(lead)):
        at: list[int] = []
        rest = index
        for size in reversed(lead):
            at.insert(0, rest % size)
            rest //= size
        va, vb, vc = view(held[0], rows, k, at), view(held[1], k, n, at), view(held[2], rows, n, at)
        assert va is not None and vb is not None and vc is not None
        if scales is not None and rows_scale is not None:
            scale = view(held[5], rows, rows_scale.shape[-1], at)
            assert scale is not None
            epilogue = replace(epilogue, scales=replace(scales, a=scale))
        yield Operands(
            a=va,
            b=vb,
            c=vc,
            epilogue=replace(epilogue, residual=view(held[3], rows, n, at), pre=view(held[4], rows, n, at)),
            precision=precision_of(a.dtype, precision),
            batch_invariant=batch_invariant,
            first=index * per_piece,
        )
