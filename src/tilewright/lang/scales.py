"""Scales of quantised operands, value = code * scale: on the complete sum, or slice by slice of k."""

import triton
import triton.language as tl

#: k, and columns of B, that share a scale
BLOCK = tl.constexpr(128)


@triton.jit
def rescale(acc, scale_a, scale_b, z0, z1, rows, cols, m, n):
    """The complete sum ``acc`` of codes as float32 values.

    scale_a, scale_b: (tensor,) of one scale for the whole operand; or (tensor, its four strides) of one for each row of
    A and (tensor, stride) of one for each column of B.
    """
    acc = acc.to(tl.float32)
    if len(scale_a) == 1:
        acc = acc * (tl.load(scale_a[0]) * tl.load(scale_b[0]))
    else:
        p_a, strides = scale_a
        p_a += z0.to(tl.int64) * strides[0] + z1.to(tl.int64) * strides[1] + rows.to(tl.int64) * strides[2]
        p_b = scale_b[0] + cols.to(tl.int64) * scale_b[1]
        acc = acc * tl.load(p_a, mask=rows < m, other=0.0)[:, None]
        acc = acc * tl.load(p_b, mask=cols < n, other=0.0)[None, :]
    return acc


@triton.jit
def dot_block(a, b, acc, block_a, block_b, z0, z1, rows, cols, i, m, n):
    """``acc + a @ b`` for slice number i of k, of 128 codes, each side with its scales.

    block_a: (tensor, its four strides) of a scale for each row of A; block_b: (tensor, two strides) of one for each 128
    columns of B, at which ``cols`` starts or which it lies within. The slice's sum is complete before it is scaled: in
    int32 for int8.
    """
    i = tl.zeros((), tl.int64) + i  # an int of Python where kernels are interpreted
    p_a, strides = block_a
    p_a += z0.to(tl.int64) * strides[0] + z1.to(tl.int64) * strides[1]
    scale_a = tl.load(p_a + rows.to(tl.int64) * strides[2] + i * strides[3], mask=rows < m, other=0.0)
    p_b = block_b[0] + i * block_b[1][0]
    if cols.shape[0] <= BLOCK:
        scale = (scale_a * tl.load(p_b + (tl.min(cols, 0) // BLOCK).to(tl.int64) * block_b[1][1]))[:, None]
    else:
        scale_b = tl.load(p_b + (cols // BLOCK).to(tl.int64) * block_b[1][1], mask=cols < n, other=0.0)
        scale = scale_a[:, None] * scale_b[None, :]
    return acc + dot_slice(a, b) * scale


@triton.jit
def dot_slice(a, b):
    """``a @ b`` as float32, summed apart from any other slice of k."""
    if a.dtype.is_fp8():
        # a stated number of imprecise sums keeps Triton from folding what follows into the dot's accumulator
        product = tl.dot(a, b, max_num_imprecise_acc=a.shape[1])
    else:
        product = tl.dot(a, b, input_precision="ieee").to(tl.float32)
    return product
