"""Plans compile for each architecture as they should: tensor cores used, shared memory within limits, nothing spilt.

Every candidate for bf16 on the H200 is compiled; of the rest a fixed sample, in which neighbouring rows of the table
take different candidates; and of every row the plan that the planner picks. A pick may not spill. A candidate may, for
the planner sees it in its measured time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tilewright.gemm import planner
from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.schedules import SCHEDULES
from tilewright.lab.inspect import Inspection, inspect, inspect_many
from tilewright.runtime.devices import Device

FULL = ("bias", "gelu", "dropout", "residual")
#: problem, candidates of each schedule to compile on the H200 (None: all), and on each other device
TABLE: tuple[tuple[dict[str, Any], int | None, int], ...] = (
    ({}, None, 3),
    ({"layout": "nn"}, 3, 1),
    ({"layout": "tn"}, 3, 1),
    ({"layout": "tt"}, 3, 1),
    ({"epilogue": FULL}, 4, 1),
    ({"batch": 8}, 2, 1),
    ({"dtype": torch.float16}, 2, 1),
    ({"dtype": torch.float32, "precision": "ieee"}, 1, 1),
    ({"dtype": torch.float32, "precision": "tf32"}, 2, 1),
    ({"dtype": torch.float32, "precision": "tf32x3"}, 2, 1),
    ({"dtype": torch.float64}, 2, 1),
    ({"m": 1000, "n": 1025, "k": 777}, 2, 1),
    ({"m": 16, "layout": "nn"}, 2, 1),
    ({"m": 1}, 2, 1),
)
DEVICES = ("h200", "a100", "b200", "mi300x")
#: bytes of a spill that are none: two registers that ptxas parks before the loop over k and fetches after it (seen in
#: the SASS of small tiles, at 56 to 80 registers)
PARKED = 16
#: families that a target may use: small tiles are too small for the newest one
FAMILIES = {
    "sm_80": {"mma.sync"},
    "sm_90": {"wgmma", "mma.sync"},
    "sm_100": {"tcgen05", "mma.sync"},
    "gfx942": {"mfma"},
}


@dataclass(frozen=True)
class Job:
    problem: Problem
    plan: Plan
    device: str
    picked: bool = False

    def __str__(self) -> str:
        return f"{self.device}: {self.problem}: {self.plan}"


def jobs() -> list[Job]:
    found = []
    for name in DEVICES:
        device = Device.named(name)
        for row, (given, on_h200, elsewhere) in enumerate(TABLE):
            problem = Problem(**{"m": 4096, "n": 4096, "k": 4096, **given})
            if not (name == "mi300x" and problem.precision in ("tf32", "tf32x3")):
                found.append(Job(problem, planner.plan(problem, device), name, picked=True))
            for schedule in SCHEDULES.values():
                if schedule.supports(problem, device) is not None:
                    continue
                plans = schedule.candidates(problem, device)
                wanted = on_h200 if name == "h200" else elsewhere
                found += [
                    Job(problem, plan, name) for plan in (plans if wanted is None else _spread(plans, wanted, row))
                ]
    picked = {(job.problem, job.plan, job.device) for job in found if job.picked}
    return [job for job in found if job.picked or (job.problem, job.plan, job.device) not in picked]


def _spread(plans: list[Plan], count: int, start: int) -> list[Plan]:
    """``count`` plans at equal distances, from one that depends on ``start``."""
    count = min(count, len(plans))
    return [plans[(5 * start + i * len(plans) // count) % len(plans)] for i in range(count)]


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest) -> dict[Job, Inspection | ValueError | RuntimeError]:
    """The jobs that this session selected, compiled by two processes."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return {}  # the workers are the processes: each compiles what it tests
    selected = [
        item.callspec.params["job"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "job" in item.callspec.params
    ]
    items = [(job.problem, job.plan, Device.named(job.device)) for job in selected]
    return dict(zip(selected, inspect_many(items, workers=2), strict=True))


@pytest.mark.parametrize("job", jobs(), ids=str)
def test_plan_compiles_well(job: Job, results: dict[Job, Inspection | ValueError | RuntimeError]) -> None:
    device = Device.named(job.device)
    found = results[job] if job in results else inspect(job.problem, job.plan, device)
    assert isinstance(found, Inspection), found
    assert found.counted_in == ("amdgcn" if device.backend == "hip" else "sass"), found.notes
    # figures on their own: pytest would print the whole program beside them
    spills, registers, counts, shared = found.spills, found.registers, found.instructions, found.shared
    if job.picked:
        assert spills <= PARKED, f"a thread spills {spills} bytes and has {registers} registers"
    if spills == 0:
        assert (counts["local load"], counts["local store"]) == (0, 0)
    assert shared <= device.smem_per_block
    assert found.occupancy is not None
    assert found.occupancy.programs >= 1
    if needs_tensor_cores(job, found.target):
        family = found.tensor_core
        assert family in FAMILIES[found.target]
    if wants_warpgroups(job, found.target):
        newest = found.tensor_core
        assert newest == ("wgmma" if found.target == "sm_90" else "tcgen05")


def needs_tensor_cores(job: Job, target: str) -> bool:
    """All but float32 as it is (no NVIDIA tensor core multiplies it), float64 on Blackwell (not in Triton 3.6), and
    the sums of single rows."""
    if job.plan.schedule == "gemv":
        return False
    if job.problem.dtype is torch.float64 and target == "sm_100":
        return False
    return not (job.problem.dtype is torch.float32 and job.problem.precision == "ieee" and target.startswith("sm_"))


def wants_warpgroups(job: Job, target: str) -> bool:
    """Two-byte operands in a tile that Hopper's and Blackwell's own instruction can take."""
    fits = job.plan.block_m >= 64 and job.plan.block_n >= 32 and job.plan.num_warps >= 4
    return target in ("sm_90", "sm_100") and job.problem.dtype.itemsize == 2 and fits


def test_the_table_reaches_every_schedule_and_device() -> None:
    reached = {(job.plan.schedule, job.device) for job in jobs()}
    everywhere = {(schedule, device) for schedule in ("tile", "split", "gemv") for device in DEVICES}
    hopper = {("hopper", "h200"), ("stream", "h200")}
    assert reached == everywhere | {("persistent", "h200"), ("persistent", "b200")} | hopper
    assert len(jobs()) == len(set(jobs()))
