"""Products of drawn shapes, layouts, dtypes and epilogues: exact on integers, whatever is drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_matmul import SHAPE_PAIRS

import tilewright as tw
from support import DTYPES, LAYOUTS, Guarded, assert_exact, finished, integers, laid, name_of, oracle
from tilewright.gemm import planner
from tilewright.gemm.schedules import SCHEDULES

SIZE = st.integers(0, 40) | st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65])
SEED = st.integers(-(2**63), 2**63 - 1)


@st.composite
def steps(draw, shape, dtypes=DTYPES):
    """Options of an epilogue that is exact on integers, for a result of ``shape``."""
    options = {"alpha": draw(st.sampled_from([1.0, 2.0, -0.5, 0.0]))}
    if draw(st.booleans()):
        options["bias"] = integers(shape[-1], dtype=draw(st.sampled_from(dtypes)), seed=3)
    options["activation"] = draw(st.sampled_from([None, "relu", "relu2"]))
    options["dropout_p"] = draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
    options["seed"] = draw(SEED)
    if draw(st.booleans()):
        residual = integers(*shape, dtype=draw(st.sampled_from(dtypes)), seed=4)
        options["residual"] = laid(residual, draw(st.sampled_from(LAYOUTS)))
    return options


@given(st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_any_matrix_product(dtype, data):
    m, n, k = data.draw(SIZE, "m"), data.draw(SIZE, "n"), data.draw(SIZE | st.just(200), "k")
    a = laid(integers(m, k, dtype=dtype, seed=1), data.draw(st.sampled_from(LAYOUTS), "a"))
    b = laid(integers(k, n, dtype=dtype, seed=2), data.draw(st.sampled_from(LAYOUTS), "b"))
    options = data.draw(steps((m, n)), "steps")
    out_dtype = data.draw(st.sampled_from([None, *DTYPES]), "out_dtype")
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    expected = oracle(a, b, **options).to(wide)  # exact in the accumulator, and rounded from there
    assert_exact(tw.matmul(a, b, out_dtype=out_dtype, **options), expected)


@given(st.data())
def test_any_batch(data):
    shape_a, shape_b = data.draw(st.sampled_from([p for p in SHAPE_PAIRS if min(map(len, p)) > 1]))
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
    a = laid(integers(*shape_a, dtype=dtype, seed=1), data.draw(st.sampled_from(LAYOUTS)))
    b = laid(integers(*shape_b, dtype=dtype, seed=2), data.draw(st.sampled_from(LAYOUTS)))
    shape = (*torch.broadcast_shapes(shape_a[:-2], shape_b[:-2]), shape_a[-2], shape_b[-1])
    options = data.draw(steps(shape))
    guarded = Guarded(shape, dtype, data.draw(st.sampled_from(["rows", "columns", "sliced", "offset_1"])))
    tw.matmul(a, b, out=guarded.out, **options)
    assert_exact(guarded.out, oracle(a, b, **options))
    assert guarded.untouched()


@pytest.mark.kernels
@given(st.data())
def test_any_plan(data):
    """A plan that is refused says why; one that is not is exact."""
    m, n, k = (data.draw(st.integers(1, 70), name) for name in "mnk")
    dtype = data.draw(st.sampled_from(DTYPES))
    a, b = (
        laid(integers(*s, dtype=dtype, seed=i), data.draw(st.sampled_from(LAYOUTS)))
        for i, s in enumerate([(m, k), (k, n)])
    )
    block = st.sampled_from([16, 32, 64])
    plan = tw.Plan(
        data.draw(st.sampled_from(["tile", "persistent"])),
        *(data.draw(block) for _ in range(3)),
        group_m=data.draw(st.integers(1, 5)),
        num_warps=data.draw(st.sampled_from([4, 8])),
        num_stages=data.draw(st.integers(1, 3)),
        order=data.draw(st.sampled_from("mn")),
    )
    options = data.draw(steps((m, n)))
    expected = oracle(a, b, **options)
    asked = {key: value for key, value in options.items() if key != "seed"}
    if SCHEDULES[plan.schedule].refuses(plan, tw.Problem.of(a, b, **asked), planner.device_or_default()):
        with pytest.raises(ValueError, match=r"^tilewright\.matmul: plan is ") as error:
            tw.matmul(a, b, plan=plan, **options)
        assert "\n" not in str(error.value)
    else:
        result = tw.matmul(a, b, plan=plan, **options)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        assert_exact(result, expected.to(wide))


@given(st.data())
def test_any_gradient(data):
    m, n, k = (data.draw(st.integers(0, 24), name) for name in "mnk")
    a = laid(integers(m, k, seed=1), data.draw(st.sampled_from(LAYOUTS))).requires_grad_()
    b = laid(integers(k, n, seed=2), data.draw(st.sampled_from(LAYOUTS))).requires_grad_()
    options = data.draw(steps((m, n), (torch.float32,)))
    grad = laid(integers(m, n, seed=9), data.draw(st.sampled_from(LAYOUTS)))
    ea, eb = (t.detach().cpu().double().requires_grad_() for t in (a, b))
    tw.matmul(a, b, **options).backward(grad)
    moved = {key: v.cpu() if isinstance(v, torch.Tensor) else v for key, v in options.items()}
    finished(ea @ eb, **moved).backward(grad.cpu().double())
    assert_exact(a.grad, ea.grad)
    assert_exact(b.grad, eb.grad)
