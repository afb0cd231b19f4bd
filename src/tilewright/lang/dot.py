"""The product of two blocks, at each precision of float32 operands."""

import triton
import triton.language as tl

from tilewright.lang.scales import dot_slice


@triton.jit
def round_tf32(x):
    """float32 rounded to the nearest tf32 (10 bits of fraction), ties away from zero; NaN and infinity stay.

    The tensor cores drop the 13 low bits. Rounding first halves the error and removes its bias towards zero.
    """
    bits = (x.to(tl.uint32, bitcast=True) + 0x1000) & 0xFFFFE000
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """``acc + a @ b``, summed in the dtype of ``acc``.

    PRECISION: "ieee" (operands as they are), "tf32" (rounded to tf32), "tf32x3" (each operand as the sum of two tf32
    values, three products) or "bf16x6" (of three bfloat16 values, six products): float32 accuracy on tensor cores;
    "promoted" (of float8: the tensor core, whose running sum may have fewer bits, sums a slice; the whole is float32).
    """
    if PRECISION == "ieee" and a.dtype == tl.float32:
        # Without tensor cores a dot is one chain of fused multiply-adds, whose error grows with k. Each slice's chain
        # starts at 0 instead, and is added when it ends. (Subtracted from its negative: Triton folds an addition of a
        # dot into the dot's accumulator.)
        acc -= tl.dot(-a, b, input_precision=PRECISION, out_dtype=acc.dtype)
    elif PRECISION == "promoted":
        acc += dot_slice(a, b)
    elif acc.dtype == tl.int64:
        acc += tl.dot(a, b).to(tl.int64)  # k so long that int32 could overflow
    elif PRECISION == "tf32":
        acc = tl.dot(round_tf32(a), round_tf32(b), acc, input_precision="tf32", out_dtype=acc.dtype)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc
