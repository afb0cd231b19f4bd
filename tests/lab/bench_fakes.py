"""A clock for the tests: it calls both sides, and its times are made up (they mean nothing)."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tune.timing import Call, Comparison, Side


class FakeTimer:
    """Ours takes 10 microseconds, a peer 12; candidate i of a ranking takes 10 + i."""

    def __init__(self, ours: float = 10.0, peer: float = 12.0) -> None:
        self.ours, self.peer = ours, peer
        self.names: list[str] = []

    def preheat(self) -> None:
        self.names.append("preheat")

    def compare(self, ours: Side, peer: Side, sets: int) -> Comparison:
        for side in (peer, ours):
            for i in range(side.sets or sets):
                side.call(i)
            self.names.append(side.name)
        return Comparison(self.ours, self.peer, self.peer / self.ours * 0.9, self.peer / self.ours * 1.1)

    def rank(self, sides: Sequence[Side], sets: int) -> list[float]:
        for side in sides:
            side.call(0)
        return [10.0 + i for i in range(len(sides))]

    def sustained(self, call: Call, seconds: float) -> float:
        call(0)
        return 1e-6

    def host(self, ours: Side, peer: Side) -> Comparison:
        return self.compare(ours, peer, 1)
