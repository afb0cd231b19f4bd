"""Activations on float32 (or float64) blocks, and their derivatives. A kernel takes one as a ``constexpr`` argument."""

import triton
import triton.language as tl

_SQRT1_2 = tl.constexpr(0.7071067811865476)  # sqrt(1/2)
_SQRT_2_PI = tl.constexpr(0.7978845608028654)  # sqrt(2/pi)
_RSQRT_2PI = tl.constexpr(0.3989422804014327)  # 1/sqrt(2*pi)
_GELU_CUBIC = tl.constexpr(0.044715)


@triton.jit
def sigmoid(x):
    # exp only of what is not above 0: it cannot overflow, and NaN passes through
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1 / (1 + e), e / (1 + e))


@triton.jit
def sigmoid_grad(x):
    s = sigmoid(x)
    return s * (1 - s)


@triton.jit
def tanh(x):
    # e of -2|x| cannot overflow
    e = tl.exp(-2 * tl.abs(x))
    magnitude = (1 - e) / (1 + e)
    if x.dtype != tl.float64:
        # near 0 the difference above loses digits and the Taylor series does not (next term: 1e-8 of it at 1/4)
        x2 = x * x
        series = tl.abs(x) * (1 + x2 * (-1.0 / 3 + x2 * (2.0 / 15 + x2 * (-17.0 / 315 + x2 * (62.0 / 2835)))))
        magnitude = tl.where(x2 < 0.0625, series, magnitude)
    return tl.where(x < 0, -magnitude, magnitude)


@triton.jit
def tanh_grad(x):
    t = tanh(x)
    return 1 - t * t


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)  # NaN is not below 0, and stays


@triton.jit
def relu_grad(x):
    return tl.where(x <= 0, 0.0, 1.0)  # as torch: NaN lets the gradient pass


@triton.jit
def relu2(x):
    r = relu(x)
    return r * r


@triton.jit
def relu2_grad(x):
    return 2 * relu(x)


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def silu_grad(x):
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


@triton.jit
def gelu(x):
    return 0.5 * x * (1 + tl.erf(x * _SQRT1_2))


@triton.jit
def gelu_rounded(x):
    """gelu for a result of 16 bits: the error function to 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical
    Functions, 7.1.26) at fewer instructions. As max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2)) it keeps its digits below
    0, where 1 + erf cancels."""
    a = tl.abs(x)
    t = 1 / (1 + a * (0.3275911 * _SQRT1_2))
    poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = a * poly * tl.exp2(x * x * -0.7213475204444817)  # log2(e) / 2
    # infinity times a tail of 0 would be NaN where gelu is infinity; at -infinity torch has NaN, and so has this
    return tl.where(x == float("inf"), x, tl.maximum(x, 0.0) - 0.5 * tail)


@triton.jit
def gelu_grad(x):
    return 0.5 * (1 + tl.erf(x * _SQRT1_2)) + x * tl.exp(-0.5 * x * x) * _RSQRT_2PI


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1 + tanh((x + x * x * x * _GELU_CUBIC) * _SQRT_2_PI))


@triton.jit
def gelu_tanh_grad(x):
    t = tanh((x + x * x * x * _GELU_CUBIC) * _SQRT_2_PI)
    slope = (1 + x * x * (3 * _GELU_CUBIC)) * _SQRT_2_PI
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope


FORWARD = {f.fn.__name__: f for f in (relu, gelu, gelu_tanh, silu, sigmoid, tanh, relu2)}
#: the same where the result is rounded to 16 bits
FORWARD_16BIT = {**FORWARD, "gelu": gelu_rounded}
BACKWARD = {
    "relu": relu_grad,
    "gelu": gelu_grad,
    "gelu_tanh": gelu_tanh_grad,
    "silu": silu_grad,
    "sigmoid": sigmoid_grad,
    "tanh": tanh_grad,
    "relu2": relu2_grad,
}
