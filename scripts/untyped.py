"""Refuse functions without type hints, except Triton's kernels, whose arguments have no Python types.

mypy is told to let untyped functions be in the folders that hold kernels; this keeps the hosts beside them strict.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether one of its decorators is ``triton.jit``, with or without arguments, or another one of Triton's."""
    for decorator in function.decorator_list:
        name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name.split(".")[-1] in ("jit", "heuristics", "autotune", "constexpr_function"):
            return True
    return False


def untyped(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, name) of each function that is no kernel and lacks a type on an argument or on its result."""
    methods = {id(f) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_kernel(function):
            continue
        a = function.args
        arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(x for x in (a.vararg, a.kwarg) if x)]
        static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
        if id(function) in methods and not static:
            arguments = arguments[1:]
        if function.returns is None or any(x.annotation is None for x in arguments):
            found.append((function.lineno, function.name))
    return found


def main(roots: list[str]) -> int:
    """Check every file under the roots; 1 when a function lacks types."""
    bad = 0
    for path in sorted(p for root in roots for p in Path(root).rglob("*.py")):
        for line, name in untyped(ast.parse(path.read_text(encoding="utf-8"))):
            print(f"{path}:{line}: {name} has no complete type hints and is no kernel")
            bad += 1
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or ["src"]))
