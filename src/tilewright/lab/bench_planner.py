"""The runner of suite ``planner``: every candidate plan timed, and how far the first pick is from the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.gemm import cost, planner
from tilewright.gemm.plan import Plan
from tilewright.lab import peers, results
from tilewright.lab.bench_compile import compile_all, signature
from tilewright.lab.bench_products import (
    Note,
    ending_with_empty_memory,
    l2_bytes,
    reason,
    row,
    too_large,
    usable,
)
from tilewright.lab.inputs import Inputs, input_sets, make_inputs
from tilewright.lab.results import Result
from tilewright.lab.suites import Case, Suite
from tilewright.runtime.devices import Device
from tilewright.tune.timing import Side, Timer

#: results that are held at once to compare them with one reference, in bytes
HELD = 16 * 2**30


def run(suite: Suite, timer: Timer, device: torch.device, result: Result, note: Note) -> None:
    """Fill ``result``: a row for each case; its peer is the best candidate, so ratio = t(best) / t(pick)."""
    sheet = planner.device_or_default(None if device.type == "cuda" else planner.DEFAULT_DEVICE)
    # the pick comes first: it may be a measured plan, which need not be the model's
    found = {case: _plans(case, sheet) for case in suite.cases}
    broken: dict[tuple[Any, ...], str] = {}
    if device.type == "cuda":
        jobs = [(case, plan) for case, plans in found.items() for plan in plans]
        broken = compile_all(jobs, lambda done, total: note(0, f"compiling {done}/{total}"))
    timer.preheat()
    for done, case in enumerate(suite.cases):
        note(done, f"{case.name}: {len(found[case])} plans")
        with ending_with_empty_memory(device):
            try:
                if why := too_large(case, device):
                    result["failed"].append({"op": case.op, "case": case.name, "why": why})
                else:
                    _case(case, found[case], broken, timer, device, sheet, result)
            except Exception as error:
                result["failed"].append({"op": case.op, "case": case.name, "why": reason(error)})
        if not usable(device):
            result["failed"].append({"op": "", "case": "every later one", "why": "the GPU reports an error"})
            break
    result["summary"] = results.summary(result["rows"])


def _plans(case: Case, sheet: Device) -> list[Plan]:
    problem = case.problem()
    return list(dict.fromkeys([planner.plan(problem, sheet), *planner.plans(problem, sheet)]))


def _case(
    case: Case,
    plans: Sequence[Plan],
    broken: dict[tuple[Any, ...], str],
    timer: Timer,
    device: torch.device,
    sheet: Device,
    result: Result,
) -> None:
    def fail(plan: Plan, why: str) -> None:
        result["failed"].append({"op": case.op, "case": case.name, "plan": str(plan), "why": why})

    inputs = make_inputs(case, device, input_sets(case, l2_bytes(device)))
    good: list[Plan] = []
    for plan in plans:
        if why := broken.get(signature(case, plan)):
            fail(plan, why)
        else:
            good.append(plan)
    with torch.no_grad():
        errors = _errors(case, good, inputs[0], fail)
        library = peers.peers(case)[0].run(inputs[0])
        theirs = peers.errors(case, inputs[0], [library])[0]
        for plan, error in errors.items():
            if why := results.verdict(error, theirs, case.result_dtype):
                fail(plan, why)
        good = list(errors)
        if not good or good[0] != plans[0]:
            raise ValueError(f"the pick does not run: {plans[0]}")
        sides = [_side(case, plan, inputs) for plan in good]
        micros = timer.rank(sides, len(inputs))
        pick, best = good[0], good[min(range(len(good)), key=lambda i: micros[i])]
        # short blocks find the best candidate; a fair comparison says how far the pick is from it
        times = timer.compare(_side(case, pick, inputs), _side(case, best, inputs), len(inputs))
    made = row(case, str(pick), "best candidate", errors[pick], errors[best], times, result["ceilings"])
    made["best_plan"], made["picked_by"] = str(best), planner.source(case.problem(), sheet)
    made["regret"] = 0.0 if pick == best else round(max(0.0, 1 / times.ratio - 1), 4)
    if pick == best:  # the same kernel twice: what differs is noise
        made.update(ratio=1.0, peer_us=made["ours_us"])
    made["candidates"] = [
        {
            "plan": str(plan),
            "us": round(us, 3),
            "predicted_us": round(cost.predict(case.problem(), plan, sheet).seconds * 1e6, 3),
        }
        for plan, us in zip(good, micros, strict=True)
    ]
    result["rows"].append(made)


def _side(case: Case, plan: Plan, inputs: list[Inputs]) -> Side:
    mine = peers.ours(case, plan)
    return Side(str(plan), lambda i: mine(inputs[i]))


def _errors(case: Case, plans: Sequence[Plan], x: Inputs, fail: Callable[[Plan, str], None]) -> dict[Plan, float]:
    """Each plan's error against float64, into results filled with NaN; plans that raise are left out."""
    errors: dict[Plan, float] = {}
    at_once = max(1, HELD // max(1, case.m * case.n * case.result_dtype.itemsize))
    for start in range(0, len(plans), at_once):
        done: dict[Plan, torch.Tensor] = {}
        for plan in plans[start : start + at_once]:
            out = torch.full((case.m, case.n), math.nan, dtype=case.result_dtype, device=x.a.device)
            try:
                done[plan] = peers.ours(case, plan)(x, out=out)
            except Exception as error:
                fail(plan, reason(error))
        errors.update(zip(done, peers.errors(case, x, list(done.values())), strict=True))
    return errors
