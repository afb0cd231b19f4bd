"""Which of many candidates is fastest: all of them for a moment, the best few for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Pass(NamedTuple):
    """A round of measurements: blocks of so many milliseconds, how many of each, and who goes on.

    Those within ``keep`` times the fastest stay, ``most`` of them at most.
    """

    block_ms: float
    rounds: int
    keep: float
    most: int


#: blocks of 20 ms are long enough for a card at its power limit to settle; the first passes only leave out what is far
PASSES = (Pass(1.0, 2, 1.25, 8), Pass(4.0, 3, 1.08, 4), Pass(20.0, 5, 1.0, 1))
#: two times that differ by less are one: the earlier candidate is then the better
NOISE = 1.005


def fastest(
    candidates: Sequence[T], rank: Callable[[Sequence[T], float, int], list[float]], passes: Sequence[Pass] = PASSES
) -> tuple[T, list[float]]:
    """The fastest candidate, and the last time that was taken of each, in microseconds.

    ``rank(candidates, block_ms, rounds)`` measures some of them against each other. The first candidate takes part in
    every pass, so that its time can be compared with the winner's.
    """
    times = [0.0] * len(candidates)
    alive = list(range(len(candidates)))
    for one in passes:
        found = rank([candidates[i] for i in alive], one.block_ms, one.rounds)
        for i, us in zip(alive, found, strict=True):
            times[i] = us
        if one is passes[-1]:
            break
        limit = one.keep * min(found)
        near = [i for i in sorted(alive, key=lambda i: times[i]) if times[i] <= limit][: one.most]
        alive = sorted({0, *near})
        if len(alive) == 1:
            break
    best = min(times[i] for i in alive)
    return candidates[next(i for i in alive if times[i] <= best * NOISE)], times
