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
