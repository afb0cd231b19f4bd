"""The command that measures plans: tune."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import options
from tilewright.cli.options import DtypeOption, EpilogueOption, Json, LayoutOption, OutDtypeOption, PrecisionOption

if TYPE_CHECKING:
    from tilewright.gemm.problem import Problem


def tune(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SUITE|SHAPE...]", help="Suites by name, and shapes, such as 4096x4096x4096."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The products of a model, such as Llama-3-8B.")] = None,
    m: Annotated[str, typer.Option("--m", help="With --model: numbers of tokens, with commas.")] = "1,16,64,512,4096",
    cases: Annotated[
        list[str] | None, typer.Option("--cases", help="Of suites, only cases with this in their label.")
    ] = None,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nt",
    precision: PrecisionOption = None,
    epilogue: EpilogueOption = None,
    out_dtype: OutDtypeOption = None,
    batch_invariant: Annotated[bool, typer.Option("--batch-invariant", help="Plans for batch_invariant=True.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again what the store has.")] = False,
    within: Annotated[
        float, typer.Option("--within", min=1.0, help="Candidates within this factor of the best predicted time.")
    ] = 1.35,
    most: Annotated[int, typer.Option("--most", min=1, help="This many candidates of a problem.")] = 16,
    record: Annotated[
        str | None, typer.Option("--record", help="Write every candidate's time there, for benchmarks/fit_cost.py.")
    ] = None,
    ship: Annotated[
        str | None, typer.Option("--ship", help="Add the plans to this file, such as data/plans/h200.json.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure plans on the GPU, and keep the fastest.

    The results are in the store of plans (TILEWRIGHT_CACHE_DIR), where every later call finds them. A problem that is
    there already is not measured again, so an interrupted run goes on where it stopped; under torchrun the processes
    share the problems. Exit status 1 when a problem could not be measured.

    \b
    Examples:
      tilewright tune 4096x4096x4096 16x6144x4096
      tilewright tune --model Llama-3-8B --m 1,16,4096
      tilewright tune gemm-bf16 --record candidates.json --ship h200.json
    """
    from tilewright.gemm import tuning
    from tilewright.lab import console, results
    from tilewright.lab import tuning as lab
    from tilewright.runtime.errors import bad
    from tilewright.tune.store import Store

    problems = _problems(what or [], model, m, cases, dtype, layout, precision, epilogue, out_dtype, batch_invariant)
    if not problems:
        raise bad("cli", "what", "missing", "a suite, a shape as MxNxK, or --model NAME")
    _choose_gpu()
    machine = tuning.this_gpu()
    store = Store()
    with console.progress("tuning", quiet=json) as note:
        found = tuning.tune(
            problems, store=store, force=force, within=within, most=most, progress=note, machine=machine
        )  # fmt: skip
    if record is not None:
        results.write(record, lab.record(found, machine.device))
    shipped = None if ship is None else lab.ship(found, machine.device, ship)
    if json:
        console.emit({"store": str(store.path), "results": [_entry(one) for one in found]})
    else:
        _show(found)
        console.say(f"{sum(one.kept for one in found)} of {len(found)} plans are in {store.path}")
        if record is not None:
            console.say(f"candidates in {record}")
        if shipped is not None:
            console.say(f"{shipped} plans in {ship}")
    failed = [one for one in found if one.plan is None]
    for one in failed:
        console.note(f"tilewright.tune: {one.problem}: {one.failed[-1][1]}")
    if failed:
        raise typer.Exit(1)


def _problems(
    what: list[str],
    model: str | None,
    m: str,
    cases: list[str] | None,
    dtype: str,
    layout: str,
    precision: str | None,
    epilogue: str | None,
    out_dtype: str | None,
    batch_invariant: bool,
) -> list[Problem]:
    """The problems that are named: a word with a digit first, or a star in it, is a shape, any other a suite."""
    from dataclasses import replace

    from tilewright.lab import roofline
    from tilewright.lab import tuning as lab

    shapes = [word for word in what if word[:1].isdigit() or "*" in word]
    found = [problem for word in what if word not in shapes for problem in lab.of_suite(word, cases)]
    if model is not None:
        for tokens in options.numbers(m, "--m"):
            shapes += [f"{p.m}x{p.n}x{p.k}" for p in roofline.products(model, tokens).values()]
    found += options.problems(shapes, dtype, layout, precision, epilogue, out_dtype)
    return [replace(problem, batch_invariant=True) for problem in found] if batch_invariant else found


def _choose_gpu() -> None:
    """Under torchrun, the GPU that is this process's."""
    import torch

    local = os.environ.get("LOCAL_RANK", "")
    if local.isdigit() and torch.cuda.is_available():
        torch.cuda.set_device(int(local) % torch.cuda.device_count())


def _entry(one: Any) -> dict[str, Any]:
    return {
        "problem": str(one.problem),
        "plan": None if one.plan is None else str(one.plan),
        "us": one.us,
        "source": one.source,
        "model_plan": None if one.model is None else str(one.model),
        "model_us": one.model_us,
        "candidates": [{"plan": str(plan), "us": us, "predicted_us": p} for plan, us, p in one.candidates],
        "failed": [{"plan": plan, "why": why} for plan, why in one.failed],
        "kept": one.kept,
    }


def _show(found: list[Any]) -> None:
    from tilewright.lab import console

    rows = [
        (
            console.brief_problem(str(one.problem)),
            "" if one.plan is None else console.brief_plan(str(one.plan)),
            "" if one.us is None else f"{one.us:.1f}",
            "" if one.model_us is None else f"{one.model_us:.1f}",
            "" if one.gain is None else f"{one.gain:.3f}",
            len(one.candidates) or "",
            one.source,
        )
        for one in found
    ]
    columns = ("problem", "fastest plan", "us", "model's us", "gain", "of", "from")
    console.show(console.table(columns, rows, right=("us", "model's us", "gain", "of")))
