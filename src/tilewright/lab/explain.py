"""Why a product runs as it does: the plan, its waves, the bytes it moves, the roof over it, and the predicted time.

Everything comes from the device's sheet, the cost model and the simulated cache: no GPU is needed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewright.gemm import planner
from tilewright.gemm.cost import Cost, predict
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.traffic import Traffic, simulate
from tilewright.lab.roofline import Roof, roof
from tilewright.runtime.devices import Device

#: plans that are shown after the chosen one
RUNNERS_UP = 5

#: the band that stands for grouped order where the plan itself walks row by row
GROUP = 8


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` found; ``str()`` is a report, :meth:`to_dict` the same as plain numbers.

    Args:
        problem, device, plan: what runs, where, and how.
        picked_by: where the plan is from: "store" (tuned here), "shipped", "model" or "caller".
        cost: the cost model's prediction for the plan.
        roof: the least time, and which roof binds.
        tiles_m, tiles_n: tiles of C along m and n.
        waves: rounds of resident programs, the last one counted whole.
        last_wave: programs in the last round: one a tile, or ``split_k``.
        idle: share of all rounds' places for programs that have no tile, 0 to 1.
        own, row, grouped: the bytes moved under the plan's own order, row-major order, and grouped order (the plan's
            group, or 8 tiles along m where the plan has none).
        runners_up: the next plans by predicted time, with their costs.
    """

    problem: Problem
    device: Device
    plan: Plan
    picked_by: str
    cost: Cost
    roof: Roof
    tiles_m: int
    tiles_n: int
    waves: int
    last_wave: int
    idle: float
    own: Traffic
    row: Traffic
    grouped: Traffic
    runners_up: tuple[tuple[Plan, Cost], ...]

    @property
    def tflops(self) -> float:
        """The predicted rate in TFLOP/s; 0 when nothing is to be done."""
        return _rate(self.problem, self.cost)

    @property
    def of_roof(self) -> float:
        """The least time over the predicted time, 0 to 1."""
        return self.roof.seconds / self.cost.seconds if self.cost.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, for JSON. Times in seconds, sizes in bytes."""
        return {
            "problem": str(self.problem),
            "device": self.device.name,
            "plan": str(self.plan),
            "picked_by": self.picked_by,
            "tiles": {"m": self.tiles_m, "n": self.tiles_n, "batch": self.problem.batch, "all": self.cost.tiles},
            "waves": {
                "programs": self.cost.programs,
                "waves": self.waves,
                "last_wave_tiles": self.last_wave,
                "last_wave_fill": self.cost.fill,
                "idle": self.idle,
            },
            "roof": self.roof.to_dict(),
            "traffic": {name: _moved(getattr(self, name)) for name in ("own", "row", "grouped")},
            "predicted": {**asdict(self.cost), "tflops": self.tflops, "of_roof": self.of_roof},
            "runners_up": [
                {"plan": str(plan), "seconds": cost.seconds, "tflops": _rate(self.problem, cost), "bound": cost.bound}
                for plan, cost in self.runners_up
            ],
        }

    def __str__(self) -> str:
        parts = (self._work(), self._waves(), self._bytes(), self._time(), self._others())
        return "\n\n".join("\n".join(lines) for lines in parts)

    def _work(self) -> list[str]:
        p, r, d = self.problem, self.roof, self.device
        size, out = p.dtype.itemsize, (p.out_dtype or p.dtype).itemsize
        batch, times = (f"{p.batch} * ", "batch*") if p.batch != 1 else ("", "")
        extra = p.epilogue.count("residual") + p.epilogue.count("pre")
        outputs = f"m*n * {out}" if not extra else f"{1 + extra} * m*n * {out}"
        least = f"(m*k + k*n) * {size} + {outputs}"
        least = (f"batch*({least})" if batch else least) + (f" + n * {size}" if "bias" in p.epilogue else "")
        intensity = f"{p.flops:,} / {p.bytes:,} = {r.intensity:.1f} FLOP a byte" if p.bytes else "nothing moves"
        peak = d.peak(p.dtype, str(p.precision))
        binds = {"compute": "arithmetic binds", "hbm": "device memory binds"}[r.bound]
        return [
            f"{p} on {d.title}",
            f"  plan        {self.plan}" + {"store": " (tuned here)", "shipped": " (shipped)"}.get(self.picked_by, ""),
            f"  work        2*{times}m*n*k = 2 * {batch}{p.m} * {p.n} * {p.k} = {p.flops:,} FLOP",
            f"  least bytes {least} = {p.bytes:,} bytes",
            f"  intensity   {intensity}",
            f"  ridge       {peak:g} TFLOP/s / {d.memory_tbps:g} TB/s = {r.ridge:.1f} FLOP a byte: {binds}",
            f"  roof        arithmetic {duration(r.compute)}, device memory {duration(r.hbm)}: "
            f"{duration(r.seconds)} or more",
        ]

    def _waves(self) -> list[str]:
        p, plan, c, d = self.problem, self.plan, self.cost, self.device
        times = f" * {p.batch}" if p.batch != 1 else ""
        parts = f" * {plan.split_k} parts of k" if plan.split_k > 1 else ""
        lines = [
            f"  tiles       ceil({p.m} / {plan.block_m}) * ceil({p.n} / {plan.block_n}){times} = "
            f"{self.tiles_m} * {self.tiles_n}{times} = {c.tiles:,}",
            f"  at once     {d.sms} multiprocessors * {c.programs // d.sms} = {c.programs} programs",
            f"  waves       ceil({c.tiles:,}{parts} / {c.programs}) = {self.waves:,}",
        ]
        if self.waves:
            lines.append(
                f"  last wave   {self.last_wave} of {c.programs} programs have a tile: {1 - c.fill:.1%} of it is idle, "
                f"{self.idle:.1%} of all waves"
            )
        return lines

    def _bytes(self) -> list[str]:
        rows: list[tuple[str, ...]] = [("order", "HBM read", "HBM write", "HBM in all", "asked of L2", "L2 has")]
        seen: list[Traffic] = []
        for moved in (self.own, self.row, self.grouped):
            if moved not in seen:
                seen.append(moved)
                mine = " (plan)" if moved is self.own else ""
                counts = [amount(n) for n in (moved.hbm_read, moved.hbm_write, moved.hbm, moved.l2_read)]
                rows.append((_order(moved) + mine, *counts, f"{moved.hit_rate:.1%}"))
        own, c = self.own, self.cost
        size = amount(own.l2_bytes)
        notes = [f"  simulated   {size} of L2, least recently used leaves first, {own.programs} programs in step"]
        if any(moved.simulated < moved.tiles for moved in seen):
            least = min(moved.simulated for moved in seen)
            notes.append(f"              {least:,} of {own.tiles:,} tiles or more; the rest like their second half")
        notes.append(f"  cost model  counts {amount(c.hbm_bytes)} of HBM and {amount(c.l2_bytes)} of L2")
        return [*_table(rows), *notes]

    def _time(self) -> list[str]:
        c = self.cost
        names = {"compute": "arithmetic", "hbm": "HBM", "l2": "L2", "fixed": "fixed"}
        parts = ", ".join(f"{word} {duration(getattr(c, part))}" for part, word in names.items())
        return [
            f"  predicted   {duration(c.seconds)} = {self.tflops:.1f} TFLOP/s, {self.of_roof:.1%} of the roof",
            f"  made of     {parts}; most: {names[c.bound]}",
        ]

    def _others(self) -> list[str]:
        if not self.runners_up:
            return ["  no other plan is a candidate"]
        rows: list[tuple[str, ...]] = [("runners-up", "predicted", "TFLOP/s", "slower by")]
        for plan, cost in self.runners_up:
            more = cost.seconds / self.cost.seconds - 1 if self.cost.seconds else 0.0
            rows.append((str(plan), duration(cost.seconds), f"{_rate(self.problem, cost):.1f}", f"{more:.1%}"))
        return _table(rows)


def explain(problem: Problem, device: Device | str | None = None, *, plan: Plan | None = None) -> Explanation:
    """Why ``problem`` runs on the device as it does.

    Args:
        device: a device or its sheet's name; ``None`` is the current GPU, or the H200's sheet without one.
        plan: explain this plan rather than the planner's choice.

    Raises:
        ValueError: no plan supports the problem, or ``plan`` does not.
    """
    where = planner.device_or_default(device)
    if plan is None:
        chosen = planner.plan(problem, where)
    else:
        planner.check(plan, problem, where, "explain")
        chosen = plan
    cost = predict(problem, chosen, where)
    others = [other for other in planner.plans(problem, where) if other != chosen][:RUNNERS_UP]
    programs = cost.tiles * chosen.split_k
    waves = -(-programs // cost.programs)
    last = programs - (waves - 1) * cost.programs if waves else 0
    own = simulate(problem, chosen, where)
    by_row = chosen.group_m == 1 and chosen.order == "m"
    banded = chosen if chosen.group_m > 1 else replace(chosen, group_m=GROUP, order="m")
    return Explanation(
        problem=problem,
        device=where,
        plan=chosen,
        picked_by=planner.source(problem, where) if plan is None else "caller",
        cost=cost,
        roof=roof(problem, where),
        tiles_m=-(-problem.m // chosen.block_m),
        tiles_n=-(-problem.n // chosen.block_n),
        waves=waves,
        last_wave=last,
        # the stream schedule deals out what would not fill the last wave slice by slice
        idle=1 - programs / (waves * cost.programs) if waves and chosen.schedule != "stream" else 0.0,
        own=own,
        row=own if by_row else simulate(problem, chosen, where, order="row"),
        grouped=own if banded is chosen else simulate(problem, banded, where),
        runners_up=tuple((other, predict(problem, other, where)) for other in others),
    )


def amount(count: float) -> str:
    """A number of bytes to four digits, in units of a thousand: "1.359 GB"."""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 999.95 and len(units) > 1:
        value /= 1000
        units.pop(0)
    decimals = 0 if units[0] == "B" else 4 - len(str(int(value)))
    return f"{value:.{max(0, decimals)}f} {units[0]}"


def duration(seconds: float) -> str:
    """A time in microseconds or milliseconds: "203.4 us"."""
    if seconds >= 0.01:
        return f"{seconds * 1e3:,.1f} ms"
    return f"{seconds * 1e6:.1f} us"


def _rate(problem: Problem, cost: Cost) -> float:
    return problem.flops / cost.seconds / 1e12 if cost.seconds else 0.0


def _order(moved: Traffic) -> str:
    if moved.group == 1:
        return "row-major" if moved.along == "m" else "column-major"
    return f"grouped, {moved.group} along {moved.along}"


def _moved(moved: Traffic) -> dict[str, Any]:
    return {**asdict(moved), "hbm": moved.hbm, "hit_rate": moved.hit_rate}


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of aligned columns: the first to the left, the others to the right."""
    first, *others = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for head, *cells in rows:
        numbers = [cell.rjust(width) for cell, width in zip(cells, others, strict=True)]
        lines.append("  ".join(["", head.ljust(first), *numbers]))
    return lines
