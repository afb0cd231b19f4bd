"""``tilewright bench``: run suites on the GPU and write what was measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from tilewright.lab import bench_host, bench_invariant, bench_planner, bench_products, ceilings, results, suites
from tilewright.lab.results import Result
from tilewright.runtime.errors import bad
from tilewright.tune.timing import CudaTimer, Timer

#: called with the suite, how many cases are done, how many there are, and what is being done
Progress = Callable[[str, int, int, str], None]

RUNNERS = {
    "products": bench_products.run,
    "host": bench_host.run,
    "planner": bench_planner.run,
    "batch-invariant": bench_invariant.run,
}


def run(
    suite_names: Sequence[str],
    *,
    json_path: str | Path | None = None,
    html_path: str | Path | None = None,
    results_dir: str | Path | None = None,
    cases: str | Sequence[str] | None = None,
    quick: bool = False,
    progress: Progress | None = None,
    command: str | None = None,
    timer: Timer | None = None,
    device: torch.device | str | None = None,
) -> list[Result]:
    """Measure suites and return one result for each, in the form of a result file.

    Args:
        suite_names: files of ``benchmarks/suites``, without ".json".
        json_path: where to write the result, or a list of results when there are several suites.
        html_path: where to write the report (needs plotly).
        results_dir: the folder in which ``<device>/<suite>.json`` is written.
        cases: only cases whose label (op, sizes, layout, source) holds one of these texts.
        quick: at most 12 cases of each suite, and shorter blocks: a first look, never a figure to record.
        progress: called before each case.
        command: recorded as the command; by default the process's own.
        timer, device: what measures and where, for tests; a clock other than the GPU's measures nothing.

    Raises:
        RuntimeError: no GPU is visible.
        ValueError: an unknown suite, a filter that selects nothing, a place that cannot be written.
    """
    chosen = suites.load_all(dict.fromkeys(suite_names), cases)
    if not chosen:
        raise bad("bench", "suites", "empty", f"one or more of {', '.join(suites.names())}")
    if quick and results_dir is not None:
        raise bad("bench", "results_dir", repr(str(results_dir)), "left out with quick: a quick look is not recorded")
    if html_path is not None:
        from tilewright.lab import report

        report.require_plotly()
    if timer is None and not torch.cuda.is_available():
        raise RuntimeError("tilewright.bench: no GPU is visible; speed is only measured on one")
    _check_places([json_path, html_path], results_dir)
    where = torch.device(device or "cuda")
    clock = timer or (CudaTimer(block_ms=8.0, rounds=3, preheat_s=0.3) if quick else CudaTimer())
    found = []
    for suite in chosen:
        one = _suite(suites.quick(suite) if quick else suite, clock, where, progress, command)
        found.append(one)
        if results_dir is not None:
            results.write(Path(results_dir) / results.slug(one["device"]) / f"{suite.name}.json", one)
        if json_path is not None:  # after every suite: a later one may be interrupted
            results.write(json_path, found[0] if len(chosen) == 1 else found)
    if html_path is not None:
        from tilewright.lab import report

        report.write(found, html_path)
    return found


def _suite(
    suite: suites.Suite, timer: Timer, device: torch.device, progress: Progress | None, command: str | None
) -> Result:
    total = len(suite.cases)

    def note(done: int, text: str) -> None:
        if progress:
            progress(suite.name, done, total, text)

    limits: dict[str, float] = {}
    if suite.runner != "host":
        note(0, "measuring what the device can do")
        limits = ceilings.measure(timer, device, ceilings.needed(case.problem() for case in suite.cases))
    result = results.new(suite, name_of(device), limits, command)
    RUNNERS[suite.runner](suite, timer, device, result, note)
    note(total, "done")
    return result


def failures(found: Iterable[Result]) -> list[str]:
    """What went wrong, a line each; empty when every case ran and every result was right."""
    return [
        f"{one['suite']}: {failed['op']} {failed['case']}"
        + (f" [{failed['plan']}]" if "plan" in failed else "")
        + f": {failed['why']}"
        for one in found
        for failed in one["failed"]
    ]


def name_of(device: torch.device) -> str:
    """The device's name as its driver reports it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _check_places(files: Iterable[str | Path | None], folder: str | Path | None) -> None:
    """Refuse a place that cannot be written before minutes are spent on measuring."""
    for path, is_file in [*((file, True) for file in files), (folder, False)]:
        if path is None:
            continue
        here = Path(path).absolute()
        if is_file and here.is_dir():
            raise bad("bench", "path", repr(str(path)), "a file's name; this is a folder")
        while not here.exists():
            here = here.parent
            is_file = False
        if not os.access(here, os.W_OK) or not (is_file or here.is_dir()):
            raise bad("bench", "path", repr(str(path)), f"writable ({here} is not)")
