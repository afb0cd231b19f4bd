"""Scratch memory of kernels whose programs share one tile: partial sums, and flags that say which are ready.

Flags are zero before every launch, because the kernel that raised them lowers them again. So a stream may use the same
scratch for one launch after another; two streams may not, and neither may a captured graph, which can be replayed
beside anything: each gets its own.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import OrderedDict

import torch

#: streams and captures whose scratch is kept
LIMIT = 64

_kept: OrderedDict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
_lock = threading.Lock()


def scratch(device: torch.device, floats: int, flags: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 of at least ``floats`` elements, int32 of at least ``flags`` zeros) for a launch on the current stream.

    The first holds whatever an earlier launch left. On torch's meta device both have exactly the size asked for.
    """
    if device.type != "cuda":
        return _made(device, floats, flags)
    index = torch.cuda.current_device() if device.index is None else device.index
    capture = _capture_id()
    if capture is None:  # no telling one capture from another: a launch keeps its scratch to itself
        return _made(device, floats, flags)
    key = (index, torch.cuda.current_stream(index).cuda_stream, capture)
    with _lock:
        found = _kept.get(key)
        if found is not None and found[0].numel() >= floats and found[1].numel() >= flags:
            _kept.move_to_end(key)
            return found
        # in powers of two, so that a few growing shapes do not allocate each time
        made = _kept[key] = _made(device, _rounded(floats), _rounded(flags))
        _kept.move_to_end(key)
        while len(_kept) > LIMIT:
            _kept.popitem(last=False)
        return made


def _made(device: torch.device, floats: int, flags: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.empty(floats, dtype=torch.float32, device=device),
        torch.zeros(flags, dtype=torch.int32, device=device),
    )


def _rounded(count: int) -> int:
    return 1 << max(10, (count - 1).bit_length())


def _capture_id() -> int | None:
    """A number of the graph that the current stream is captured into, 0 for none; ``None`` when it has no number."""
    if not torch.cuda.is_current_stream_capturing():
        return 0
    ask = getattr(_driver(), "cuStreamGetCaptureInfo_v2", None)
    if ask is None:
        return None
    status, number = ctypes.c_int(), ctypes.c_uint64()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    failed = ask(stream, ctypes.byref(status), ctypes.byref(number), None, None, None)
    return None if failed else number.value


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
