"""The runner of suite ``batch-invariant``: what batch invariance costs, and whether rows keep their bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from tilewright.gemm import planner
from tilewright.lab import peers, results
from tilewright.lab.bench_compile import compile_all
from tilewright.lab.bench_products import (
    Note,
    compare,
    ending_with_empty_memory,
    l2_bytes,
    own_error,
    reason,
    row,
    too_large,
    usable,
)
from tilewright.lab.inputs import Inputs, input_sets, make_inputs
from tilewright.lab.peers import Peer
from tilewright.lab.results import Result
from tilewright.lab.suites import Case, Suite
from tilewright.tune.timing import Timer

#: rows are compared for every m up to this one
MOST_M = 512


def run(suite: Suite, timer: Timer, device: torch.device, result: Result, note: Note) -> None:
    """Fill ``result``: a row for each case, whose peer is the default mode: ratio = t(default) / t(batch-invariant).

    The first case of each weight also compares the bits of rows over every m; rows that differ are a failure.
    """
    where = None if device.type == "cuda" else planner.DEFAULT_DEVICE
    both = [(case, replace(case, batch_invariant=True)) for case in suite.cases]
    if device.type == "cuda":
        jobs = [(case, planner.plan(case.problem(), where)) for pair in both for case in pair]
        compile_all(jobs, lambda done, total: note(0, f"compiling {done}/{total}"))
    timer.preheat()
    checked: set[tuple[object, ...]] = set()
    for done, (case, invariant) in enumerate(both):
        note(done, case.name)
        weight = (case.n, case.k, case.dtype, case.layout, case.precision, case.epilogue)
        with ending_with_empty_memory(device):
            try:
                if why := too_large(case, device):
                    result["failed"].append({"op": case.op, "case": case.name, "why": why})
                    continue
                _time(case, invariant, timer, device, result)
                if weight not in checked:
                    checked.add(weight)
                    note(done, f"{case.name}: bits of rows")
                    _bits(invariant, device, result)
            except Exception as error:
                result["failed"].append({"op": case.op, "case": case.name, "why": reason(error)})
        if not usable(device):
            result["failed"].append({"op": "", "case": "every later one", "why": "the GPU reports an error"})
            break
    result["summary"] = results.summary(result["rows"])


def _time(case: Case, invariant: Case, timer: Timer, device: torch.device, result: Result) -> None:
    where = None if device.type == "cuda" else planner.DEFAULT_DEVICE
    with torch.no_grad():
        inputs = make_inputs(case, device, input_sets(case, l2_bytes(device)))
        mine, default = peers.ours(invariant), peers.ours(case)
        error, theirs = own_error(invariant, inputs[0], mine), own_error(case, inputs[0], default)
        times = compare(invariant, mine, Peer("default mode", default), inputs, timer)
    plan = planner.plan(invariant.problem(), where)
    made = row(invariant, str(plan), "default mode", error, theirs, times, result["ceilings"])
    made["peer_plan"] = str(planner.plan(case.problem(), where))
    result["rows"].append(made)
    if why := results.verdict(error, theirs, case.result_dtype):
        result["failed"].append({"op": case.op, "case": invariant.name, "why": why})


def _bits(case: Case, device: torch.device, result: Result) -> None:
    """Compare the rows of the product of MOST_M rows with those of every smaller one, and of other views of A."""
    mine = peers.ours(case)
    with torch.no_grad():
        (x,) = make_inputs(replace(case, m=MOST_M), device)
        whole = mine(x)
        for label, part in _parts(x):
            m = part.a.shape[0]
            if not torch.equal(mine(part), whole[:m]):
                why = f"the bits of {label} are not those that they have among {MOST_M} rows"
                result["failed"].append({"op": case.op, "case": case.name, "why": why})
                return


def _parts(x: Inputs) -> Iterator[tuple[str, Inputs]]:
    """The first m rows for every m, and the rows where they lie unaligned, apart, or column by column."""

    def of(a: torch.Tensor) -> Inputs:
        return Inputs(a, x.b, x.bias, None if x.residual is None else x.residual[: a.shape[0]])

    for m in range(1, MOST_M + 1):
        yield f"{m} rows", of(x.a[:m])
    rows, k = x.a.shape
    for m in (1, 64, rows):
        odd = torch.empty(m * k + 1, dtype=x.a.dtype, device=x.a.device)[1:].view(m, k).copy_(x.a[:m])
        yield f"{m} unaligned rows", of(odd)
        apart = torch.empty(m, k + 8, dtype=x.a.dtype, device=x.a.device)[:, :k].copy_(x.a[:m])
        yield f"{m} rows of a wider tensor", of(apart)
        yield f"{m} column-major rows", of(x.a[:m].t().contiguous().t())
