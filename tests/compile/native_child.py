"""Run by ``test_native.py`` with the fake driver: a repeated launch hands the driver what Triton's own launch does."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch

from compile import fake_driver
from tilewright.gemm import eager, planner
from tilewright.gemm.operands import Epilogue, canonical_views
from tilewright.gemm.plan import Plan
from tilewright.gemm.schedules import SCHEDULES
from tilewright.runtime import eager as runtime
from tilewright.runtime import native
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call, launch

H200 = Device.named("h200")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True, "activation": "relu"},
    "everything": {"bias": True, "pre": True, "residual": True, "alpha": 0.5, "dropout_p": 0.25, "seed": 5},
    "seed tensor": {"dropout_p": 0.25, "seed": torch.zeros(1, dtype=torch.int64)},
}


def tensors(options: dict[str, Any], batch: tuple[int, ...], aligned: bool) -> tuple[Any, ...]:
    """New memory for a, b, out and an epilogue, each time."""

    def new(*shape: int) -> torch.Tensor:
        start = 0 if aligned else 1
        flat = torch.zeros(torch.Size(shape).numel() + 8, dtype=torch.bfloat16)
        return flat[start : start + torch.Size(shape).numel()].view(shape)

    m, n, k = 256, 128, 192
    given = dict(options)
    given["bias"] = new(n) if given.get("bias") else None
    for name in ("pre", "residual"):
        given[name] = new(*batch, m, n) if given.get(name) else None
    return new(*batch, m, k), new(*batch, n, k).transpose(-1, -2), new(*batch, m, n), Epilogue(**given)


def call_of(plan: Plan, a: Any, b: Any, out: Any, epilogue: Epilogue) -> Call:
    (operands,) = canonical_views(a, b, out, epilogue, None)
    return SCHEDULES[plan.schedule].prepare(plan, operands, H200)


def check(
    notes: fake_driver.Notes, schedule: str, name: str, batch: tuple[int, ...], aligned: bool, native_way: bool
) -> None:
    options = CASES[name]
    a, b, out, epilogue = tensors(options, batch, aligned)
    (operands,) = canonical_views(a, b, out, epilogue, None)
    found = [p for p in planner.plans(operands.problem, H200) if p.schedule == schedule]
    if not found:
        print("skipped", schedule, name, batch, aligned)
        return
    call = call_of(found[0], a, b, out, epilogue)
    notes.expect(None)
    kernel = launch(call)
    notes.taken()
    entry = runtime.Entry(call, kernel, eager._EXTRAS, out)
    assert (entry._function is not kernel.run) == native_way
    notes.expect(kernel)
    for turn in range(4):  # from the third turn on, at addresses of before
        if turn < 2:
            a, b, out, epilogue = tensors(options, batch, aligned)
            used = [*locals().get("used", []), (a, b, out, epilogue)]
        a, b, out, epilogue = used[turn % 2]
        seed = turn + 2 if isinstance(epilogue.seed, int) and epilogue.dropout_p else 0
        if seed:
            epilogue = replace(epilogue, seed=seed)
        assert launch(call_of(found[0], a, b, out, epilogue)) is kernel
        theirs = notes.taken()
        seed_tensor = None if isinstance(epilogue.seed, int) else epilogue.seed
        extras = (epilogue.bias, epilogue.pre, epilogue.residual, seed_tensor)
        entry.run(0, a.data_ptr(), b.data_ptr(), out.data_ptr(), extras, seed)
        ours = notes.taken()
        assert len(theirs) > 100 and ours == theirs, (schedule, name, batch, aligned, turn)
    print("same", schedule, name, batch, aligned)


if __name__ == "__main__":
    notes = fake_driver.install()
    runtime._raw_stream = lambda device: fake_driver.STREAM
    native_way = "run" not in sys.argv
    if not native_way:  # as with a Triton whose launcher is not known
        native._recorded = lambda *_: None
    for schedule in SCHEDULES:
        for name in CASES:
            check(notes, schedule, name, (), True, native_way)
        check(notes, schedule, "plain", (3,), True, native_way)
        check(notes, schedule, "everything", (3,), False, native_way)
