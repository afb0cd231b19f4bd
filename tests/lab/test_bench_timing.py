"""The clock on a device that is only pretended: what it runs, how often, in which order, and what it concludes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tilewright.tune import timing
from tilewright.tune.timing import CudaTimer, Side


class Pretended:
    """A device whose time passes when a call runs, unless a graph is being captured."""

    def __init__(self) -> None:
        self.now = 0.0
        self.recording: list[Callable[[], None]] | None = None
        self.log: list[str] = []
        self.captured: list[list[int]] = []
        self.live: list[int] = []

    def work(self, name: str, seconds: float | Callable[[], float]) -> Callable[[int], object]:
        seen: list[int] = []

        def spend() -> None:
            self.now += seconds() if callable(seconds) else seconds
            self.log.append(name)

        def call(i: int) -> object:
            if self.recording is None:
                spend()
            else:
                seen.append(i)
                self.recording.append(spend)
                self.captured[-1].append(i)
            return object()

        return call


@pytest.fixture
def gpu(monkeypatch):
    device = Pretended()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = device.now

        def elapsed_time(self, other: Event) -> float:
            return (other.at - self.at) * 1e3

    class Graph:
        def capture_begin(self, pool: Any) -> None:
            assert pool == "pool"
            device.recording = []
            device.captured.append([])

        def capture_end(self) -> None:
            self.calls, device.recording = device.recording, None

        def replay(self) -> None:
            assert self.calls
            for spend in self.calls:
                spend()

    class Stream:
        def wait_stream(self, other: Any) -> None:
            pass

    fakes = {
        "Event": Event,
        "CUDAGraph": Graph,
        "Stream": Stream,
        "stream": lambda s: contextlib.nullcontext(),
        "current_stream": Stream,
        "synchronize": lambda *_: None,
        "graph_pool_handle": lambda: "pool",
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return device


@pytest.mark.parametrize(("one", "block"), [(5e-6, 10e-3), (200e-6, 20e-3)])
def test_blocks_are_long_and_alternate(gpu, one, block):
    timer = CudaTimer(block_ms=20.0, rounds=5)
    ours, peer = gpu.work("ours", one), gpu.work("peer", 2 * one)
    found = timer.compare(Side("ours", ours), Side("peer", peer), 7)
    assert found.ours_us == pytest.approx(one * 1e6)
    assert found.peer_us == pytest.approx(2 * one * 1e6)
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0))
    blocks = [(gpu.log[0], 0)]
    for name in gpu.log:
        blocks = [*blocks[:-1], (name, blocks[-1][1] + 1)] if name == blocks[-1][0] else [*blocks, (name, 1)]
    last = blocks[-13:]
    assert [name for name, _ in last] == ["peer", "ours"] * 6 + ["peer"]
    # the first of these blocks runs into what was called to size it
    for name, count in last[1:]:
        assert block <= count * {"ours": one, "peer": 2 * one}[name] < 2 * block


def test_a_graph_rotates_over_all_operands_and_has_no_more_calls_than_it_needs(gpu):
    timer = CudaTimer()
    timer.compare(Side("ours", gpu.work("ours", 5e-6)), Side("peer", gpu.work("peer", 1e-3)), 7)
    short, long = gpu.captured
    assert len(short) == 406  # 2 ms of 5 us, a multiple of 7
    assert long == list(range(7))  # 2 ms of 1 ms would be 2: every operand set is used all the same
    assert short == [i % 7 for i in range(406)]


def test_a_peer_with_its_own_graphs_is_not_captured(gpu):
    timer = CudaTimer()
    found = timer.compare(
        Side("ours", gpu.work("ours", 5e-6)), Side("peer", gpu.work("peer", 10e-6), capture=False, sets=1), 3
    )
    assert len(gpu.captured) == 1
    assert found.ratio == pytest.approx(2.0)


def test_a_clock_that_drifts_does_not_change_the_ratio(gpu):
    slow = 1.0

    def drifting(base: float) -> Callable[[], float]:
        def seconds() -> float:
            nonlocal slow
            slow *= 1.00002
            return base * slow

        return seconds

    timer = CudaTimer(block_ms=5.0)
    ours, peer = gpu.work("ours", drifting(100e-6)), gpu.work("peer", drifting(100e-6))
    found = timer.compare(Side("ours", ours), Side("peer", peer), 1)
    assert found.ratio == pytest.approx(1.0, abs=2e-4)


def test_a_ranking_goes_both_ways_and_finds_each_time(gpu):
    timer = CudaTimer(rank_ms=3.0, rank_rounds=3)
    sides = [Side(name, gpu.work(name, seconds)) for name, seconds in (("a", 3e-6), ("b", 1e-6), ("c", 2e-6))]
    assert timer.rank(sides, 2) == pytest.approx([3.0, 1.0, 2.0])
    order = [name for i, name in enumerate(gpu.log) if i == 0 or gpu.log[i - 1] != name]
    assert "".join(order).endswith("abcbabc")


def test_sustained_lasts_as_long_as_asked(gpu):
    timer = CudaTimer()
    call = gpu.work("call", 1e-3)
    assert timer.sustained(call, 0.5) == pytest.approx(1e-3)
    assert 0.5 <= gpu.now < 0.52


def test_a_failed_capture_ends(gpu):
    timer = CudaTimer()

    def fails(i: int) -> object:
        if gpu.recording is not None:
            raise ValueError("not while capturing")
        return ok(i)

    ok = gpu.work("ok", 1e-5)
    with pytest.raises(ValueError, match="not while capturing"):
        timer.compare(Side("ours", fails), Side("peer", ok), 1)
    assert gpu.recording is None


def test_results_live_until_their_operands_are_due_again(gpu):
    alive: set[int] = set()
    most = 0

    class Output:
        def __init__(self, i: int) -> None:
            nonlocal most
            self.key = id(self)
            alive.add(self.key)
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.discard(self.key)

    timing._loop(Output, 20, 4)()
    assert most == 5
    assert not alive
