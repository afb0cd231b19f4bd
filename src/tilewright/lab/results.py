"""Result files: what was measured, where, when and by which command."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from tilewright.lab.suites import Suite
from tilewright.runtime.errors import bad

#: the rows from which products are large: the m of the summary's ``geomean_m512``
LARGE_M = 512

Result = dict[str, Any]
Row = dict[str, Any]


def slug(device: str) -> str:
    """A device's name as a folder's: "NVIDIA H200" is "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def commit() -> str:
    """The source's short commit, with "+changes" when files differ from it; "unknown" outside a checkout.

    ``TILEWRIGHT_COMMIT`` names it where the source was copied without its history (to a machine with a GPU, say).
    """
    if named := os.environ.get("TILEWRIGHT_COMMIT"):
        return named
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # a package installed into somebody's checkout must not be named after that checkout
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def command_line() -> str:
    """The command as it was typed."""
    program = Path(sys.argv[0])
    name = "python -m tilewright" if program.name == "__main__.py" else program.name
    return shlex.join([*name.split(), *sys.argv[1:]])


def new(suite: Suite, device: str, ceilings: dict[str, float], command: str | None) -> Result:
    """A result without rows."""
    import triton

    from tilewright._version import __version__

    return {
        "suite": suite.name,
        "about": suite.about,
        "device": device,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "tilewright": __version__,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command or command_line(),
        "ceilings": ceilings,
        "rows": [],
        "failed": [],
        "summary": summary([]),
    }


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean of positive numbers; ``None`` of none."""
    found = [math.log(value) for value in values]
    return math.exp(sum(found) / len(found)) if found else None


def _figures(rows: Sequence[Row]) -> dict[str, Any]:
    ratios = [row["ratio"] for row in rows]
    mean = geomean(ratios)
    return {
        "geomean": None if mean is None else round(mean, 4),
        "min": round(min(ratios), 4) if ratios else None,
        "n": len(ratios),
    }


def group(row: Row) -> str:
    """What a row is summed up with: its peer, and its precision or epilogue where it has one."""
    parts = [row.get("precision") or "", "+".join(row.get("epilogue", ())), row["peer"]]
    return " ".join(part for part in parts if part)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Geometric mean and minimum of the ratios; of the rows with m >= 512; and of each group of rows.

    Rows of a planner suite add ``within_10`` and ``within_3``: the shares of picks at most 10% and 3% slower than the
    best candidate. Rows of m = 1 whose weight has 100 MB or more add ``least_of_read``: the smallest share of the
    bandwidth of a kernel that only reads.
    """
    found = _figures(rows)
    large = [row["ratio"] for row in rows if row.get("m", 0) >= LARGE_M]
    if large:
        found["geomean_m512"] = round(geomean(large) or 0.0, 4)
    groups = {name: [row for row in rows if group(row) == name] for name in dict.fromkeys(map(group, rows))}
    if len(groups) > 1:
        found["groups"] = {name: _figures(members) for name, members in groups.items()}
    regrets = [row["regret"] for row in rows if "regret" in row]
    if regrets:
        found["within_10"] = round(sum(regret <= 0.10 for regret in regrets) / len(regrets), 4)
        found["within_3"] = round(sum(regret <= 0.03 for regret in regrets) / len(regrets), 4)
        found["regret_max"] = round(max(regrets), 4)
    read = [row["of_read"] for row in rows if row.get("m") == 1 and "of_read" in row and row["k"] * row["n"] >= 5e7]
    if read:
        found["least_of_read"] = min(read)
    return found


def write(path: str | Path, data: object) -> None:
    """Write JSON whole or not at all; ``ValueError`` when the place cannot be written."""
    path = Path(path)
    text = dumps(data)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise bad("bench", "path", repr(str(path)), f"writable ({error.strerror})") from None


def dumps(data: object) -> str:
    """JSON with each row on a line of its own: a measurement's difference from the last one can be read."""
    if not isinstance(data, dict) or "rows" not in data:
        return json.dumps(data, indent=1, allow_nan=False) + "\n"
    marks: dict[str, str] = {}

    def lines(key: str) -> list[str]:
        found = []
        for i, entry in enumerate(data[key]):
            mark = f"@{key}:{i}@"
            marks[json.dumps(mark)] = json.dumps(entry, allow_nan=False)
            found.append(mark)
        return found

    text = json.dumps({**data, "rows": lines("rows"), "failed": lines("failed")}, indent=1, allow_nan=False)
    return re.sub(r'"@(?:rows|failed):\d+@"', lambda match: marks[match.group()], text) + "\n"


def read(path: str | Path) -> Result:
    """A result file; ``ValueError`` when it is none."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise bad("bench", "result file", repr(str(path)), f"readable ({error.strerror})") from None
    except ValueError:
        raise bad("bench", "result file", repr(str(path)), "JSON") from None
    have = set(data) if isinstance(data, dict) else set()
    missing = sorted({"suite", "device", "date", "command", "ceilings", "rows", "summary"} - have)
    if missing:
        raise bad("bench", "result file", repr(str(path)), f"one that `tilewright bench` wrote (no {missing[0]!r})")
    result: Result = data
    return result


def folder() -> Path:
    """Where recorded results are: inside an installed package, beside the source in a checkout."""
    installed = Path(str(resources.files("tilewright"))) / "data" / "results"
    if installed.is_dir():
        return installed
    return Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def recorded(where: str | Path | None = None) -> list[Result]:
    """Every recorded result, by device and suite."""
    return [read(path) for path in sorted(Path(where or folder()).glob("*/*.json"))]


def verdict(error: float, peer_error: float, dtype: torch.dtype) -> str | None:
    """Why a result is wrong, or ``None``: its error may be twice the peer's plus one rounding of the result."""
    allowed = 2 * peer_error + torch.finfo(dtype).eps / 2
    return None if error <= allowed else f"error {error:.3g} against the peer's {peer_error:.3g}"


def error_ratio(error: float, peer_error: float) -> float | None:
    """``error_vs_peer`` of a row: 1 where both are exact; ``None`` where a ratio says nothing (see ``failed``)."""
    if error == peer_error:
        return 1.0
    if not math.isfinite(error) or not peer_error or not math.isfinite(peer_error):
        return None
    return float(f"{error / peer_error:.4g}")
