"""Tests that compile kernels need a process in which kernels are not interpreted."""

from __future__ import annotations

import os

import pytest

from tilewright.runtime.mode import INTERPRETED


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    if INTERPRETED:
        pytest.fail(
            "tests/compile compiles kernels, which a process with TRITON_INTERPRET set cannot do: "
            "run `pytest tests/compile` without it",
            pytrace=False,
        )


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A cache of this session's own: what is tested is this compiler, not a binary that an earlier one left."""
    if "TRITON_CACHE_DIR" not in os.environ:  # worker processes inherit it
        os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
