"""Plans that come with the package: a JSON file for each device, written by ``tilewright tune --ship``.

The file says with what each was measured: "measured" lists runs (versions, a hash of the kernel source, commit, date,
command), "plans" has for each problem's key its plan, microseconds, and the number of its run in that list. As in the
user's store, a plan counts where Triton and the kernel source are those that it was measured with.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import bad

SCHEMA = 1


@functools.cache
def plans(device: str, arch: int | str, triton: str, source: str) -> Mapping[str, str]:
    """The plans shipped for a device that were measured so, by the key of their problem; none where it has no file.

    ``device`` is the name of its sheet: a device without one has no plans.
    """
    path = resources.files("tilewright") / "data" / "plans" / f"{device}.json"
    try:
        found = parse(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        warnings.warn(f"tilewright.tune: shipped plans of {device} cannot be read ({error})", RuntimeWarning, 2)
        return {}
    if found["arch"] != arch:
        return {}
    runs = [(run.get("triton"), run.get("source")) == (triton, source) for run in found["measured"]]
    return {key: plan for key, (plan, _, run) in found["plans"].items() if runs[run]}


def parse(data: Any) -> dict[str, Any]:
    """A file's content, checked; ``ValueError`` in one line when it is none of ours."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise bad("tune", "file of plans", "of another schema", f"an object with 'schema': {SCHEMA}")
    missing = [key for key in ("device", "arch", "measured", "plans") if key not in data]
    if missing:
        raise bad("tune", "file of plans", f"without {missing[0]!r}", "one that `tilewright tune --ship` wrote")
    runs = range(len(data["measured"]))
    for key, entry in data["plans"].items():
        if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and entry[2] in runs):
            raise bad("tune", f"plan of {key}", repr(entry), "its line, its microseconds, and which run measured it")
    return data


def write(
    path: str | Path, device: str, arch: int | str, measured: Mapping[str, str], found: Mapping[str, tuple[str, float]]
) -> int:
    """Write ``found`` (problem key: plan, microseconds) and its provenance; how many plans the file then has.

    Plans that the file has for other problems stay, with theirs, if it is of the same device: a suite can be added to
    another.
    """
    path = Path(path)
    plans: dict[str, list[Any]] = {}
    runs: list[Any] = []
    if path.exists():
        try:
            before = parse(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise bad("tune", "--ship", repr(str(path)), f"a file of plans or a new one ({error})") from None
        if (before["device"], before["arch"]) != (device, arch):
            raise bad("tune", "--ship", repr(str(path)), f"of {device}; this file's plans are of {before['device']}")
        plans, runs = before["plans"], before["measured"]
    plans = {**plans, **{key: [plan, round(us, 2), len(runs)] for key, (plan, us) in found.items()}}
    runs = [*runs, dict(measured)]
    used = sorted({entry[2] for entry in plans.values()})
    plans = {key: [plan, us, used.index(run)] for key, (plan, us, run) in plans.items()}
    head = {"schema": SCHEMA, "device": device, "arch": arch, "measured": [runs[i] for i in used]}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(plans[key])}" for key in sorted(plans))
    body = f"{{\n{lines}\n }}" if plans else "{}"
    text = json.dumps(head, indent=1)[:-2] + f',\n "plans": {body}\n}}\n'
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise bad("tune", "--ship", repr(str(path)), f"writable ({error.strerror})") from None
    return len(plans)
