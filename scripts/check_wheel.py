"""Check that the built wheel holds what an installed package needs, and nothing that belongs to the checkout.

PYTHON scripts/check_wheel.py DIST
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

METADATA = (
    "Requires-Python: >=3.10",
    "License-Expression: Apache-2.0",
    "Requires-Dist: torch>=2.11",
    "Requires-Dist: triton<3.10,>=3.6; sys_platform == 'linux'",
    "tilewright = tilewright.cli:main",
)


def expected() -> set[str]:
    """Every file of the tree that must be in the wheel, by its name there."""
    package = ROOT / "src" / "tilewright"
    names = {f"tilewright/{p.relative_to(package)}" for p in package.rglob("*.py")}
    names |= {f"tilewright/{p.relative_to(package)}" for p in (package / "data").rglob("*.json")}
    for folder in ("suites", "results"):
        source = ROOT / "benchmarks" / folder
        names |= {f"tilewright/data/{folder}/{p.relative_to(source)}" for p in source.rglob("*.json")}
    return names | {"tilewright/py.typed"}


def problems(wheel: Path) -> list[str]:
    """What is wrong with the wheel, a line each."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        texts = {n: archive.read(n).decode() for n in names if n.endswith(("METADATA", "entry_points.txt"))}
    found = [f"{name} is not in the wheel" for name in sorted(expected() - names)]
    strays = [n for n in names if not n.startswith(("tilewright/", "tilewright-")) or "__pycache__" in n]
    found += [f"{name} is in the wheel and should not be" for name in sorted(strays)]
    if not any(n.endswith("licenses/LICENSE") for n in names):
        found.append("the licence is not in the wheel")
    said = "\n".join(texts.values())
    for line in METADATA:
        if line not in said:
            found.append(f"the metadata does not say {line!r}")
    return found


def main(folder: str) -> int:
    """Check the one wheel of the folder; 1 when something is wrong with it."""
    wheels = list(Path(folder).glob("*.whl"))
    if len(wheels) != 1:
        print(f"{folder} holds {len(wheels)} wheels; it must hold one")
        return 1
    found = problems(wheels[0])
    print("\n".join(found) or f"{wheels[0].name}: {len(expected())} files of the package are there, and nothing else")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "dist"))
