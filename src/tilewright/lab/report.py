"""One HTML page of benchmark results: figures and tables, with nothing to load from elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.lab import figures
from tilewright.lab.results import Result, Row, group
from tilewright.runtime.errors import bad

STYLE = """
:root { color-scheme: light dark;
  --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --ground: #ffffff; --band: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4af; --line: #30363d; --ground: #0d1117; --band: #161b22; }
}
body { margin: 0 auto; padding: 1.5rem; max-width: 76rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; }
p, dl { color: var(--soft); margin: .25rem 0; }
code { font-size: .9em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; } dd { margin: 0; }
.figure { height: 26rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: 1rem; }
.scroll { overflow-x: auto; max-height: 40rem; border: 1px solid var(--line); }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { position: sticky; top: 0; background: var(--band); } td.number, th.number { text-align: right; }
td.bad { font-weight: 700; } td.bad::after { content: " \\25BC"; }
"""

SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  for (const div of document.querySelectorAll(".figure")) Plotly.relayout(div, {"font.color": ink});
}
for (const div of document.querySelectorAll(".figure")) {
  const spec = JSON.parse(document.getElementById(div.id + "-data").textContent);
  Plotly.newPlot(div, spec.data, spec.layout, {responsive: true, displaylogo: false});
}
paint();
dark.addEventListener("change", paint);
"""

#: column, heading, whether a number
COLUMNS = (
    ("op", "op", False),
    ("case", "case", False),
    ("from", "from", False),
    ("plan", "plan", False),
    ("ours_us", "ours µs", True),
    ("peer", "peer", False),
    ("peer_us", "peer µs", True),
    ("ratio", "ratio", True),
    ("tflops", "TFLOP/s", True),
    ("roof", "of the roof", True),
    ("error_vs_peer", "error / peer's", True),
    ("regret", "regret", True),
    ("best_plan", "best plan", False),
)


def require_plotly() -> Any:
    """plotly's graph objects; ``RuntimeError`` that names the extra when plotly is missing."""
    try:
        import plotly.graph_objects
    except ImportError:
        raise RuntimeError("tilewright.bench: the HTML report needs plotly: pip install 'tilewright[plots]'") from None
    return plotly.graph_objects


def write(found: Sequence[Result], path: str | Path) -> None:
    """Write the page of those results."""
    text = page(found)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise bad("bench", "html", repr(str(path)), f"writable ({error.strerror})") from None


def page(found: Sequence[Result]) -> str:
    """The page as text; plotly.js is inside it."""
    require_plotly()
    from plotly.offline import get_plotlyjs

    body = "\n".join(section(result, f"s{i}") for i, result in enumerate(found))
    devices = ", ".join(dict.fromkeys(result["device"] for result in found))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>tilewright on {html.escape(devices)}</title><style>{STYLE}</style></head><body>\n"
        f"<h1>tilewright on {html.escape(devices)}</h1>\n"
        "<p>Ratio: the peer's time over ours; above 1, ours is faster. The roof is the least time that the ceilings "
        "allow which were measured in the same run.</p>\n"
        f"{body}\n<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script>\n</body></html>\n"
    )


def section(result: Result, name: str) -> str:
    """One suite: where it comes from, its figures and its table."""
    facts = {
        "device": result["device"],
        "versions": f"tilewright {result['tilewright']} ({result['commit']}), torch {result['torch']}, "
        f"triton {result['triton']}",
        "date": result["date"],
        "command": result["command"],
        "ceilings": ", ".join(f"{key} {value:g}" for key, value in result["ceilings"].items()) or "none",
        "summary": summary_line(result["summary"]),
    }
    terms = "".join(f"<dt>{key}</dt><dd>{html.escape(str(value))}</dd>" for key, value in facts.items())
    plots = []
    for key, figure in figures.figures(result).items():
        # "<" must not end the script element that carries the data
        data = json.dumps(json.loads(figure.to_json())).replace("<", "\\u003c")
        mark = f"{name}-{key}"
        plots.append(
            f'<div class="figure" id="{mark}" role="img" aria-label="{html.escape(result["suite"])}: {key}"></div>'
            f'<script type="application/json" id="{mark}-data">{data}</script>'
        )
    failed = "".join(
        f"<li>{html.escape(' '.join(str(value) for value in entry.values()))}</li>" for entry in result["failed"]
    )
    return (
        f"<h2>{html.escape(result['suite'])}</h2><p>{html.escape(result.get('about', ''))}</p><dl>{terms}</dl>"
        f'<div class="figures">{"".join(plots)}</div>'
        + (f"<p>Failed:</p><ul>{failed}</ul>" if failed else "")
        + f'<div class="scroll">{table(result["rows"])}</div>'
    )


def summary_line(summary: dict[str, Any]) -> str:
    """A summary in one line."""
    parts = [f"{summary['n']} rows"]
    if summary["n"]:
        parts.append(f"geometric mean {summary['geomean']:.3f}, minimum {summary['min']:.3f}")
    if "geomean_m512" in summary:
        parts.append(f"geometric mean for m >= 512 {summary['geomean_m512']:.3f}")
    if "within_10" in summary:
        parts.append(f"pick within 10% of the best in {summary['within_10']:.0%}")
    parts += [f"{key}: {value['geomean']:.3f}" for key, value in summary.get("groups", {}).items()]
    return "; ".join(parts)


def table(rows: Sequence[Row]) -> str:
    """Every row; a ratio under 1 is marked by more than colour."""
    shown = [column for column in COLUMNS if any(row.get(column[0]) is not None for row in rows)]
    head = "".join(f"<th{' class=number' if number else ''}>{name}</th>" for _, name, number in shown)
    lines = []
    for row in sorted(rows, key=group):
        cells = []
        for key, _, number in shown:
            value = row.get(key)
            kind = " ".join(["number"] * number + ["bad"] * (key == "ratio" and float(value or 0) < 1))
            text = "" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)
            cells.append(f'<td class="{kind}">{html.escape(text)}</td>' if kind else f"<td>{html.escape(text)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
