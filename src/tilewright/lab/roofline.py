"""The roofline: the least time that a device's peak rate and bandwidth allow a product, and the products of models.

``t = max(2mnk / P, bytes / B)``: P is the peak rate of the operands' dtype, B the bandwidth of device memory, and
bytes the fewest that can move (A and B read once, C written once). A product whose intensity, operations per byte, is
above P / B, the ridge, is bound by arithmetic; below it, by device memory.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tilewright.gemm.planner import device_or_default
from tilewright.gemm.problem import Problem
from tilewright.runtime.devices import Device
from tilewright.runtime.errors import bad


@dataclass(frozen=True)
class Roof:
    """The roof over one product on one device.

    Args:
        problem, device: the product, and the name of the device's sheet.
        flops: 2 * batch * m * n * k.
        bytes: the fewest that device memory can move.
        intensity: operations per byte; 0 when nothing moves.
        ridge: the intensity, in operations per byte, at which the two roofs meet.
        compute, hbm: seconds that arithmetic and device memory take at their peaks.
        seconds: the larger of the two.
        bound: "compute" or "hbm": the larger one; "hbm" when they are equal.
        tflops: operations over ``seconds``, in TFLOP/s; 0 when nothing is to be done.
    """

    problem: Problem
    device: str
    flops: int
    bytes: int
    intensity: float
    ridge: float
    compute: float
    hbm: float
    seconds: float
    bound: str
    tflops: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        p = self.problem
        sizes = {"m": p.m, "n": p.n, "k": p.k, "batch": p.batch, "dtype": str(p.dtype).removeprefix("torch.")}
        values = {name: value for name, value in vars(self).items() if name != "problem"}
        return {"problem": str(p), **sizes, **values}


def roof(problem: Problem, device: Device | str | None = None) -> Roof:
    """The roof over ``problem`` on the device (the current GPU, or the H200's sheet, when none is given)."""
    where = device_or_default(device)
    peak = where.peak(problem.dtype, str(problem.precision)) * 1e12
    bandwidth = where.memory_tbps * 1e12
    compute, hbm = problem.flops / peak, problem.bytes / bandwidth
    seconds = max(compute, hbm)
    return Roof(
        problem=problem,
        device=where.name,
        flops=problem.flops,
        bytes=problem.bytes,
        intensity=problem.intensity,
        ridge=peak / bandwidth,
        compute=compute,
        hbm=hbm,
        seconds=seconds,
        bound="compute" if compute > hbm else "hbm",
        tflops=problem.flops / seconds / 1e12 if seconds else 0.0,
    )


def roofline(problems: Iterable[Problem], device: Device | str | None = None) -> list[Roof]:
    """The roof over each product, in order."""
    where = device_or_default(device)
    return [roof(problem, where) for problem in problems]


@functools.cache
def models() -> dict[str, dict[str, Any]]:
    """``data/models.json``: for each model its source, the fields of its configuration, and its products."""
    text = (resources.files("tilewright") / "data" / "models.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return found


def presets() -> dict[str, dict[str, tuple[int, int]]]:
    """The products of known models: model -> product -> (n, k) of its weight, as ``torch.nn.Linear`` holds it.

    m is the number of tokens. Every layer has the same products, but for DeepSeek-V3, whose first three have these
    and the others experts; ``lm_head`` comes once, after the last layer.
    """
    return {
        model: {name: (int(one["n"]), int(one["k"])) for name, one in entry["products"].items()}
        for model, entry in models().items()
    }


def products(model: str, m: int, **fields: Any) -> dict[str, Problem]:
    """The products of one model for m tokens, by name; ``fields`` are more of ``Problem``'s, such as ``dtype``.

    Raises ``ValueError`` for an unknown model; upper and lower case are the same.
    """
    named = {name.lower(): name for name in presets()}
    if str(model).lower() not in named:
        raise bad("roofline", "model", repr(model), f"one of {', '.join(named.values())}")
    weights = presets()[named[str(model).lower()]]
    return {name: Problem(m, n, k, **fields) for name, (n, k) in weights.items()}
