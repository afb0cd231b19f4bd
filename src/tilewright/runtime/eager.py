"""The short way to a launch: what a repeated eager call can skip, and when it may.

A product of small matrices takes the device a few microseconds; checks, planning, the dispatcher and Triton's own
argument binding take the host many times that. All of it depends only on what a key can hold: shapes, strides, dtypes,
devices and the low bits of the addresses (they decide how Triton specialises). So the first call with a key goes the
long way and leaves its compiled kernel behind, and the next ones launch that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch.nn.parameter import Parameter
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewright.runtime.launch import Call
from tilewright.runtime.mode import INTERPRETED
from tilewright.runtime.workspace import scratch

#: plain tensors: a subclass may mean something else by any operation
PLAIN = frozenset({torch.Tensor, Parameter})
#: launches that are kept; when full, all are forgotten
LIMIT = 4096

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_autocast = torch.is_autocast_enabled

#: allocates without the dispatcher, where torch has it; a third of the host time of ``torch.empty_strided``
_empty: Callable[..., torch.Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


def allowed() -> bool:
    """Whether nothing that watches, traces or casts operations is on, so that a launch may skip the dispatcher."""
    return not (
        _compiling()  # first: a tracer need not look into the others
        or hooked()
        or _dispatch_modes()
        or _function_modes()
        or transformed()
        or _autocast("cuda")
        or forward_ad._current_level >= 0
    )


def hooked() -> bool:
    """Whether launches have to go through Triton's own path: it is interpreted, or something listens to it."""
    return bool(
        INTERPRETED
        or _raw_stream is None
        or knobs.runtime.launch_enter_hook.calls
        or knobs.runtime.launch_exit_hook.calls
    )


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is on, whose tensors have no memory of their own."""
    return not _compiling() and _transforms() is not None


def wants_grad(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd has to see an operation on these tensors."""
    return _grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


class Entry:
    """A launch that lacks only its tensors, its seed and its stream.

    Args:
        call: the launch that was made the long way.
        kernel: the compiled kernel that it returned; held, since newer Tritons unload it when it dies.
        places: positions in ``call.args`` of the tensors that :meth:`run` is given, in its order; ``None`` where the
            kernel takes no such tensor. A position of two numbers is of a tuple (tensor, ...) in a tuple.
        seed_at: position in ``call.args`` of an integer that changes from call to call.
        out: a tensor like the result: its size, strides and dtype.
    """

    __slots__ = (
        "_args", "_descriptors", "_function", "_grid", "_kernel", "_nested", "_nested_at", "_packed", "_pointers",
        "_run", "_scratch", "_seed_at", "dtype", "size", "stride",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        kernel: Any,
        places: tuple[int | tuple[int, int] | None, ...],
        seed_at: int,
        out: torch.Tensor,
    ) -> None:
        self._kernel, self._run = kernel, kernel.run
        self._function, self._packed = kernel.function, kernel.packed_metadata
        self._grid = (*call.grid, 1, 1)[:3]
        # ``run`` takes every parameter in the kernel's order; a constexpr's place is held by its value
        constexprs = tuple(call.constexprs[name] for name in call.fn.arg_names[len(call.args) :])
        self._args = [*call.args, *constexprs]
        pointers, descriptors, nested = [], [], []
        self._nested_at = -1
        for i, at in enumerate(places):
            if at is None:
                continue
            if isinstance(at, tuple):
                self._nested_at = at[0]
                nested.append((at[1], i, call.args[at[0]][at[1]][1:]))
            elif isinstance(call.args[at], TensorDescriptor):
                descriptors.append((at, i, {**vars(call.args[at]), "base": None}))
                self._args[at] = None
            else:
                pointers.append((at, i))
                self._args[at] = None
        if nested:  # no tensor of the first call is kept alive
            inner = list(call.args[self._nested_at])
            for at, _, _ in nested:
                inner[at] = None
            self._args[self._nested_at] = inner
        self._pointers, self._descriptors, self._nested = tuple(pointers), tuple(descriptors), tuple(nested)
        self._seed_at = seed_at
        self._scratch = call.scratch
        if call.scratch is not None:
            self._args[call.scratch[0]] = self._args[call.scratch[2]] = None
        self.size, self.stride, self.dtype = tuple(out.shape), out.stride(), out.dtype

    def allocate(self) -> torch.Tensor:
        """A fresh result on the current device."""
        if _empty is not None:
            return _empty(self.size, self.stride, self.dtype)
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="cuda")

    def run(self, device: int, tensors: tuple[torch.Tensor | None, ...], seed: int = 0) -> None:
        """Launch on the current stream of the current device, which must be ``device``."""
        args = self._args.copy()
        for at, i in self._pointers:
            args[at] = tensors[i].data_ptr()  # type: ignore[union-attr]
        for at, i, fields in self._descriptors:
            stand_in = object.__new__(TensorDescriptor)  # its checks were made the first time
            stand_in.__dict__.update(fields, base=tensors[i])
            args[at] = stand_in
        if self._nested:
            inner = args[self._nested_at].copy()
            for at, i, rest in self._nested:
                inner[at] = (tensors[i].data_ptr(), *rest)  # type: ignore[union-attr]
            args[self._nested_at] = tuple(inner)
        args[self._seed_at] = seed
        if self._scratch is not None:
            floats_at, floats, flags_at, flags = self._scratch
            args[floats_at], args[flags_at] = scratch(torch.device("cuda", device), floats, flags)
        self._run(*self._grid, _raw_stream(device), self._function, self._packed, None, None, None, *args)  # type: ignore[misc]


class Cache:
    """Launches by key."""

    def __init__(self) -> None:
        self._entries: dict[Any, Entry] = {}

    def get(self, key: Any) -> Entry | None:
        """The launch of that key, or ``None``."""
        return self._entries.get(key)

    def put(self, key: Any, entry: Entry) -> None:
        """Keep a launch."""
        if len(self._entries) >= LIMIT:
            self._entries.clear()
        self._entries[key] = entry

    def clear(self) -> None:
        """Forget every launch."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


def on_current(device: int) -> bool:
    """Whether that CUDA device (-1: a CPU tensor's) is the current one."""
    return device >= 0 and _current_device is not None and device == _current_device()
