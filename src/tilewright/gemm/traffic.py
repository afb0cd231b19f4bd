"""What a product moves through the L2 and device memory: a simulated least-recently-used cache.

Programs that run at the same time take neighbouring tiles of C and walk k in step, so that several of them read the
same slice of A or of B at once: the cache serves all of them and device memory serves one. How many share a slice is
decided by the program order. This file plays the order through a cache of the L2's size and counts.

What the model leaves out: the lag between programs of one wave, the sets and sectors of a real cache, and the two
halves of the L2 on large GPUs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tilewright.gemm.cost import predict
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.runtime.devices import Device
from tilewright.runtime.errors import bad

#: cache accesses that a simulation makes by default, about: tens of milliseconds
MAX_STEPS = 100_000

#: pieces of k that are simulated at the least, however many waves there are
LEAST_PIECES = 4

#: pieces in which the tiles that a wave writes enter the cache
WRITTEN_PIECES = 16


@dataclass(frozen=True)
class Traffic:
    """Bytes that a product moves under one program order.

    Args:
        order: "row" (row-major) or "grouped" (the plan's own).
        group, along: tiles of a band, and the dimension that they are counted along.
        hbm_read, hbm_write: bytes that device memory reads (the cache's misses) and writes (C, once).
        l2_read: bytes that programs ask the L2 for; exact.
        l2_bytes: the cache's capacity in the simulation.
        programs: programs resident at once.
        waves: rounds of programs.
        simulated: tiles that were played; the rest was taken to go on as the second half of them did.
        tiles: tiles of C, over the batch; each counts ``split_k`` times.
        pieces: pieces of k that a wave was played in.
    """

    order: str
    group: int
    along: str
    hbm_read: int
    hbm_write: int
    l2_read: int
    l2_bytes: int
    programs: int
    waves: int
    simulated: int
    tiles: int
    pieces: int

    @property
    def hbm(self) -> int:
        """Bytes that device memory reads and writes."""
        return self.hbm_read + self.hbm_write

    @property
    def hit_rate(self) -> float:
        """Share of the bytes asked for that the L2 had; 0 when nothing was asked for."""
        return 1.0 - self.hbm_read / self.l2_read if self.l2_read else 0.0


def tile_of(index: int, tiles_m: int, tiles_n: int, group: int, order: str = "m") -> tuple[int, int]:
    """(tile_m, tile_n) of the program of that index: what ``lang.order.tile_of`` computes on the device."""
    outer_tiles, inner_tiles = (tiles_m, tiles_n) if order == "m" else (tiles_n, tiles_m)
    first = index // (group * inner_tiles) * group
    size = min(outer_tiles - first, group)
    inside = index % (group * inner_tiles)
    outer, inner = first + inside % size, inside // size
    return (outer, inner) if order == "m" else (inner, outer)


def bands(start: int, stop: int, outer_tiles: int, inner_tiles: int, group: int) -> Iterator[tuple[int, range, range]]:
    """The tiles of the indices from ``start`` to before ``stop``, as (batch, outer, inner) for each band they touch.

    ``outer`` and ``inner`` are the tiles' numbers along the two dimensions. A stretch shorter than the band is wide
    can wrap around it: then it is two entries.
    """
    tiles = outer_tiles * inner_tiles
    while start < stop:
        z, index = divmod(start, tiles)
        first = index // (group * inner_tiles) * group
        size = min(outer_tiles - first, group)
        low = index - first * inner_tiles
        high = min(low + stop - start, size * inner_tiles)
        if high - low >= size:
            yield z, range(first, first + size), range(low // size, (high - 1) // size + 1)
        else:
            turn = min(high, (low // size + 1) * size)
            yield z, range(first + low % size, first + (turn - 1) % size + 1), range(low // size, low // size + 1)
            if turn < high:
                inner = turn // size
                yield z, range(first, first + (high - 1) % size + 1), range(inner, inner + 1)
        start += high - low


def capacity(device: Device) -> int:
    """Bytes of L2 that a product can count on: ``l2_effective_bytes`` of the sheet's model, else the whole cache."""
    return int(device.model.get("l2_effective_bytes", device.l2_bytes))


def simulate(
    problem: Problem,
    plan: Plan,
    device: Device,
    *,
    order: str = "grouped",
    l2_bytes: int | None = None,
    max_steps: int = MAX_STEPS,
) -> Traffic:
    """The bytes that ``plan`` moves for ``problem`` on ``device``, from a simulated least-recently-used L2.

    Args:
        order: "grouped" plays the plan's group and order; "row" plays row-major order with the same tiles.
        l2_bytes: the cache's capacity; ``None`` is the device's (:func:`capacity`).
        max_steps: cache accesses, about. k is played in fewer, larger pieces to stay below, and when that is not
            enough the first waves are played and the rest is extrapolated.

    Raises:
        ValueError: an unknown order, or a capacity or a limit below 1.
    """
    name = "traffic.simulate"
    if order not in ("grouped", "row"):
        raise bad(name, "order", repr(order), "'grouped' or 'row'")
    if max_steps < 1:
        raise bad(name, "max_steps", max_steps, "1 or more")
    size = capacity(device) if l2_bytes is None else l2_bytes
    if size < 1:
        raise bad(name, "l2_bytes", size, "1 or more")
    group, along = (plan.group_m, plan.order) if order == "grouped" else (1, "m")
    return _Game(problem, plan, device, group, along, size).play(order, max_steps)


class _Game:
    """One simulation: who reads what, and the cache."""

    def __init__(self, problem: Problem, plan: Plan, device: Device, group: int, along: str, size: int) -> None:
        self.problem, self.group, self.along, self.size = problem, group, along, size
        self.tiles_m, self.tiles_n = -(-problem.m // plan.block_m), -(-problem.n // plan.block_n)
        # the parts of a split k follow one another as the products of a batch do, with k that much shorter
        self.tiles = self.tiles_m * self.tiles_n * problem.batch * plan.split_k
        self.split, self.k = plan.split_k, -(-problem.k // plan.split_k)
        self.slices = -(-self.k // plan.block_k)
        self.programs = predict(problem, plan, device).programs
        # (tiles, block, extent) of the two dimensions
        m, n = (self.tiles_m, plan.block_m, problem.m), (self.tiles_n, plan.block_n, problem.n)
        self.outer, self.inner = (m, n) if along == "m" else (n, m)
        self.cache: OrderedDict[int, int] = OrderedDict()
        self.used = self.missed = self.accesses = self.written = 0

    def play(self, order: str, max_steps: int) -> Traffic:
        """Play the waves, within ``max_steps`` accesses, and count."""
        p, waves = self.problem, -(-self.tiles // self.programs)
        item, out = p.dtype.itemsize, (p.out_dtype or p.dtype).itemsize
        c = p.batch * p.m * p.n * out
        residual = c * p.epilogue.count("residual")
        bias = "bias" in p.epilogue
        least = p.batch * (p.m + p.n) * p.k * item
        asked = p.batch * (p.m * self.tiles_n + p.n * self.tiles_m) * p.k * item
        # C and what is read like it only pass through: each of their bytes takes room once
        passing = c * (1 + p.epilogue.count("pre")) + residual
        pieces = self._pieces(waves, max_steps)
        cuts = [self.k * i // pieces for i in range(pieces + 1)] if pieces else [0]
        widths = [(high - low) * item for low, high in pairwise(cuts)]
        played, marks = 0, [(0, 0)]
        while played < self.tiles and (self.accesses < max_steps or not played):
            stop = min(self.tiles, played + self.programs)
            self._wave(played, stop, widths)
            self._write(passing * (stop - played) // self.tiles)
            played = stop
            marks.append((played, self.missed))
        read = self.missed
        if played < self.tiles:
            since, before = marks[len(marks) // 2] if len(marks) > 2 else marks[0]
            read += round((self.missed - before) / (played - since) * (self.tiles - played))
        if played < self.tiles or self.split > 1:  # extrapolated, or of parts that were all taken as long
            read = max(least, min(asked, read))
        elements = p.n * item if bias else 0
        return Traffic(
            order=order,
            group=self.group,
            along=self.along,
            hbm_read=read + residual + (elements if self.tiles else 0),
            hbm_write=passing - residual,
            l2_read=asked + residual + elements * self.tiles_m * p.batch,
            l2_bytes=self.size,
            programs=self.programs,
            waves=waves,
            simulated=played,
            tiles=self.tiles,
            pieces=pieces,
        )

    def _units(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(number, rows) of each stretch of A and of B that the tiles of those indices read, each once.

        Rows are columns in B. A tile at the edge reads what there is, no more.
        """
        outer: dict[int, int] = {}
        inner: dict[int, int] = {}
        (outer_tiles, outer_block, outer_size), (inner_tiles, inner_block, inner_size) = self.outer, self.inner
        for z, outers, inners in bands(start, stop, outer_tiles, inner_tiles, self.group):
            first = z * (outer_tiles + inner_tiles)
            for i in outers:
                outer[first + i] = min(outer_block, outer_size - i * outer_block)
            first += outer_tiles
            for i in inners:
                inner[first + i] = min(inner_block, inner_size - i * inner_block)
        return [*outer.items(), *inner.items()]

    def _pieces(self, waves: int, max_steps: int) -> int:
        """Pieces to play k in: every slice where the limit allows, fewer and larger ones where not.

        A stretch is read again one wave later, whatever the size of the pieces, with the same bytes in between: the
        pieces only blur which part of it a nearly full cache still holds.
        """
        if not self.slices or not self.tiles:
            return 0
        units = len(self._units(0, min(self.tiles, self.programs)))
        return max(min(self.slices, LEAST_PIECES), min(self.slices, max_steps // (waves * units)))

    def _wave(self, start: int, stop: int, widths: list[int]) -> None:
        """One wave's programs walk k in step."""
        cache, size, pieces = self.cache, self.size, len(widths)
        units = [(number * pieces, rows) for number, rows in self._units(start, stop)]
        self.accesses += len(units) * pieces
        used, missed = self.used, self.missed
        for piece, width in enumerate(widths):
            for first, rows in units:
                key = first + piece
                if key in cache:
                    cache.move_to_end(key)
                    continue
                count = rows * width
                missed += count
                used += count
                cache[key] = count
                while used > size:
                    used -= cache.popitem(last=False)[1]
        self.used, self.missed = used, missed

    def _write(self, count: int) -> None:
        """``count`` bytes of C enter the cache; nobody reads them again."""
        piece = -(-count // WRITTEN_PIECES)
        while count > 0:
            self.written += 1
            self.cache[-self.written] = min(piece, count)
            self.used += min(piece, count)
            count -= piece
        while self.used > self.size:
            self.used -= self.cache.popitem(last=False)[1]
