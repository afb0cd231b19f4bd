"""A call like one before, but for one thing: what was kept of the first must not decide the second."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from support import DEVICE, assert_exact, integers, name_of, normals, oracle


def twice(options, *pairs, **common):
    """Each call, three rounds of all of them, each against the oracle."""
    for _ in range(3):
        for (a, b), extra in zip(pairs, options, strict=True):
            assert_exact(tw.matmul(a, b, **common, **extra), oracle(a, b, **common, **extra))


def operands(m=33, n=24, k=40, dtype=torch.float16, seed=1):
    return integers(m, k, dtype=dtype, seed=seed), integers(k, n, dtype=dtype, seed=seed + 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=name_of)
def test_new_values_new_memory(dtype):
    twice([{}] * 3, *(operands(dtype=dtype, seed=s) for s in (1, 5, 9)))


def test_one_row_more_one_column_less():
    sizes = [
        (33, 24, 40),
        (34, 24, 40),
        (33, 16, 40),
        (33, 24, 48),
        (1, 24, 40),
        (64, 24, 40),
        (33, 1, 40),
        (33, 24, 1),
    ]
    twice([{}] * len(sizes), *(operands(*s) for s in sizes))


def test_the_same_shape_with_other_strides():
    a, b = operands(40, 40, 40)
    views = [a, a.t(), a.t().contiguous(), torch.cat([a, a], 1)[:, :40], torch.cat([a, a], 1)[:, ::2]]
    twice([{}] * len(views), *((v, b) for v in views))
    twice([{}] * len(views), *((b, v) for v in views))


def test_the_same_shape_at_another_alignment():
    """First on 16 bytes, then on 2, 4, 8: a kernel compiled for the first may not load the others."""
    buffer = integers(40 * 40 + 16, dtype=torch.float16)
    b = integers(40, 24, dtype=torch.float16, seed=2)
    starts = [0, 1, 8, 2, 4, 0, 16, 3]
    twice([{}] * len(starts), *((buffer[s : s + 1600].view(40, 40), b) for s in starts))
    twice([{}] * len(starts), *((b.t(), buffer[s : s + 1600].view(40, 40)) for s in starts))


def test_a_residual_or_bias_at_another_alignment():
    a, b = operands(40, 40, 40)
    buffer = integers(1700, dtype=torch.float16, seed=8)
    starts = [0, 1, 8, 2, 0]
    twice([{"residual": buffer[s : s + 1600].view(40, 40)} for s in starts], *[(a, b)] * 5)
    twice([{"bias": buffer[s : s + 40]} for s in starts], *[(a, b)] * 5)
    twice([{"bias": buffer[: 40 * s : s]} for s in (1, 2, 3, 1)], *[(a, b)] * 4)
    outs = [torch.zeros(1700, dtype=torch.float16, device=DEVICE)[s : s + 1600].view(40, 40) for s in starts]
    for out in outs + outs:
        assert_exact(tw.matmul(a, b, out=out), oracle(a, b))


def test_a_step_comes_and_goes():
    a, b = operands()
    bias, wide = integers(24, dtype=torch.float16, seed=3), integers(24, seed=4)
    residual = integers(33, 24, dtype=torch.float16, seed=5)
    options = [{}, {"bias": bias}, {}, {"activation": "relu"}, {"bias": wide}, {"residual": residual},
               {"residual": residual, "bias": bias}, {"activation": "relu2"}, {"bias": bias, "activation": "relu"},
               {"bias": bias * 2}, {"residual": residual.t().contiguous().t()}]  # fmt: skip
    twice(options, *[(a, b)] * len(options))


def test_numbers_change():
    """Seeds of 1 and of multiples of 16 are what a compiler likes to specialise on."""
    a, b = operands()
    twice([{"alpha": x} for x in (1.0, 2.0, 0.5, 0.0, 1.0, -1.0)], *[(a, b)] * 6)
    twice([{"seed": s} for s in (16, 5, 1, 2, 0, -1, 2**40, 32, 7)], *[(a, b)] * 9, dropout_p=0.5)
    twice([{"dropout_p": p} for p in (0.5, 0.75, 0.0, 1.0, 0.5)], *[(a, b)] * 5, seed=3, out_dtype=torch.float32)


def test_every_row_count_after_every_other():
    """m is not specialised: 1 and 16 are compiled as any other."""
    b = integers(40, 24, dtype=torch.float16, seed=2)
    ms = [16, 1, 17, 32, 5, 1, 16]
    twice([{}] * len(ms), *((integers(m, 40, dtype=torch.float16, seed=m), b) for m in ms))
    twice([{"seed": 3}] * len(ms), *((integers(m, 40, dtype=torch.float16, seed=m), b) for m in ms), dropout_p=0.5)


def test_the_precision_setting_is_read_at_every_call():
    a = torch.full((16, 16), 1 + 2.0**-12, device=DEVICE)
    b = torch.eye(16, device=DEVICE)
    for setting, expected in [("highest", 1 + 2.0**-12), ("high", 1.0), ("highest", 1 + 2.0**-12), ("medium", 1.0)] * 2:
        torch.set_float32_matmul_precision(setting)
        result = tw.matmul(a, b)
        if DEVICE == "cpu" and expected == 1.0:
            assert set(result.unique().tolist()) <= {1.0, 1 + 2.0**-12}
        else:
            assert_exact(result, torch.full((16, 16), expected))
        assert_exact(tw.matmul(a, b, precision="ieee"), a)


def test_a_gradient_is_wanted_now_and_not_then():
    a, b = (t.float() for t in operands())
    for wanted in (False, True, False, True):
        a.requires_grad_(wanted)
        y = tw.matmul(a, b)
        assert y.requires_grad is wanted
        if wanted:
            a.grad = None
            y.sum().backward()
            assert_exact(a.grad, b.cpu().sum(1).expand_as(a))
            with torch.no_grad():
                assert not tw.matmul(a, b).requires_grad
            with torch.inference_mode():
                assert_exact(tw.matmul(a, b), oracle(a, b))


def test_a_subclass_keeps_its_meaning():
    calls = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    a, b = operands()
    for _ in range(2):
        tw.matmul(a, b)
        calls.clear()
        result = tw.matmul(a.as_subclass(Logged), b)
        assert calls and torch.equal(result.as_subclass(torch.Tensor), tw.matmul(a, b))


def test_results_do_not_share_memory():
    a, b = operands()
    first = tw.matmul(a, b)
    kept = first.clone()
    second = tw.matmul(a * 2, b)
    assert torch.equal(first, kept) and first.data_ptr() != second.data_ptr()


def test_parameters_and_vmap():
    a, b = integers(3, 5, 8, seed=1), integers(8, 6, seed=2)
    assert_exact(tw.matmul(torch.nn.Parameter(a), b).detach(), oracle(a, b))
    assert_exact(torch.func.vmap(lambda x: tw.matmul(x, b))(a), oracle(a, b))


def test_a_graph_of_random_data_repeats_itself():
    a, b = normals(65, 40, dtype=torch.bfloat16, seed=1), normals(40, 48, dtype=torch.bfloat16, seed=2)
    first = [tw.matmul(a, b), tw.linear(a, b.t()), tw.matmul(a, b, activation="gelu")]
    for _ in range(3):
        again = [tw.matmul(a, b), tw.linear(a, b.t()), tw.matmul(a, b, activation="gelu")]
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert torch.equal(first[0], first[1])
