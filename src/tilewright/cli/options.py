"""What the commands' arguments mean: shapes, dtypes, devices and plans read from text, and the options they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tilewright.gemm.plan import Plan
    from tilewright.gemm.problem import Problem
    from tilewright.runtime.devices import Device

DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "fp32": "float32",
    "float32": "float32",
    "fp64": "float64",
    "float64": "float64",
}

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else there.")]
Shapes = Annotated[
    list[str], typer.Argument(metavar="SHAPE...", help="MxNxK, such as 4096x4096x4096; 'B*MxNxK' for a batch of B.")
]
OptionalShapes = Annotated[
    list[str] | None, typer.Argument(metavar="[SHAPE...]", help="MxNxK, such as 4096x4096x4096; 'B*MxNxK' for a batch.")
]
DtypeOption = Annotated[str, typer.Option("--dtype", help="Of the operands: bf16, fp16, fp32, fp64.")]
LayoutOption = Annotated[
    str, typer.Option("--layout", help="A letter for A and one for B: n row-major, t column-major; nt is x @ weight.T.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device", help="A device sheet, several with commas, or 'all'; the GPU here by default, h200 without one."
    ),
]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", help="Of fp32 operands: ieee, tf32x3 or tf32; torch's setting by default.")
]
EpilogueOption = Annotated[
    str | None,
    typer.Option("--epilogue", help="Steps in order, such as bias,gelu,dropout,residual."),
]
OutDtypeOption = Annotated[str | None, typer.Option("--out-dtype", help="Of the result; the operands' by default.")]
PlanOption = Annotated[
    str | None,
    typer.Option("--plan", help="A plan to force, as `tilewright plan` prints it: 'tile 128x128x64 warps=8 stages=3'."),
]


def shape(text: str) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of ``MxNxK`` or ``B*MxNxK``; ``ValueError`` for anything else."""
    from tilewright.runtime.errors import bad

    batch, star, sizes = text.rpartition("*")
    parts = [batch or ("" if star else "1"), *sizes.lower().split("x")]
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
        raise bad("cli", "shape", repr(text), "MxNxK or B*MxNxK, such as 4096x4096x4096")
    found = [int(part) for part in parts]
    return found[0], found[1], found[2], found[3]


def numbers(text: str, option: str) -> list[int]:
    """Whole numbers with commas between them."""
    from tilewright.runtime.errors import bad

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise bad("cli", option, repr(text), "numbers with commas, such as 1,16,4096")
    return [int(part) for part in parts]


def dtype_name(text: str, option: str = "--dtype") -> str:
    """torch's name of a dtype that may be abbreviated."""
    from tilewright.runtime.errors import bad

    if text.lower() not in DTYPES:
        raise bad("cli", option, repr(text), "bf16, fp16, fp32 or fp64")
    return DTYPES[text.lower()]


def problems(
    shapes: Sequence[str],
    dtype: str = "bf16",
    layout: str = "nt",
    precision: str | None = None,
    epilogue: str | None = None,
    out_dtype: str | None = None,
) -> list[Problem]:
    """The problems that shapes and options describe."""
    import torch

    from tilewright.gemm.problem import Problem
    from tilewright.runtime.errors import bad

    steps = tuple(step for step in (epilogue or "").replace("+", ",").split(",") if step)
    if "pre" in steps or "custom" in steps:
        raise bad("cli", "--epilogue", repr(epilogue), "made of alpha, bias, an activation, dropout and residual")
    kind = getattr(torch, dtype_name(dtype))
    out = getattr(torch, dtype_name(out_dtype, "--out-dtype")) if out_dtype else None
    if len(layout) != 2 or set(layout) - {"n", "t"}:
        raise bad("cli", "--layout", repr(layout), "two letters, n or t, such as nt")
    found = []
    for text in shapes:
        batch, m, n, k = shape(text)
        found.append(
            Problem(
                m, n, k, batch=batch, dtype=kind, out_dtype=out, layout=layout, epilogue=steps, precision=precision
            )
        )  # fmt: skip
    return found


def devices(text: str | None) -> list[Device]:
    """The devices of ``--device``: sheets by name, all of them, or the one that is planned for by default."""
    from tilewright.gemm.planner import device_or_default
    from tilewright.runtime.devices import Device

    if text is None:
        return [device_or_default(None)]
    if text == "all":
        return [Device.named(name) for name in Device.names()]
    return [Device.named(name.strip()) for name in text.split(",")]


def plan(text: str | None) -> Plan | None:
    """The plan of ``--plan``."""
    from tilewright.gemm.plan import Plan

    return None if text is None else Plan.parse(text)


def short(plan: Plan | str) -> str:
    """A plan's line for a table, without what is the default; ``Plan.parse`` reads it back."""
    return str(plan).replace(" split=1", "")
