"""The runner of suite ``host``: how long a call keeps the host, on products whose device time is nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from tilewright.gemm import planner
from tilewright.lab import ceilings, peers, results
from tilewright.lab.bench_products import Note, own_error, peer_error, reason, row, usable
from tilewright.lab.peers import Inputs
from tilewright.lab.results import Result
from tilewright.lab.suites import Case, Suite
from tilewright.lab.timing import Side, Timer


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
    x = peers.make_inputs(case, device)[0]
    mine, peer = peers.ours(case), peers.peers(case)[0]
    with torch.no_grad():
        error, theirs = own_error(case, x, mine), peer_error(case, x, peer)
    if case.grad:
        x = _wanting_gradients(x)
    mode: Callable[[], AbstractContextManager[object]] = nullcontext if case.grad else torch.no_grad
    # the lambda would cost both sides the same 0.1 us; nothing else is added to the call
    with mode():
        times = timer.host(Side("tilewright", lambda _: mine(x)), Side(peer.name, lambda _: peer.run(x)))
    where = None if device.type == "cuda" else planner.DEFAULT_DEVICE
    plan = str(planner.plan(case.problem(), where))
    made = row(case, plan, peer.name, error, theirs, times, {ceilings.COPY: 1.0, ceilings.key(case.problem()): 1.0})
    # device figures say nothing about host time
    for name in ("roof", "tflops"):
        made[name] = None
    result["rows"].append({**made, "time": "host", "grad": case.grad})
    if why := results.verdict(error, theirs, case.torch_dtype):
        result["failed"].append({"op": case.op, "case": case.name, "why": why})


def _wanting_gradients(x: Inputs) -> Inputs:
    """The same values as leaves that want a gradient."""

    def leaf(t: torch.Tensor | None) -> torch.Tensor | None:
        return None if t is None else t.detach().requires_grad_()

    return Inputs(x.a.detach().requires_grad_(), x.b.detach().requires_grad_(), leaf(x.bias), leaf(x.residual))
