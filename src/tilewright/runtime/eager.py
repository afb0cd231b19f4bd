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

from tilewright.runtime.launch import Call
from tilewright.runtime.mode import INTERPRETED
from tilewright.runtime.native import STREAM, Native
from tilewright.runtime.workspace import scratch

#: plain tensors: a subclass may mean something else by any operation
PLAIN = frozenset({torch.Tensor, Parameter})
#: launches that are kept; when full, all are forgotten
LIMIT = 4096

# bound once: each look-up of ``torch.x.y`` costs as much as the call (30 to 60 ns of some 9,000 that a launch takes)
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_compiling = torch.compiler.is_compiling
_tracing = torch.compiler.is_dynamo_compiling
_autocast = torch.is_autocast_enabled
_knobs = knobs.runtime
#: no kernel can be launched the short way in this process
_NEVER = INTERPRETED or _raw_stream is None or _current_device is None

#: whether grad mode is on
grad_enabled = torch.is_grad_enabled
#: index of the current CUDA device; ``None`` where torch has none
current_device = _current_device

#: allocates without the dispatcher, where torch has it; a third of the host time of ``torch.empty_strided``
_empty: Callable[..., torch.Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


def allowed() -> bool:
    """Whether nothing that watches, traces or casts operations is on, so that a launch may skip the dispatcher.

    Of tensors of the classes in ``PLAIN``: whoever traces in another way than torch.compile does so by other classes.
    """
    return not (
        _tracing()  # first: a tracer need not look into the others
        or _NEVER
        or _dispatch_modes()
        or _function_modes()
        or _transforms() is not None
        or _autocast("cuda")
        or forward_ad._current_level >= 0
        or _knobs.launch_enter_hook.calls
        or _knobs.launch_exit_hook.calls
    )


def hooked() -> bool:
    """Whether launches have to go through Triton's own path: it is interpreted, or something listens to it."""
    return bool(_NEVER or _knobs.launch_enter_hook.calls or _knobs.launch_exit_hook.calls)


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is on, whose tensors have no memory of their own."""
    return not _compiling() and _transforms() is not None


def wants_grad(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd has to see an operation on these tensors."""
    return grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


class Entry:
    """A launch that lacks only its addresses, its seed and its stream.

    Args:
        call: the launch that was made the long way; its first three arguments are two operands and the result, and its
            last three a seed, another number, and a tuple.
        kernel: the compiled kernel that it returned; held, since newer Tritons unload it when it dies.
        extras: of each further tensor that :meth:`run` may be given, its place in that tuple, where (tensor, what
            does not change) or ``None`` stands.
        out: a tensor like the result: its size, strides and dtype.
    """

    __slots__ = (
        "_a", "_args", "_b", "_c", "_extras", "_fixed", "_function", "_grid", "_kernel", "_maps", "_packed", "_scratch",
        "_seed", "_steps", "_varies", "dtype", "size", "stride",
    )  # fmt: skip

    def __init__(self, call: Call, kernel: Any, extras: tuple[int, ...], out: torch.Tensor) -> None:
        native, last = Native(call, kernel), len(call.args) - 1
        self._kernel, self._function, self._packed = kernel, native.function, native.packed
        self._grid, self._fixed, self._args = native.grid, native.fixed, native.args
        self._maps = tuple(native.maps.get(i, _ADDRESS) for i in range(3)) if native.maps else None
        self._a, self._b, self._c, self._seed, self._steps = (native.places[i] for i in (0, 1, 2, last - 2, last))
        steps = call.args[last]
        tensors = [(at, i) for i, at in enumerate(extras) if steps[at] and isinstance(steps[at][0], torch.Tensor)]
        self._extras = [(at, i, steps[at][1:]) for at, i in tensors]
        self._scratch = None
        if call.scratch is not None:
            floats_at, floats, flags_at, flags = call.scratch
            self._scratch = (native.places[floats_at], floats, native.places[flags_at], flags)
            self._args[native.places[floats_at]] = self._args[native.places[flags_at]] = None
        self._varies = bool(tensors) or call.scratch is not None
        # no tensor of the first call is kept alive
        self._args[self._a] = self._args[self._b] = self._args[self._c] = None
        self._args[self._steps] = tuple(None if at in dict(tensors) else step for at, step in enumerate(steps))
        self._args[self._seed] = 0
        self.size, self.stride, self.dtype = tuple(out.shape), out.stride(), out.dtype

    def allocate(self) -> torch.Tensor:
        """A fresh result on the current device."""
        if _empty is not None:
            return _empty(self.size, self.stride, self.dtype)
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="cuda")

    def run(
        self, device: int, a: Any, b: Any, c: Any, extras: tuple[torch.Tensor | None, ...] = (), seed: int = 0
    ) -> None:
        """Launch on the current stream of ``device``, which must be the current one; a, b and c are addresses."""
        args = self._args.copy()  # half the cost of putting a tuple of 40 arguments together
        if self._maps is not None:
            maps_a, maps_b, maps_c = self._maps
            a, b, c = maps_a[a], maps_b[b], maps_c[c]
        args[self._a] = a
        args[self._b] = b
        args[self._c] = c
        if self._varies or seed:
            _alive = self._fill(args, device, extras, seed)
        if self._packed:
            self._function(*self._grid, _raw_stream(device), *self._fixed, args)  # type: ignore[misc]
        else:
            args[STREAM] = _raw_stream(device)  # type: ignore[misc]
            self._function(*args)

    def _fill(self, args: list[Any], device: int, extras: tuple[torch.Tensor | None, ...], seed: int) -> Any:
        """Fill in what only some kernels take; returns what must live until the launch."""
        args[self._seed] = seed
        if self._extras:
            steps = list(args[self._steps])
            for at, i, numbers in self._extras:
                steps[at] = (extras[i].data_ptr(), *numbers)  # type: ignore[union-attr]
            args[self._steps] = tuple(steps)
        if self._scratch is None:
            return None
        floats_at, floats, flags_at, flags = self._scratch
        held = scratch(torch.device("cuda", device), floats, flags)
        args[floats_at], args[flags_at] = (t.data_ptr() for t in held)
        return held


#: every cache of the process; they live as long as it does
_CACHES: list[Cache] = []


class _Address(dict[int, int]):
    """In place of tensor maps for a tensor that the kernel takes by its address."""

    def __missing__(self, address: int) -> int:
        return address


_ADDRESS = _Address()


class Cache(dict[Any, Any]):
    """Launches by key: a dict, so that ``get`` is C; bounded by :meth:`put`."""

    def __init__(self) -> None:
        super().__init__()
        _CACHES.append(self)

    def put(self, key: Any, entry: Any) -> None:
        """Keep a launch."""
        if len(self) >= LIMIT:
            self.clear()
        self[key] = entry


def forget() -> None:
    """Make every launch anew at its next call: what it was planned by has changed."""
    for cache in _CACHES:
        cache.clear()


def on_current(device: int) -> bool:
    """Whether that CUDA device (-1: a CPU tensor's) is the current one."""
    return _current_device is not None and device == _current_device()
