"""Candidates of a problem on the GPU: compiled in other processes, checked, and timed on operands of our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from tilewright.gemm import reference
from tilewright.gemm.operands import Operands
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import FP8_DTYPES, Problem
from tilewright.gemm.schedules import SCHEDULES
from tilewright.gemm.warmup import distinct, signature
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import launch
from tilewright.tune import pool
from tilewright.tune.timing import CudaTimer, Side, input_sets

#: standard deviation of whole numbers from -127 to 127
INT8_SPREAD = 73.3
#: seconds for a worker to compile a kernel and run it once
TIMEOUT_S = 120.0

Job = tuple[Problem, Plan, int]


def tolerance(problem: Problem) -> float:
    """Relative Frobenius error that a candidate may have beside its result's rounding.

    Wide on purpose: it is to find a wrong index or a race, and the tests judge roundings. Tensor cores keep 14 bits or
    so of a sum of float8 products; such sums are added in float32 only where ``fast_accumulate`` is off.
    """
    if problem.dtype in FP8_DTYPES:
        return 2.0**-6 if problem.fast_accumulate else 2.0**-8
    return 2.0**-8 if problem.precision == "tf32" else 2.0**-12


class Gpu:
    """The GPU that is current when this is made; ``workers`` processes compile for it."""

    def __init__(self, workers: int | None = None) -> None:
        self.index = torch.cuda.current_device()
        self.device = Device.current(self.index)
        self._workers = workers
        self._timer: CudaTimer | None = None

    def compile(
        self, jobs: Sequence[tuple[Problem, Plan]], progress: Callable[[int, int], None] | None = None
    ) -> list[str | None]:
        """Compile every job and run it once, in other processes; for each ``None``, or why it failed or did not end."""
        todo = distinct((problem, plan, self.device) for problem, plan in jobs)
        sent = [(problem, plan, self.index) for problem, plan, _ in todo]
        found = pool.run(
            "tilewright.gemm.tuning_bench:run_once", sent, workers=self._workers, timeout=TIMEOUT_S, progress=progress
        )
        why = {signature(problem, plan): one for (problem, plan, _), one in zip(todo, found, strict=True)}
        return [why[signature(problem, plan)] for problem, plan in jobs]

    def bench(self, problem: Problem) -> Bench:
        """What measures the candidates of one problem; ``ValueError`` when it does not fit in memory."""
        if self._timer is None:
            self._timer = CudaTimer()
            self._timer.preheat()
        return Bench(problem, self.device, torch.device("cuda", self.index), self._timer)


class Bench:
    """Operands of one problem, enough sets that no call finds its own in the cache, and the time of its candidates."""

    def __init__(self, problem: Problem, device: Device, where: torch.device, timer: CudaTimer) -> None:
        self._problem, self._device, self._timer = problem, device, timer
        free = (
            torch.cuda.mem_get_info(where)[0] + torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
        )
        one = problem.bytes
        # beside the operands: a wide copy of one set, for the result that candidates are compared with
        wide = 8 // problem.dtype.itemsize * one + 8 * problem.batch * problem.m * problem.n
        if one + wide > 0.9 * free:
            raise ValueError(f"needs {(one + wide) / 2**30:.1f} GiB of memory; {free / 2**30:.1f} are free")
        sets = min(input_sets(one, device.l2_bytes, problem.m), max(1, int((0.9 * free - wide) // one)))
        self._operands = [self._random(where) for _ in range(sets)]
        self._expected = expected(self._operands[0])

    def why_not(self, plan: Plan) -> str | None:
        """Run a candidate once; why it fails or is wrong, or ``None``."""
        out = self._operands[0].c
        try:
            out.fill_(math.nan)
            self._launch(plan, 0)
            torch.cuda.synchronize(out.device)
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        wide = self._expected.dtype
        error_norm = float((out.to(wide) - self._expected).norm())
        allowed = (torch.finfo(out.dtype).eps + tolerance(self._problem)) * float(self._expected.norm())
        return (
            None if error_norm <= allowed else f"wrong result: off by {error_norm:.3g} where {allowed:.3g} is allowed"
        )

    def rank(self, plans: Sequence[Plan], block_ms: float, rounds: int) -> list[float]:
        """Microseconds of each, in interleaved blocks."""
        sides = [Side(str(plan), lambda i, plan=plan: self._launch(plan, i)) for plan in plans]  # type: ignore[misc]
        return self._timer.rank(sides, len(self._operands), block_ms, rounds)

    def _launch(self, plan: Plan, i: int) -> None:
        # prepared at each call, because a launch that is captured takes scratch memory of its own
        launch(SCHEDULES[plan.schedule].prepare(plan, self._operands[i], self._device))

    def _random(self, where: torch.device) -> Operands:
        return filled(Operands.stand_in(self._problem, where))


def filled(operands: Operands) -> Operands:
    """The operands with random values; B, or its scales, make results of order 1."""
    a, b, e = operands.a, operands.b, operands.epilogue
    norm = max(1, b.shape[-2]) ** -0.5
    if e.scales is None:
        a.normal_()
        b.normal_().mul_(norm)
    else:
        whole = a.dtype is torch.int8
        for codes in (a, b):
            codes.random_(-127, 128) if whole else codes.copy_(torch.randn(codes.shape, device=codes.device))
        e.scales.a.uniform_(0.5, 1.5)
        e.scales.b.uniform_(0.5, 1.5).mul_(norm / INT8_SPREAD**2 if whole else norm)
    for extra in (e.bias, e.residual):
        if extra is not None:
            extra.normal_()
    return operands


def expected(operands: Operands) -> torch.Tensor:
    """The result by PyTorch's operations, unrounded."""
    a, b, e = operands.a, operands.b, operands.epilogue
    if e.scales is not None:
        return reference.scaled(a, b, e.scales, e.bias, e.residual, e.activation)[0]
    if a.dtype is torch.float32:
        a, b = a.double(), b.double()
    return reference.product(a, b, e.bias, e.residual, e.activation, e.alpha, e.dropout_p, e.seed)[0]


def run_once(job: Job) -> None:
    """In a worker: compile a candidate and run it once."""
    problem, plan, index = job
    with torch.cuda.device(index), torch.no_grad():
        operands = filled(Operands.stand_in(problem, torch.device("cuda", index)))
        launch(SCHEDULES[plan.schedule].prepare(plan, operands, Device.current(index)))
        torch.cuda.synchronize()
    del operands
    torch.cuda.empty_cache()
