"""The runner of suites of products: each case against its PyTorch peers, with its error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tilewright.gemm import planner
from tilewright.lab import ceilings, peers, results
from tilewright.lab.bench_compile import compile_all
from tilewright.lab.inputs import Inputs, input_bytes, input_sets, make_inputs
from tilewright.lab.peers import Peer
from tilewright.lab.results import Result, Row
from tilewright.lab.suites import Case, Suite
from tilewright.tune.timing import Comparison, Side, Timer

Note = Callable[[int, str], None]

#: the mask of a dropout that is checked comes from this seed, on both sides
SEED = 20


@contextmanager
def ending_with_empty_memory(device: torch.device) -> Iterator[None]:
    """Give back what a case held, the pools of its CUDA graphs included."""
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def l2_bytes(device: torch.device) -> int:
    """The device's L2 cache as the driver reports it; 0 for a CPU, whose times nobody reads."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


def too_large(case: Case, device: torch.device) -> str | None:
    """Why the case does not fit in memory, or ``None``.

    Needed: inputs, ours and the peer's results, what each graph writes, and pieces of float64.
    """
    if device.type != "cuda":
        return None
    sets = input_sets(case, l2_bytes(device))
    need = input_bytes(case) * (sets + 1) + 4 * case.m * case.n * case.result_dtype.itemsize + 6 * 8 * peers.CHUNK
    free = torch.cuda.mem_get_info(device)[0]
    return None if need < 0.95 * free else f"needs {need / 2**30:.1f} GiB of memory; {free / 2**30:.1f} are free"


def reason(error: BaseException) -> str:
    """An exception as one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def run(suite: Suite, timer: Timer, device: torch.device, result: Result, note: Note) -> None:
    """Fill ``result`` with a row for each case and peer. What goes wrong goes to ``failed``, and the rest goes on."""
    jobs = [(case, planner.plan(case.problem(), _where(device))) for case in suite.cases]
    if device.type == "cuda":
        compile_all(jobs, lambda done, total: note(0, f"compiling {done}/{total}"))
    timer.preheat()
    for done, case in enumerate(suite.cases):
        note(done, case.name)
        with ending_with_empty_memory(device):
            try:
                if why := too_large(case, device):
                    result["failed"].append({"op": case.op, "case": case.name, "why": why})
                else:
                    _case(case, timer, device, result)
            except Exception as error:
                result["failed"].append({"op": case.op, "case": case.name, "why": reason(error)})
        if not usable(device):
            result["failed"].append({"op": "", "case": "every later one", "why": "the GPU reports an error"})
            break
    result["summary"] = results.summary(result["rows"])


def _where(device: torch.device) -> str | None:
    """What the planner plans for: the current GPU, or its default where a test runs on the CPU."""
    return None if device.type == "cuda" else planner.DEFAULT_DEVICE


def usable(device: torch.device) -> bool:
    """Whether the device still answers: after an illegal access no later figure means anything."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _case(case: Case, timer: Timer, device: torch.device, result: Result) -> None:
    sets = input_sets(case, l2_bytes(device))
    with torch.no_grad():
        inputs = make_inputs(case, device, sets)
        mine = peers.ours(case)
        error = own_error(case, inputs[0], mine)
        for peer in peers.peers(case):
            add(case, peer, error, compare(case, mine, peer, inputs, timer), inputs[0], device, result)
        if case.epilogue and device.type == "cuda":
            _fastest_compiled(case, error, mine, inputs, timer, device, result)


def _fastest_compiled(
    case: Case,
    error: float,
    mine: Callable[..., torch.Tensor],
    inputs: list[Inputs],
    timer: Timer,
    device: torch.device,
    result: Result,
) -> None:
    """One row for torch.compile: the faster of its modes."""
    torch._dynamo.reset()
    found: list[tuple[Peer, Comparison]] = []
    with peers.quiet_compiler():
        for peer in peers.compiled(case):
            try:
                found.append((peer, compare(case, mine, peer, inputs, timer)))
            except Exception as failure:
                result["failed"].append({"op": case.op, "case": case.name, "why": f"{peer.name}: {reason(failure)}"})
        if found:
            peer, fastest = min(found, key=lambda pair: pair[1].ratio)
            add(case, peer, error, fastest, inputs[0], device, result)
            result["rows"][-1]["mode"] = peer.mode


def own_error(case: Case, x: Inputs, mine: Callable[..., torch.Tensor]) -> float:
    """Our error against float64, into a result filled with NaN: an element that is not written makes it infinite."""
    mask = peers.kept(case, mine, x, SEED)
    out = torch.full((case.m, case.n), math.nan, dtype=case.result_dtype, device=x.a.device)
    torch.full_like(out, math.nan)  # freed at once: where an operation takes no ``out``, it finds NaN in its result
    torch.manual_seed(SEED)
    mine(x, out=out)
    return peers.errors(case, x, [out], [mask])[0]


def peer_error(case: Case, x: Inputs, peer: Peer) -> float:
    """The peer's error against float64."""
    mask = peers.kept(case, peer.run, x, SEED)
    torch.manual_seed(SEED)
    out = peer.run(x).clone()
    return peers.errors(case, x, [out if peer.finish is None else peer.finish(x, out)], [mask])[0]


def compare(
    case: Case, mine: Callable[..., torch.Tensor], peer: Peer, inputs: list[Inputs], timer: Timer
) -> Comparison:
    """Time ours and the peer's on the same inputs."""
    ours = Side("tilewright", lambda i: mine(inputs[i]))
    theirs = Side(peer.name, lambda i: peer.run(inputs[i]), peer.capture, None if peer.capture else 1)
    return timer.compare(ours, theirs, len(inputs))


def add(
    case: Case, peer: Peer, error: float, times: Comparison, x: Inputs, device: torch.device, result: Result
) -> None:
    """One row, and one in ``failed`` when our error is more than the peer's allows."""
    theirs = peer_error(case, x, peer)
    plan = planner.plan(case.problem(), _where(device))
    result["rows"].append(row(case, str(plan), peer.name, error, theirs, times, result["ceilings"]))
    if why := results.verdict(error, theirs, case.result_dtype):
        result["failed"].append({"op": case.op, "case": case.name, "why": why})


def row(
    case: Case, plan: str, peer: str, error: float, theirs: float, times: Comparison, limits: dict[str, float]
) -> Row:
    """A row of a result file."""
    problem = case.problem()
    found: Row = {
        "op": case.op,
        "case": case.name,
        "dtype": case.dtype,
        "plan": plan,
        "error_vs_peer": results.error_ratio(error, theirs),
        "ours_us": round(times.ours_us, 3),
        "peer": peer,
        "peer_us": round(times.peer_us, 3),
        "ratio": round(times.ratio, 4),
        "roof": round(ceilings.roof_us(problem, limits) / times.ours_us, 4),
        "m": case.m,
        "n": case.n,
        "k": case.k,
        "layout": case.layout,
        "tflops": round(problem.flops / times.ours_us / 1e6, 2),
        "ratio_low": round(times.low, 4),
        "ratio_high": round(times.high, 4),
        "error": float(f"{error:.4g}") if math.isfinite(error) else None,
        "from": case.source,
    }
    if case.scales:
        found["scales"] = case.scales
    if case.m <= ceilings.FEW_ROWS and ceilings.READ in limits:
        found["of_read"] = round(problem.bytes / times.ours_us / 1e6 / limits[ceilings.READ], 4)
    if case.precision:
        found["precision"] = case.precision
    if case.epilogue:
        found["epilogue"] = list(case.epilogue)
    return found
