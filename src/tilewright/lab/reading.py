"""A kernel that reads and does next to nothing else: how fast weights can come out of memory at best."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilewright.tune.timing import Timer

#: elements that one program reads
BLOCKS = (2048, 4096, 8192, 16384)


@triton.jit
def _sum_kernel(x, out, BLOCK: tl.constexpr) -> None:
    """out[i] = the sum of block i of x."""
    block = tl.program_id(0)
    tl.store(out + block, tl.sum(tl.load(x + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)), 0))


def bandwidth(timer: Timer, device: torch.device, elements: int, seconds: float) -> float:
    """TB/s of the fastest of a few block sizes. ``elements`` is how many int32 are read, a multiple of each."""
    x = torch.randint(256, (elements,), device=device, dtype=torch.int32)
    out = torch.empty(elements // BLOCKS[0], device=device, dtype=torch.int32)

    def times(block: int) -> float:
        grid = (elements // block,)
        return timer.sustained(lambda _: _sum_kernel[grid](x, out, BLOCK=block, num_warps=8), seconds / len(BLOCKS))

    return x.nbytes / min(map(times, BLOCKS)) / 1e12
