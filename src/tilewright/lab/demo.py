"""What a newcomer sees first: products proven, compiled for four targets, explained, and measured where there is a GPU.

Each step that runs or compiles kernels is a process of its own, started with the command's own commands: whether
kernels are interpreted is decided once in a process, and a compiler that dies must not take the demonstration along.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.lab import console

SHAPE = "4096x4096x4096"
#: Ampere, Hopper, Blackwell, CDNA3: the sheets that step 2 compiles for
TARGETS = ("a100", "h200", "b200", "mi300x")
EXPLAINED = "h200"


@dataclass(frozen=True)
class Step:
    """One step: what it showed (``data``, as JSON has it), whether that is as it should be, and if not, why."""

    name: str
    title: str
    passed: bool
    seconds: float
    data: dict[str, Any]
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Every field."""
        return dict(vars(self))


def command(arguments: Sequence[str], interpret: bool) -> tuple[list[str], dict[str, str]]:
    """(command line, environment) of this package's command in a process with or without Triton's interpreter."""
    import tilewright

    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    # the same package, wherever this process found it
    root = str(Path(tilewright.__file__).resolve().parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    return [sys.executable, "-m", "tilewright", *arguments], environment


class Child:
    """A command that was started and whose JSON is wanted later."""

    def __init__(self, arguments: Sequence[str], interpret: bool = False) -> None:
        line, environment = command(arguments, interpret)
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            line, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def result(self) -> tuple[dict[str, Any] | None, str, float]:
        """(what it printed, why it failed or "", seconds)."""
        out, err = self.process.communicate()
        took = time.perf_counter() - self.began
        said = [line for line in err.splitlines() if line.strip()]
        reason = "" if self.process.returncode == 0 else said[-1] if said else f"exit status {self.process.returncode}"
        try:
            data = json.loads(out)
        except ValueError:
            return None, reason or "it printed no JSON", took
        return (data, reason, took) if isinstance(data, dict) else (None, reason or "it printed no JSON object", took)

    def stop(self) -> None:
        """End it, if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate()


def has_gpu() -> bool:
    """Whether there is a GPU to measure on."""
    import torch

    return bool(torch.cuda.is_available())


#: what each step is busy with
DOING = (
    "verifying products",
    f"compiling for {', '.join(TARGETS)}",
    f"explaining {SHAPE}",
    "measuring against PyTorch on the GPU",
)


def steps(measure: bool) -> Generator[Step, None, None]:
    """The steps, each as it is done; the last one only with ``measure``, which needs a GPU."""
    proof = Child(["verify", "--quick", "--json"], interpret=not has_gpu())
    compiled = Child(["inspect", SHAPE, "--device", ",".join(TARGETS), "--json"])
    try:
        yield _verified(proof)
        yield _compiled(compiled)
        yield _explained()
        if measure:
            yield _measured()
    finally:
        proof.stop()
        compiled.stop()


def _verified(child: Child) -> Step:
    data, reason, took = child.result()
    title = "Products verified against float64"
    if data is None or "checks" not in data:
        return Step("verify", title, False, took, {}, reason or "there is no check in what it printed")
    schedules = {entry["schedule"] for entry in data["checks"]}
    if data["passed"] and len(schedules) < 2:
        reason = f"only {', '.join(sorted(schedules)) or 'no schedule'} was checked"
    return Step("verify", title, bool(data["passed"]) and not reason, took, data, reason)


def _compiled(child: Child) -> Step:
    data, reason, took = child.result()
    title = f"{SHAPE} bfloat16 compiled for four architectures"
    if data is None or "results" not in data:
        return Step("inspect", title, False, took, {}, reason or "there is no kernel in what it printed")
    for entry in data["results"]:
        if "error" not in entry and not entry["tensor_core_count"]:
            reason = reason or f"{entry['target']} has no tensor-core instruction"
    return Step("inspect", title, not reason and len(data["results"]) == len(TARGETS), took, data, reason)


def _explained() -> Step:
    from tilewright.gemm.problem import Problem
    from tilewright.lab.explain import explain

    began = time.perf_counter()
    m, n, k = map(int, SHAPE.split("x"))
    title = f"{SHAPE} bfloat16 explained for an H200"
    try:
        found = explain(Problem(m, n, k), EXPLAINED)
        data, reason = {"report": str(found), **found.to_dict()}, ""
    except (ValueError, RuntimeError) as error:
        data, reason = {}, str(error)
    return Step("explain", title, not reason, time.perf_counter() - began, data, reason)


def _measured() -> Step:
    data, reason, took = Child(["bench", "gemm-bf16", "--quick", "--json", "-"]).result()
    title = "bfloat16 products measured against PyTorch on the GPU"
    if data is None or not data.get("rows"):
        return Step("bench", title, False, took, {}, reason or "nothing was measured")
    return Step("bench", title, not reason, took, data, reason)


def show(step: Step, number: int, total: int) -> None:
    """Print a step for a person."""
    console.heading(f"{number} of {total}  {step.title}")
    if step.data:
        {"verify": _show_verify, "inspect": _show_inspect, "explain": _show_explain, "bench": _show_bench}[step.name](
            step.data
        )
    if not step.passed:
        console.say(f"FAILED: {step.reason or 'see above'}", style="bold red")
    console.say()


def _show_verify(data: dict[str, Any]) -> None:
    from tilewright.lab.verify import Verification

    found = Verification.from_dict(data)
    how = "run by its interpreter" if found.mode == "interpreted" else f"compiled for the {found.device}"
    console.say(
        f"Triton kernels {how}. Every plan is forced, into an output filled with NaN; a result may be "
        "off from float64 by twice PyTorch's own error and one rounding."
    )
    console.show(found.table())
    console.say(f"Error: largest, over the largest value. Exact: the bits are right on integers too. {console.LEGEND}.")
    console.say(found.summary())


def _show_inspect(data: dict[str, Any]) -> None:
    console.say("Compiled by Triton without such a GPU, with the planner's pick for each; the binary is read back.")
    rows = []
    for entry in data["results"]:
        if "error" in entry:
            rows.append((entry["device"], "", entry["error"], "", "", "", ""))
            continue
        rows.append(
            (
                entry["device"],
                entry["target"],
                console.brief_plan(entry["plan"]),
                f"{entry['tensor_core_count']} {entry['tensor_core']}",
                entry["registers"],
                entry["spills"],
                f"{entry['shared'] / 1024:.0f} KiB",
            )
        )
    columns = ("device", "target", "plan", "tensor core", "registers", "spills", "shared")
    console.show(console.table(columns, rows, right=("registers", "spills", "shared")))
    console.say(f"Tensor core: matrix instructions in the program's text. {console.LEGEND}.")


def _show_explain(data: dict[str, Any]) -> None:
    console.write(data["report"])


def _show_bench(data: dict[str, Any]) -> None:
    rows = [
        (
            row["case"],
            console.brief_plan(row["plan"]),
            f"{row['ours_us']:.1f}",
            f"{row['peer_us']:.1f}",
            f"{row['ratio']:.2f}",
        )
        for row in data["rows"]
    ]
    console.say(f"{data['device']}: microseconds; a ratio above 1 is faster than PyTorch. A first look, not a record.")
    console.show(
        console.table(
            ("case", "plan", "tilewright", "PyTorch", "ratio"), rows, right=("tilewright", "PyTorch", "ratio")
        )
    )


def what_next(measured: bool) -> list[tuple[str, str]]:
    """Commands to try after the demonstration, and what they do."""
    more = [
        ("tilewright doctor", "what works on this machine, what does not, and why"),
        ("tilewright verify", "every candidate plan on every awkward problem"),
        ("tilewright explain 512x4096x14336 --device h100", "another product, another device"),
        ("tilewright inspect 1024x1024x1024 --device a100 --sass", "its machine code"),
        ("tilewright roofline --model Llama-3-8B --device mi300x", "the least time of a model's products"),
    ]
    if measured:
        more.insert(2, ("tilewright bench gemm-bf16 --html report.html", "the whole suite, as a page"))
    return more
