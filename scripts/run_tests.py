"""Run the suite: one pytest process for each way in which kernels can run, and one total.

A kernel is interpreted or compiled for the life of a process, as TRITON_INTERPRET says when it is decorated, so that
the ways cannot share one: interpreted on the CPU, compiled offline, PyTorch alone, and on the GPU where there is one.
Arguments go to each pytest, such as ``-k linear``.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300
NO_TESTS = 5  # pytest's exit status when nothing was collected
MAIN = ("tests", "--ignore=tests/compile", "--ignore=tests/torch_only")


@dataclass(frozen=True)
class Part:
    """One pytest process: what it runs, on how many workers, and in which mode."""

    title: str
    paths: tuple[str, ...]
    jobs: int
    interpret: bool = False
    gpu: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a part: numbers of tests, pytest's exit status and seconds."""

    passed: int
    failed: int
    skipped: int
    status: int
    seconds: float


def parts() -> list[Part]:
    """The processes to run on this machine."""
    cores = os.cpu_count() or 2
    jobs = int(os.environ.get("TILEWRIGHT_TEST_JOBS", 0)) or min(8, max(2, cores // 2))
    found = [
        Part("interpreted", MAIN, jobs, interpret=True),
        Part("offline compilation", ("tests/compile",), 0),
        Part("PyTorch composition", ("tests/torch_only",), 0),
    ]
    import torch

    if torch.cuda.is_available():
        found.append(Part("on the GPU", MAIN, int(os.environ.get("TILEWRIGHT_GPU_TEST_JOBS", 4)), gpu=True))
    return found


def environment(part: Part) -> dict[str, str]:
    """The variables of the part's process."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if part.interpret:
        env["TRITON_INTERPRET"] = "1"
    if not part.gpu:
        env["CUDA_VISIBLE_DEVICES"] = ""  # these parts mean the same on every machine
    if part.jobs > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # the workers are the parallelism; threads on top only contend
    return env


def run(part: Part, extra: list[str]) -> Outcome:
    """Run one part, its output straight through, and read back what it counted."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--durations=5", f"--junitxml={report}", *part.paths]
        if importlib.util.find_spec("pytest_timeout"):
            command.append(f"--timeout={TIMEOUT_S}")
        if part.jobs > 1 and importlib.util.find_spec("xdist"):
            command += ["-n", str(part.jobs), "--dist=worksteal"]
        started = time.monotonic()
        command += extra
        status = subprocess.run(command, cwd=ROOT, env=environment(part), stdin=subprocess.DEVNULL).returncode
        seconds = time.monotonic() - started
        total = failed = skipped = 0
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                total += int(suite.get("tests", 0))
                failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
                skipped += int(suite.get("skipped", 0))
    if status and not failed and not (status == NO_TESTS and extra):
        failed = 1  # pytest itself did not get through
    return Outcome(max(0, total - failed - skipped), failed, skipped, status, seconds)


def main(extra: list[str]) -> int:
    """Run every part, whatever became of the one before; 1 when anything failed."""
    if importlib.util.find_spec("pytest") is None:
        print(f"tilewright: {sys.executable} has no pytest; install it there, or let make use .venv")
        return 2
    outcomes: list[tuple[Part, Outcome]] = []
    for part in parts():
        print(f"\n=== tests: {part.title} ===", flush=True)
        outcomes.append((part, run(part, extra)))
    print()
    for part, o in outcomes:
        counts = f"{o.passed:5d} passed, {o.failed} failed, {o.skipped} skipped"
        print(f"{part.title:20s} {counts}, {o.seconds:.0f} s" + (f" (pytest exit {o.status})" if o.status else ""))
    passed, failed, skipped = (sum(getattr(o, x) for _, o in outcomes) for x in ("passed", "failed", "skipped"))
    print(f"total: {passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
