"""The runner of suite ``host``: how long a call keeps the host, on products whose device time is nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F

from tilewright.gemm import planner
from tilewright.lab import ceilings, peers, results
from tilewright.lab.bench_products import Note, own_error, peer_error, reason, row, usable
from tilewright.lab.inputs import Inputs, make_inputs
from tilewright.lab.results import Result
from tilewright.lab.suites import Case, Suite
from tilewright.runtime.errors import bad
from tilewright.tune.timing import Call, Side, Timer


def run(suite: Suite, timer: Timer, device: torch.device, result: Result, note: Note) -> None:
    """Fill ``result``; ``ours_us`` and ``peer_us`` are host microseconds of a call, and there is no roof."""
    for done, case in enumerate(suite.cases):
        note(done, case.name)
        try:
            _case(case, timer, device, result)
        except Exception as error:
            result["failed"].append({"op": case.op, "case": case.name, "why": reason(error)})
        if not usable(device):
            result["failed"].append({"op": "", "case": "every later one", "why": "the GPU reports an error"})
            break
    result["summary"] = results.summary(result["rows"])


def _case(case: Case, timer: Timer, device: torch.device, result: Result) -> None:
    x = make_inputs(case, device)[0]
    mine, peer = peers.ours(case), peers.peers(case)[0]
    with torch.no_grad():
        error, theirs = own_error(case, x, mine), peer_error(case, x, peer)
    if case.grad:
        x = _wanting_gradients(x)
    mode: Callable[[], AbstractContextManager[object]] = nullcontext if case.grad else torch.no_grad
    with mode():
        ours, theirs_call = calls(case, x)
        times = timer.host(Side("tilewright", ours), Side(peer.name, theirs_call))
    where = None if device.type == "cuda" else planner.DEFAULT_DEVICE
    plan = str(planner.plan(case.problem(), where))
    made = row(case, plan, peer.name, error, theirs, times, {ceilings.COPY: 1.0, ceilings.key(case.problem()): 1.0})
    # device figures say nothing about host time
    for name in ("roof", "tflops"):
        made[name] = None
    result["rows"].append({**made, "time": "host", "grad": case.grad})
    if why := results.verdict(error, theirs, case.result_dtype):
        result["failed"].append({"op": case.op, "case": case.name, "why": why})


def calls(case: Case, x: Inputs) -> tuple[Call, Call]:
    """Both calls as a caller would write them: what chooses among cases must not be timed."""
    import tilewright as tw

    a, b, bias, residual, act = x.a, x.b, x.bias, x.residual, case.activation
    weight = b.t() if case.op == "linear" else b
    if case.op == "addmm" and residual is not None:
        return lambda _: tw.addmm(residual, a, b), lambda _: torch.addmm(residual, a, b)
    if case.op == "matmul" and not case.epilogue:
        return lambda _: tw.matmul(a, b), lambda _: torch.matmul(a, b)
    if not set(case.epilogue) - {"bias"}:
        return lambda _: tw.linear(a, weight, bias), lambda _: F.linear(a, weight, bias)
    if case.op == "linear" and act and not set(case.epilogue) - {"bias", act}:
        after = peers.ACTIVATE[act]
        return lambda _: tw.linear(a, weight, bias, activation=act), lambda _: after(F.linear(a, weight, bias))
    raise bad("bench", "case", case.name, "matmul, addmm, or linear with at most bias and an activation")


def _wanting_gradients(x: Inputs) -> Inputs:
    """The same values as leaves that want a gradient."""

    def leaf(t: torch.Tensor | None) -> torch.Tensor | None:
        return None if t is None else t.detach().requires_grad_()

    return Inputs(x.a.detach().requires_grad_(), x.b.detach().requires_grad_(), leaf(x.bias), leaf(x.residual))
