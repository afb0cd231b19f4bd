"""What happens to a block of sums on its way out: once, on the complete sum, in the accumulator's dtype.

The steps compose in one order: scales of codes, ``alpha * acc``, ``+ bias``, activation, dropout, ``+ residual``, the
caller's own function. A step that is not wanted is ``None`` (or 0), which Triton sees when it compiles, and costs
nothing.

Kernels in Triton and in Gluon call these functions: so they make no block out of nothing (Gluon would have to be told
its layout), but out of those that they are given.
"""

import triton
import triton.language as tl

from tilewright.lang.philox import drop_sixteens, keep_each
from tilewright.lang.scales import rescale


@triton.jit
def scalar(parts, like):
    """A number handed over as float32 parts (three keep a float64 whole), in the dtype of ``like``."""
    value = tl.cast(parts[0], like.dtype)  # a plain float where kernels are interpreted
    if len(parts) == 3:
        value = value + tl.cast(parts[1], like.dtype) + tl.cast(parts[2], like.dtype)
    return value


@triton.jit
def offsets(strides, z0, z1, rows, cols):
    """64-bit element offsets of a block in a (z0, z1, rows, cols) tensor of any strides."""
    batch = z0.to(tl.int64) * strides[0] + z1.to(tl.int64) * strides[1]
    return batch + rows.to(tl.int64)[:, None] * strides[2] + cols.to(tl.int64)[None, :] * strides[3]


@triton.jit
def dropped(acc, seed, threshold, scale, starts, cols, DROPOUT: tl.constexpr):
    """``acc`` with each element kept and scaled, or 0.

    starts: (rows, 1) 64-bit index of the first element of each row of the whole; cols: (1, cols) of the block, which
    starts at a multiple of 16. DROPOUT is 16 when every row of the whole does so too, else 1.
    """
    if DROPOUT == 16:
        acc = drop_sixteens(acc, seed, starts + cols, threshold, scale)
    else:
        acc = tl.where(keep_each(seed, starts + cols, threshold), acc * scale, 0.0)
    return acc


@triton.jit
def finish(acc, z, z0, z1, rows, cols, m, n, seed, threshold, steps, ACTIVATION: tl.constexpr, DROPOUT: tl.constexpr,
           CUSTOM: tl.constexpr):  # fmt: skip
    """Apply every wanted step to ``acc``, a block of C at (z, rows, cols).

    steps: (alpha parts, (p_bias, stride), (p_pre, strides), (p_residual, strides), (p_seed, scale parts), tensors of
    CUSTOM, scales of A, scales of B, and what the main loop has applied: block scales of A, of B).
    ``pre`` receives the value before the activation, which the backward needs.
    """
    alpha, bias, pre, residual, dropout, custom, scale_a, scale_b, _, _ = steps
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    if scale_a is not None:
        acc = rescale(acc, scale_a, scale_b, z0, z1, rows, cols, m, n)
    if alpha is not None:
        acc = acc * scalar(alpha, acc)
    if bias is not None:
        p_bias = bias[0] + cols.to(tl.int64) * bias[1]
        acc += tl.load(p_bias, mask=cols < n, other=0.0).to(acc.dtype)[None, :]
    if pre is not None:
        p_pre = pre[0] + offsets(pre[1], z0, z1, rows, cols)
        tl.store(p_pre, acc.to(p_pre.dtype.element_ty), mask=inside)
    if ACTIVATION is not None:
        acc = ACTIVATION(acc)
    if DROPOUT != 0:
        if dropout[0] is not None:
            seed = tl.load(dropout[0])
        # both are 64-bit by their annotation; the interpreter does not heed it, and calls 32 bits without a sign an
        # int64 from 2^31 on, which only arithmetic mends
        zero = z.to(tl.int64) * 0
        seed, threshold = seed.to(tl.int64) + zero, threshold.to(tl.int64) + zero
        starts = (z.to(tl.int64) * m + rows.to(tl.int64)[:, None]) * n
        acc = dropped(acc, seed, threshold, scalar(dropout[1], acc), starts, cols.to(tl.int64)[None, :], DROPOUT)
    if residual is not None:
        p_residual = residual[0] + offsets(residual[1], z0, z1, rows, cols)
        acc += tl.load(p_residual, mask=inside, other=0.0).to(acc.dtype)
    if CUSTOM is not None:
        acc = CUSTOM(acc, rows, cols, m, n, custom)
    return acc
