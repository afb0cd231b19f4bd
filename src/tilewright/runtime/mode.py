"""Where an operation runs: Triton on a GPU, Triton's interpreter, or a PyTorch composition on the CPU."""

from __future__ import annotations

import functools

import torch
import triton

#: kernels were built for Triton's interpreter: it is decided when a kernel is decorated, so it holds for the process
INTERPRETED: bool = bool(triton.knobs.runtime.interpret)


def runs_kernels(device: torch.device) -> bool:
    """Whether operations on tensors of that device launch Triton kernels; elsewhere they compose PyTorch's own."""
    return INTERPRETED or device.type == "cuda"


@functools.cache
def missing_compiler() -> str | None:
    """Why kernels cannot be launched on a GPU here, or ``None``: Triton builds its launcher with a C compiler."""
    import os
    import shutil

    if INTERPRETED or os.environ.get("CC") or any(shutil.which(cc) for cc in ("gcc", "clang", "cc")):
        return None
    return (
        "no C compiler was found, and Triton builds its launcher with one; "
        "install gcc or clang, or set CC to the path of a compiler"
    )


@functools.cache
def broken_interpreter() -> str | None:
    """Why Triton's interpreter cannot run kernels here, or ``None``."""
    try:
        import numpy
    except ImportError:
        return "Triton's interpreter computes with numpy, which is not installed; pip install numpy"

    def version(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(".")[:2])

    if version(triton.__version__) < (3, 7) and version(numpy.__version__) >= (2, 4):
        return (
            f"the interpreter of Triton {triton.__version__} fails with numpy {numpy.__version__}; "
            "install 'numpy<2.4', or a newer Triton"
        )
    return None
