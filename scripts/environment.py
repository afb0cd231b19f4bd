"""Make an interpreter that the caller chose fit for a make target, without touching the torch and Triton it has.

    PYTHON scripts/environment.py demo|test|dev|docs

Standard library only, run by the interpreter in question. Everything that is installed stays at its version; only
tools that are missing are added, from constraints.txt, and the package itself is linked in place. Where that cannot be
done (no network, an externally managed or read-only installation) one line says so and the target goes on with what
there is: the Makefile puts ``src`` on the path in any case.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

ROOT = Path(__file__).resolve().parent.parent

#: module that must be importable -> distribution that brings it
DEMO = {"numpy": "numpy", "typer": "typer", "rich": "rich", "plotly": "plotly"}
TEST = {
    **DEMO,
    "pytest": "pytest",
    "xdist": "pytest-xdist",
    "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis",
}
DEV = {**TEST, "ruff": "ruff", "mypy": "mypy", "build": "build", "hatchling": "hatchling", "pre_commit": "pre-commit"}
DOCS = {**DEMO, "material": "mkdocs-material", "mkdocstrings_handlers.python": "mkdocstrings[python]"}
GROUPS = {"demo": DEMO, "test": TEST, "dev": DEV, "docs": DOCS}


def has(module: str) -> bool:
    """Whether the module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def canonical(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Every distribution this interpreter sees, with its version; the first one on the path counts."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name and distribution.version:
            found.setdefault(canonical(name), distribution.version)
    return found


def constraints(have: dict[str, str]) -> list[str]:
    """Lines for pip: what is installed stays as it is, all else comes at the version of the constraints files."""
    lines = [f"{name}=={version}" for name, version in have.items() if name != "tilewright"]
    for file in ("constraints.txt", "constraints-cpu.txt"):
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
            name = re.match(r"[A-Za-z0-9][\w.-]*", line)
            if name and canonical(name.group()) not in have:
                lines.append(line)
    return lines


def pip(*arguments: str) -> str | None:
    """Run ``pip install``; ``None`` when it worked, else the last line that says why not."""
    command = [sys.executable, "-m", "pip", "install", "-qq", "--retries", "0", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return None
    said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in said if "error" in line.lower()] or said or ["pip did not say why"]
    return errors[0][:160]


def linked() -> bool:
    """Whether ``import tilewright`` from anywhere already means this tree."""
    try:
        text = metadata.distribution("tilewright").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return False
    url = json.loads(text or "{}")
    here = Path(unquote(urlparse(str(url.get("url", ""))).path))
    return bool(url.get("dir_info", {}).get("editable")) and here.exists() and here.samefile(ROOT)


def wanted(group: str, have: dict[str, str]) -> list[str]:
    """The requirements of the group that are missing here."""
    missing = [distribution for module, distribution in GROUPS[group].items() if not has(module)]
    if sys.platform == "linux" and not has("triton"):
        missing.append("triton>=3.6,<3.10")
    old = re.match(r"3\.([0-8])\.", have.get("triton", ""))
    if old and "numpy" in missing:
        # the interpreter of Triton 3.6 takes an array for a scalar in a way that numpy 2.4 stopped allowing
        missing[missing.index("numpy")] = "numpy<2.4"
    return missing


def main(group: str) -> int:
    """Prepare this interpreter for the targets of that group; 2 when it cannot serve at all."""
    if sys.version_info < (3, 10):  # noqa: UP036 - the caller's interpreter may be any
        print(f"tilewright: {sys.executable} is Python {sys.version.split()[0]}; it must be 3.10 or newer")
        return 2
    have = installed()
    missing = wanted(group, have)
    if not has("torch"):
        if sys.prefix == sys.base_prefix:
            print(f"tilewright: {sys.executable} has no torch; install 2.11 or newer there, or let make use .venv")
            return 2
        missing.append("torch")
    lines = constraints(have)
    if any(name.startswith("numpy<") for name in missing):
        lines = [line for line in lines if not line.startswith("numpy==")]
    if missing:
        print(f"tilewright: adding {', '.join(missing)} to {sys.executable}; what it has stays as it is", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "constraints.txt"
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            why = pip("-c", str(file), *missing)
        if why:
            print(f"tilewright: going on without {', '.join(missing)}: {why}")
        importlib.invalidate_caches()
        if not has("torch"):
            return 2
    if not linked():
        why = pip("--no-deps", "-e", str(ROOT))
        if why:
            print(f"tilewright: going on with src on the path, not installed: {why}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in GROUPS:
        raise SystemExit(f"usage: environment.py {'|'.join(GROUPS)}")
    raise SystemExit(main(sys.argv[1]))
