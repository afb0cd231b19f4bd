"""Between an operation and the driver: a launch as a value, and the two ways to carry it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tilewright.runtime.mode import INTERPRETED, broken_interpreter, missing_compiler


@dataclass(frozen=True)
class Call:
    """One kernel launch, complete.

    Args:
        fn: the ``@triton.jit`` function.
        grid: programs along each dimension.
        args: its run-time arguments in order: tensors, numbers, None, tensor descriptors, and tuples of those.
        constexprs: its compile-time arguments by name.
        num_warps, num_stages: Triton's launch options.
        writes: positions in ``args`` (a pair for a tensor in a tuple) of what the kernel writes.
        scratch: ``None``, or what ``args`` has of :func:`tilewright.runtime.workspace.scratch`: (position of the
            floats, how many, position of the flags, how many). Each stream has its own: a repeated launch asks again.
    """

    fn: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    writes: tuple[int | tuple[int, ...], ...] = ()
    scratch: tuple[int, int, int, int] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Launch options, with floating-point fusion stated: its default differs between Triton versions."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}


def launch(call: Call) -> Any:
    """Run ``call`` on the device and current stream of its tensors; returns Triton's compiled kernel.

    In interpreter mode kernels see widened copies (:class:`Widened`) and ``None`` is returned.
    """
    if INTERPRETED:
        if why := broken_interpreter():
            raise RuntimeError(f"tilewright.launch: {why}")
        widened = Widened(call.writes)
        args = tuple(widened.argument(arg, (i,)) for i, arg in enumerate(call.args))
        call.fn[call.grid](*args, **call.constexprs)
        widened.write_back()
        return None
    if why := missing_compiler():
        raise RuntimeError(f"tilewright.launch: {why}")
    device = _device_of(call.args)
    if device.index is not None and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return call.fn[call.grid](*call.args, **call.constexprs, **call.options)
    return call.fn[call.grid](*call.args, **call.constexprs, **call.options)


def _device_of(args: tuple[Any, ...]) -> torch.device:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return arg.device
        if hasattr(arg, "block_shape"):
            base: torch.Tensor = arg.base
            return base.device
    raise TypeError("tilewright.launch: args has no tensor; it must have one")


#: dtypes whose arithmetic or rounding Triton's interpreter gets wrong, or that numpy multiplies slowly
_NARROW = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


class Widened:
    """Arguments for Triton's interpreter: narrow floats become float32 copies, and results are rounded by torch.

    The interpreter computes bfloat16 and float8 on their bit patterns and truncates when it casts to them, so a kernel
    that runs there must not see them. A copy keeps the original's strides and everything around it in memory (a
    kernel that reads outside its view must still meet the poison that a test put there).
    """

    def __init__(self, writes: tuple[int | tuple[int, ...], ...]) -> None:
        self._writes = {w if isinstance(w, tuple) else (w,) for w in writes}
        self._spans: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}
        self._results: list[tuple[torch.Tensor, torch.Tensor]] = []

    def argument(self, arg: Any, path: tuple[int, ...]) -> Any:
        """``arg`` as the interpreter may see it."""
        if isinstance(arg, tuple):
            return tuple(self.argument(item, (*path, i)) for i, item in enumerate(arg))
        if isinstance(arg, torch.Tensor) and arg.dtype in _NARROW:
            wide = self._copy(arg)
            if path in self._writes:
                self._results.append((arg, wide))
            return wide
        if hasattr(arg, "block_shape"):
            base = self.argument(arg.base, path)
            return arg if base is arg.base else type(arg)(base, arg.shape, arg.strides, arg.block_shape)
        return arg

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        # detach: storage arithmetic below is not for autograd. The whole storage is widened, once for all its views
        storage = x.untyped_storage()
        key = (storage.data_ptr(), storage.nbytes(), x.dtype)
        if key not in self._spans:
            flat = torch.empty(0, dtype=x.dtype, device=x.device)
            flat.set_(storage, 0, (storage.nbytes() // x.element_size(),), (1,))
            self._spans[key] = flat.to(torch.float32)
        return self._spans[key].as_strided(x.shape, x.stride(), x.storage_offset())

    def write_back(self) -> None:
        """Round what the kernel wrote to the dtype of the real tensors."""
        for narrow, wide in self._results:
            narrow.copy_(wide)
