"""Break one line of the library at a time, and require the tests that should notice to go red.

A suite that stays green whatever the code says is worth nothing, and only this shows it. For each mutation the source
and the tests are copied to a temporary directory, one line is changed there, and the test files that should notice run
under Triton's interpreter. A mutation that survives means that a test is missing.

    python tests/mutants.py [--only TEXT] [--list] [--jobs N]

Exit status: 0 when every mutation was noticed; 1 when one survived, kept the tests from starting, took too long or no
longer matches the source, or when the tests named fail on the source as it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src") / "tilewright"
TIMEOUT_S = 180  # for each test file
#: pytest's exit status for failed tests; any other one above 0 says that they did not run
FAILED = 1
#: what a kernel that reads or writes where it must not ends with; a process that was killed from outside shows nothing
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS}

T = TypeVar("T")


class Mutation(NamedTuple):
    """One broken line: ``old`` is in ``file`` (under src/tilewright) exactly once, and ``new`` takes its place."""

    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]


TILE, PERSISTENT = "gemm/schedules/tile.py", "gemm/schedules/persistent.py"
SPLIT, GEMV, PARTIAL = "gemm/schedules/split.py", "gemm/schedules/gemv.py", "lang/partial.py"
COMMON, OPERANDS, OPS = "gemm/schedules/common.py", "gemm/operands.py", "gemm/ops.py"
EPILOGUE, PHILOX, ACTIVATIONS = "lang/epilogue.py", "lang/philox.py", "lang/activations.py"
COST, TRAFFIC, PLANNER = "gemm/cost.py", "gemm/traffic.py", "gemm/planner.py"
FAMILIES, STORED = "gemm/invariant.py", "gemm/stored.py"

# test files
PRODUCT, STRIDES, FORCED = "gemm/test_matmul.py", "gemm/test_strides.py", "gemm/test_plans_forced.py"
STEPS, DROPOUT, BACKWARD = "gemm/test_epilogue.py", "gemm/test_dropout.py", "gemm/test_backward.py"
INVARIANT, STORED_TESTS = "gemm/test_batch_invariant.py", "tune/test_stored.py"
PLANS, SIMULATED, LAUNCH = "gemm/test_planner.py", "gemm/test_traffic.py", "runtime/test_launch.py"
WORDS, ORDER, TEXT = "lang/test_philox.py", "lang/test_order.py", "gemm/test_plan_text.py"
ADDMM, LINEAR, FAR = "gemm/test_addmm.py", "gemm/test_linear.py", "gemm/test_far.py"
FEW = "gemm/test_few_rows.py"
MORE, MORE_LANG = "gemm/test_survivors.py", "lang/test_survivors_lang.py"

# fmt: off
_ROWS: tuple[tuple[str, ...], ...] = (
    # the tile schedule
    (TILE, "mask=m_a & (ks[None, :] < left)", "mask=m_a", "the k mask of A", PRODUCT),
    (TILE, "mask=m_b & (ks[:, None] < left)", "mask=m_b", "the k mask of B", PRODUCT),
    (TILE, "left = k - i * BLOCK_K", "left = k", "what is left of k in the last slice", PRODUCT),
    (TILE, '"EVEN_K": k % plan.block_k == 0', '"EVEN_K": True', "when the k mask is needed", PRODUCT),
    (TILE, "m_a = rows[:, None] < m", "m_a = rows[:, None] <= m", "the m mask, off by one", PRODUCT),
    (TILE, "m_b = cols[None, :] < n", "m_b = cols[None, :] <= n", "the n mask, off by one", PRODUCT),
    (TILE, "acc.to(p_c.dtype.element_ty), mask=m_a & m_b", "acc.to(p_c.dtype.element_ty), mask=m_a",
     "the store's n mask", PRODUCT),
    (TILE, "step_a = tl.full((), BLOCK_K, tl.int64) * strides_a[3]", "step_a = BLOCK_K * strides_a[3]",
     "A's step along k in 64 bits", FAR),
    (TILE, "tl.full((), BLOCK_K, tl.int64) * strides_b[2]", "tl.full((), BLOCK_K, tl.int64) * strides_b[3]",
     "which stride B's step along k takes", PRODUCT),
    (TILE, "z0 = z // batch_inner", "z0 = z % batch_inner", "the outer batch index", STRIDES),
    (TILE, "z1 = z % batch_inner", "z1 = z", "the inner batch index", STRIDES),
    (TILE, '"BATCHED": z0 * z1 > 1', '"BATCHED": z0 > 1', "whether there is a batch", PRODUCT),
    (TILE, "finish(acc, batch_first + z,", "finish(acc, z,", "the first product of a piece of a batch", STRIDES),
    # the persistent schedule
    (PERSISTENT, "block = desc.load([col, row]).T", "block = desc.load([row, col]).T", "a transposed descriptor",
     FORCED),
    (PERSISTENT, "desc.load([z, col, row])", "desc.load([0, col, row])", "the batch of a transposed descriptor",
     MORE),
    (PERSISTENT, "desc.load([z, row, col])", "desc.load([0, row, col])", "the batch of a descriptor", FORCED),
    (PERSISTENT, "halves(left) + halves(right)", "halves(right) + halves(left)", "the order of the pieces of a tile",
     FORCED),
    (PERSISTENT, "(block.shape[0], 2, block.shape[1] // 2)), (0, 2, 1))",
     "(block.shape[0], block.shape[1] // 2, 2)), (0, 1, 2))", "which columns are a half", FORCED),
    (PERSISTENT, "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)",
     "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC) if index == tl.program_id(0) else acc",
     "that each tile starts from zero", FORCED),
    (PERSISTENT, "col = tile_n * BLOCK_N + part * WIDTH", "col = tile_n * BLOCK_N + part", "where a piece starts",
     FORCED),
    (PERSISTENT, "mask=(rows[:, None] < m) & (cols[None, :] < n)", "mask=rows[:, None] < m",
     "the n mask of a store by pointers", MORE),
    # the split schedule and gemv
    (PARTIAL, "first = part * each + tl.minimum(part, more)", "first = part * each", "where a part of k starts",
     FEW),
    (PARTIAL, "(part < more).to(tl.int32)", "(part <= more).to(tl.int32)", "where a part of k ends", FEW),
    (PARTIAL, "== SPLIT - 1", "== 0", "that the last program adds the parts", FEW),
    (PARTIAL, "for other in tl.static_range(1, SPLIT):", "for other in tl.static_range(SPLIT - 1, 0, -1):",
     "the order in which parts are added", FEW),
    (PARTIAL, "tl.store(p_arrived + tile, 0)", "tl.store(p_arrived + tile, SPLIT)", "the counter after a launch", FEW),
    (PARTIAL, "tile.to(tl.int64) * (SPLIT * SIZE)", "tile.to(tl.int64) * SIZE", "where a tile's parts lie", FEW),
    (SPLIT, "acc = acc.T", "acc = tl.reshape(acc, (BLOCK_M, BLOCK_N))", "turning a swapped sum back", FEW),
    (SPLIT, "strides_a, z0, z1, rows, ks) + first * step_a", "strides_a, z0, z1, rows, ks)", "where a part of A starts",
     FEW),
    (SPLIT, "mask=m_b & (ks[:, None] < left)", "mask=m_b", "the k mask of B by pointers", FEW),
    (SPLIT, "and not problem.batch_invariant", "", "one way to load, whatever the rows", FEW),
    (GEMV, "(ks < k - i * BLOCK_K)", "(ks < k)", "the k mask", FEW),
    (GEMV, "m_b = (cols < n)", "m_b = (cols <= n)", "the n mask of gemv, off by one", FEW),
    (GEMV, 'meta["DROPOUT"] = min(meta["DROPOUT"], 1)', "pass", "dropout in blocks of few columns", FEW),
    (GEMV, "if problem.batch_invariant:", "if False:", "the refusal of batch invariance", FEW),
    # program order
    ("lang/order.py", "size = tl.minimum(tiles_outer - first, GROUP)", "size = GROUP", "the width of the last band",
     ORDER),
    ("lang/order.py", "first = index // in_band * GROUP", "first = index // in_band", "where a band starts", ORDER),
    ("lang/order.py", 'if ORDER == "m":', 'if ORDER != "m":', "the dimension that bands count along", ORDER),
    # precision
    ("lang/dot.py", "+ 0x1000) & 0xFFFFE000", "+ 0x0000) & 0xFFFFE000", "rounding to tf32", MORE_LANG),
    ("lang/dot.py", "tl.where(x == x, bits", "tl.where(True, bits", "NaN through the rounding to tf32", MORE_LANG),
    # the epilogue
    (EPILOGUE, "z0.to(tl.int64) * strides[0] + z1.to(tl.int64) * strides[1]",
     "z0.to(tl.int64) * strides[1] + z1.to(tl.int64) * strides[0]", "the strides of a batch", PRODUCT),
    (EPILOGUE, "rows.to(tl.int64)[:, None] * strides[2]", "rows[:, None] * strides[2]", "row offsets in 64 bits", FAR),
    (EPILOGUE, "acc = acc * scalar(alpha, acc)", "acc = acc + scalar(alpha, acc)", "alpha", STEPS),
    (EPILOGUE, "+ tl.cast(parts[1], like.dtype)", "+ 0.0 * tl.cast(parts[1], like.dtype)",
     "the last bits of a float64 factor",
     STEPS),
    (EPILOGUE, "p_bias = bias[0] + cols.to(tl.int64) * bias[1]", "p_bias = bias[0] + cols.to(tl.int64)",
     "the bias's stride", STRIDES),
    (EPILOGUE, "p_pre = pre[0] + offsets(pre[1], z0, z1,", "p_pre = pre[0] + offsets(pre[1], z1, z0,",
     "where the value before the activation goes", BACKWARD),
    (EPILOGUE, "residual[0] + offsets(residual[1], z0, z1,", "residual[0] + offsets(residual[1], z1, z0,",
     "where the residual is read", PRODUCT),
    (EPILOGUE, "starts = (z.to(tl.int64) * m + rows", "starts = (z.to(tl.int64) + rows", "the dropout index of a batch",
     PRODUCT),
    (EPILOGUE, "seed = tl.load(dropout[0])", "seed = tl.load(dropout[0]) * 0", "the seed in a tensor", DROPOUT),
    (EPILOGUE, "threshold), acc * scale, 0.0)", "threshold), acc, 0.0)", "dropout's scale", DROPOUT),
    (COMMON, "1.0 / (1.0 - e.dropout_p)", "1.0 / e.dropout_p", "dropout's scale from p", DROPOUT),
    (COMMON, "return 16 if n % 16 == 0 and p < 1.0 else 1", "return 16 if n % 8 == 0 and p < 1.0 else 1",
     "when sixteen words are taken at once", STEPS),
    # random words
    (PHILOX, "ROUNDS = tl.constexpr(7)", "ROUNDS = tl.constexpr(6)", "Philox's rounds", WORDS),
    (PHILOX, "c1 = (counter >> 32).to(tl.uint32)", "c1 = c0 * 0", "the counter's high word", WORDS),
    (PHILOX, "k1 += _W1", "k1 += _W0", "the key's second half", WORDS),
    (PHILOX, "(index >> 4 << 2) + (index >> 1 & 3)", "index >> 2", "the counter of an element", WORDS),
    (PHILOX, "even = tl.where((index & 8) == 0, w0, w2)", "even = tl.where((index & 8) == 0, w0, w1)",
     "the word of an element", WORDS),
    (PHILOX, "even, odd) >= threshold", "even, odd) > threshold", "a word equal to the threshold, one by one",
     MORE_LANG),
    (PHILOX, "x2 = tl.where(w2 >= threshold", "x2 = tl.where(w2 > threshold",
     "a word equal to the threshold, of sixteen", MORE_LANG),
    # activations and their derivatives
    (ACTIVATIONS, "_SQRT1_2 = tl.constexpr(0.7071067811865476)", "_SQRT1_2 = tl.constexpr(0.7071)",
     "a constant of gelu", STEPS),
    (ACTIVATIONS, "0.284496736", "0.2844", "a constant of gelu for 16 bits", MORE_LANG),
    (ACTIVATIONS, 'tl.where(x == float("inf"), x, tl.maximum', 'tl.where(x != x, x, tl.maximum',
     "gelu of infinity in 16 bits", MORE),
    (ACTIVATIONS, "x2 < 0.0625", "x2 < 4.0", "where tanh's series ends", STEPS),
    (ACTIVATIONS, "-17.0 / 315", "17.0 / 315", "a term of tanh's series", STEPS),
    (ACTIVATIONS, "e / (1 + e))", "e / (2 + e))", "sigmoid and silu below 0", STEPS),
    (ACTIVATIONS, "tl.where(x <= 0, 0.0, 1.0)", "tl.where(x < 0, 0.0, 1.0)", "relu's slope at 0", BACKWARD),
    (ACTIVATIONS, "s * (1 + x * (1 - s))", "s * (1 + x * s)", "silu's derivative", BACKWARD),
    (ACTIVATIONS, "tl.exp(-0.5 * x * x)", "tl.exp(-x * x)", "gelu's derivative", BACKWARD),
    (ACTIVATIONS, "(3 * _GELU_CUBIC)", "(2 * _GELU_CUBIC)", "gelu_tanh's derivative", BACKWARD),
    # launches under the interpreter
    ("runtime/launch.py", "narrow.copy_(wide)", "narrow.copy_(narrow)", "writing results back", LAUNCH),
    ("runtime/launch.py", "x.stride(), x.storage_offset())", "x.stride(), 0)", "the offset of a widened view", LAUNCH),
    ("runtime/launch.py", "if key not in self._spans:", "if True:", "one copy for two views of one buffer", MORE),
    # batches on the host
    (OPERANDS, "for h in outer)):", "for h in outer[:1])):",
     "folding a batch into rows where C or the residual differs", STRIDES),
    (OPERANDS, "if sizes and b_held[1][-1] == 0 and", "if sizes and", "folding a batch only where B repeats", PRODUCT),
    (OPERANDS, "h[2][0] = last if m == 1 else h[2][0]", "h[2][0] = h[2][0]",
     "the row stride of a folded batch of single rows", MORE),
    (OPERANDS, "if sizes and all(s[-1] ==", "if sizes and any(s[-1] ==", "merging two batch dimensions", STRIDES),
    (OPERANDS, "first=index * per_piece", "first=index", "the first product of a piece", STRIDES),
    (OPERANDS, "b=self.b.transpose(0, 1)", "b=self.b", "an operand whose batch dimensions are exchanged",
     MORE),
    (OPERANDS, "math.gcd(ALIGNED, address, *strides)", "math.gcd(ALIGNED, *strides)", "the alignment of an address",
     PLANS),
    (OPERANDS, "return round(p * 2**32)", "return round(p * 2**31)", "dropout's threshold", DROPOUT),
    # the operation and its backward
    ("gemm/matmul.py", "if beta == 0:", "if beta != beta:", "that addmm leaves its input unread", ADDMM),
    ("gemm/matmul.py", "residual.to(wide) * beta if beta != 1", "(residual * beta).to(wide) if beta != 1",
     "addmm's beta before any rounding", ADDMM),
    ("gemm/matmul.py", "weight = weight.t()", "weight = weight.reshape(weight.shape[::-1])", "linear's transposition",
     LINEAR),
    (OPS, "grad.reshape(-1, grad.shape[-1]), alpha, precision", "grad.reshape(-1, grad.shape[-1]), 1.0, precision",
     "alpha in the gradient of a shared B", MORE),
    (OPS, "= plain(grad, b.transpose(-1, -2), alpha,", "= plain(grad, b.transpose(-1, -2), 1.0,",
     "alpha in the backward", BACKWARD),
    (OPS, "grad = grad.to(a.dtype)", "grad = grad", "the gradient's cast", MORE),
    (OPS, "dtype=wide).reshape(shape)", "dtype=grad.dtype).reshape(shape)", "the bias gradient's sum in float32",
     MORE),
    (OPS, "row[:, None] * stride_row + col[None, :] * stride_col", "row[:, None] * n + col[None, :]",
     "the gradient's strides in the epilogue's backward", BACKWARD),
    (OPS, "1.0 / (1.0 - dropout_p)", "1.0", "dropout's scale in the backward", BACKWARD),
    (OPS, "scalar(scale, grad), row[:, None] * n, col", "scalar(scale, grad), row[:, None], col",
     "dropout's mask in the backward", BACKWARD),
    # plans
    (PLANNER, "if problem.batch_invariant:", "if False:", "what a batch-invariant plan depends on", INVARIANT),
    (PLANNER, "not problem.batch_invariant or invariant.belongs(measured[0], problem, device)", "True",
     "stored plans of batch-invariant products", INVARIANT),
    (FAMILIES, "replace(made, block_k=shared.block_k)", "made", "the slices of a family's members", INVARIANT),
    (FAMILIES, 'if problem.m != 1 or problem.layout[0] != "n":', "if True:", "the alignment of a single row",
     INVARIANT),
    (FAMILIES, "device.has_tma and plan.block_m >= 64", "device.has_tma", "tiles of too few rows for a warp group",
     INVARIANT),
    (STORED, "if schedule is not None and schedule.refuses(plan, problem, device) is None", "if schedule is not None",
     "the refusal of a stored plan", STORED_TESTS),
    ("tune/store.py", "AND source = ? AND", "AND source != ? AND", "the source of a plan of the store", STORED_TESTS),
    ("tune/shipped.py", "== (triton, source) for", "!= () for", "the source of a shipped plan", STORED_TESTS),
    (PLANNER, "cost.predict(problem, plan, device).seconds, plan)",
     "-cost.predict(problem, plan, device).seconds, plan)", "the order of candidates", PLANS),
    (PLANNER, "if why := schedule.refuses(plan, problem, device):", "if why := schedule.supports(problem, device):",
     "the refusal of a plan", PLANS),
    (COMMON, "if held > most_sum_registers(problem, device):", "if held > 2 * most_sum_registers(problem, device):",
     "the registers that a tile may take", MORE),
    (COMMON, "if plan.split_k != 1 and not splits:", "if plan.split_k < 1:", "the refusal to split k", PLANS),
    ("gemm/plan.py", 'order, swap = given.pop("order", "m")', 'order, swap = (given.pop("order", "m"), "m")[1]',
     "reading a plan's order", TEXT),
    ("gemm/plan.py", "if value & (value - 1):", "if value > 2**20:", "tiles that are powers of two", TEXT),
    # predicted time and bytes
    (COST, 'out *= 1 + problem.epilogue.count("residual") +', "out *= 1 +", "the bytes of a residual in the model",
     MORE),
    (COST, "l2_bytes=round(tiles * plan.split_k * f.slices * f", "l2_bytes=round(tiles * plan.split_k * f",
     "the bytes that the L2 moves in the model", MORE),
    (COST, "(tiles * plan.split_k - (waves - 1) *", "(tiles * plan.split_k - waves *",
     "the useful share of the last wave", MORE),
    (COST, "if a + b <= capacity:", "if a + b > capacity:", "operands that the L2 holds", MORE),
    ("gemm/problem.py", "self.m * self.n * out * (1 + extra)", "self.m * self.n * out", "the least bytes of a problem",
     MORE),
    (TRAFFIC, "hbm_write=passing - residual", "hbm_write=passing", "the bytes written", SIMULATED),
    (TRAFFIC, "cache.move_to_end(key)", "pass", "that what was used last stays in the cache", SIMULATED),
)
# fmt: on

#: each with the test files that should notice
MUTATIONS = tuple(Mutation(*row[:4], row[4:]) for row in _ROWS)


@dataclass(frozen=True)
class Outcome:
    """What the tests made of one copy: ``ok`` is what was wanted of them, ``word`` and ``by`` are for the table."""

    title: str
    ok: bool
    word: str
    seconds: float
    output: str = ""
    by: str = ""


def mutated(mutation: Mutation, root: Path = ROOT) -> str:
    """The mutated file's text; ``ValueError`` when the old text is not there exactly once."""
    text = (root / PACKAGE / mutation.file).read_text()
    if (found := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.file} has {mutation.old!r} {found} times; it must be there once")
    return text.replace(mutation.old, mutation.new)


def copy_to(folder: Path, root: Path = ROOT) -> None:
    """The source, the tests and pytest's settings, as they are."""
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("src", "tests"):
        shutil.copytree(root / name, folder / name, ignore=ignore)
    shutil.copy(root / "pyproject.toml", folder)


def pytest_in(folder: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """pytest's exit status there (``None``: it took too long; below 0: a signal ended it) and the end of its output."""
    env = {**os.environ, "PYTHONPATH": str(folder / "src"), "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests)]
    try:
        run = subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=TIMEOUT_S * len(tests),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, ""
    return run.returncode, run.stdout[-3000:]


def judge(root: Path, mutation: Mutation) -> Outcome:
    """Whether the tests that should notice ``mutation`` of the tree ``root`` do."""
    started = time.monotonic()
    try:
        text = mutated(mutation, root)
    except ValueError as error:
        return Outcome(mutation.breaks, False, "no such text", 0.0, str(error))
    with tempfile.TemporaryDirectory(prefix="tilewright-mutant-") as name:
        folder = Path(name)
        copy_to(folder, root)
        (folder / PACKAGE / mutation.file).write_text(text)
        status, output = pytest_in(folder, mutation.tests)
    seconds = time.monotonic() - started
    if status == FAILED:
        found = re.search(r"^FAILED tests/([^\s[]+)", output, re.MULTILINE)
        if found is None:  # nothing that a test says
            return Outcome(mutation.breaks, False, "no test failed", seconds, output)
        return Outcome(mutation.breaks, True, "noticed", seconds, by=found[1])
    if status in CRASHES:
        return Outcome(mutation.breaks, True, "noticed", seconds, by=f"{' '.join(mutation.tests)} (crash)")
    word = "SURVIVED" if status == 0 else "too slow" if status is None else f"not run (pytest exit {status})"
    return Outcome(mutation.breaks, False, word, seconds, output if status else "")


def green(root: Path, tests: list[str]) -> Outcome:
    """Whether test files pass on the tree as it is: without that, red would mean nothing."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tilewright-mutant-") as name:
        copy_to(Path(name), root)
        status, output = pytest_in(Path(name), tests)
    word = "green" if status == 0 else "too slow" if status is None else f"not green (pytest exit {status})"
    title = " ".join(Path(t).stem for t in tests)
    return Outcome(title, status == 0, word, time.monotonic() - started, output if status else "")


def each(function: Callable[[T], Outcome], items: list[T], jobs: int) -> list[Outcome]:
    """Outcomes in the order of ``items``; each is told as it comes."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(function, item): i for i, item in enumerate(items)}
        found: dict[int, Outcome] = {}
        for future in as_completed(futures):
            o = found[futures[future]] = future.result()
            print(f"[{len(found):2d}/{len(items)}] {o.seconds:5.1f} s  {o.word:10s} {o.title}", flush=True)
    return [found[i] for i in range(len(items))]


def table(rows: list[tuple[str, ...]], heads: tuple[str, ...]) -> None:
    """Print a table: with rich where it is installed, else plain."""
    if importlib.util.find_spec("rich") and sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        made = Table(*heads)
        for row in rows:
            made.add_row(*row, style=None if row[0].startswith("noticed") or row[0] == "-" else "bold red")
        Console().print(made)
        return
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, tuple("-" * w for w in widths), *rows]:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def main(argv: list[str] | None = None) -> int:
    """Run the mutations that were asked for."""
    parser = argparse.ArgumentParser(description="Break one line at a time, and see the tests go red for each.")
    parser.add_argument("--only", metavar="TEXT", default="", help="mutations whose file or description has TEXT")
    parser.add_argument("--list", action="store_true", help="print the mutations and run nothing")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="mutations at a time (default 2)")
    options = parser.parse_args(argv)
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; it must be 1 or more")
    chosen = [m for m in MUTATIONS if options.only.lower() in f"{m.file} {m.breaks}".lower()]
    if not chosen:
        parser.error(f"--only is {options.only!r}; no mutation has it in its file or description")
    if options.list:
        rows = [("-", m.file, m.breaks, " ".join(m.tests)) for m in chosen]
        table(rows, ("outcome", "file", "what breaks", "tests"))
        return 0
    # of a tree that is being edited, the mutations could go red for what was edited since the tests were green
    with tempfile.TemporaryDirectory(prefix="tilewright-mutants-") as name:
        copy_to(Path(name))
        return run(Path(name), chosen, options.jobs)


def run(root: Path, chosen: list[Mutation], jobs: int) -> int:
    """The tests on the tree ``root``, and on every mutation of it."""
    started = time.monotonic()
    tests = sorted({t for m in chosen for t in m.tests})
    print(f"{len(tests)} test files on the source as it is", flush=True)
    shares = [share for i in range(jobs) if (share := tests[i::jobs])]
    bad = [o for o in each(partial(green, root), shares, jobs) if not o.ok]
    if not bad:
        print(f"{len(chosen)} mutations", flush=True)
        outcomes = each(partial(judge, root), chosen, jobs)
        print()
        rows = [(o.word, m.file, m.breaks, o.by or " ".join(m.tests)) for m, o in zip(chosen, outcomes, strict=True)]
        table(rows, ("outcome", "file", "what breaks", "noticed by"))
        bad = [o for o in outcomes if not o.ok]
        print(f"\n{len(chosen) - len(bad)} of {len(chosen)} noticed, {time.monotonic() - started:.0f} s")
    for o in bad:
        print(f"\n{o.title}: {o.word}\n{o.output}".rstrip())
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
