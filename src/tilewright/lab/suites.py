"""Benchmark suites: which products are measured, read from data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from tilewright.gemm.problem import ACTIVATIONS, CODE_DTYPES, Problem
from tilewright.runtime.errors import bad

OPS = ("matmul", "linear", "addmm", "scaled_matmul")
RUNNERS = ("products", "host", "planner", "batch-invariant")


@dataclass(frozen=True)
class Case:
    """One product of a suite.

    Args:
        op: "matmul", "linear", "addmm" or "scaled_matmul".
        m, n, k: sizes.
        dtype: of the operands, as torch names it ("bfloat16").
        layout: a letter for each operand as torch sees it, as in ``Problem``; a weight (n, k) makes it "nt".
        precision: of float32 operands.
        epilogue: the steps after the product, in order: "bias", an activation, "dropout", "residual".
        dropout_p: probability of the step "dropout".
        grad: whether the operands want a gradient (suite ``host``).
        batch_invariant: as the argument of that name.
        scales: granularity of the scales of "scaled_matmul": "tensor", "row" or "block".
        fast_accumulate: as the argument of that name, of "scaled_matmul".
        out_dtype: of the result of "scaled_matmul"; by default bfloat16.
        source: where the shape comes from.
    """

    op: str
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    layout: str = "nt"
    precision: str | None = None
    epilogue: tuple[str, ...] = ()
    dropout_p: float = 0.0
    grad: bool = False
    batch_invariant: bool = False
    scales: str = ""
    fast_accumulate: bool = False
    out_dtype: str | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise bad("bench", "op", repr(self.op), f"one of {', '.join(OPS)}")
        object.__setattr__(self, "epilogue", tuple(self.epilogue))
        if self.op == "linear" and self.layout[1] != "t":
            raise bad("bench", "layout", repr(self.layout), "'nt' or 'tt' for linear, whose weight is (n, k)")
        if (self.op == "scaled_matmul") != (self.torch_dtype in CODE_DTYPES):
            must = "codes (int8 or a float8) for scaled_matmul, and floats for every other op"
            raise bad("bench", "dtype", f"{self.dtype} with {self.op}", must)
        self.problem()

    @property
    def torch_dtype(self) -> torch.dtype:
        """The operands' dtype; ``ValueError`` for a name that torch does not have."""
        return _dtype("dtype", self.dtype)

    @property
    def result_dtype(self) -> torch.dtype:
        """The result's dtype."""
        if self.out_dtype is not None:
            return _dtype("out_dtype", self.out_dtype)
        return torch.bfloat16 if self.op == "scaled_matmul" else self.torch_dtype

    @property
    def activation(self) -> str | None:
        """The one activation among the steps."""
        return next((step for step in self.epilogue if step in ACTIVATIONS), None)

    @property
    def dropout(self) -> float:
        """The probability to drop, 0 without that step."""
        return self.dropout_p if "dropout" in self.epilogue else 0.0

    @property
    def name(self) -> str:
        """The label of its rows, such as "4096x4096x4096 nt"."""
        parts = [f"{self.m}x{self.n}x{self.k}", self.layout]
        if self.precision:
            parts.append(self.precision)
        if self.scales:
            parts.append(self.scales)
        if self.fast_accumulate:
            parts.append("fast")
        if self.out_dtype:
            parts.append(f"-> {self.out_dtype}")
        if self.epilogue:
            parts.append("+".join(self.epilogue))
        if self.grad:
            parts.append("grad")
        if self.batch_invariant:
            parts.append("batch-invariant")
        return " ".join(parts)

    @property
    def label(self) -> str:
        """What a filter is looked for in: op, name and source."""
        return f"{self.op} {self.name} {self.source}"

    def problem(self) -> Problem:
        """What the product asks of the planner."""
        epilogue = ("residual",) if self.op == "addmm" else self.epilogue
        return Problem(
            self.m,
            self.n,
            self.k,
            dtype=self.torch_dtype,
            layout=self.layout,
            epilogue=epilogue,
            precision=self.precision,
            batch_invariant=self.batch_invariant,
            out_dtype=self.result_dtype,
            scaled=self.scales or None,
            fast_accumulate=self.fast_accumulate,
        )


def _dtype(field: str, name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise bad("bench", field, repr(name), "a dtype's name, such as 'bfloat16'")
    return found


@dataclass(frozen=True)
class Suite:
    """A named list of cases and the runner that measures them ("products", "host", "planner" or "batch-invariant")."""

    name: str
    about: str
    runner: str
    cases: tuple[Case, ...]

    def select(self, cases: str | Sequence[str] | None) -> Suite:
        """The suite with the cases whose label holds any of those texts; ``ValueError`` when none does."""
        if cases is None:
            return self
        wanted = [cases] if isinstance(cases, str) else list(cases)
        kept = tuple(case for case in self.cases if any(text in case.label for text in wanted))
        if not kept:
            must = f"part of a case of {self.name}, such as {self.cases[0].name}"
            raise bad("bench", "cases", ", ".join(wanted), must)
        return Suite(self.name, self.about, self.runner, kept)


def folder() -> Path:
    """Where the suites are: inside an installed package, beside the source in a checkout."""
    installed = Path(str(resources.files("tilewright"))) / "data" / "suites"
    if installed.is_dir():
        return installed
    return Path(__file__).resolve().parents[3] / "benchmarks" / "suites"


def names() -> list[str]:
    """The suites that exist."""
    return sorted(path.stem for path in folder().glob("*.json"))


def load(name: str) -> Suite:
    """The suite of that name; ``ValueError`` lists the others."""
    if name not in names():
        raise bad("bench", "suite", repr(name), f"one of {', '.join(names())}")
    return parse(json.loads((folder() / f"{name}.json").read_text(encoding="utf-8")))


def parse(data: dict[str, Any]) -> Suite:
    """A suite from what its file says; ``ValueError`` names what a case lacks or has too much of."""
    if data.get("runner") not in RUNNERS:
        raise bad("bench", "runner", repr(data.get("runner")), f"one of {', '.join(RUNNERS)}")
    cases = [_case({**data.get("defaults", {}), **entry}) for entry in data["cases"]]
    return Suite(data["suite"], data.get("about", ""), data["runner"], tuple(cases))


def _case(entry: dict[str, Any]) -> Case:
    entry = {("source" if key == "from" else key): value for key, value in entry.items()}
    known = {field.name for field in fields(Case)}
    for key in entry:
        if key not in known:
            raise bad("bench", "case", f"a case with {key!r}", f"made of {', '.join(sorted(known))}")
    for key in ("op", "m", "n", "k"):
        if key not in entry:
            raise bad("bench", "case", f"a case without {key!r}", "one with op, m, n and k")
    return Case(**entry)


def quick(suite: Suite, most: int = 12) -> Suite:
    """At most that many cases, spread evenly over the suite: for a first look."""
    step = -(-len(suite.cases) // most)
    return Suite(suite.name, suite.about, suite.runner, suite.cases[::step])


def load_all(wanted: Iterable[str], cases: str | Sequence[str] | None = None) -> list[Suite]:
    """Those suites, filtered: every name and filter is checked before anything is measured."""
    return [load(name).select(cases) for name in wanted]
