"""Commands that look at the machine or run kernels: doctor, demo, verify, bench, report."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import options
from tilewright.cli.options import (
    EpilogueOption,
    Json,
    OptionalShapes,
    OutDtypeOption,
    PlanOption,
    PrecisionOption,
)


def doctor(json: Json = False) -> None:
    """Say what works on this machine, what does not, and why.

    Exit status 0 when kernels run somewhere here (on a GPU or interpreted), else 1.

    \b
    Examples:
      tilewright doctor
      tilewright doctor --json
    """
    from tilewright.lab import console
    from tilewright.lab.doctor import examine

    found = examine()
    if json:
        console.emit(found.to_dict())
    else:
        facts = [(fact.name, f"{fact.value}: {fact.note}" if fact.note else fact.value) for fact in found.facts]
        console.show(console.pairs(facts))
        rows = [
            (c.name, "works" if c.works else "will not", f"{c.why}; {c.remedy}" if c.remedy else c.why)
            for c in found.capabilities
        ]
        console.show(console.table(("what", "here", "why, and the way out"), rows))
        console.say("`tilewright demo` proves it." if found.ok else "Kernels run nowhere on this machine.")
    if not found.ok:
        raise typer.Exit(1)


def demo(json: Json = False) -> None:
    """Show what it does, without a GPU, in a minute.

    Products verified against float64, compiled for Ampere, Hopper, Blackwell and CDNA3, and explained for an H200; with
    a GPU also measured against PyTorch. Exit status 1 if anything fails.

    \b
    Examples:
      tilewright demo
    """
    from tilewright.lab import console
    from tilewright.lab import demo as lab

    began = time.perf_counter()
    done: list[lab.Step] = []
    gpu = lab.has_gpu()
    total = 4 if gpu else 3
    with closing(lab.steps(measure=gpu)) as steps:
        while len(done) < total:
            with console.progress("demo", quiet=json) as note:
                note(len(done), total, lab.DOING[len(done)])
                done.append(next(steps))
            if not json:
                lab.show(done[-1], len(done), total)
    took = time.perf_counter() - began
    failed = [step.name for step in done if not step.passed]
    if json:
        console.emit({"passed": not failed, "seconds": took, "steps": [step.to_dict() for step in done]})
    else:
        console.heading("What to try next")
        for line, about in lab.what_next(gpu):
            console.say(f"  {line}")
            console.say(f"      {about}", style="dim")
        console.say()
        console.say(f"{'FAILED: ' + ', '.join(failed) if failed else 'All as it should be'}; {took:.0f} s.")
    if failed:
        raise typer.Exit(1)


def verify(
    context: typer.Context,
    shapes: OptionalShapes = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Several with commas: bf16, fp16, fp32, fp64. Default bf16,fp16,fp32.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", help="Several with commas: nt, nn, tn, tt. Default nt.")
    ] = None,
    precision: PrecisionOption = None,
    epilogue: EpilogueOption = None,
    out_dtype: OutDtypeOption = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", help="Only these, with commas: tile, persistent.")
    ] = None,
    plan: PlanOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few problems, and three plans of each schedule.")] = False,
    every: Annotated[bool, typer.Option("--every", help="A line for every plan, not for the worst one.")] = False,
    json: Json = False,
) -> None:
    """Prove every schedule and plan against float64.

    Each candidate plan is forced in turn and compared with float64 on the CPU. A result passes when its error is at
    most twice that of PyTorch's own product and one rounding; on small integers it must be exact. Without shapes:
    awkward sizes, every layout, dtype and epilogue, batches. Without a GPU kernels run in Triton's interpreter. Exit
    status 1 when a check fails.

    \b
    Examples:
      tilewright verify --quick
      tilewright verify 100x200x300 '3*65x72x136' --dtype bf16,fp32 --layout nn,nt --epilogue bias,gelu
    """
    from tilewright.lab import console
    from tilewright.lab.doctor import interpreted
    from tilewright.runtime.errors import bad

    if not shapes and any((dtype, layout, precision, epilogue, out_dtype)):
        raise bad(
            "cli", "shape", "missing", "given as MxNxK with --dtype, --layout, --precision, --epilogue or --out-dtype"
        )
    forced = options.plan(plan)
    chosen = [
        problem
        for one in (dtype or "bf16,fp16,fp32").split(",")
        for letters in (layout or "nt").split(",")
        for problem in options.problems(
            shapes or [], one, letters, precision if options.dtype_name(one) == "float32" else None, epilogue, out_dtype
        )
    ]
    schedules = [name.strip() for name in schedule.split(",")] if schedule else None
    if not interpreted() and not _has_gpu():
        console.note("tilewright.verify: no GPU here: running again with TRITON_INTERPRET=1, interpreted on the CPU")
        raise typer.Exit(_again(context))
    from tilewright.lab import verify as lab

    with console.progress("verifying", quiet=json) as note:
        found = lab.run(chosen if shapes else None, schedules=schedules, plan=forced, quick=quick, progress=note)
    if json:
        console.emit(found.to_dict())
    else:
        console.show(found.table(every))
        for check in found.failed:
            console.say(f"FAILED {check.problem} [{check.plan}]: {check.reason}", style="red")
        console.say(found.summary())
    if not found.passed:
        raise typer.Exit(1)


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _again(context: typer.Context) -> int:
    """Run the same command in a process whose kernels are interpreted; its exit status."""
    import subprocess

    from tilewright.lab.demo import command

    line, environment = command(context.obj, interpret=True)
    code = subprocess.run(line, env=environment, check=False).returncode
    return code if code >= 0 else 1


def bench(
    suites: Annotated[list[str] | None, typer.Argument(metavar="SUITE...", help="Names; --list shows them.")] = None,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="[FILE]", help="Write the result there, or to stdout without a file."),
    ] = None,
    html: Annotated[str | None, typer.Option("--html", help="Write the report there (needs the extra plots).")] = None,
    results: Annotated[
        str | None, typer.Option("--results", help="A folder for <device>/<suite>.json, such as benchmarks/results.")
    ] = None,
    cases: Annotated[
        list[str] | None, typer.Option("--cases", help="Only cases with this in their label; may be given again.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A dozen cases, short blocks: a look, not a record.")] = False,
    names: Annotated[bool, typer.Option("--list", help="List the suites and stop.")] = False,
) -> None:
    """Measure suites against PyTorch on the GPU.

    Both sides are interleaved in one process. Exit status 1 when a case fails or a result is wrong.

    \b
    Examples:
      tilewright bench gemm-bf16 --quick
      tilewright bench gemm-bf16 epilogue --json result.json --html report.html
      tilewright bench gemm-bf16 --cases 4096x4096x4096 --json
    """
    from tilewright.lab import bench as lab
    from tilewright.lab import console
    from tilewright.lab import suites as data

    if names:
        listed = [data.load(name) for name in data.names()]
        if json is not None:
            console.emit({"suites": [{"suite": s.name, "about": s.about, "cases": len(s.cases)} for s in listed]})
        else:
            rows = [(s.name, len(s.cases), s.about) for s in listed]
            console.show(console.table(("suite", "cases", "about"), rows, right=("cases",)))
        return
    to_stdout = json == "-"
    with console.progress("measuring", quiet=to_stdout) as note:
        found = lab.run(
            suites or [],
            json_path=None if to_stdout else json,
            html_path=html,
            results_dir=results,
            cases=cases,
            quick=quick,
            progress=lambda suite, done, total, text: note(done, total, f"{suite} {text}"),
        )
    if to_stdout:
        console.emit(found[0] if len(found) == 1 else {"results": found})
    else:
        for one in found:
            _show_result(one)
        for name, where in (("result", json), ("report", html), ("results", results)):
            if where:
                console.say(f"{name} in {where}")
    failures = lab.failures(found)
    for line in failures:
        console.note(f"tilewright.bench: {line}")
    if failures:
        raise typer.Exit(1)


def _show_result(one: dict[str, Any], rows: bool = True) -> None:
    """A result as a table and a line."""
    from tilewright.lab import console
    from tilewright.lab.report import summary_line

    console.heading(f"{one['suite']} on {one['device']}")
    if rows:
        columns = ("case", "dtype", "plan", "us", "peer", "peer us", "ratio", "roof")
        lines = [
            (
                row["case"],
                row["dtype"],
                console.brief_plan(row.get("plan") or ""),
                _figure(row.get("ours_us"), 1),
                row.get("peer"),
                _figure(row.get("peer_us"), 1),
                _figure(row.get("ratio"), 3),
                _figure(row.get("roof"), 2),
            )
            for row in one["rows"]
        ]
        console.show(console.table(columns, lines, right=("us", "peer us", "ratio", "roof")))
    console.say(summary_line(one["summary"]))


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def report(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE...]", help="Result files; by default every recorded one.")
    ] = None,
    html: Annotated[str | None, typer.Option("--html", help="Write a page of figures (needs the extra plots).")] = None,
    json: Json = False,
) -> None:
    """Show what was measured: a table, and a page.

    \b
    Examples:
      tilewright report
      tilewright report benchmarks/results/nvidia-h200/gemm-bf16.json --html tilewright-report.html
    """
    from tilewright.lab import console
    from tilewright.lab import report as lab
    from tilewright.lab import results as data
    from tilewright.runtime.errors import bad

    found = [data.read(path) for path in files] if files else data.recorded()
    if not found:
        raise bad(
            "report", "result files", "none in this installation", "named: what `tilewright bench --json FILE` wrote"
        )
    if html is not None:
        lab.write(found, html)
    if json:
        kept = ("suite", "device", "torch", "triton", "tilewright", "commit", "date", "command", "summary")
        console.emit({"html": html, "results": [{key: one.get(key) for key in kept} for one in found]})
        return
    rows = [(one["suite"], one["device"], str(one["date"])[:10], lab.summary_line(one["summary"])) for one in found]
    console.show(console.table(("suite", "device", "date", "summary"), rows))
    if html is not None:
        console.say(f"report in {html}")
