"""What the command prints: tables and progress bars through rich, JSON for machines.

rich belongs to the extra ``cli``: it is imported where it is used, and its absence is one line.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: how long work tells where it is: steps done, steps in all, what is in hand
Progress = Callable[[int, int, str], None]


def needs(extra: str, module: str) -> RuntimeError:
    """The error for a module that an extra would have brought."""
    return RuntimeError(f"tilewright: {module} is not installed; install it with: pip install 'tilewright[{extra}]'")


def console(stderr: bool = False) -> Console:
    """A rich console on stdout (or stderr); 80 columns where nothing says how wide it is.

    ``RuntimeError`` when rich is not installed.
    """
    try:
        from rich.console import Console
    except ImportError:
        raise needs("cli", "rich") from None
    # colour and width only where a person looks: a pipe gets plain text that does not depend on the terminal
    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def say(text: str = "", style: str | None = None) -> None:
    """One paragraph on stdout, wrapped to the terminal; nothing in it is taken for markup."""
    console().print(text, style=style, markup=False)


def note(text: str) -> None:
    """One line on stderr: what a person should know and a machine need not."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def heading(text: str) -> None:
    """A line across the terminal with a title in it."""
    from rich.rule import Rule
    from rich.text import Text

    console().print(Rule(Text(text, style="bold"), align="left", style="dim"))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, right: Sequence[str] = ()
) -> Table:
    """A table of texts; ``right`` names the columns that are numbers. ``True`` and ``False`` print as pass and FAIL."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in columns:
        # a number never wraps; a text may
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name in right, overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else _cell(cell) for cell in row))
    return made


def pairs(facts: Iterable[tuple[str, str]], *, title: str | None = None) -> Table:
    """Names and their values, one a line."""
    from rich.table import Table
    from rich.text import Text

    made = Table(
        title=title,
        box=None,
        show_header=False,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    made.add_column(no_wrap=True, style="dim")
    made.add_column(overflow="fold")
    for name, value in facts:
        made.add_row(Text(name), Text(value))
    return made


def write(text: str) -> None:
    """A text on stdout as it is: not wrapped, nothing taken for markup."""
    sys.stdout.write(text + "\n")


def _cell(value: Any) -> Any:
    from rich.text import Text

    if value is True:
        return Text("pass", style="green")
    if value is False:
        return Text("FAIL", style="bold red")
    return Text("" if value is None else str(value))


def show(*things: Any) -> None:
    """Print rich things on stdout."""
    out = console()
    for thing in things:
        out.print(thing)


#: what the letters of :func:`brief_plan` stand for
LEGEND = "g, w, s: group, warps and stages of a plan"
_BRIEF = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "+": " "}


def brief_plan(plan: str) -> str:
    """A plan's line for a narrow column: "tile 128x128x64 g8 w8 s3"."""
    words = plan.replace(" split=1", "").replace("split=", "k/")
    return words.replace("group=", "g").replace("warps=", "w").replace("stages=", "s")


def brief_problem(problem: str) -> str:
    """A problem's line for a narrow column: dtypes abbreviated, and steps as words that can be wrapped."""
    for long, short in _BRIEF.items():
        problem = problem.replace(long, short)
    return problem


def plain(value: Any) -> Any:
    """``value`` as JSON has it: tuples as lists, unknown things as text, and no NaN or infinity (null)."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    return str(value).removeprefix("torch.")


def emit(value: Any) -> None:
    """``value`` as one JSON document on stdout."""
    sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")
    sys.stdout.flush()


@contextmanager
def progress(what: str, quiet: bool = False) -> Iterator[Progress]:
    """A progress bar on stderr for the time of the block; gives the function to call with (done, total, label).

    There is none when stderr is not a terminal, or when ``quiet``.
    """
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda done, total, label: None
        return
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        raise needs("cli", "rich") from None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[label]}", markup=False),
    )
    # rich would send what is printed on stdout meanwhile to stderr: a file that stdout goes to must get it
    with Bar(
        *columns, console=console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(what, total=None, label="")
        yield lambda done, total, label: bar.update(task, completed=done, total=total, label=label[:40])


def seconds(value: float) -> str:
    """A time in the unit that suits it: s, ms, us or ns."""
    if value >= 999.5:
        return f"{value:.0f} s"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 0.9995:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"
