"""Plans that were measured: under which key a problem has one, and where it is looked for.

The key is what the time depends on, as text that reads back as the problem. Two things are coarser in it than in the
problem, because the plans to choose from are then the same:

- m is rounded up, to a multiple of 16 or of a sixteenth of its power of two (:func:`bucket`): a tile of that many rows
  is partly empty, all others are as full, and no plan can be faster for fewer rows by more than those left out. n and
  k, the sizes of a weight, are exact.
- steps of the epilogue that take neither registers nor memory to speak of (alpha, bias, relu) are left out.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from importlib import resources

import torch
import triton

from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.schedules import SCHEDULES
from tilewright.gemm.schedules.common import HEAVY
from tilewright.runtime.devices import Device
from tilewright.runtime.errors import bad
from tilewright.tune import shipped
from tilewright.tune.store import Store


def bucket(m: int) -> int:
    """m rounded up: exact to 16, then to multiples of 16, from 512 on of 1/16 of the power of two below it."""
    if m <= 16:
        return m
    step = max(16, 1 << (m.bit_length() - 5))
    return -(-m // step) * step


def representative(problem: Problem) -> Problem:
    """The problem that stands for all of the same key: it is the one that is measured."""
    steps = tuple(step for step in problem.epilogue if step in HEAVY)
    return replace(problem, m=bucket(problem.m), epilogue=steps)


def key(problem: Problem) -> str:
    """The line under which the problem's plan is kept; :func:`problem_of` reads it back."""
    p = representative(problem)
    return " ".join(
        (
            f"{p.m}x{p.n}x{p.k}",
            f"batch={p.batch}/{p.batch_dims}",
            f"{_name(p.dtype)}->{_name(p.out_dtype)}",
            p.layout,
            str(p.precision),
            f"align={p.alignment}",
            f"epilogue={'+'.join(p.epilogue)}",
            *(["invariant"] if p.batch_invariant else []),
            *([f"scaled={p.scaled}"] if p.scaled else []),
            *(["fast"] if p.fast_accumulate else []),
        )
    )


def problem_of(text: str) -> Problem:
    """The problem of a key; ``ValueError`` for another text."""
    try:
        sizes, batch, dtypes, layout, precision, align, epilogue, *rest = text.split(" ")
        m, n, k = (int(size) for size in sizes.split("x"))
        count, dims = (int(part) for part in batch.removeprefix("batch=").split("/"))
        dtype, out = (getattr(torch, name) for name in dtypes.split("->"))
        steps = tuple(step for step in epilogue.removeprefix("epilogue=").split("+") if step)
        found = Problem(
            m, n, k, batch=count, dtype=dtype, out_dtype=out, layout=layout, epilogue=steps, precision=precision,
            batch_invariant="invariant" in rest, alignment=int(align.removeprefix("align=")), batch_dims=dims,
            scaled=next((word.removeprefix("scaled=") for word in rest if word.startswith("scaled=")), None),
            fast_accumulate="fast" in rest,
        )  # fmt: skip
        if key(found) != text:  # words of another version
            raise ValueError(text)
    except (ValueError, TypeError, AttributeError):
        raise bad("tune", "key", repr(text), "one that a store or a file of plans holds") from None
    return found


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def name_of(device: Device) -> str:
    """The device as a store has it: two GPUs of one name and size share their plans."""
    return f"{device.title}, {device.arch}, {device.sms}"


@functools.cache
def source() -> str:
    """A hash of what kernels are made of: a plan's time holds as long as none of it changes.

    One for all schedules, which share ``lang`` and import each other: of which a kernel has parts is not worth knowing.
    """
    package = resources.files("tilewright")
    digest = hashlib.sha256()
    for folder in (package / "gemm" / "schedules", package / "lang"):
        for file in sorted((f for f in folder.iterdir() if f.name.endswith(".py")), key=lambda f: f.name):
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def find(problem: Problem, device: Device) -> tuple[Plan, str] | None:
    """The measured plan for a problem and where it was found, "store" or "shipped"; ``None`` when there is none.

    A plan that cannot be read, or that its schedule refuses for this very problem, is passed over.
    """
    if mine := kept(problem, device, Store()):
        return mine[0], "store"
    line = shipped.plans(device.name, device.arch, triton.__version__, source()).get(key(problem))
    plan = None if line is None else _usable(line, problem, device)
    return None if plan is None else (plan, "shipped")


def kept(problem: Problem, device: Device, store: Store) -> tuple[Plan, float] | None:
    """The plan that a store has for a problem, measured with the source that is installed, and its microseconds."""
    one = store.find(name_of(device), triton.__version__, source(), key(problem))
    plan = None if one is None else _usable(one.plan, problem, device)
    return None if one is None or plan is None else (plan, one.us)


def keep(problem: Problem, device: Device, plan: Plan, us: float, store: Store) -> bool:
    """Put a measured plan into a store; whether that worked."""
    return store.put(name_of(device), triton.__version__, source(), key(problem), str(plan), us)


def _usable(text: str, problem: Problem, device: Device) -> Plan | None:
    try:
        plan = Plan.parse(text)
    except ValueError:
        return None
    schedule = SCHEDULES.get(plan.schedule)
    return plan if schedule is not None and schedule.refuses(plan, problem, device) is None else None
