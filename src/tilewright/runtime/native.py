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

#: place of the stream among the arguments of a function that is not packed
STREAM = 3
#: tensor maps (of 128 bytes) that one descriptor argument of one launch keeps
MAPS = 256


class Native:
    """How to launch a compiled kernel again: ``function(*grid, stream, *fixed, args)`` where ``packed``, as Triton 3.7
    and later have it, and ``function(*args)`` elsewhere, with the stream's place ``args[STREAM]``.

    Attributes:
        args: what is to be copied, filled and handed over. An integer, its address, may stand for a tensor.
        places: where in ``args`` each argument of the call is.
        maps: of each argument that is a descriptor, by address, what stands for it in its place; its numbers follow.
    """

    __slots__ = ("args", "fixed", "function", "grid", "maps", "packed", "places")

    def __init__(self, call: Call, kernel: Any) -> None:
        self.grid = (*call.grid, 1, 1)[:3]
        plain = [*call.args, *(call.constexprs[name] for name in call.fn.arg_names[len(call.args) :])]
        descriptors = {i: arg for i, arg in enumerate(call.args) if hasattr(arg, "block_shape")}
        self.args, self.places = _laid_out(plain, descriptors)
        try:
            encoders = self._record(kernel, plain, descriptors)
        except Exception:  # a Triton that keeps its launcher in another way
            encoders = None
        if encoders is None:
            self.function, self.packed = kernel.run, False
            self.fixed = (kernel.function, kernel.packed_metadata, None, None, None)
            self.args, self.places = _laid_out(plain, {})
            encoders = [_itself] * len(descriptors)
        self.maps = {
            i: Maps(descriptor, encode) for (i, descriptor), encode in zip(descriptors.items(), encoders, strict=True)
        }
        if not self.packed:
            head = [*self.grid, None, *self.fixed]
            self.args = head + self.args
            self.places = [place + len(head) for place in self.places]

    def _record(self, kernel: Any, plain: list[Any], descriptors: dict[int, Any]) -> list[Callable[[Any], Any]] | None:
        """Find function and fixed arguments; an encoder for each descriptor, or ``None`` where that is not known to be
        right."""
        metadata, launcher = kernel.metadata, kernel.run
        if metadata.global_scratch_size or metadata.profile_scratch_size:  # memory that Triton allocates at each launch
            return None
        function, record, encoders = launcher.launch, _given, []
        if descriptors:
            driver, metas = importlib.import_module("triton.backends.nvidia.driver"), metadata.tensordesc_meta
            if len(metas) != len(descriptors) or None in metas:
                return None
            encoders = [_encoder(driver.make_tensordesc_arg, meta) for meta in metas]
            function = inspect.getclosurevars(function).nonlocals["launcher"]
            record = driver.wrap_handle_tensordesc(_given, dict(kernel.src.signature), metas)
        recorder = copy.copy(launcher)
        recorder.launch = recording = _Recording(record)
        head = (*self.grid, object(), kernel.function)
        recorder(*head, kernel.packed_metadata, None, None, None, *plain)
        given, count = recording.given, len(self.args)
        if given[:5] != head:
            return None
        if _match(given[-count:], self.args):
            self.packed, self.fixed = False, given[4:-count]
        elif _match(given[-1], self.args):
            self.packed, self.fixed = True, given[4:-1]
        else:
            return None
        self.function = function
        return encoders


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


class _Recording:
    """In place of a launch: keeps what it was given, as ``record`` would hand it to C."""

    def __init__(self, record: Callable[..., tuple[Any, ...]]) -> None:
        self._record = record
        self.given: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> None:
        self.given = self._record(*args)


def _given(*args: Any) -> tuple[Any, ...]:
    return args


def _itself(descriptor: Any) -> Any:
    return descriptor


def _laid_out(args: list[Any], descriptors: dict[int, Any]) -> tuple[list[Any], list[int]]:
    """The arguments as C takes them, each descriptor as a map and its numbers, and where each of them begins."""
    laid: list[Any] = []
    places = []
    for i, arg in enumerate(args):
        places.append(len(laid))
        laid += (_MAP, *arg.shape, *arg.strides) if i in descriptors else (arg,)
    return laid, places


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
