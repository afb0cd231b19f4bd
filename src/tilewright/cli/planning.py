"""Commands that need no GPU: plan, explain, inspect, roofline."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from tilewright.cli import options
from tilewright.cli.options import (
    DeviceOption,
    DtypeOption,
    EpilogueOption,
    Json,
    LayoutOption,
    OptionalShapes,
    OutDtypeOption,
    PlanOption,
    PrecisionOption,
    Shapes,
)


def plan(
    shapes: Shapes,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nt",
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    epilogue: EpilogueOption = None,
    out_dtype: OutDtypeOption = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many candidates to list.")] = 5,
    json: Json = False,
) -> None:
    """Say how a product would run: the plan, and others.

    No GPU is needed for a device that has a sheet.

    \b
    Examples:
      tilewright plan 4096x4096x4096 --device h200
      tilewright plan 512x4096x14336 1x4096x4096 --dtype fp16 --device a100,h100
    """
    from tilewright.gemm import cost, planner
    from tilewright.lab import console

    found = []
    for problem in options.problems(shapes, dtype, layout, precision, epilogue, out_dtype):
        for where in options.devices(device):
            chosen = planner.plan(problem, where)  # raises the reason when there is none
            others = [one for one in planner.plans(problem, where) if one != chosen]
            ranked = [(one, cost.predict(problem, one, where)) for one in [chosen, *others]]
            found.append((problem, where, ranked))
    if json:
        console.emit({"results": [_plan_entry(*entry, top) for entry in found]})
        return
    for problem, where, ranked in found:
        rows = [
            (
                i + 1,
                options.short(one),
                console.seconds(c.seconds),
                f"{problem.flops / c.seconds / 1e12:.1f}" if c.seconds else "",
                f"{c.waves:.2f}",
                c.bound,
            )
            for i, (one, c) in enumerate(ranked[:top])
        ]
        by = {"model": "", "store": "; the first was tuned here", "shipped": "; the first is shipped"}
        title = f"{problem} on {where.title}: first {len(rows)} of {len(ranked)} candidates"
        title += by[planner.source(problem, where)]
        columns = ("", "plan", "predicted", "TFLOP/s", "waves", "bound")
        console.show(console.table(columns, rows, title=title, right=("", "predicted", "TFLOP/s", "waves")))


def _plan_entry(problem: Any, where: Any, ranked: list[Any], top: int) -> dict[str, Any]:
    from dataclasses import asdict

    from tilewright.gemm import planner

    return {
        "problem": str(problem),
        "device": where.name,
        "plan": str(ranked[0][0]),
        "picked_by": planner.source(problem, where),
        "count": len(ranked),
        "candidates": [{"plan": str(one), **asdict(c)} for one, c in ranked[:top]],
    }


def explain(
    shapes: Shapes,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nt",
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    epilogue: EpilogueOption = None,
    out_dtype: OutDtypeOption = None,
    plan: PlanOption = None,
    json: Json = False,
) -> None:
    """Say why a product takes the time that it does.

    Tiles, waves, bytes that HBM and L2 move, the roof that binds, the predicted time, and the runners-up.

    \b
    Examples:
      tilewright explain 4096x4096x4096 --device h200
      tilewright explain 8192x8192x8192 --device h200 --plan 'persistent 128x256x64 group=1 warps=8 stages=4'
    """
    from tilewright.lab import console
    from tilewright.lab.explain import explain as explained

    forced = options.plan(plan)
    found = [
        explained(problem, where, plan=forced)
        for problem in options.problems(shapes, dtype, layout, precision, epilogue, out_dtype)
        for where in options.devices(device)
    ]
    if json:
        console.emit({"results": [one.to_dict() for one in found]})
        return
    for one in found:
        console.write(str(one))


def inspect(
    shapes: Shapes,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nt",
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    epilogue: EpilogueOption = None,
    out_dtype: OutDtypeOption = None,
    plan: PlanOption = None,
    sass: Annotated[bool, typer.Option("--sass", help="Print the machine code (AMD: its assembly).")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Print the PTX (AMD: its assembly).")] = False,
    ttgir: Annotated[bool, typer.Option("--ttgir", help="Print Triton's GPU dialect.")] = False,
    json: Json = False,
) -> None:
    """Compile a product for any device; read the binary.

    The device need not be here. Shows instructions by kind, registers, spills, shared memory and occupancy. Exit
    status 1 when a kernel does not compile, spills registers, or lacks the tensor-core instruction of its dtype.

    \b
    Examples:
      tilewright inspect 4096x4096x4096 --device h200
      tilewright inspect 4096x4096x4096 --device all --json
      tilewright inspect 1024x1024x1024 --dtype fp16 --device a100 --sass
    """
    from tilewright.gemm import planner
    from tilewright.lab import console
    from tilewright.lab.inspect import Inspection, inspect_many

    forced = options.plan(plan)
    items = [
        (problem, forced or planner.plan(problem, where), where)
        for problem in options.problems(shapes, dtype, layout, precision, epilogue, out_dtype)
        for where in options.devices(device)
    ]
    found = []
    with console.progress("compiling", quiet=json) as note:
        for i, one in enumerate(inspect_many(items, workers=min(2, os.cpu_count() or 1))):
            found.append(one)
            note(i + 1, len(items), f"{items[i][2].title}")
    if len(found) == 1 and isinstance(found[0], Exception):
        raise found[0]
    texts = {"sass": sass, "ptx": ptx, "ttgir": ttgir}
    wrong = [reason for item, one in zip(items, found, strict=True) if (reason := _wrong(item[0], one))]
    if json:
        entries = [
            _inspect_entry(one, texts)
            if isinstance(one, Inspection)
            else {"problem": str(item[0]), "plan": str(item[1]), "device": item[2].name, "error": str(one)}
            for item, one in zip(items, found, strict=True)
        ]
        console.emit({"results": entries, "wrong": wrong})
    elif any(texts.values()):
        for one in found:
            if isinstance(one, Inspection):
                console.write("\n".join(_texts(one, texts).values()))
    else:
        for one in found:
            if isinstance(one, Inspection):
                _show_inspection(one)
    for reason in wrong:
        console.note(f"tilewright.inspect: {reason}")
    if wrong:
        raise typer.Exit(1)


def _texts(one: Any, wanted: dict[str, bool]) -> dict[str, str]:
    """The texts that were asked for and that the target has; AMD's assembly stands for PTX and SASS."""
    out = {}
    for name, asked in wanted.items():
        text = getattr(one, name)
        if asked and text is None and name in ("sass", "ptx"):
            name, text = "amdgcn", one.amdgcn
        if asked and text is not None:
            out[name] = text
    return out


def _inspect_entry(one: Any, wanted: dict[str, bool]) -> dict[str, Any]:
    return {**one.to_dict(), **_texts(one, wanted)}


def _wrong(problem: Any, one: Any) -> str:
    """What is wrong with a compiled kernel, or ""."""
    import torch

    if isinstance(one, Exception):
        return str(one)
    where = f"{problem} for {one.target} [{one.plan}]"
    if one.spills:
        return f"{where} spills {one.spills} bytes of registers"
    scalar = problem.dtype is torch.float64 or (problem.dtype is torch.float32 and problem.precision == "ieee")
    if one.tensor_core is None and not scalar:
        return f"{where} has no tensor-core instruction"
    return ""


def _show_inspection(one: Any) -> None:
    from tilewright.lab import console

    occupancy = one.occupancy
    facts = [
        ("kernel", f"{one.kernel} for {one.target} ({one.device})"),
        ("plan", str(one.plan)),
        ("tensor cores", f"{one.tensor_core_count} {one.tensor_core}" if one.tensor_core else "no such instruction"),
        ("registers", "unknown" if one.registers is None else f"{one.registers} a thread, {one.num_warps} warps"),
        ("spills", "unknown" if one.spills is None else f"{one.spills} bytes"),
        ("shared memory", f"{one.shared:,} of {one.shared_limit:,} bytes"),
    ]
    if occupancy is not None:
        facts.append(("occupancy", f"{occupancy.programs} programs a multiprocessor, bound by {occupancy.limit}"))
    counts = ", ".join(f"{count} {name}" for name, count in one.instructions.items() if count)
    facts.append(("instructions", f"{one.total} in the {one.counted_in}: {counts}"))
    facts += [("note", text) for text in one.notes]
    console.show(console.pairs(facts, title=str(one.problem)))


def roofline(
    shapes: OptionalShapes = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The products of a model, such as Llama-3-8B; 'list' names them.")
    ] = None,
    m: Annotated[str, typer.Option("--m", help="With --model: numbers of tokens, with commas.")] = "1,16,512,4096",
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nt",
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    epilogue: EpilogueOption = None,
    out_dtype: OutDtypeOption = None,
    json: Json = False,
) -> None:
    """Say the least time that a device allows a product.

    t = max(2mnk / P, bytes / B), from the device's peak rate P and bandwidth B.

    \b
    Examples:
      tilewright roofline 4096x4096x4096 16x4096x4096 --device h200
      tilewright roofline --model Llama-3-8B --m 1,4096 --device mi300x
    """
    from tilewright.lab import console
    from tilewright.lab import roofline as lab
    from tilewright.runtime.errors import bad

    if model == "list":
        known = lab.presets()
        if json:
            console.emit({"models": known})
        else:
            named = [(name, ", ".join(f"{p} {n}x{k}" for p, (n, k) in one.items())) for name, one in known.items()]
            console.show(console.table(("model", "products, n x k"), named))
        return
    texts = list(shapes or [])
    labels = [""] * len(texts)
    if model is not None:
        for tokens in options.numbers(m, "--m"):
            for name, product in lab.products(model, tokens).items():
                texts.append(f"{product.m}x{product.n}x{product.k}")
                labels.append(name)
    if not texts:
        raise bad("cli", "shape", "missing", "given as MxNxK, or --model NAME")
    chosen = options.problems(texts, dtype, layout, precision, epilogue, out_dtype)
    results = [(where, lab.roofline(chosen, where)) for where in options.devices(device)]
    if json:
        entries = [
            {**roof.to_dict(), "name": label} for _, roofs in results for label, roof in zip(labels, roofs, strict=True)
        ]
        console.emit({"results": entries})
        return
    for where, roofs in results:
        rows = [
            (
                f"{label} {console.brief_problem(str(r.problem))}".strip(),
                f"{r.intensity:.0f}",
                console.seconds(r.compute),
                console.seconds(r.hbm),
                console.seconds(r.seconds),
                f"{r.tflops:.1f}",
                r.bound,
            )
            for label, r in zip(labels, roofs, strict=True)
        ]
        ridge = f"; {roofs[0].ridge:.0f} operations a byte is the ridge" if roofs else ""
        columns = ("product", "op/byte", "compute", "memory", "least", "TFLOP/s", "bound")
        title = f"{where.title}{ridge}"
        console.show(console.table(columns, rows, title=title, right=columns[1:6]))
