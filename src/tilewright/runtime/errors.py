"""The one way in which a call is refused: the argument, what it was, what it must be."""

from __future__ import annotations

from typing import Any


def bad(name: str, argument: str, was: Any, must: str, kind: type[Exception] = ValueError) -> Exception:
    """An exception of ``kind`` with the line ``tilewright.NAME: ARGUMENT is WAS; it must be MUST``."""
    return kind(f"tilewright.{name}: {argument} is {was}; it must be {must}")
