"""The explanation: its arithmetic by hand, its report, and every size of 0 and 1."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.gemm.cost import predict
from tilewright.gemm.plan import Plan
from tilewright.gemm.planner import plan as choose
from tilewright.gemm.planner import plans
from tilewright.gemm.problem import Problem
from tilewright.lab.explain import amount, duration, explain
from tilewright.runtime.devices import Device

H200 = Device.named("h200")
BIG = Plan("persistent", 128, 256, 64, 8, 8, 3)


def test_a_square_by_hand() -> None:
    found = explain(Problem(4096, 4096, 4096), "h200", plan=BIG)
    assert (found.tiles_m, found.tiles_n, found.cost.tiles) == (32, 16, 512)
    assert found.cost.programs == 132
    assert (found.waves, found.last_wave) == (4, 512 - 3 * 132)
    assert found.idle == pytest.approx(1 - 512 / 528)
    assert found.roof.bound == "compute"
    assert found.own.l2_read == 512 * 4096 * (128 + 256) * 2
    text = str(found)
    assert "2*m*n*k = 2 * 4096 * 4096 * 4096 = 137,438,953,472 FLOP" in text
    assert "(m*k + k*n) * 2 + m*n * 2 = 100,663,296 bytes" in text
    assert "137,438,953,472 / 100,663,296 = 1365.3 FLOP a byte" in text
    assert "989.4 TFLOP/s / 4.8 TB/s = 206.1 FLOP a byte: arithmetic binds" in text
    assert "ceil(4096 / 128) * ceil(4096 / 256) = 32 * 16 = 512" in text
    assert "ceil(512 / 132) = 4" in text
    assert "116 of 132 programs have a tile: 12.1% of it is idle, 3.0% of all waves" in text
    assert str(BIG) in text


def test_the_sums_in_the_report_hold_with_a_batch_and_an_epilogue() -> None:
    problem = Problem(96, 80, 48, batch=3, epilogue=("bias", "gelu", "residual"))
    text = str(explain(problem, "h200"))
    assert f"2*batch*m*n*k = 2 * 3 * 96 * 80 * 48 = {2 * 3 * 96 * 80 * 48:,} FLOP" in text
    least = 3 * ((96 * 48 + 48 * 80) * 2 + 2 * 96 * 80 * 2) + 80 * 2
    assert f"batch*((m*k + k*n) * 2 + 2 * m*n * 2) + n * 2 = {least:,} bytes" in text
    assert least == problem.bytes


def test_it_shows_what_the_planner_and_the_model_say() -> None:
    problem = Problem(2048, 6144, 4096)
    found = explain(problem, H200)
    assert found.plan == choose(problem, H200)
    assert found.cost == predict(problem, found.plan, H200)
    assert found.tflops == pytest.approx(problem.flops / found.cost.seconds / 1e12)
    assert 0 < found.of_roof <= 1
    assert [plan for plan, _ in found.runners_up] == plans(problem, H200)[1:6]
    times = [found.cost.seconds, *(cost.seconds for _, cost in found.runners_up)]
    assert times == sorted(times)


def test_the_orders_are_compared() -> None:
    found = explain(Problem(8192, 8192, 8192), H200, plan=BIG)
    assert found.own is found.grouped
    assert (found.grouped.group, found.row.group) == (8, 1)
    assert found.row.hbm > 1.4 * found.grouped.hbm
    text = str(found)
    assert "grouped, 8 along m (plan)" in text
    assert "row-major " in text


@pytest.mark.parametrize(
    "group, order, mine",
    [(1, "m", "row-major (plan)"), (1, "n", "column-major (plan)"), (4, "n", "grouped, 4 along n (plan)")],
)
def test_the_plans_own_order_is_named(group: int, order: str, mine: str) -> None:
    found = explain(Problem(1000, 1000, 64), H200, plan=replace(BIG, group_m=group, order=order))
    assert mine in str(found)
    assert (found.own.group, found.own.along) == (group, order)
    assert (found.row.group, found.row.along) == (1, "m")
    assert found.grouped.group == (8 if group == 1 else group)


def test_a_full_last_wave_wastes_nothing() -> None:
    found = explain(Problem(128 * 132, 512, 64), H200, plan=BIG)
    assert (found.waves, found.last_wave, found.idle, found.cost.fill) == (2, 132, 0.0, 1.0)


def test_fewer_multiprocessors_make_more_waves() -> None:
    problem = Problem(4096, 4096, 4096)
    half = explain(problem, replace(H200, name="half", sms=66), plan=BIG)
    assert (half.waves, half.cost.programs, half.last_wave) == (8, 66, 50)
    assert half.cost.seconds > explain(problem, H200, plan=BIG).cost.seconds


@pytest.mark.parametrize("device", Device.names())
def test_sizes_of_nothing_and_one(device: str) -> None:
    for m, n, k, batch in itertools.product((0, 1), repeat=4):
        found = explain(Problem(m, n, k, batch=batch), device)
        work = m * n * k * batch
        assert str(found).startswith(f"{m}x{n}x{k} bfloat16")
        assert found.cost.tiles == m * n * batch
        assert (found.tflops > 0) == (work > 0)
        assert found.waves == (1 if m * n * batch else 0)
        assert json.loads(json.dumps(found.to_dict()))["roof"]["flops"] == 2 * work


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.sampled_from([torch.float16, torch.float32, torch.float64]),
    st.sampled_from(Device.names()),
)
@settings(deadline=None, max_examples=30)
def test_the_parts_agree(m: int, n: int, k: int, dtype: torch.dtype, device: str) -> None:
    found = explain(Problem(m, n, k, dtype=dtype), device)
    assert (found.waves - 1) * found.cost.programs + found.last_wave == found.cost.tiles * found.plan.split_k
    assert found.tiles_m * found.plan.block_m >= m > (found.tiles_m - 1) * found.plan.block_m
    assert 0 <= found.idle < 1
    assert found.own.hbm >= found.problem.bytes
    values = json.loads(json.dumps(found.to_dict()))
    assert values["plan"] == str(found.plan)
    assert values["traffic"]["own"]["hbm"] == found.own.hbm_read + found.own.hbm_write
    assert values["predicted"]["seconds"] == found.cost.seconds


def test_lines_fit_a_terminal() -> None:
    text = str(explain(Problem(8192, 57344, 8192, epilogue=("bias", "gelu", "residual")), H200))
    assert max(len(line) for line in text.splitlines()) <= 120
    assert "\t" not in text


def test_a_plan_that_cannot_run_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"^tilewright.explain: plan is .*shared memory"):
        explain(Problem(4096, 4096, 4096), H200, plan=replace(BIG, num_stages=9))


def test_an_unknown_device_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^tilewright.Device.named: name is 'tpu'"):
        explain(Problem(1, 1, 1), "tpu")


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.000 kB"),
        (62_914_560, "62.91 MB"),
        (999_960, "1.000 MB"),
        (235e6, "235.0 MB"),
    ],
)
def test_amounts(count: float, text: str) -> None:
    assert amount(count) == text


@pytest.mark.parametrize(
    "seconds, text", [(0.0, "0.0 us"), (203.44e-6, "203.4 us"), (0.0123, "12.3 ms"), (2.0, "2,000.0 ms")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
