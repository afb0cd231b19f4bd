"""Plotly figures of a benchmark result: pure functions from a result file's dictionary to a figure.

Colours are those of Okabe and Ito, which colour-blind readers tell apart, on a transparent ground, so that a page can
be light or dark; each series has a marker shape of its own besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.lab import results
from tilewright.lab.results import Result, Row

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star")
GREY = "#808080"


def _go() -> Any:
    from tilewright.lab.report import require_plotly

    return require_plotly()


def _layout(figure: Any, title: str, x: str, y: str) -> Any:
    figure.update_layout(
        title={"text": title, "font": {"size": 16}},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY, "family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": -0.22},
        margin={"l": 64, "r": 24, "t": 48, "b": 48},
        hovermode="closest",
    )
    line = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.5)"}
    figure.update_xaxes(title=x, **line)
    figure.update_yaxes(title=y, **line)
    return figure


def measured(result: Result) -> list[Row]:
    """The rows that are products timed on the device."""
    return [row for row in result["rows"] if row.get("tflops") is not None]


def _hover(row: Row) -> str:
    lines = [
        f"<b>{row['op']} {row['case']}</b>",
        f"{row.get('from', '')}",
        f"ours {row['ours_us']:g} µs, {row['peer']} {row['peer_us']:g} µs: {row['ratio']:.3f}",
        f"plan {row['plan']}",
        f"error / peer's error {row['error_vs_peer']}",
    ]
    return "<br>".join(line for line in lines if line)


def _work(row: Row) -> float:
    return float(2 * row["m"] * row["n"] * row["k"])


def throughput(result: Result) -> Any:
    """TFLOP/s over the operations of a product: ours and each peer's."""
    go = _go()
    figure = go.Figure()
    rows = sorted(measured(result), key=_work)
    series: dict[str, list[tuple[float, float, str]]] = {}
    for group in dict.fromkeys(results.group(row) for row in rows):
        members = [row for row in rows if results.group(row) == group]
        peer = members[0]["peer"]
        steps = group.removesuffix(peer).strip()
        ours = f"tilewright {steps}".strip()
        # several peers of one case are several rows with one product of ours
        if ours not in series:
            series[ours] = [(_work(r), _work(r) / r["ours_us"] / 1e6, _hover(r)) for r in members]
        series[group] = [(_work(r), _work(r) / r["peer_us"] / 1e6, _hover(r)) for r in members]
    for i, (name, points) in enumerate(series.items()):
        figure.add_trace(
            go.Scatter(
                x=[p[0] / 1e9 for p in points],
                y=[p[1] for p in points],
                text=[p[2] for p in points],
                hovertemplate="%{text}<br>%{y:.1f} TFLOP/s<extra></extra>",
                name=name,
                mode="markers",
                marker={"color": COLOURS[i % 6], "symbol": SYMBOLS[i % 6], "size": 8, "opacity": 0.85},
            )
        )
    for key, value in result["ceilings"].items():
        if key.endswith("_tflops"):
            label = f"{key.removesuffix('_tflops')} ceiling, sustained: {value:.0f}"
            figure.add_hline(y=value, line_dash="dash", line_color=GREY, annotation_text=label)
    _layout(figure, f"{result['suite']}: rate", "operations (GFLOP)", "TFLOP/s")
    figure.update_xaxes(type="log")
    return figure


def ratio(result: Result) -> Any:
    """Each row's time against its peer, sorted: above 1, ours is faster."""
    go = _go()
    figure = go.Figure()
    groups = list(dict.fromkeys(results.group(row) for row in result["rows"]))
    for i, group in enumerate(groups):
        rows = sorted((r for r in result["rows"] if results.group(r) == group), key=lambda r: float(r["ratio"]))
        spread = [
            [max(0.0, r.get("ratio_high", r["ratio"]) - r["ratio"]) for r in rows],
            [max(0.0, r["ratio"] - r.get("ratio_low", r["ratio"])) for r in rows],
        ]
        figure.add_trace(
            go.Scatter(
                x=[(j + 0.5) / len(rows) * 100 for j in range(len(rows))],
                y=[r["ratio"] for r in rows],
                error_y={"type": "data", "array": spread[0], "arrayminus": spread[1], "thickness": 1, "width": 0},
                text=[_hover(r) for r in rows],
                hovertemplate="%{text}<extra></extra>",
                name=f"{group} ({len(rows)})",
                mode="markers",
                marker={"color": COLOURS[i % 6], "symbol": SYMBOLS[i % 6], "size": 7},
            )
        )
    figure.add_hline(y=1.0, line_color=GREY, line_width=1)
    title = f"{result['suite']}: the peer's time over ours (bars: the range over rounds)"
    return _layout(figure, title, "share of the cases (%)", "ratio, above 1 ours is faster")


def roofline(result: Result) -> Any:
    """Rate over arithmetic intensity, under the ceilings that were measured in the same run."""
    go = _go()
    figure = go.Figure()
    rows = measured(result)
    limits = result["ceilings"]
    copy = limits["copy_tbps"]
    points: dict[str, list[tuple[float, float, str]]] = {}
    seen = set()
    for row in rows:
        key = (row["op"], row["case"], row["dtype"])
        if key in seen:
            continue
        seen.add(key)
        name = f"tilewright {row['dtype']} {row.get('precision') or ''}".strip()
        points.setdefault(name, []).append((intensity(row), _work(row) / row["ours_us"] / 1e6, _hover(row)))
    low = min((p[0] for found in points.values() for p in found), default=1.0) / 2
    high = max((p[0] for found in points.values() for p in found), default=1000.0) * 2
    for i, (key, value) in enumerate((k, v) for k, v in limits.items() if k.endswith("_tflops")):
        knee = value / copy
        xs = [low, min(max(knee, low), high), high]
        figure.add_trace(
            go.Scatter(
                x=xs,
                y=[min(x * copy, value) for x in xs],
                mode="lines",
                line={"color": GREY, "dash": ("solid", "dash", "dot")[i % 3]},
                name=f"measured roof, {key.removesuffix('_tflops')}: {copy:.2f} TB/s, {value:.0f} TFLOP/s",
                hoverinfo="skip",
            )
        )
    for i, (name, found) in enumerate(points.items()):
        figure.add_trace(
            go.Scatter(
                x=[p[0] for p in found],
                y=[p[1] for p in found],
                text=[p[2] for p in found],
                hovertemplate="%{text}<br>%{x:.1f} FLOP/byte, %{y:.1f} TFLOP/s<extra></extra>",
                name=name,
                mode="markers",
                marker={"color": COLOURS[i % 6], "symbol": SYMBOLS[i % 6], "size": 8, "opacity": 0.85},
            )
        )
    _layout(figure, f"{result['suite']}: roofline", "arithmetic intensity (FLOP/byte)", "TFLOP/s")
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return figure


def intensity(row: Row) -> float:
    """Operations per byte of the least that a row's product must move."""
    import torch

    from tilewright.gemm.problem import Problem

    epilogue = tuple(row.get("epilogue", ())) or (("residual",) if row["op"] == "addmm" else ())
    dtype = getattr(torch, row["dtype"])
    return Problem(row["m"], row["n"], row["k"], dtype=dtype, layout=row["layout"], epilogue=epilogue).intensity


def regret(result: Result) -> Any:
    """A planner suite: how much slower the first pick is than the best candidate, sorted, in per cent."""
    go = _go()
    rows = sorted(result["rows"], key=lambda r: float(r["regret"]))
    figure = go.Figure(
        go.Scatter(
            x=[(j + 0.5) / len(rows) * 100 for j in range(len(rows))],
            y=[100 * r["regret"] for r in rows],
            text=[f"{_hover(r)}<br>best {r['best_plan']}" for r in rows],
            hovertemplate="%{text}<br>%{y:.1f}% slower than the best<extra></extra>",
            mode="markers",
            marker={"color": COLOURS[0], "size": 7},
        )
    )
    figure.add_hline(y=10, line_color=GREY, line_dash="dash", annotation_text="10%")
    return _layout(figure, "planner: regret of the first pick", "share of the cases (%)", "slower than the best (%)")


def prediction(result: Result) -> Any:
    """A planner suite: each candidate's measured time against the cost model's."""
    go = _go()
    points = [
        (c["predicted_us"], c["us"], f"{row['case']}<br>{c['plan']}")
        for row in result["rows"]
        for c in row["candidates"]
    ]
    figure = go.Figure(
        go.Scatter(
            x=[p[0] for p in points],
            y=[p[1] for p in points],
            text=[p[2] for p in points],
            hovertemplate="%{text}<br>predicted %{x:.1f} µs, measured %{y:.1f} µs<extra></extra>",
            mode="markers",
            name="candidate",
            marker={"color": COLOURS[0], "size": 5, "opacity": 0.6},
        )
    )
    ends = [min(min(p[:2]) for p in points), max(max(p[:2]) for p in points)] if points else [1.0, 10.0]
    ends = [max(end, 1e-3) for end in ends]
    figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line={"color": GREY}, name="as predicted"))
    _layout(figure, "planner: measured against predicted", "predicted (µs)", "measured (µs)")
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return figure


def host(result: Result) -> Any:
    """Host microseconds of a call, ours and the peer's."""
    go = _go()
    rows: Sequence[Row] = result["rows"]
    labels = [f"{row['op']} {row['case']}" for row in rows]
    figure = go.Figure()
    for i, (name, key) in enumerate((("tilewright", "ours_us"), ("PyTorch", "peer_us"))):
        figure.add_trace(
            go.Bar(
                x=labels,
                y=[row[key] for row in rows],
                name=name,
                marker={"color": COLOURS[i], "pattern": {"shape": ("", "/")[i]}},
            )
        )
    return _layout(figure, "host: time of a call", "", "µs, lower is better")


def figures(result: Result) -> dict[str, Any]:
    """The figures that suit a result, by name."""
    if not result["rows"]:
        return {}
    if any("regret" in row for row in result["rows"]):
        return {"regret": regret(result), "prediction": prediction(result), "roofline": roofline(result)}
    if not measured(result):
        return {"ratio": ratio(result), "host": host(result)}
    return {"throughput": throughput(result), "ratio": ratio(result), "roofline": roofline(result)}
