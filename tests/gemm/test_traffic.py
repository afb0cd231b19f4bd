"""The simulated cache: orders by hand, bytes by hand, what was measured, and what must hold for every shape."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.traffic import Traffic, bands, capacity, simulate, tile_of
from tilewright.lang import order as device_order
from tilewright.runtime.devices import Device
from tilewright.runtime.mode import INTERPRETED

H200 = Device.named("h200")


def stub(programs: int) -> Device:
    """A device that runs that many programs at once, one on each multiprocessor."""
    return replace(H200, name="stub", sms=programs, blocks_per_sm=1)


def small(group: int = 1, order: str = "m") -> Plan:
    return Plan("tile", 32, 32, 16, group, 4, 2, order=order)


# --- program order


def test_grouped_order_by_hand() -> None:
    # five tiles along m, three along n, bands of two: the last band has one tile
    expected = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    expected += [(2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2)]
    expected += [(4, 0), (4, 1), (4, 2)]
    assert [tile_of(i, 5, 3, 2) for i in range(15)] == expected


def test_group_of_one_is_row_major() -> None:
    assert [tile_of(i, 2, 3, 1) for i in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 9))
def test_order_n_is_the_mirror_image(tiles_m: int, tiles_n: int, group: int) -> None:
    along_m = [tile_of(i, tiles_m, tiles_n, group, "m") for i in range(tiles_m * tiles_n)]
    along_n = [tile_of(i, tiles_n, tiles_m, group, "n") for i in range(tiles_m * tiles_n)]
    assert along_n == [(b, a) for a, b in along_m]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 20), st.sampled_from("mn"))
def test_every_tile_comes_once(tiles_m: int, tiles_n: int, group: int, order: str) -> None:
    found = sorted(tile_of(i, tiles_m, tiles_n, group, order) for i in range(tiles_m * tiles_n))
    assert found == [(a, b) for a in range(tiles_m) for b in range(tiles_n)]


@given(st.data(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(1, 3))
def test_bands_hold_the_tiles_of_their_indices(
    data: st.DataObject, outer: int, inner: int, group: int, batch: int
) -> None:
    start = data.draw(st.integers(0, outer * inner * batch - 1))
    stop = data.draw(st.integers(start + 1, outer * inner * batch))
    wanted_outer, wanted_inner = set(), set()
    for index in range(start, stop):
        z, inside = divmod(index, outer * inner)
        i, j = tile_of(inside, outer, inner, group)
        wanted_outer.add((z, i))
        wanted_inner.add((z, j))
    found = list(bands(start, stop, outer, inner, group))
    assert {(z, i) for z, outers, _ in found for i in outers} == wanted_outer
    assert {(z, j) for z, _, inners in found for j in inners} == wanted_inner


@triton.jit
def order_kernel(p_m, p_n, tiles_m, tiles_n, GROUP: tl.constexpr, ORDER: tl.constexpr):
    index = tl.program_id(0)
    tile_m, tile_n = device_order.tile_of(index, tiles_m, tiles_n, GROUP, ORDER)
    tl.store(p_m + index, tile_m)
    tl.store(p_n + index, tile_n)


@pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a GPU or TRITON_INTERPRET=1")
@pytest.mark.parametrize("order", ["m", "n"])
@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_the_device_walks_the_same_order(group: int, order: str) -> None:
    where = "cpu" if INTERPRETED else "cuda"
    found = torch.full((2, 35), -1, dtype=torch.int32, device=where)
    order_kernel[(35,)](found[0], found[1], 7, 5, group, order)
    assert list(zip(*found.tolist(), strict=True)) == [tile_of(i, 7, 5, group, order) for i in range(35)]


# --- bytes by hand: tiles of 32x32, slices of 32 rows x 16 of k x 2 bytes = 1024 bytes


def test_bytes_by_hand_when_nothing_stays() -> None:
    # 4 x 2 tiles on four programs. Row-major: A0 A1 B0 B1, then A2 A3 B0 B1. Grouped by 4: A0-A3 B0, then A0-A3 B1.
    problem, device = Problem(128, 64, 32), stub(4)
    slab = 32 * 32 * 2
    row = simulate(problem, small(), device, order="row", l2_bytes=1)
    grouped = simulate(problem, small(4), device, l2_bytes=1)
    assert row.hbm_read == 8 * slab
    assert grouped.hbm_read == 10 * slab
    assert row.l2_read == grouped.l2_read == 8 * 2 * slab
    assert row.hit_rate == 0.5
    assert (row.waves, row.programs, row.tiles, row.simulated) == (2, 4, 8, 8)
    assert row.hbm_write == grouped.hbm_write == 128 * 64 * 2
    assert row.hbm == 8 * slab + 128 * 64 * 2


def test_bytes_by_hand_when_all_stays() -> None:
    found = simulate(Problem(128, 64, 32), small(4), stub(4), l2_bytes=10**9)
    assert found.hbm_read == (128 * 32 + 32 * 64) * 2


def test_the_byte_that_decides() -> None:
    # 2 x 2 tiles on two programs, one slice of k. Between the two reads of B0 come B0 and B1 (2048), the first wave's
    # C (4096) and A1 (1024): a cache of 7168 bytes still has B0 and B1, one of 7167 has neither.
    problem, device = Problem(64, 64, 16), stub(2)
    assert simulate(problem, small(), device, order="row", l2_bytes=7168).hbm_read == 4 * 1024
    assert simulate(problem, small(), device, order="row", l2_bytes=7167).hbm_read == 6 * 1024


def test_what_was_used_last_stays() -> None:
    # a third wave: B0 and B1 were used again by the second and still are there. First in, first out would lose them.
    found = simulate(Problem(96, 64, 16), small(), stub(2), order="row", l2_bytes=7168)
    assert found.hbm_read == 5 * 1024


def test_tiles_at_the_edge_read_what_there_is() -> None:
    # 33 rows: the second tile along m has one
    found = simulate(Problem(33, 40, 8), small(), stub(4), l2_bytes=1)
    assert found.l2_read == (33 * 2 + 40 * 2) * 8 * 2
    assert found.hbm_read == (33 + 40) * 8 * 2


def test_a_residual_and_a_bias_are_read_and_a_preactivation_is_written() -> None:
    plain = simulate(Problem(64, 64, 32), small(), stub(2))
    more = simulate(Problem(64, 64, 32, epilogue=("bias", "residual", "pre")), small(), stub(2))
    assert more.hbm_read - plain.hbm_read == 64 * 64 * 2 + 64 * 2
    assert more.hbm_write - plain.hbm_write == 64 * 64 * 2
    assert more.l2_read - plain.l2_read == 64 * 64 * 2 + 2 * 64 * 2


def test_each_matrix_of_a_batch_is_read_for_itself() -> None:
    one = simulate(Problem(64, 64, 32), small(), stub(2))
    three = simulate(Problem(64, 64, 32, batch=3), small(), stub(2))
    assert (three.hbm_read, three.hbm_write, three.l2_read) == (3 * one.hbm_read, 3 * one.hbm_write, 3 * one.l2_read)


# --- against what was measured on an H200: 8192 cubed, bfloat16, 128x256x64, one program a multiprocessor


def measured_case(group: int, order: str = "grouped", size: int = 8192, **limits: int) -> Traffic:
    plan = Plan("persistent", 128, 256, 64, group, 8, 3)
    return simulate(Problem(size, size, size), plan, H200, order=order, **limits)


@pytest.mark.parametrize("group, megabytes", [(16, 1256), (8, 1512)])
def test_device_memory_bytes_agree_with_the_counters(group: int, megabytes: int) -> None:
    found = measured_case(group)
    assert found.programs == 132
    assert found.hbm / 1e6 == pytest.approx(megabytes, rel=0.10)


def test_the_larger_group_saves_what_was_measured() -> None:
    # measured: 17% fewer bytes
    assert 1 - measured_case(16).hbm / measured_case(8).hbm == pytest.approx(0.17, abs=0.02)


def test_row_major_order_moves_more() -> None:
    row, grouped = measured_case(8, "row"), measured_case(8)
    # each of 15.5 waves reads all of B, 134 MB, and 5 or 6 slabs of A, 2.1 MB each
    assert row.hbm_read / 1e6 == pytest.approx(15.5 * 134.2 + 16 * 5.4 * 2.1, rel=0.05)
    assert row.hbm_read > 1.4 * grouped.hbm_read
    assert row.l2_read == grouped.l2_read == 2048 * 8192 * (128 + 256) * 2


@pytest.mark.parametrize("size", [8192, 16384])
@pytest.mark.parametrize("order", ["grouped", "row"])
def test_coarser_pieces_of_k_change_little(size: int, order: str) -> None:
    fine, coarse = measured_case(8, order, size, max_steps=10**7), measured_case(8, order, size, max_steps=8_000)
    assert fine.pieces == size // 64
    assert coarse.pieces < fine.pieces
    assert coarse.hbm == pytest.approx(fine.hbm, rel=0.02)
    assert coarse.l2_read == fine.l2_read


def test_the_waves_that_are_not_played_are_like_those_that_are() -> None:
    whole, part = measured_case(8, size=16384, max_steps=10**6), measured_case(8, size=16384, max_steps=3_000)
    assert whole.simulated == whole.tiles == 8192
    assert part.simulated < 6000
    assert part.hbm == pytest.approx(whole.hbm, rel=0.03)


def test_the_cold_start_is_not_carried_on() -> None:
    # B, 32 kB, is read by the first wave and stays: every other wave reads its rows of A, and they are never used again
    found = simulate(Problem(2**20, 256, 64), Plan("tile", 16, 16, 64, 1, 4, 3), H200, max_steps=20_000)
    assert found.simulated < found.tiles
    assert found.hbm_read == pytest.approx((2**20 + 256) * 64 * 2, rel=2e-4)


@pytest.mark.parametrize("size", [8192, 16384])
def test_it_answers_at_once(size: int) -> None:
    def seconds() -> float:
        start = time.process_time()
        measured_case(8, size=size)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.3


def test_huge_problems_take_no_more_memory_or_time() -> None:
    start = time.process_time()
    found = simulate(Problem(2**31 - 1, 64, 64), Plan("tile", 16, 64, 64, 8, 4, 3), H200)
    assert time.process_time() - start < 3
    assert found.simulated < found.tiles == 2**27
    assert found.hbm_read >= ((2**31 - 1) * 64 + 64 * 64) * 2


# --- what must hold for every shape

sizes = st.integers(0, 300)
problems = st.builds(
    Problem,
    sizes,
    sizes,
    sizes,
    batch=st.integers(0, 3),
    dtype=st.sampled_from([torch.float16, torch.float32]),
    epilogue=st.sampled_from([(), ("bias",), ("bias", "gelu", "residual"), ("relu", "pre")]),
)
small_plans = st.builds(small, st.integers(1, 9), st.sampled_from("mn"))
orders = st.sampled_from(["grouped", "row"])


@given(problems, small_plans, st.integers(1, 20), orders, st.integers(1, 200_000))
@settings(deadline=None)
def test_bounds(problem: Problem, plan: Plan, programs: int, order: str, l2_bytes: int) -> None:
    found = simulate(problem, plan, stub(programs), order=order, l2_bytes=l2_bytes)
    assert 0 <= found.hit_rate <= 1
    if found.tiles:
        assert problem.bytes <= found.hbm
        assert found.hbm_read <= found.l2_read
    else:
        assert found.hbm == found.l2_read == 0


@given(problems, small_plans, st.integers(1, 20), orders, st.integers(1, 100_000), st.integers(0, 100_000))
@settings(deadline=None)
def test_a_larger_cache_never_reads_more(
    problem: Problem, plan: Plan, programs: int, order: str, l2_bytes: int, more: int
) -> None:
    device = stub(programs)
    less = simulate(problem, plan, device, order=order, l2_bytes=l2_bytes)
    larger = simulate(problem, plan, device, order=order, l2_bytes=l2_bytes + more)
    assert larger.hbm_read <= less.hbm_read
    assert larger.l2_read == less.l2_read


@given(problems, small_plans, st.integers(1, 20), orders)
@settings(deadline=None)
def test_the_two_extremes_by_brute_force(problem: Problem, plan: Plan, programs: int, order: str) -> None:
    """No cache: every wave reads what its programs ask for once. No limit: everything is read once."""
    problem = replace(problem, epilogue=())
    group, along = (plan.group_m, plan.order) if order == "grouped" else (1, "m")
    tiles_m, tiles_n = math.ceil(problem.m / 32), math.ceil(problem.n / 32)
    item = problem.dtype.itemsize
    asked, waves = 0, [set() for _ in range(tiles_m * tiles_n * problem.batch)]
    for index in range(tiles_m * tiles_n * problem.batch):
        z, inside = divmod(index, tiles_m * tiles_n)
        i, j = tile_of(inside, tiles_m, tiles_n, group, along)
        a = ("a", z, i, min(32, problem.m - 32 * i) * problem.k * item)
        b = ("b", z, j, min(32, problem.n - 32 * j) * problem.k * item)
        asked += a[3] + b[3]
        waves[index // programs] |= {a, b}
    # one slice of k, so that a wave reads each stretch once even without a cache
    whole = replace(plan, block_k=512)
    none = simulate(problem, whole, stub(programs), order=order, l2_bytes=1)
    everything = simulate(problem, whole, stub(programs), order=order, l2_bytes=2**40)
    assert none.l2_read == asked
    assert none.hbm_read == sum(unit[3] for wave in waves for unit in wave)
    assert everything.hbm_read == sum(unit[3] for unit in set().union(*waves))


# --- the capacity, and bad calls


def test_the_capacity_is_the_sheets() -> None:
    plain = replace(H200, model={})
    assert capacity(plain) == 62914560
    half = replace(H200, model={"l2_effective_bytes": 30_000_000})
    assert capacity(half) == 30_000_000
    problem, plan = Problem(4096, 4096, 4096), Plan("persistent", 128, 256, 64, 8, 8, 3)
    assert simulate(problem, plan, half).hbm_read > simulate(problem, plan, plain).hbm_read
    assert simulate(problem, plan, half).l2_bytes == 30_000_000


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"order": "diagonal"}, "order is 'diagonal'"),
        ({"l2_bytes": 0}, "l2_bytes is 0"),
        ({"max_steps": 0}, "max_steps is 0"),
    ],
)
def test_bad_calls(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=f"^tilewright.traffic.simulate: {words}; it must be "):
        simulate(Problem(64, 64, 64), small(), H200, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", [2, 3, 8])
def test_a_split_k_reads_and_writes_what_the_whole_does(split: int) -> None:
    """As many programs more, and not a byte: the parts of a tile read different parts of A and of B."""
    problem = Problem(64, 256, 1008)
    whole, parts = (simulate(problem, replace(small(), split_k=s), H200) for s in (1, split))
    assert parts.tiles == split * whole.tiles
    assert (parts.hbm_read, parts.hbm_write, parts.l2_read) == (whole.hbm_read, whole.hbm_write, whole.l2_read)
