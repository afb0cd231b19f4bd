"""Rows whose bits do not depend on the others: which plans may run them, and on a GPU the bits themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import tilewright as tw
from support import DTYPES, integers, laid, name_of, normals
from tilewright.gemm import invariant, planner, stored
from tilewright.gemm.schedules import SCHEDULES
from tilewright.tune.store import Store

H200, A100, B200, MI300X = (tw.Device.named(name) for name in ("h200", "a100", "b200", "mi300x"))
ROWS = (1, 2, 15, 16, 17, 63, 64, 100, 512, 1000, 8192)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plan as a process does whose kernels are compiled: interpreted, a family has one member."""
    monkeypatch.setattr(invariant, "INTERPRETED", False)
    _forget()
    yield
    _forget()


def _forget() -> None:
    for cached in (invariant.family, planner._ranked, planner._chosen):
        cached.cache_clear()


def problem(m: int = 128, n: int = 4096, k: int = 4096, **fields) -> tw.Problem:
    return tw.Problem(m, n, k, batch_invariant=True, **fields)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("device", [H200, A100, B200, MI300X], ids=lambda d: d.name)
def test_one_family_for_any_number_of_rows(compiled, dtype, device):
    shapes = [(m, batch) for m in ROWS for batch in (1, 7)]
    plans = {tw.plan(problem(m, batch=batch, dtype=dtype), device) for m, batch in shapes}
    assert len({plan.block_k for plan in plans}) == 1
    assert {plan.split_k for plan in plans} == {1}
    kinds = {invariant.instruction(plan, problem(dtype=dtype), device) for plan in plans}
    assert len(kinds) == 1
    if kinds == {None}:  # nothing is known of two plans' bits
        assert len(plans) == 1
    usual = {tw.plan(tw.Problem(m, 4096, 4096, batch=batch, dtype=dtype), device) for m, batch in shapes}
    assert len({plan.block_k for plan in usual}) > 1


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_interpreted_a_family_has_one_plan(monkeypatch, dtype):
    """numpy's own sums may follow a block's size."""
    monkeypatch.setattr(invariant, "INTERPRETED", True)
    _forget()
    assert len({tw.plan(problem(m, dtype=dtype), H200) for m in ROWS}) == 1
    _forget()


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
def test_aligned_products_keep_the_fast_schedule_and_a_tile_that_suits_them(compiled, layout):
    plans = [tw.plan(problem(m, layout=layout, alignment=16), H200) for m in (1, 16, 64, 128, 512, 4096)]
    assert {plan.schedule for plan in plans} == {"persistent"}
    assert plans[0].block_m == 64 and plans[-1].block_m == 128 and plans[-1].block_n == 256


def test_neither_a_nor_the_epilogue_chooses_the_family(compiled):
    wanted = invariant.family(problem(), H200)
    assert wanted is not None and wanted.instruction == "group"
    changes = [
        {"alignment": 2}, {"alignment": 8, "layout": "st"}, {"layout": "tt"}, {"layout": "nn"}, {"batch": 3},
        {"batch": 12, "batch_dims": 2}, {"out_dtype": torch.float32}, {"epilogue": ("bias", "gelu")},
        {"epilogue": ("alpha", "bias", "pre", "gelu", "dropout", "residual", "custom"), "alignment": 2},
    ]  # fmt: skip
    for change in changes:
        for m in ROWS:
            asked = problem(m, **change)
            plan = tw.plan(asked, H200)
            assert invariant.family(asked, H200) == wanted
            assert (invariant.instruction(plan, asked, H200), plan.block_k) == ("group", wanted.block_k), (m, change)
            planner.check(plan, asked, H200)


@pytest.mark.parametrize("device", [H200, A100, MI300X], ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name_of)
def test_a_family_of_one_plan_runs_whatever_is_asked(compiled, device, dtype):
    hard = {"epilogue": ("bias", "gelu", "dropout", "residual", "pre"), "alignment": dtype.itemsize, "layout": "ss"}
    plans = {tw.plan(problem(m, dtype=dtype, **fields), device) for m in ROWS for fields in ({}, hard)}
    assert len(plans) == 1


@pytest.mark.parametrize("k", [777, 4090])
def test_a_single_row_counts_as_one_of_many(compiled, k):
    """It has no row stride that could be unaligned; the rows beside it would have one."""
    one, two = (problem(m, k=k, layout="nn", alignment=alignment) for m, alignment in ((1, 16), (2, 2)))
    assert SCHEDULES["persistent"].supports(one, H200) is None
    assert tw.plan(one, H200).schedule == tw.plan(two, H200).schedule == "tile"


def test_what_one_row_looks_like_does_not_matter():
    x, w = integers(64, 40, dtype=torch.bfloat16), integers(24, 40, dtype=torch.bfloat16)
    views = [x, x[:1], x[::2], x[:, :40], laid(x, "offset_1"), laid(x, "columns"), laid(x[:1], "sliced")]
    found = [tw.Problem.of(v, w.t(), batch_invariant=True) for v in views]
    assert len({invariant.family(one, H200) for one in found}) == 1


def test_sizes_that_suit_no_tile(compiled):
    for m in (0, 1, 3, 70):
        for n, k in ((1, 1), (1, 4096), (40, 200), (1025, 777), (16, 16)):
            for dtype in DTYPES:
                for device in (H200, A100, MI300X):
                    assert tw.plan(problem(m, n, k, dtype=dtype), device)


def test_only_schedules_that_are_known_to_keep_an_order_take_part(compiled, monkeypatch):
    class Other:
        NAME = "other"

    assert {plan.schedule for plan in tw.plans(problem(), H200)} <= set(invariant.ORDERED)
    plan = replace(tw.plan(problem(), H200), schedule="other")
    assert not invariant.belongs(plan, problem(), H200)
    assert not invariant.belongs(replace(plan, schedule="persistent", split_k=2), problem(), H200)


def test_a_stored_plan_of_another_family_is_passed_over(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    asked, usual = problem(512), tw.Problem(512, 4096, 4096)
    members = tw.plans(asked, H200)
    stranger = tw.Plan("persistent", 64, 64, 128, 8, 4, 5)
    assert stranger not in members and stranger in tw.plans(usual, H200)
    for one in (asked, usual):
        assert stored.keep(one, H200, stranger, 1.0, Store())
    planner.forget()
    assert tw.plan(usual, H200) == stranger
    assert tw.plan(asked, H200) == members[0]
    assert stored.keep(asked, H200, members[-1], 1.0, Store())
    planner.forget()
    assert tw.plan(asked, H200) == members[-1] != members[0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.bfloat16, None), (torch.float16, None), (torch.float32, "ieee"), (torch.float32, "tf32"),
     (torch.float32, "tf32x3"), (torch.float64, None)],
)  # fmt: skip
@pytest.mark.parametrize(("n", "k"), [(1024, 2048), (1000, 777), (6144, 512)])
@pytest.mark.parametrize("b_layout", ["n", "t"])
def test_bits_of_rows(dtype, precision, n, k, b_layout):
    a = normals(700, k, dtype=dtype, seed=1)
    b = normals(k, n, dtype=dtype, seed=2) if b_layout == "n" else normals(n, k, dtype=dtype, seed=2).t()
    bias = normals(n, dtype=dtype, seed=3)

    def run(x: torch.Tensor) -> torch.Tensor:
        options = {
            "precision": precision,
            "batch_invariant": True,
            "out_dtype": torch.promote_types(dtype, torch.float32),
        }
        return tw.matmul(x, b, bias=bias, activation="gelu", **options)

    whole = run(a)
    for m in (*range(1, 70), 127, 128, 129, 255, 256, 511, 512, 513):
        assert torch.equal(run(a[:m]), whole[:m]), f"{m} rows"
        assert torch.equal(run(a[-m:]), whole[-m:]), f"the last {m} rows"
    for how in ("padded", "columns", "offset_1", "sliced"):
        for m in (1, 64, 300):
            assert torch.equal(run(laid(a[:m], how)), whole[:m]), f"{m} rows, {how}"
