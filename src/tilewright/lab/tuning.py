"""What ``tilewright tune`` is asked for and what it leaves: problems by name, records of candidates, files of plans."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton

from tilewright.gemm import stored
from tilewright.gemm.problem import Problem
from tilewright.gemm.tuning import Tuned
from tilewright.lab import results, suites
from tilewright.lab.results import Result
from tilewright.lab.suites import Suite
from tilewright.runtime.devices import Device
from tilewright.tune import shipped

ABOUT = "candidates of problems, measured against each other: the cost model's pick against the fastest"


def of_suite(name: str, cases: str | Sequence[str] | None = None) -> list[Problem]:
    """The problems of a suite of benchmarks, each once; those of ``batch-invariant`` are that as well."""
    suite = suites.load(name).select(cases)
    problems = [case.problem() for case in suite.cases]
    if suite.runner == "batch-invariant":
        problems += [replace(problem, batch_invariant=True) for problem in problems]
    return list(dict.fromkeys(problems))


def record(found: Iterable[Tuned], device: Device, command: str | None = None) -> Result:
    """A result file of what was measured: for each problem its candidates' times, as suite ``planner`` has them.

    ``ratio`` is the fastest candidate's time over that of the model's pick, as there: 1 where it was right.
    """
    made = results.new(Suite("tune", ABOUT, "planner", ()), device.title, {}, command)
    for one in found:
        name = str(one.problem)
        made["failed"] += [{"op": "matmul", "case": name, "plan": plan, "why": why} for plan, why in one.failed]
        if one.source == "measured":
            made["rows"].append(_row(one))
    made["summary"] = results.summary(made["rows"])
    return made


def _row(one: Tuned) -> dict[str, Any]:
    p = one.problem
    assert one.us is not None and one.model_us is not None
    found: dict[str, Any] = {
        "op": "matmul",
        "case": str(p),
        "problem": stored.key(p),
        "dtype": str(p.dtype).removeprefix("torch."),
        "plan": str(one.model),
        "best_plan": str(one.plan),
        "error_vs_peer": None,
        "ours_us": round(one.model_us, 3),
        "peer": "best candidate",
        "peer_us": round(one.us, 3),
        "ratio": round(one.us / one.model_us, 4),
        "roof": None,
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "layout": p.layout,
        "regret": round(one.model_us / one.us - 1, 4),
        "candidates": [
            {"plan": str(plan), "us": round(us, 3), "predicted_us": round(predicted, 3)}
            for plan, us, predicted in one.candidates
        ],
    }
    if p.dtype is torch.float32:
        found["precision"] = p.precision
    if p.epilogue:
        found["epilogue"] = list(p.epilogue)
    return found


def ship(found: Iterable[Tuned], device: Device, path: str | Path, command: str | None = None) -> int:
    """Write or extend a file of plans with what was measured, now or before; how many plans it then has."""
    plans = {stored.key(one.problem): (str(one.plan), one.us) for one in found if one.plan is not None and one.us}
    return shipped.write(path, device.title, device.arch, provenance(command), plans)


def provenance(command: str | None = None) -> Mapping[str, str]:
    """With what a file of plans was measured."""
    return {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "source": stored.source(),
        "commit": results.commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command or results.command_line(),
    }
