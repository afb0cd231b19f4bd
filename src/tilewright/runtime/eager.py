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
from tilewright.runtime.native import Native
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

#: whether grad mode is on
grad_enabled = torch.is_grad_enabled

#: allocates without the dispatcher, where torch has it; a third of the host time of ``torch.empty_strided``
_empty: Callable[..., torch.Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


def allowed() -> bool:
    """Whether nothing that watches, traces or casts operations is on, so that a launch may skip the dispatcher.

    Of tensors of the classes in ``PLAIN``: whoever traces in another way than torch.compile does so by other classes.
    """
    return not (
        _tracing()  # first: a tracer need not look into the others
        or hooked()
        or _dispatch_modes()
        or _function_modes()
        or _transforms() is not None
        or _autocast("cuda")
        or forward_ad._current_level >= 0
    )


def hooked() -> bool:
    """Whether launches have to go through Triton's own path: it is interpreted, or something listens to it."""
    return bool(INTERPRETED or _raw_stream is None or _knobs.launch_enter_hook.calls or _knobs.launch_exit_hook.calls)


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
        "_dense", "_extras", "_kernel", "_launch", "_numbers", "_operands", "_rest", "_scratch", "_seed_at", "_varies",
        "dtype", "size", "stride",
    )  # fmt: skip

    def __init__(self, call: Call, kernel: Any, extras: tuple[int, ...], out: torch.Tensor) -> None:
        native = Native(call, kernel)
        self._kernel, self._launch = kernel, native.launch
        # a dict of maps where the argument is a descriptor; an address is passed as it is
        self._operands = tuple(native.operands.get(i, _ADDRESS) for i in range(3))
        self._numbers = tuple(native.numbers.get(i, ()) for i in range(3))
        self._dense = not native.operands
        # behind the three tensors; a constexpr's place is held by its value. No tensor of the first call is kept alive
        *middle, _, threshold, steps = call.args[3:]
        self._seed_at = len(middle)
        self._extras = tuple(
            (at, i, steps[at][1:])
            for i, at in enumerate(extras)
            if steps[at] and isinstance(steps[at][0], torch.Tensor)
        )
        inner = list(steps)
        for at, _, _ in self._extras:
            inner[at] = None
        self._scratch = call.scratch
        if call.scratch is not None:
            middle[call.scratch[0] - 3] = middle[call.scratch[2] - 3] = None
        constexprs = (call.constexprs[name] for name in call.fn.arg_names[len(call.args) :])
        self._rest = (*middle, 0, threshold, tuple(inner), *constexprs)
        self._varies = bool(self._extras) or call.scratch is not None
        self.size, self.stride, self.dtype = tuple(out.shape), out.stride(), out.dtype

    def allocate(self) -> torch.Tensor:
        """A fresh result on the current device."""
        if _empty is not None:
            return _empty(self.size, self.stride, self.dtype)
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="cuda")

    def run(
        self, device: int, a: int, b: int, c: int, extras: tuple[torch.Tensor | None, ...] = (), seed: int = 0
    ) -> None:
        """Launch on the current stream of ``device``, which must be the current one; a, b and c are addresses."""
        rest, _alive = self._filled(device, extras, seed) if self._varies or seed else (self._rest, None)
        if self._dense:
            args = (a, b, c, *rest)
        else:
            (at_a, at_b, at_c), (of_a, of_b, of_c) = self._operands, self._numbers
            args = (at_a[a], *of_a, at_b[b], *of_b, at_c[c], *of_c, *rest)
        self._launch(_raw_stream(device), args)  # type: ignore[misc]

    def _filled(self, device: int, extras: tuple[torch.Tensor | None, ...], seed: int) -> tuple[Any, Any]:
        """The arguments behind the three tensors, and what must live until the launch."""
        rest, held = list(self._rest), None
        rest[self._seed_at] = seed
        if self._extras:
            inner = list(rest[self._seed_at + 2])
            for at, i, numbers in self._extras:
                inner[at] = (extras[i].data_ptr(), *numbers)  # type: ignore[union-attr]
            rest[self._seed_at + 2] = tuple(inner)
        if self._scratch is not None:
            floats_at, floats, flags_at, flags = self._scratch
            held = scratch(torch.device("cuda", device), floats, flags)
            rest[floats_at - 3], rest[flags_at - 3] = (t.data_ptr() for t in held)
        return rest, held


class _Address(dict[int, int]):
    """In place of tensor maps for a tensor that the kernel takes by its address."""

    def __missing__(self, address: int) -> int:
        return address


_ADDRESS = _Address()


class Cache(dict[Any, Any]):
    """Launches by key: a dict, so that ``get`` is C; bounded by :meth:`put`."""

    def put(self, key: Any, entry: Any) -> None:
        """Keep a launch."""
        if len(self) >= LIMIT:
            self.clear()
        self[key] = entry


def on_current(device: int) -> bool:
    """Whether that CUDA device (-1: a CPU tensor's) is the current one."""
    return device >= 0 and _current_device is not None and device == _current_device()
