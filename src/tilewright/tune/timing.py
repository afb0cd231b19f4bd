"""Device time, measured so that two kernels are compared and not two moments.

A GPU at its power cap runs at the clock that the kernel before left it. So both sides run in one process, in blocks of
20 ms or more (10 where a call is too short to draw full power); a block of one side lies between two blocks of the
other; the device is warm; and a figure is the median over rounds. Calls are captured in a CUDA graph, so that no launch
gap is timed, and rotate over operands that are twice the L2 cache and more, so that no call finds its operands there.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Call = Callable[[int], object]


@dataclass(frozen=True)
class Side:
    """One of the things compared.

    ``call(i)`` runs it once on operand set i. ``capture=False`` leaves it out of CUDA graphs (because it brings its
    own), and ``sets`` overrides the number of operand sets that it rotates over.
    """

    name: str
    call: Call
    capture: bool = True
    sets: int | None = None


@dataclass(frozen=True)
class Comparison:
    """Medians over rounds, in microseconds a call; ``low`` and ``high`` bound the ratio peer / ours over rounds."""

    ours_us: float
    peer_us: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """The peer's time over ours: above 1, ours is faster."""
        return self.peer_us / self.ours_us


class Timer(Protocol):
    """What the runners need of a clock: the tests put a fake one in its place."""

    def preheat(self) -> None:
        """Bring the device to the clock that it holds under load."""

    def compare(self, ours: Side, peer: Side, sets: int) -> Comparison:
        """Device time of both, interleaved."""

    def rank(self, sides: Sequence[Side], sets: int) -> list[float]:
        """Device time of each in microseconds, from short interleaved blocks."""

    def sustained(self, call: Call, seconds: float) -> float:
        """Seconds of one call, the mean over that long."""

    def host(self, ours: Side, peer: Side) -> Comparison:
        """Host time of both, interleaved."""


def bracketed(times: Sequence[float]) -> Comparison:
    """The comparison in a sequence peer, ours, peer, ours, ..., peer of seconds a call.

    The peer's figure for a round is the mean of the two blocks around ours.
    """
    ours = [times[i] for i in range(1, len(times), 2)]
    peer = [(times[i - 1] + times[i + 1]) / 2 for i in range(1, len(times), 2)]
    ratios = [p / o for p, o in zip(peer, ours, strict=True)]
    return Comparison(statistics.median(ours) * 1e6, statistics.median(peer) * 1e6, min(ratios), max(ratios))


class CudaTimer:
    """Times on the current CUDA device.

    Args:
        block_ms: the shortest block of a comparison, in milliseconds.
        rounds: blocks of ours in a comparison.
        rank_ms, rank_rounds: the same for ``rank``.
        preheat_s: how long ``preheat`` works, in seconds.
    """

    #: calls shorter than this (seconds) leave the power cap alone, and half a block is enough for them
    SHORT_S = 1e-4
    #: a graph is at least this long, so that the gap between two replays does not count, ...
    GRAPH_MS = 2.0
    #: ... and at most this many calls, because capturing takes host time
    GRAPH_CALLS = 512

    def __init__(
        self,
        block_ms: float = 20.0,
        rounds: int = 5,
        rank_ms: float = 3.0,
        rank_rounds: int = 3,
        preheat_s: float = 1.0,
    ) -> None:
        self.block_ms, self.rounds = block_ms, rounds
        self.rank_ms, self.rank_rounds = rank_ms, rank_rounds
        self.preheat_s = preheat_s
        # one stream for warm-up and capture: a library keeps its workspace by stream
        self.stream = torch.cuda.Stream()

    def preheat(self) -> None:
        """Multiply 4096x4096 bfloat16 matrices for ``preheat_s`` seconds."""
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.sustained(lambda _: a @ a, self.preheat_s)

    def compare(self, ours: Side, peer: Side, sets: int) -> Comparison:
        """Peer, ours, peer, ours, ..., peer, after one block of each that is not counted."""
        pool = torch.cuda.graph_pool_handle()
        blocks = [self._block(side, sets, self.block_ms, pool) for side in (ours, peer)]
        order = [1, 0] + [1, 0] * self.rounds + [1]
        times = self._run([blocks[i] for i in order])
        return bracketed(times[2:])

    def rank(
        self, sides: Sequence[Side], sets: int, block_ms: float | None = None, rounds: int | None = None
    ) -> list[float]:
        """Each side's median over rounds that go through the sides forwards and backwards in turn."""
        pool = torch.cuda.graph_pool_handle()
        blocks = [self._block(side, sets, block_ms or self.rank_ms, pool) for side in sides]
        times: list[list[float]] = [[] for _ in sides]
        for r in range(rounds or self.rank_rounds):
            order = list(range(len(sides)))[:: -1 if r % 2 else 1]
            # the first block after a pause runs at another clock: it is run twice and counted once
            for i, seconds in zip(order, self._run([blocks[j] for j in [order[0], *order]])[1:], strict=True):
                times[i].append(seconds)
        return [statistics.median(t) * 1e6 for t in times]

    def sustained(self, call: Call, seconds: float) -> float:
        """The mean of back-to-back calls between two events."""
        one = self._once(call)
        count = max(1, round(seconds / one))
        return self._run([_Block(lambda: call(0), count, 1)])[0]

    def host(self, ours: Side, peer: Side) -> Comparison:
        """Blocks of calls with an empty queue before each: nothing waits for the device."""
        calls = 200  # well under the launches that a queue holds

        def block(side: Side) -> float:
            call = side.call
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call(0)
            return (time.perf_counter() - start) / calls

        for side in (ours, peer):
            block(side)
        enabled = gc.isenabled()
        gc.disable()
        try:
            times = [block((peer, ours)[i % 2]) for i in range(2 * 5 * self.rounds + 1)]
        finally:
            if enabled:
                gc.enable()
            torch.cuda.synchronize()
        return bracketed(times)

    def _once(self, call: Call) -> float:
        """About how long one call takes, in seconds."""
        for _ in range(2):
            call(0)
        torch.cuda.synchronize()
        return max(self._run([_Block(lambda: call(0), 3, 1)])[0], 1e-6)

    def _block(self, side: Side, sets: int, block_ms: float, pool: Any) -> _Block:
        """Something to replay that lasts ``block_ms`` or more."""
        sets = side.sets or sets
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            one = self._once(side.call)
            if one < self.SHORT_S:
                block_ms /= 2
            calls = min(max(1, round(self.GRAPH_MS * 1e-3 / one)), self.GRAPH_CALLS)
            calls = -(-calls // sets) * sets
            replay = self._graph(side.call, calls, sets, pool) if side.capture else _loop(side.call, calls, sets)
        torch.cuda.current_stream().wait_stream(self.stream)
        replay()
        length = self._run([_Block(replay, 1, calls)])[0] * calls
        return _Block(replay, max(1, -(-round(block_ms * 1e6) // max(1, round(length * 1e9)))), calls)

    def _graph(self, call: Call, calls: int, sets: int, pool: Any) -> Callable[[], object]:
        """The calls as one CUDA graph.

        ``torch.cuda.graph`` would collect garbage and empty the allocator each time: more than the time to be measured.
        """
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool)
        try:
            _loop(call, calls, sets)()
        finally:
            graph.capture_end()
        return graph.replay

    @staticmethod
    def _run(blocks: Sequence[_Block]) -> list[float]:
        """Run blocks back to back; seconds a call of each."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(blocks) + 1)]
        events[0].record()
        for block, event in zip(blocks, events[1:], strict=True):
            for _ in range(block.replays):
                block.replay()
            event.record()
        torch.cuda.synchronize()
        return [
            events[i].elapsed_time(events[i + 1]) * 1e-3 / (block.replays * block.calls)
            for i, block in enumerate(blocks)
        ]


@dataclass(frozen=True)
class _Block:
    """``replays`` times a replay of ``calls`` calls."""

    replay: Callable[[], object]
    replays: int
    calls: int


def _loop(call: Call, calls: int, sets: int) -> Callable[[], object]:
    """The calls one after another; a result lives until its operand set is due again, so that results rotate too."""

    def run() -> None:
        kept: list[object] = [None] * sets
        for i in range(calls):
            kept[i % sets] = call(i % sets)

    return run


def input_sets(set_bytes: int, l2_bytes: int, m: int) -> int:
    """How many operand sets of ``set_bytes`` a measurement rotates over, so that no call finds its own in the cache.

    Twice the L2 cache; 330 MB for few rows, where the time is that of reading the weight and nothing else. One for a
    device without a cache of that kind (0).
    """
    if not l2_bytes:
        return 1
    least = max(2 * l2_bytes, 330_000_000 if m <= 256 else 0)
    return max(1, -(-least // max(1, set_bytes)))
