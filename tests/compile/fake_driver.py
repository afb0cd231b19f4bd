"""A process in which Triton launches with its own launchers, on a CUDA driver (``fake_libcuda.c``) that keeps notes."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import triton
from triton.runtime import driver

#: the stream that the fake driver's launches are made on unless another is asked for
STREAM = 7

_SIZES = {"i1": 1 if triton.__version__ < "3.7" else 4, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "fp32": 4, "fp64": 8}


def build(folder: Path) -> dict[str, str] | None:
    """Build the driver into ``folder``; the environment of a process that uses it, or ``None`` without a compiler."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    headers = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    if compiler is None or sys.platform != "linux" or not (headers / "cuda.h").exists():
        return None
    source = Path(__file__).with_name("fake_libcuda.c")
    target = folder / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", f"-I{headers}", "-Wl,-soname,libcuda.so.1", "-o", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return {
        "TRITON_LIBCUDA_PATH": str(folder),
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")]),
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }


class Notes:
    """The launches of this process."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self._lib.fake_taken.restype = ctypes.c_size_t
        self._buffer = (ctypes.c_ubyte * (1 << 16))()

    def expect(self, kernel: Any) -> None:
        """Of which kernel the next launches are: the sizes of its parameters are noted by. ``None``: no parameters."""
        sizes = [] if kernel is None else [*_sizes(tuple(kernel.src.signature.values())), 8, 8]
        self._lib.fake_expect((ctypes.c_size_t * len(sizes))(*sizes), ctypes.c_size_t(len(sizes)))

    def taken(self) -> bytes:
        """What was launched since the last call."""
        return bytes(self._buffer[: self._lib.fake_taken(self._buffer)])


def _sizes(signature: Any) -> list[int]:
    if isinstance(signature, tuple):
        return [size for item in signature for size in _sizes(item)]
    if signature == "constexpr":
        return []
    if signature.startswith("tensordesc"):
        rank = re.match(r"tensordesc<[^[>]*\[([^\]]*)\]", signature).group(1).count(",") + 1  # type: ignore[union-attr]
        return [128] + [4] * rank + [8] * rank
    return [8 if signature.startswith("*") else _SIZES[signature]]


def install(capability: tuple[int, int] = (9, 0)) -> Notes:
    """Make the fake driver Triton's active one, of a GPU with that compute capability."""
    from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils

    class Fake(CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.utils, self.launcher_cls = CudaUtils(), CudaLauncher
            self.get_device_capability = lambda device=None: capability
            self.get_current_stream = lambda device=None: STREAM
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None

    driver.set_active(Fake())
    return Notes()
