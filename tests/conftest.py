"""What every test shares: the device that runs it, which tests can run here, and memory that is NaN until written."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator

# cuBLAS asks for it before CUDA starts, or its deterministic kernels (the peers below) only warn
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# what this machine's user has tuned is no part of a test; processes that tests start inherit it
os.environ["TILEWRIGHT_CACHE_DIR"] = tempfile.mkdtemp(prefix="tilewright-tests-")

import pytest
import torch
from hypothesis import HealthCheck, settings

from support import DEVICE, GPU, KERNELS
from tilewright.runtime.mode import INTERPRETED
from tilewright.tune import shipped

_QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
settings.register_profile("ci", derandomize=True, max_examples=20, **_QUIET)
settings.register_profile("thorough", max_examples=500, **_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

#: folders whose tests run products, and so must see memory that holds NaN before it is written
_PRODUCTS = {"gemm", "lang", "runtime", "cases", "torch_only"}

_NEEDS = {
    "gpu": (GPU, "needs a GPU, and kernels that are compiled"),
    "interpret": (INTERPRETED, "needs TRITON_INTERPRET=1"),
    "kernels": (KERNELS, "needs kernels: a GPU, or TRITON_INTERPRET=1"),
}


def pytest_configure(config: pytest.Config) -> None:
    # NaN and infinity are part of these tests; numpy, in which the interpreter computes, remarks on each
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning:triton.runtime.interpreter")
    config.addinivalue_line(
        "filterwarnings", "ignore:Conversion of an array:DeprecationWarning:triton.runtime.interpreter"
    )
    config.addinivalue_line("markers", "kernels: needs Triton kernels, compiled or interpreted")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["TILEWRIGHT_CACHE_DIR"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, (here, why) in _NEEDS.items():
            if item.get_closest_marker(name) and not here:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session", autouse=True)
def no_shipped_plans() -> Iterator[None]:
    """Plans come from the cost model, whatever was measured for a device since a test was written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "plans", lambda *measured: {})
        yield


@pytest.fixture
def device() -> torch.device:
    """A GPU where kernels are compiled, else the CPU."""
    return torch.device(DEVICE)


@pytest.fixture(autouse=True)
def recycled_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let ``torch.empty`` and its kin hand out NaN, so that an element that a kernel does not write shows.

    Fresh memory is zero, which hides the fault. torch fills uninitialised tensors itself in its deterministic mode.
    """
    if request.path.parent.name not in _PRODUCTS:
        yield
        return
    if GPU:  # what does not ask torch for its memory gets it recycled
        blocks = [torch.full((size,), float("nan"), device=DEVICE) for size in [2**17] * 8 + [2**22]]
        del blocks
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def torch_settings() -> Iterator[None]:
    """No test leaves its precision or its random state to the next one."""
    before = torch.get_float32_matmul_precision()
    torch.manual_seed(0)
    yield
    torch.set_float32_matmul_precision(before)
