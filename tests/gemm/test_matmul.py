"""``tw.matmul``: values, shapes, dtypes, and where NaN goes."""

from __future__ import annotations

import math

import pytest
import torch

import tilewright as tw
from support import (
    DEVICE,
    DTYPES,
    NARROW,
    SIZES,
    Guarded,
    assert_exact,
    assert_near,
    finished,
    integers,
    name_of,
    normals,
    oracle,
)

FLOATS = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
SHAPES = pytest.mark.parametrize("size", SIZES, ids=lambda s: "x".join(map(str, s)))


@FLOATS
@SHAPES
def test_integers_are_exact(size, dtype):
    m, n, k = size
    a, b = integers(m, k, dtype=dtype, seed=1), integers(k, n, dtype=dtype, seed=2)
    assert_exact(tw.matmul(a, b), oracle(a, b))


@FLOATS
@SHAPES
def test_error_is_within_twice_pytorchs(size, dtype):
    m, n, k = size
    a, b = normals(m, k, dtype=dtype, seed=1), normals(k, n, dtype=dtype, seed=2)
    assert_near(tw.matmul(a, b), a, b)


@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "tf32"])
@pytest.mark.parametrize("size", [(33, 40, 64), (17, 19, 600)], ids=str)
def test_float32_precisions(size, precision):
    m, n, k = size
    a, b = normals(m, k, seed=1), normals(k, n, seed=2)
    assert_near(tw.matmul(a, b, precision=precision), a, b, precision=precision)
    a, b = integers(m, k, seed=1), integers(k, n, seed=2)
    assert_exact(tw.matmul(a, b, precision=precision), oracle(a, b))


SHAPE_PAIRS = [
    ((5,), (5,)),
    ((5,), (5, 7)),
    ((3, 5), (5,)),
    ((3, 5), (5, 7)),
    ((2, 3, 5), (5, 7)),
    ((2, 3, 5), (5,)),
    ((5,), (2, 5, 7)),
    ((3, 5), (2, 5, 7)),
    ((2, 3, 5), (2, 5, 7)),
    ((1, 3, 5), (2, 5, 7)),
    ((2, 1, 3, 5), (3, 5, 7)),
    ((2, 3, 1, 5), (2, 1, 5, 7)),
    ((2, 2, 3, 3, 5), (2, 1, 3, 5, 7)),
    ((0, 3, 5), (5, 7)),
    ((2, 0, 5), (2, 5, 7)),
    ((2, 3, 0), (2, 0, 7)),
    ((0,), (0,)),
    ((0,), (0, 4)),
    ((4, 1, 0, 3), (1, 2, 3, 5)),
]


@pytest.mark.parametrize(("shape_a", "shape_b"), SHAPE_PAIRS, ids=str)
def test_torchs_shapes(shape_a, shape_b):
    a, b = integers(*shape_a, seed=1), integers(*shape_b, seed=2)
    result = tw.matmul(a, b)
    assert_exact(result, torch.matmul(a.cpu().double(), b.cpu().double()))
    assert result.dtype is torch.float32 and result.device == a.device and result.is_contiguous()


@pytest.mark.parametrize(("shape_a", "shape_b"), [p for p in SHAPE_PAIRS if 0 not in p[0]], ids=str)
def test_a_batch_with_every_step(shape_a, shape_b):
    """The element index of dropout, the bias and the residual follow every way of walking a batch."""
    a, b = integers(*shape_a, seed=1), integers(*shape_b, seed=2)
    shape = torch.matmul(a.cpu(), b.cpu()).shape
    bias = integers(shape_b[-1] if len(shape_b) > 1 else 1, seed=3)
    residual = integers(*shape, seed=4)
    options = dict(alpha=2.0, activation="relu", dropout_p=0.5, seed=3)
    full = a.cpu().double() if a.ndim > 1 else a.cpu().double()[None]
    product = torch.matmul(full, b.cpu().double() if b.ndim > 1 else b.cpu().double()[:, None])
    lifted = residual.cpu().reshape(product.shape)
    expected = finished(product, bias=bias.cpu(), residual=lifted, **options).reshape(shape)
    assert_exact(tw.matmul(a, b, bias=bias, residual=residual, **options), expected)


@FLOATS
@pytest.mark.parametrize("out_dtype", DTYPES, ids=name_of)
def test_out_dtype(dtype, out_dtype):
    a, b = normals(18, 33, dtype=dtype, seed=1), normals(33, 20, dtype=dtype, seed=2)
    result = tw.matmul(a, b, out_dtype=out_dtype)
    assert result.dtype is out_dtype
    wide = torch.promote_types(dtype, torch.float32)
    if out_dtype.itemsize > wide.itemsize:  # float64 out of float32 sums: as good as those
        assert_near(result.to(wide), a, b)
    else:
        assert_near(result, a, b)
    integer = tw.matmul(integers(18, 33, dtype=dtype), integers(33, 20, dtype=dtype), out_dtype=out_dtype)
    assert_exact(integer, oracle(integers(18, 33), integers(33, 20)))


@pytest.mark.parametrize(
    ("one", "other"),
    [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float64, torch.float16)],
    ids=str,
)
def test_mixed_dtypes_are_promoted_as_torch_does(one, other):
    a, b = integers(9, 33, dtype=one, seed=1), integers(33, 7, dtype=other, seed=2)
    result = tw.matmul(a, b)
    assert result.dtype is torch.promote_types(one, other)
    assert_exact(result, oracle(a, b))


@pytest.mark.parametrize("how", ["rows", "columns", "sliced", "offset_1"])
@pytest.mark.parametrize("dtype", [*NARROW, torch.float32], ids=name_of)
def test_out_is_written_whole_and_nothing_beside_it(how, dtype):
    a, b = integers(33, 40, dtype=dtype, seed=1), integers(40, 24, dtype=dtype, seed=2)
    guarded = Guarded((33, 24), dtype, how)
    assert tw.matmul(a, b, out=guarded.out) is guarded.out
    assert_exact(guarded.out, oracle(a, b))
    assert guarded.untouched()


def test_out_of_a_batch_and_of_a_vector():
    a, b = integers(3, 17, 20, seed=1), integers(3, 20, 24, seed=2)
    guarded = Guarded((3, 17, 24), torch.float32, "columns")
    tw.matmul(a, b, out=guarded.out)
    assert_exact(guarded.out, oracle(a, b))
    assert guarded.untouched()
    vector = torch.full((17,), math.nan, device=a.device)
    tw.matmul(a[0], b[0, :, 0], out=vector)
    assert_exact(vector, oracle(a[0], b[0, :, 0]))


@FLOATS
def test_nan_and_infinity_stay_in_their_row_and_column(dtype):
    """Padding is masked on both operands: no infinity meets a zero of the padding, no neighbour sees the NaN."""
    a, b = integers(33, 37, dtype=dtype, seed=1), integers(37, 35, dtype=dtype, seed=2)
    a[4, 36], a[32, 0], a[7, 5] = math.nan, math.inf, -math.inf
    b[36, 34], b[0, 3] = math.inf, math.nan
    assert_exact(tw.matmul(a, b), oracle(a, b))


def test_overflow_goes_where_torchs_does():
    a = torch.full((17, 40), 200.0, dtype=torch.float16, device=DEVICE)
    b = a.t().contiguous()
    assert tw.matmul(a, b).isinf().all()  # 1.6e6 is beyond float16
    assert_exact(tw.matmul(a, b, out_dtype=torch.float32), torch.full((17, 17), 1.6e6))


@pytest.mark.parametrize("dtype", NARROW, ids=name_of)
def test_a_long_k_is_summed_in_float32(dtype):
    """70,000 ones: a sum in float16 ends at 2,048, in bfloat16 at 256."""
    a = torch.ones(3, 70_000, dtype=dtype, device=DEVICE)
    result = tw.matmul(a, a.t(), out_dtype=torch.float32)
    assert_exact(result, torch.full((3, 3), 70_000.0))


def test_the_same_call_gives_the_same_bits():
    a, b = normals(65, 300, dtype=torch.bfloat16, seed=1), normals(300, 40, dtype=torch.bfloat16, seed=2)
    first = tw.matmul(a, b, out_dtype=torch.float32)
    assert all(torch.equal(first, tw.matmul(a, b, out_dtype=torch.float32)) for _ in range(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name_of)
def test_batch_invariant_rows_do_not_depend_on_their_number(dtype):
    a, b = normals(150, 200, dtype=dtype, seed=1), normals(200, 40, dtype=dtype, seed=2)
    whole = tw.matmul(a, b, batch_invariant=True, out_dtype=torch.float32)
    assert_near(whole, a, b)
    for m in (1, 2, 17, 64):
        assert torch.equal(tw.matmul(a[:m], b, batch_invariant=True, out_dtype=torch.float32), whole[:m]), m
    assert torch.equal(
        tw.matmul(a.view(3, 50, 200), b, batch_invariant=True, out_dtype=torch.float32).flatten(0, 1), whole
    )


def test_inputs_are_left_alone():
    a, b, bias, residual = integers(17, 40), integers(40, 24), integers(24), integers(17, 24)
    before = [t.clone() for t in (a, b, bias, residual)]
    tw.matmul(a, b, bias=bias, residual=residual, activation="gelu", dropout_p=0.5, seed=1, alpha=0.5)
    assert all(torch.equal(x, y) for x, y in zip((a, b, bias, residual), before, strict=True))
