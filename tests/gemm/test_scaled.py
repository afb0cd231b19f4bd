"""Products of codes: every granularity of scales, dtype, layout and schedule against float64."""

from __future__ import annotations

import math

import pytest
import torch

import tilewright as tw
from support import DEVICE, LAYOUTS, assert_exact, finished, integers, laid, name_of, normals
from tilewright.gemm import planner, scaled
from tilewright.gemm.problem import SCALE_BLOCK
from tilewright.gemm.schedules import SCHEDULES

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = [(torch.int8, torch.int8), (E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2), (E5M2, E4M3)]
KINDS = ("tensor", "row", "block")
#: one element, one row, one column, one off a block, primes, whole blocks, several blocks each way
SIZES = [(1, 1, 1), (1, 130, 257), (33, 1, 64), (17, 33, 129), (31, 29, 127), (64, 128, 256), (20, 259, 300)]


def codes(*shape, dtype=torch.int8, seed=0):
    """Every int8, or normal values rounded to a float8."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.int8:
        return torch.randint(-128, 128, shape, generator=generator).to(dtype).to(DEVICE)
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def small(*shape, dtype=torch.int8, seed=0):
    """Codes of small whole numbers: sums of products are exact in float32."""
    return integers(*shape, seed=seed, most=3).to(dtype)


def blocks(size):
    return -(-size // SCALE_BLOCK)


def scales(kind, m, n, k, *, batch=(), seed=0, powers=False):
    """Scales of both operands; ``powers`` of two leave sums of whole numbers exact."""
    shapes = {
        "tensor": ((), ()),
        "row": ((*batch, m, 1), (1, n)),
        "block": ((*batch, m, blocks(k)), (blocks(k), blocks(n))),
    }[kind]
    generator = torch.Generator().manual_seed(100 + seed)
    made = [torch.rand(shape, generator=generator) + 0.25 for shape in shapes]
    if powers:
        made = [torch.randint(-2, 3, shape, generator=generator).float().exp2() for shape in shapes]
    return tuple(s.to(DEVICE) for s in made)


def values(a, b, scale_a, scale_b, kind, dtype=torch.float64):
    """What the codes stand for, on the CPU."""
    a, b, scale_a, scale_b = (t.detach().cpu().to(dtype) for t in (a, b, scale_a, scale_b))
    k, n = b.shape
    if kind == "block" and scale_a.numel() != 1:
        scale_a = scale_a.repeat_interleave(SCALE_BLOCK, -1)[..., :k]
    if kind == "block" and scale_b.numel() != 1:
        scale_b = scale_b.repeat_interleave(SCALE_BLOCK, 0)[:k].repeat_interleave(SCALE_BLOCK, 1)[:, :n]
    return a * scale_a, b * scale_b


def check(result, a, b, scale_a, scale_b, kind, **options):
    """The error against float64 is at most twice that of PyTorch's float32 product of the values, and the roundings
    that are the operation's own: of the scaled sum to float32, three times, and of the result."""
    moved = {key: v.detach().cpu() if isinstance(v, torch.Tensor) else v for key, v in options.items()}
    a64, b64 = values(a, b, scale_a, scale_b, kind)
    expected = finished(a64 @ b64, **moved)
    a32, b32 = values(a, b, scale_a, scale_b, kind, torch.float32)
    theirs = finished(a32 @ b32, **moved).double()
    assert result.shape == expected.shape
    got = result.detach().cpu().double()
    assert not got.isnan().any(), "NaN, or an element that was not written"
    error = (theirs - expected).abs().max() if expected.numel() else 0.0
    allowed = 2 * error + expected.abs() * torch.finfo(result.dtype).eps / 2 + 3 * 2**-24 * (a64.abs() @ b64.abs())
    off = (got - expected).abs()
    assert bool((off <= allowed).all()), f"{int((off > allowed).sum())} of {off.numel()} are off, by {off.max():.3e}"


def plans(problem, schedule, count=3):
    """Some candidates of a schedule: the first, the last, and between."""
    device = planner.device_or_default()
    found = SCHEDULES[schedule].candidates(problem, device) if not SCHEDULES[schedule].supports(problem, device) else []
    return found[:: max(1, len(found) // count)][:count]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("pair", PAIRS[:2] + PAIRS[3:4], ids=lambda p: f"{name_of(p[0])}-{name_of(p[1])}")
def test_against_float64(pair, size, kind):
    m, n, k = size
    a, b = codes(m, k, dtype=pair[0], seed=1), codes(n, k, dtype=pair[1], seed=2).t()
    s = scales(kind, m, n, k)
    check(tw.scaled_matmul(a, b, *s, out_dtype=torch.float32), a, b, *s, kind)


@pytest.mark.kernels
@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=name_of)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
def test_each_schedule_exactly_on_whole_numbers(schedule, kind, dtype, layout):
    m, n, k = 80, 144, 272
    a, b = small(m, k, dtype=dtype, seed=1), small(k, n, dtype=dtype, seed=2)
    a = laid(a, "columns") if layout[0] == "t" else a
    b = laid(b, "columns") if layout[1] == "t" else b
    s = scales(kind, m, n, k, powers=True)
    problem = tw.Problem.of(a, b, scale_a=s[0], scale_b=s[1], out_dtype=torch.float32)
    assert (problem.dtype, problem.scaled, problem.layout) == (dtype, kind, layout)
    a64, b64 = values(a, b, *s, kind)
    tried = plans(problem, schedule)
    if schedule not in ("tile", "persistent") and (
        why := SCHEDULES[schedule].supports(problem, planner.device_or_default())
    ):
        pytest.skip(f"{schedule}: {why}")
    assert tried
    for plan in tried:
        assert_exact(tw.scaled_matmul(a, b, *s, out_dtype=torch.float32, plan=plan), a64 @ b64)


@pytest.mark.kernels
@pytest.mark.parametrize("width", [16, 64, 128, 256])
def test_blocks_of_columns_meet_tiles_of_every_width(width):
    m, n, k = 32, 400, 256
    a, b = small(m, k, dtype=torch.int8, seed=1), small(k, n, seed=2)
    s = scales("block", m, n, k, powers=True)
    plan = tw.Plan("tile", 32, width, 128, num_warps=8, num_stages=2)
    a64, b64 = values(a, b, *s, "block")
    assert_exact(tw.scaled_matmul(a, b, *s, out_dtype=torch.float32, plan=plan), a64 @ b64)


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=name_of)
def test_strides_of_codes_and_scales(dtype, kind, how):
    """Memory around every operand and scale holds 99 or NaN: a read outside shows."""
    m, n, k = 19, 133, 150
    a, b = laid(small(m, k, dtype=dtype, seed=1), how), laid(small(k, n, dtype=dtype, seed=2), how)
    s = scales(kind, m, n, k, powers=True)
    bias, residual = integers(n, seed=3), laid(integers(m, n, seed=4), how)
    a64, b64 = values(a, b, *s, kind)
    result = tw.scaled_matmul(
        a, b, laid(s[0], how), laid(s[1], how), bias=bias, residual=residual, out_dtype=torch.float32
    )
    assert_exact(result, finished(a64 @ b64, bias=bias.cpu(), residual=residual.cpu()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(3,), (2, 3), (0,), (1, 1)], ids=str)
@pytest.mark.parametrize("folds", [True, False])
def test_batches_of_rows(batch, kind, folds):
    m, n, k = 5, 40, 136
    a, b = small(*batch, m, k, seed=1), small(k, n, seed=2)
    a = a if folds else a.transpose(-1, -2).contiguous().transpose(-1, -2)
    s = scales(kind, m, n, k, batch=batch, powers=True)
    residual = integers(*batch, m, n, seed=3)
    a64, b64 = values(a, b, *s, kind)
    result = tw.scaled_matmul(a, b, *s, residual=residual, out_dtype=torch.float32)
    assert_exact(result, a64 @ b64 + residual.cpu())


def test_a_batch_that_no_stride_walks():
    """Three batch dimensions that cannot be merged: launches of their own, each with its rows of scales."""
    a = small(2, 3, 4, 5, 24, seed=1).permute(2, 0, 1, 3, 4)[::2]
    s = scales("row", 5, 16, 24, batch=a.shape[:-2], powers=True)
    b = small(24, 16, seed=2)
    a64, b64 = values(a, b, *s, "row")
    assert_exact(tw.scaled_matmul(a, b, *s, out_dtype=torch.float32), a64 @ b64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(0, 8, 4), (8, 0, 4), (4, 8, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=name_of)
def test_sizes_of_zero(dtype, size, kind):
    m, n, k = size
    bias = torch.arange(1.0, n + 1, device=DEVICE)
    result = tw.scaled_matmul(
        small(m, k, dtype=dtype), small(k, n, dtype=dtype), *scales(kind, m, n, k), bias=bias, activation="relu"
    )
    assert result.dtype is torch.bfloat16
    assert_exact(result, bias.cpu().expand(m, n))


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=name_of)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", [None, "gelu", "silu"])
def test_epilogue(activation, kind, out_dtype):
    m, n, k = 33, 48, 160
    a, b = codes(m, k, dtype=E4M3, seed=1), codes(k, n, dtype=E4M3, seed=2)
    s = scales(kind, m, n, k)
    steps = {
        "bias": normals(n, dtype=torch.bfloat16, seed=3),
        "activation": activation,
        "residual": normals(m, n, dtype=out_dtype, seed=4),
    }
    check(tw.scaled_matmul(a, b, *s, out_dtype=out_dtype, **steps), a, b, *s, kind, **steps)


def test_one_element_stands_for_any_granularity():
    m, n, k = 9, 140, 200
    a, b = small(m, k, seed=1), small(k, n, seed=2)
    one = torch.tensor([[2.0]], device=DEVICE)
    for kind in ("row", "block"):
        of_a, of_b = scales(kind, m, n, k, powers=True)
        for pair in ((one, of_b), (of_a, one)):
            a64, b64 = values(a, b, *pair, kind)
            assert_exact(tw.scaled_matmul(a, b, *pair, out_dtype=torch.float32), a64 @ b64)
    assert_exact(tw.scaled_matmul(a, b, 0.5, 2, out_dtype=torch.float32), a.cpu().double() @ b.cpu().double())


def test_a_row_of_scales_is_a_block_where_k_has_one():
    m, n, k = 9, 300, 128
    a, b = small(m, k, seed=1), small(k, n, seed=2)
    of_a, of_b = scales("block", m, n, k, powers=True)
    assert scaled.granularity(a, b, of_a, of_b) == "block"
    assert scaled.granularity(a, b, of_a, of_b[:, :1].expand(1, n)) == "row"
    assert scaled.granularity(a[:1], b, of_a[:1], of_b) == "block"
    a64, b64 = values(a, b, of_a, of_b, "block")
    assert_exact(tw.scaled_matmul(a, b, of_a, of_b, out_dtype=torch.float32), a64 @ b64)


# ------------------------------------------------------------------------------------------------------------- sums


def test_int8_sums_pass_24_bits():
    """127 * 127 * 2049 and one more: float32 alone would lose the last bits before they cancel."""
    k = 4098
    a = torch.full((16, k), 127, dtype=torch.int8, device=DEVICE)
    b = torch.full((k, 16), 127, dtype=torch.int8, device=DEVICE)
    a[:, k // 2 :] = -127
    a[:, -1] = -126  # the sum is 127, after it was 33 million
    assert_exact(tw.scaled_matmul(a, b, 1.0, 1.0, out_dtype=torch.float32), torch.full((16, 16), 127.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [127, -128])
def test_int8_sums_pass_31_bits(kind, value):
    m, n, k = 2, 3, 2**17 + 2
    a, b = (torch.full(s, value, dtype=torch.int8, device=DEVICE) for s in ((m, k), (k, n)))
    s = tuple(torch.ones_like(t) for t in scales(kind, m, n, k))
    result = tw.scaled_matmul(a, b, *s, out_dtype=torch.float32).cpu().double()
    torch.testing.assert_close(result, torch.full((m, n), float(value**2 * k), dtype=torch.float64), rtol=1e-6, atol=0)
    wanted = torch.float32 if kind == "block" else torch.int64
    assert tw.Problem.of(a, b, scale_a=s[0], scale_b=s[1]).accumulator is wanted


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_float8_keeps_small_terms(kind, layout):
    """65,536 and then 4,095 ones (see tests/cases/test_pr12.py), by every candidate."""
    m, n, k = 128, 128, 4096
    a, b = torch.ones(m, k, device=DEVICE), torch.ones(k, n, device=DEVICE)
    a[:, 0] = b[0] = 256
    a, b = a.to(E4M3), b.to(E4M3)
    b = b.t().contiguous().t() if layout == "nt" else b
    s = tuple(torch.ones_like(t) for t in scales(kind, m, n, k))
    for plan in tw.plans(tw.Problem.of(a, b, scale_a=s[0], scale_b=s[1], out_dtype=torch.float32)):
        result = tw.scaled_matmul(a, b, *s, out_dtype=torch.float32, plan=plan)
        assert (result - 69_631).abs().max() <= 70, plan


@pytest.mark.parametrize("fast", [False, True])
def test_fast_accumulation_is_no_worse_than_14_bits(fast):
    m, n, k = 64, 64, 4096
    a, b = codes(m, k, dtype=E4M3, seed=1).abs().float().to(E4M3), codes(k, n, dtype=E4M3, seed=2)
    expected = a.cpu().double() @ b.cpu().double()
    result = tw.scaled_matmul(a, b, 1.0, 1.0, out_dtype=torch.float32, fast_accumulate=fast).cpu().double()
    size = a.cpu().double().abs() @ b.cpu().double().abs()
    assert ((result - expected).abs() <= (1e-2 if fast else 1e-4) * size).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_infinity_go_where_torch_sends_them(kind):
    m, n, k = 20, 24, 140
    a, b = small(m, k, dtype=E5M2, seed=1).float() + 1, small(k, n, dtype=E5M2, seed=2).float() + 4
    a[3, 5], a[7, 139], b[:, 11] = math.nan, math.inf, b[:, 11]
    b[2, 4] = -math.inf
    a, b = a.to(E5M2), b.to(E5M2)
    s = scales(kind, m, n, k, powers=True)
    if kind == "row":
        s[0][15] = math.nan
    a64, b64 = values(a, b, *s, kind)
    assert_exact(tw.scaled_matmul(a, b, *s, out_dtype=torch.float32), a64 @ b64)


# ---------------------------------------------------------------------------------------------------- torch's machinery


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", [None, "gelu", "relu2"])
def test_gradients_of_bias_and_residual(activation, kind):
    m, n, k = 6, 24, 136
    a, b = small(m, k, seed=1), small(k, n, seed=2)
    s = tuple(t / 16 for t in scales(kind, m, n, k, powers=True))
    bias, residual = normals(n, seed=3).requires_grad_(), normals(m, n, seed=4).requires_grad_()
    result = tw.scaled_matmul(a, b, *s, bias=bias, residual=residual, activation=activation, out_dtype=torch.float32)
    grad = normals(m, n, seed=5)
    result.backward(grad)
    a64, b64 = values(a, b, *s, kind)
    theirs = [t.detach().cpu().double().requires_grad_() for t in (bias, residual)]
    finished(a64 @ b64, bias=theirs[0], residual=theirs[1], activation=activation).backward(grad.cpu().double())
    for mine, other in zip((bias, residual), theirs, strict=True):
        torch.testing.assert_close(mine.grad.cpu().double(), other.grad, rtol=1e-5, atol=1e-5)


def test_opcheck():
    a, b = small(5, 136, seed=1), small(136, 12, seed=2)
    bias, residual = normals(12, seed=3).requires_grad_(), normals(5, 12, seed=4).requires_grad_()
    for kind in KINDS:
        s = scales(kind, 5, 12, 136)
        torch.library.opcheck(scaled.operation, (a, b, *s, None, None, None, False, None, torch.bfloat16, False))
        torch.library.opcheck(scaled.operation, (a, b, *s, bias, residual, "gelu", False, None, torch.float32, True))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole(dynamic):
    def f(a, b, scale_a, scale_b, bias):
        return tw.scaled_matmul(a, b, scale_a * 2, scale_b, bias=bias, activation="relu", out_dtype=torch.float32) + 1

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for m in (6, 9):
        a, b, bias = small(m, 24, seed=1), small(24, 16, seed=2), normals(16, seed=3)
        s = scales("row", m, 16, 24)
        torch.testing.assert_close(compiled(a, b, *s, bias), f(a, b, *s, bias), rtol=1e-6, atol=1e-6)


def test_transforms_of_torch_func():
    a, b, bias = small(4, 24, seed=1), small(24, 8, seed=2), normals(8, seed=3)
    found = torch.func.grad(lambda t: tw.scaled_matmul(a, b, 1.0, 1.0, bias=t, out_dtype=torch.float32).sum())(bias)
    assert_exact(found, torch.full((8,), 4.0))


def test_repeated_calls_see_what_changed():
    """New values, scales, strides, alignments and options: what was kept of one call must not decide the next."""
    m, n, k = 33, 24, 48
    buffer = torch.empty(m * k + 16, dtype=torch.int8, device=DEVICE)
    for turn in range(3):
        for start in (0, 1, 8, 16):
            a = buffer[start : start + m * k].view(m, k).copy_(small(m, k, seed=turn + start))
            b = small(k, n, seed=turn + 50)
            for kind in KINDS:
                s = scales(kind, m, n, k, seed=turn, powers=True)
                bias = integers(n, seed=turn)
                a64, b64 = values(a, b, *s, kind)
                for steps in ({}, {"bias": bias}, {"activation": "relu"}, {"residual": bias.expand(m, n)}):
                    moved = {key: v.cpu() if isinstance(v, torch.Tensor) else v for key, v in steps.items()}
                    result = tw.scaled_matmul(a, b, *s, out_dtype=torch.float32, **steps)
                    assert_exact(result, finished(a64 @ b64, **moved))


# ----------------------------------------------------------------------------------------------------------- refusals

A, B = torch.zeros(4, 8, dtype=torch.int8), torch.zeros(8, 6, dtype=torch.int8)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"a": A.float()}, "a is torch.float32; it must be int8"),
        ({"b": B.to(E4M3)}, "b is torch.float8_e4m3fn; it must be int8"),
        ({"a": A.to(E4M3)}, "b is torch.int8; it must be a float8"),
        ({"a": A[0]}, "a is 1-dimensional"),
        ({"b": B[None]}, "b is 3-dimensional"),
        ({"b": B[:7]}, "b is of shape (7, 6); it must be of inner size 8"),
        ({"scale_a": torch.ones(4)}, "scale_a is of shape (4,); it must be of one element, of shape (4, 1)"),
        ({"scale_b": torch.ones(6)}, "scale_b is of shape (6,); it must be of one element or of shape (1, 6)"),
        ({"scale_b": torch.ones(6, 1)}, "scale_b is of shape (6, 1)"),
        ({"scale_a": torch.ones(1).double()}, "scale_a is torch.float64; it must be float32"),
        ({"scale_b": None}, "scale_b is NoneType"),
        ({"scale_a": torch.ones(4, 1, requires_grad=True)}, "scale_a is a tensor that wants a gradient"),
        ({"out_dtype": torch.float64}, "out_dtype is torch.float64"),
        ({"out_dtype": torch.int32}, "out_dtype is torch.int32"),
        ({"fast_accumulate": 1}, "fast_accumulate is 1"),
        ({"activation": "swish"}, "activation is 'swish'"),
        ({"bias": torch.ones(5)}, "bias is of shape (5,)"),
        ({"bias": torch.ones(6, dtype=torch.int8)}, "bias is torch.int8"),
        ({"residual": torch.ones(6)}, "residual is of shape (6,)"),
        ({"plan": "tile 16x16x32"}, "plan is str"),
        ({"plan": tw.Plan("tile", 16, 16, 16)}, "slices of 16 of k are shorter than the 32"),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_bad_calls_raise_one_line(change, line):
    given = {"a": A, "b": B, "scale_a": torch.ones(4, 1), "scale_b": torch.ones(1, 6), **change}
    given = {
        key: v.to(DEVICE) if isinstance(v, torch.Tensor) and not v.requires_grad else v for key, v in given.items()
    }
    if isinstance(given["scale_a"], torch.Tensor) and given["scale_a"].requires_grad:
        given["scale_a"] = torch.ones(4, 1, device=DEVICE, requires_grad=True)
    with pytest.raises((ValueError, TypeError)) as caught:
        tw.scaled_matmul(**given)
    assert str(caught.value).startswith("tilewright.scaled_matmul: ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ planning


def test_a_problem_says_how_it_is_scaled():
    problem = tw.Problem(512, 512, 512, dtype=E4M3, scaled="row", fast_accumulate=True)
    assert str(problem) == "512x512x512 float8_e4m3fn nt scaled=row fast -> bfloat16"
    assert tw.Problem(8, 8, 8, dtype=torch.int8).scaled == "tensor"
    assert tw.Problem(8, 8, 8).scaled == ""
    assert not tw.Problem(8, 8, 8, dtype=E4M3, scaled="block", fast_accumulate=True).fast_accumulate
    with pytest.raises(ValueError, match="scaled"):
        tw.Problem(8, 8, 8, scaled="row")
    with pytest.raises(ValueError, match="scaled"):
        tw.Problem(8, 8, 8, dtype=torch.int8, scaled="group")


def test_bytes_count_codes_and_scales():
    m, n, k = 512, 256, 300
    codes, out = m * k + k * n, 2 * m * n
    for kind, count in (("tensor", 2), ("row", m + n), ("block", 3 * (m + 2))):
        assert tw.Problem(m, n, k, dtype=torch.int8, scaled=kind).bytes == codes + out + 4 * count


@pytest.mark.parametrize("device", ["h200", "b200", "a100", "l40s", "mi300x"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=name_of)
def test_planned_for_every_device_that_has_the_arithmetic(dtype, kind, device):
    sheet = tw.Device.named(device)
    for size in ((1, 64, 64), (16, 4096, 4096), (1000, 1025, 777), (4096, 4096, 4096)):
        problem = tw.Problem(*size, dtype=dtype, scaled=kind)
        if device == "a100" and dtype is E4M3:
            with pytest.raises(ValueError, match="no float8 arithmetic"):
                tw.plan(problem, sheet)
            continue
        found = tw.plans(problem, sheet)
        assert found
        assert all(plan.block_k >= 32 for plan in found)
        if kind == "block":
            assert {plan.block_k for plan in found} == {SCALE_BLOCK}
        assert "scaled=" + kind in str(tw.explain(problem, sheet))


def test_float8_slices_are_128_unless_fast():
    h200 = tw.Device.named("h200")
    whole = tw.plans(tw.Problem(4096, 4096, 4096, dtype=E4M3), h200)
    fast = tw.plans(tw.Problem(4096, 4096, 4096, dtype=E4M3, fast_accumulate=True), h200)
    assert max(plan.block_k for plan in whole) == SCALE_BLOCK
    assert max(plan.block_k for plan in fast) > SCALE_BLOCK
    with pytest.raises(ValueError, match="128 of k at a time"):
        planner.check(tw.Plan("tile", 64, 64, 256), tw.Problem(64, 64, 512, dtype=E4M3), h200)
