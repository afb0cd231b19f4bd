"""Write ``benchmarks/suites/*.json``: ``python benchmarks/make_suites.py``.

The suites are data: every case is spelt out in its file. This script only saves the typing, and says where the shapes
come from; the products of models are those of ``src/tilewright/data/models.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SUITES = Path(__file__).parent / "suites"

SQUARES = (256, 512, 1000, 1024, 1025, 2048, 3072, 4096, 4097, 6144, 8192, 12288, 16384)
ROWS = (1, 16, 64, 128, 256, 512, 1024, 4096, 8192)
LAYOUTS = ("nn", "nt", "tn", "tt")

MODEL_SHEET = Path(__file__).parents[1] / "src" / "tilewright" / "data" / "models.json"

#: (n, k) of each weight of each model
MODELS: dict[str, dict[str, tuple[int, int]]] = {
    model: {name: (product["n"], product["k"]) for name, product in sheet["products"].items()}
    for model, sheet in json.loads(MODEL_SHEET.read_text(encoding="utf-8"))["models"].items()
}

#: the models of gemm-bf16
BF16_MODELS = ("Llama-3-8B", "Llama-3-70B", "Qwen3-32B", "DeepSeek-V3")


def case(
    m: int, n: int, k: int, source: str, *, op: str = "matmul", layout: str = "nt", **extra: Any
) -> dict[str, Any]:
    """One case; ``extra`` holds dtype, precision, epilogue and so on."""
    return {"op": op, "m": m, "n": n, "k": k, "layout": layout, **extra, "from": source}


def squares(sizes: Iterable[int], layouts: Iterable[str] = ("nn",)) -> Iterator[dict[str, Any]]:
    """n x n x n products."""
    for layout in layouts:
        for size in sizes:
            yield case(size, size, size, f"square {layout}", layout=layout)


def products(model: str, rows: Iterable[int], names: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
    """The products of one layer of a model, with that many tokens."""
    weights = MODELS[model]
    for name in names or weights:
        for m in rows:
            yield case(m, *weights[name], f"{model} {name}")


def distinct(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Equal cases as one, which then names all its sources."""
    found: dict[str, dict[str, Any]] = {}
    for one in cases:
        key = json.dumps({name: value for name, value in one.items() if name != "from"}, sort_keys=True)
        if key in found:
            found[key]["from"] += f", {one['from']}"
        else:
            found[key] = one
    return list(found.values())


def write(name: str, about: str, runner: str, cases: Iterable[dict[str, Any]], **defaults: Any) -> None:
    """One suite, a case on each line."""
    rows = distinct(cases)
    head = {"suite": name, "about": about, "runner": runner, "defaults": defaults}
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    text = json.dumps(head, indent=1)[:-2] + ',\n "cases": [\n' + body + "\n ]\n}\n"
    json.loads(text)
    (SUITES / f"{name}.json").write_text(text, encoding="utf-8")


def bf16() -> Iterator[dict[str, Any]]:
    """Squares, the four layouts, and the products of four models."""
    yield from squares(SQUARES)
    yield from squares((1024, 4096, 8192), LAYOUTS)
    for model in BF16_MODELS:
        yield from products(model, ROWS)


def fp16() -> Iterator[dict[str, Any]]:
    """The shapes that differ most from each other."""
    yield from squares((256, 512, 1000, 1024, 1025, 2048, 4096, 4097, 8192, 16384))
    yield from squares((4096,), LAYOUTS)
    yield from products("Llama-3-8B", (1, 16, 128, 512, 4096))


def fp32() -> Iterator[dict[str, Any]]:
    """Each shape with each way to multiply float32."""
    shapes = [
        *squares((512, 1024, 1025, 2048, 4096, 8192)),
        *squares((4096,), ("nt",)),
        *products("Llama-3-8B", (512, 4096), ("qkv", "gate-up", "down")),
    ]
    for precision in ("ieee", "tf32x3", "tf32"):
        for one in shapes:
            yield {**one, "precision": precision, "from": one["from"]}


def epilogue() -> Iterator[dict[str, Any]]:
    """``linear`` and what may follow it. Few cases: torch.compile tunes for each one, minutes where ours takes none."""
    for m, n, k, source in (
        (4096, 4096, 4096, "square"),
        (16384, 4096, 1024, "short k"),
        (8192, 14336, 4096, "Llama-3-8B up"),
    ):
        yield case(m, n, k, source, op="linear", epilogue=["gelu", "dropout"])
    for chain in (["bias", "gelu"], ["bias", "gelu", "dropout", "residual"]):
        yield case(4096, 4096, 4096, "square", op="linear", epilogue=chain)


def host() -> Iterator[dict[str, Any]]:
    """Calls whose device time is nothing: what is left is the host's."""
    for op in ("matmul", "linear", "addmm"):
        yield case(64, 64, 64, "host", op=op, grad=False)
    for op in ("linear", "addmm"):
        yield case(64, 64, 64, "host", op=op, grad=True)
    yield case(64, 64, 64, "host", op="linear", epilogue=["bias", "gelu"], grad=False)


def planner() -> Iterator[dict[str, Any]]:
    """A stated part of gemm-bf16 (every kind of shape, not every m of every model), and some of the other suites."""
    yield from squares(size for size in SQUARES if size <= 8192)
    yield from squares((4096,), ("tn", "nt", "tt"))
    yield from products("Llama-3-8B", (1, 16, 128, 512, 4096))
    yield from products("DeepSeek-V3", (64, 1024))
    yield from products("Qwen3-32B", (256, 8192), ("qkv", "o", "gate-up", "down"))
    for m, n, k, layout in ((1000, 1025, 777, "nt"), (4097, 4097, 4097, "nt"), (512, 1025, 4097, "tt")):
        yield case(m, n, k, "unaligned", layout=layout)
    for chain in (["bias", "gelu"], ["residual"]):
        yield case(4096, 4096, 4096, "epilogue", op="linear", epilogue=chain)
        yield case(512, 14336, 4096, "epilogue", op="linear", epilogue=chain)
    for precision in ("ieee", "tf32x3", "tf32"):
        for m, n, k, layout in ((1024, 1024, 1024, "nn"), (4096, 4096, 4096, "nt"), (4096, 4096, 4096, "nn")):
            yield case(m, n, k, "float32", layout=layout, dtype="float32", precision=precision)
    for m, n, k, layout in ((1025, 1025, 1025, "nn"), (512, 6144, 4096, "nt"), (512, 4096, 14336, "nt")):
        yield case(m, n, k, "float32", layout=layout, dtype="float32", precision="tf32x3")


def batch_invariant() -> Iterator[dict[str, Any]]:
    """Weights of a model with few and many rows, a small one, and one whose rows are not aligned."""
    yield from products("Llama-3-8B", (1, 16, 64, 128, 512, 4096), ("qkv", "o", "gate-up", "down"))
    yield from (case(m, 1024, 1024, "small") for m in (1, 16, 128, 512))
    yield from (case(m, 1025, 777, "unaligned") for m in (1, 512))
    yield from (case(m, 4096, 4096, "row-major weight", layout="nn") for m in (1, 64, 512))
    yield from (case(m, 6144, 4096, "epilogue", op="linear", epilogue=["bias", "gelu"]) for m in (1, 512))
    yield case(512, 4096, 4096, "fp16", dtype="float16")
    for precision in ("ieee", "tf32x3", "tf32"):
        yield case(512, 4096, 4096, "float32", dtype="float32", precision=precision)


#: rows of a step of generation: one for each sequence of a batch
FEW_ROWS = (1, 2, 4, 8, 16, 32, 64)


def decode() -> Iterator[dict[str, Any]]:
    """Every weight of three models, from one row to 64; and weights of two that are not aligned or not transposed."""
    for model in ("Llama-3-8B", "Llama-3-70B", "DeepSeek-V3"):
        yield from products(model, FEW_ROWS)
    yield from (case(m, 4096, 4096, "row-major weight", layout="nn") for m in (1, 16, 64))
    yield from (case(m, 4099, 4097, "unaligned") for m in (1, 16, 64))
    yield from (case(m, 6144, 4096, "epilogue", op="linear", layout="nt") for m in (1, 16))


def coded(rows: Iterable[int], sizes: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Shapes of the suites of codes; A and B both have k innermost, the one layout that the peers take."""
    for size in sizes:
        yield case(size, size, size, "square", op="scaled_matmul")
    for m in rows:
        for name in ("qkv", "gate-up", "down"):
            yield case(m, *MODELS["Llama-3-8B"][name], f"Llama-3-8B {name}", op="scaled_matmul")
        yield case(m, *MODELS["DeepSeek-V3"]["o"], "DeepSeek-V3 o", op="scaled_matmul")


def fp8() -> Iterator[dict[str, Any]]:
    """Each shape with scales of each kind; with those of tensors and rows also in fast accumulation."""
    shapes = list(coded((16, 128, 512, 4096), (1024, 2048, 4096, 8192)))
    for scales in ("tensor", "row", "block"):
        for fast in (False, True) if scales != "block" else (False,):
            yield from ({**one, "scales": scales, "fast_accumulate": fast} for one in shapes)


def int8() -> Iterator[dict[str, Any]]:
    """Each shape with scales of each kind that a bare product of int8 can be given afterwards; float32 and bfloat16."""
    shapes = list(coded((32, 128, 512, 4096), (1024, 2048, 4096, 8192)))
    for scales in ("tensor", "row"):
        for out in ("float32", "bfloat16"):
            yield from ({**one, "scales": scales, "out_dtype": out} for one in shapes)


def main() -> None:
    """Write every suite."""
    SUITES.mkdir(exist_ok=True)
    gemm = "against cuBLAS through torch.matmul; squares, layouts and the products of open models"
    write("gemm-bf16", f"bfloat16 products {gemm}", "products", bf16(), dtype="bfloat16")
    write("gemm-fp16", f"float16 products {gemm}", "products", fp16(), dtype="float16")
    write(
        "gemm-fp32",
        "float32 products: ieee and tf32x3 against cuBLAS in fp32, tf32 against cuBLAS in tf32",
        "products",
        fp32(),
        dtype="float32",
    )
    write(
        "decode",
        "bfloat16 products of few rows against cuBLAS, over rotating weights, beside a kernel that only reads",
        "products",
        decode(),
        dtype="bfloat16",
    )
    write(
        "gemm-fp8",
        "float8_e4m3fn products with scales against torch._scaled_mm of the same granularity and accumulation",
        "products",
        fp8(),
        dtype="float8_e4m3fn",
    )
    write(
        "gemm-int8",
        "int8 products, scaled in the kernel, against torch._int_mm, which leaves int32 sums without scales",
        "products",
        int8(),
        dtype="int8",
    )
    write(
        "epilogue",
        "linear with what follows it in one kernel, against PyTorch eager and torch.compile(mode='max-autotune')",
        "products",
        epilogue(),
        dtype="bfloat16",
        dropout_p=0.1,
    )
    write("host", "host microseconds of a call, 64x64x64", "host", host(), dtype="bfloat16")
    write(
        "planner",
        "every candidate plan timed: how far the first pick is from the best",
        "planner",
        planner(),
        dtype="bfloat16",
    )
    write(
        "batch-invariant",
        "batch_invariant=True against the default mode, and the bits of rows for every m up to 512",
        "batch-invariant",
        batch_invariant(),
        dtype="bfloat16",
    )


if __name__ == "__main__":
    main()
