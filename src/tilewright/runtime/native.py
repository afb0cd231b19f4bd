"""Triton's launcher without its Python: the C function that a compiled kernel ends in, and what it is given.

``CompiledKernel.run`` spends about a microsecond in Python on what is the same for every launch, and several more on
each tensor descriptor: it encodes a tensor map for the copy engine and puts it, and the descriptor's numbers, in the
descriptor's place. What it hands to C differs between Triton versions, so none of that is written here: Triton's
launcher runs once with a recorder in place of the C function, and the record is split into what stays and what
changes. Where the record is not as expected, launches go through ``run``, which has been the same since Triton 3.6.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from tilewright.runtime.launch import Call

#: tensor maps (of 128 bytes) that one descriptor argument of one launch keeps
MAPS = 256

#: what carries a launch out: (stream, the kernel's arguments as :class:`Native` has laid them out)
Launch = Callable[[int, tuple[Any, ...]], None]


class Native:
    """How to launch a compiled kernel again.

    ``launch(stream, args)`` launches. ``args`` are the call's arguments and constexprs in the kernel's order, but for
    two things: an integer, its address, stands for a tensor, and what ``operands[i][address]`` returns, followed by
    ``numbers[i]``, stands for descriptor i of the call's arguments.
    """

    __slots__ = ("launch", "numbers", "operands")

    def __init__(self, call: Call, kernel: Any) -> None:
        self.launch: Launch
        self.numbers: dict[int, tuple[int, ...]] = {}
        self.operands: dict[int, dict[int, Any]] = {}
        descriptors = {i: arg for i, arg in enumerate(call.args) if hasattr(arg, "block_shape")}
        try:
            found = _recorded(call, kernel, descriptors)
        except Exception:  # a Triton that keeps its launcher in another way
            found = None
        if found is not None:
            self.launch, encoders = found
            for (i, descriptor), encode in zip(descriptors.items(), encoders, strict=True):
                self.operands[i] = Maps(descriptor, encode)
                self.numbers[i] = (*descriptor.shape, *descriptor.strides)
            return
        self.launch = _through_run(call, kernel)
        for i, descriptor in descriptors.items():
            self.operands[i] = Maps(descriptor, lambda stand_in: stand_in)
            self.numbers[i] = ()


class _At:
    """What a descriptor wants of its tensor, without the tensor."""

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


class Maps(dict[int, Any]):
    """The tensor maps of one descriptor argument of one launch, by address: an encoding costs 0.5 to 1.5 microseconds.

    A map holds an address, a shape, strides, an element type, a block and a swizzle, and nothing of the memory itself.
    All but the address belong to the launch that this argument is part of, which is found by a key that has them: a
    tensor of another shape or dtype at a reused address is another launch's, and meets other maps.
    """

    def __init__(self, descriptor: Any, encode: Callable[[Any], Any]) -> None:
        super().__init__()
        # the class is Triton's or Gluon's, and no tensor of the first call is kept alive
        self._type, self._fields, self._encode = type(descriptor), {**vars(descriptor), "base": None}, encode

    def __missing__(self, address: int) -> Any:
        stand_in = object.__new__(self._type)  # its checks were made the first time
        vars(stand_in).update(self._fields, base=_At(address))
        made = self._encode(stand_in)
        if len(self) >= MAPS:
            self.clear()
        self[address] = made
        return made


def _through_run(call: Call, kernel: Any) -> Launch:
    run, function, packed = kernel.run, kernel.function, kernel.packed_metadata
    x, y, z = (*call.grid, 1, 1)[:3]

    def launch(stream: int, args: tuple[Any, ...]) -> None:
        run(x, y, z, stream, function, packed, None, None, None, *args)

    return launch


def _recorded(call: Call, kernel: Any, descriptors: dict[int, Any]) -> tuple[Launch, list[Callable[[Any], Any]]] | None:
    """A launch by the C function, and an encoder for each descriptor; ``None`` where that is not known to be right."""
    metadata, launcher = kernel.metadata, kernel.run
    if metadata.global_scratch_size or metadata.profile_scratch_size:  # memory that Triton allocates for each launch
        return None
    native, record, encoders = launcher.launch, _record, []
    if descriptors:
        driver, metas = importlib.import_module("triton.backends.nvidia.driver"), metadata.tensordesc_meta
        encoders = [_encoder(driver.make_tensordesc_arg, meta) for meta in metas]
        if None in metas or len(metas) != len(descriptors):
            return None
        native = inspect.getclosurevars(native).nonlocals["launcher"]
        record = driver.wrap_handle_tensordesc(_record, dict(kernel.src.signature), metas)
    recorder = copy.copy(launcher)
    recorder.launch = _Hand(record)
    args = [*call.args, *(call.constexprs[name] for name in call.fn.arg_names[len(call.args) :])]
    x, y, z = (*call.grid, 1, 1)[:3]
    head = (x, y, z, object(), kernel.function)
    recorder(*head, kernel.packed_metadata, None, None, None, *args)
    given: tuple[Any, ...] = recorder.launch.given
    expected: list[Any] = []
    for i, arg in enumerate(args):
        expected += (_MAP, *arg.shape, *arg.strides) if i in descriptors else (arg,)
    if given[:5] != head:
        return None
    if _match(given[-len(expected) :], expected):  # Triton 3.6: one by one
        fixed = given[4 : -len(expected)]

        def flat(stream: int, args: tuple[Any, ...]) -> None:
            native(x, y, z, stream, *fixed, *args)

        return flat, encoders
    if _match(given[-1], expected):  # Triton 3.7 and later: in one sequence, at the end
        fixed = given[4:-1]

        def packed(stream: int, args: tuple[Any, ...]) -> None:
            native(x, y, z, stream, *fixed, args)

        return packed, encoders
    return None


def _record(*given: Any) -> tuple[Any, ...]:
    """In place of the C function."""
    return given


class _Hand:
    """Keeps what the launcher hands over, which it does not return."""

    def __init__(self, record: Callable[..., tuple[Any, ...]]) -> None:
        self._record = record
        self.given: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> None:
        self.given = self._record(*args)


#: in place of an encoded map, which equals nothing else
_MAP = object()


def _match(given: Any, expected: list[Any]) -> bool:
    """Whether the launcher was about to hand over exactly these arguments."""
    return (
        isinstance(given, (list, tuple))
        and len(given) == len(expected)
        and all(e is _MAP or g is e or (type(e) is int and g == e) for g, e in zip(given, expected, strict=True))
    )


def _encoder(encode: Callable[..., list[Any]], meta: Any) -> Callable[[Any], Any]:
    """A descriptor to its map, by Triton's own function. Triton 3.8 added a parameter, which NVIDIA's does not use."""
    unused = (None,) * (len(inspect.signature(encode).parameters) - 2)
    return lambda descriptor: encode(descriptor, meta, *unused)[0]
