"""Tables of the README and the docs, made from recorded results.

``python -m tilewright.lab.tables [--check] FILE ...`` rewrites what stands between the marks of each document::

    <!-- results:begin -->                          a line for each suite and group
    <!-- results:begin gemm-bf16 epilogue -->       of those suites only
    <!-- results:begin gemm-bf16 rows -->           with every row
    <!-- results:end -->

``--check`` writes nothing and exits with 1 when a document is not what the recorded results say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewright.lab import results
from tilewright.lab.results import Result, Row
from tilewright.runtime.errors import bad

BLOCK = re.compile(
    r"(?P<begin><!-- results:begin(?P<words>[^>]*)-->\n)(?P<body>.*?)(?P<end><!-- results:end -->)", re.S
)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], numbers: int) -> str:
    """A Markdown table whose columns from ``numbers`` on are numbers."""
    rule = ["---" if i < numbers else "---:" for i in range(len(head))]
    return "\n".join([_line(head), _line(rule), *map(_line, lines)])


def _span(rows: Sequence[Row]) -> list[str]:
    """Cases, geometric mean, minimum, maximum and largest error ratio of rows."""
    ratios = [row["ratio"] for row in rows]
    errors = [row["error_vs_peer"] for row in rows if row["error_vs_peer"] is not None]
    worst = f"{max(errors):.2f}" if errors else "–"
    return [
        str(len(rows)), f"{results.geomean(ratios) or 0:.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}", worst,
    ]  # fmt: skip


def _parts(result: Result) -> list[tuple[str, list[Row]]]:
    """The lines of a suite: its groups, and few and many rows apart where it has both."""
    rows = result["rows"]
    found = []
    for group in dict.fromkeys(map(results.group, rows)):
        members = [row for row in rows if results.group(row) == group]
        large = [row for row in members if row.get("m", 0) >= results.LARGE_M]
        small = [row for row in members if row not in large]
        if large and small:
            found += [(f"{group}, m ≥ {results.LARGE_M}", large), (f"{group}, m < {results.LARGE_M}", small)]
        else:
            found.append((group, members))
    return found


def summary_table(found: Sequence[Result]) -> str:
    """A line for each suite and group of rows."""
    head = ("suite", "against", "cases", "geometric mean", "min", "max", "largest error / peer's")
    lines = [[f"`{one['suite']}`", name, *_span(rows)] for one in found for name, rows in _parts(one)]
    return _table(head, lines, 2)


def row_table(result: Result) -> str:
    """Every row of a result."""
    head = ("op", "case", "plan", "against", "ours µs", "peer µs", "ratio", "of the roof", "error / peer's")

    def number(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    lines = [
        [
            row["op"], row["case"], f"`{row['plan']}`", row["peer"], number(row["ours_us"], ",.1f"),
            number(row["peer_us"], ",.1f"), number(row["ratio"], ".3f"), number(row["roof"], ".2f"),
            number(row["error_vs_peer"], ".3f"),
        ]
        for row in result["rows"]
    ]  # fmt: skip
    return _table(head, lines, 4)


def source(result: Result) -> str:
    """Where a result comes from, as a list item."""
    limits = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in result["ceilings"].items())
    picks = result["summary"].get("within_10")
    return (
        f"- `{result['suite']}`: {result['date'][:10]}, torch {result['torch']}, Triton {result['triton']}, "
        f"tilewright {result['tilewright']} (`{result['commit']}`), `{result['command']}`"
        + (f"; measured in the same run: {limits}" if limits else "")
        + (f"; the first pick is within 10% of the best plan in {picks:.0%} of the cases" if picks is not None else "")
        + (f"; {len(result['failed'])} failed" if result.get("failed") else "")
    )


def block(found: Sequence[Result], words: Sequence[str] = ()) -> str:
    """What stands between the marks; ``ValueError`` when a suite that they name has no recorded result."""
    wanted = [word for word in words if word != "rows"]
    have = {result["suite"] for result in found}
    for word in wanted:
        if word not in have:
            raise bad(
                "tables", "results:begin", repr(word), f"a recorded suite ({', '.join(sorted(have)) or 'none yet'})"
            )
    chosen = [result for result in found if not wanted or result["suite"] in wanted]
    if not chosen:
        return "No results are recorded yet.\n"
    pieces = [
        "A ratio is the peer's time over ours: above 1, tilewright is faster. Written by `tilewright.lab.tables`."
    ]
    for device in dict.fromkeys(result["device"] for result in chosen):
        here = [result for result in chosen if result["device"] == device]
        pieces += [f"**{device}**", summary_table([result for result in here if result["rows"]])]
        if "rows" in words:
            pieces += [f"`{result['suite']}`\n\n{row_table(result)}" for result in here]
        pieces.append("\n".join(source(result) for result in here))
    return "\n\n".join(pieces) + "\n"


def updated(text: str, found: Sequence[Result]) -> str:
    """A document with its blocks made anew; ``ValueError`` for a mark that nothing closes."""
    if text.count("<!-- results:begin") != len(BLOCK.findall(text)) or text.count("<!-- results:end") != len(
        BLOCK.findall(text)
    ):
        raise bad(
            "tables", "marks", "not in pairs", "<!-- results:begin --> and <!-- results:end -->, each on its line"
        )

    def replace(match: re.Match[str]) -> str:
        return f"{match['begin']}\n{block(found, match['words'].split())}\n{match['end']}"

    return BLOCK.sub(replace, text)


def update(documents: Sequence[str | Path], *, check: bool = False, where: str | Path | None = None) -> list[Path]:
    """Bring documents up to date (or, with ``check``, only look) and return those that were stale."""
    found = results.recorded(where)
    stale: list[tuple[Path, str]] = []
    for document in map(Path, documents):
        try:
            old = document.read_text(encoding="utf-8")
        except OSError as error:
            raise bad("tables", "document", repr(str(document)), f"readable ({error.strerror})") from None
        if "<!-- results:" not in old:
            raise bad("tables", "document", repr(str(document)), "one with <!-- results:begin --> in it")
        new = updated(old, found)
        if new != old:
            stale.append((document, new))
    if not check:
        for document, new in stale:
            document.write_text(new, encoding="utf-8")
    return [document for document, _ in stale]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    check = "--check" in words
    documents = [word for word in words if word != "--check"]
    try:
        if not documents or any(word.startswith("-") for word in documents):
            raise bad("tables", "arguments", " ".join(words) or "empty", "[--check] FILE ...")
        stale = update(documents, check=check)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for document in stale:
        sys.stdout.write(f"{document}: {'stale: run python -m tilewright.lab.tables on it' if check else 'written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
