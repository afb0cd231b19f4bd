"""Program order: every tile once, and the neighbours that it promises."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from support import DEVICE
from tilewright.lang.order import tile_of

pytestmark = pytest.mark.kernels


@triton.jit
def order_kernel(p_out, tiles_m, tiles_n, GROUP: tl.constexpr, ORDER: tl.constexpr):
    index = tl.program_id(0)
    tile_m, tile_n = tile_of(index, tiles_m, tiles_n, GROUP, ORDER)
    tl.store(p_out + 2 * index, tile_m)
    tl.store(p_out + 2 * index + 1, tile_n)


def walked(tiles_m, tiles_n, group, order):
    out = torch.full((tiles_m * tiles_n, 2), -1, dtype=torch.int32, device=DEVICE)
    order_kernel[(tiles_m * tiles_n,)](out, tiles_m, tiles_n, group, order)
    return [tuple(pair) for pair in out.tolist()]


@pytest.mark.parametrize("order", ["m", "n"])
@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("tiles", [(1, 1), (1, 5), (5, 1), (4, 4), (5, 3), (7, 4), (8, 2)], ids=str)
def test_every_tile_once_in_bands(tiles, group, order):
    """Written down from the definition: bands of ``group`` tiles, walked across, each column of a band from its top."""
    tiles_m, tiles_n = tiles
    outer, inner = (tiles_m, tiles_n) if order == "m" else (tiles_n, tiles_m)
    expected = [
        (o, i)
        for first in range(0, outer, group)
        for i in range(inner)
        for o in range(first, min(first + group, outer))
    ]
    if order == "n":
        expected = [(o, i) for i, o in expected]
    assert walked(tiles_m, tiles_n, group, order) == expected
    assert len(set(expected)) == tiles_m * tiles_n


def test_a_group_of_one_is_row_major():
    assert walked(2, 3, 1, "m") == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert walked(2, 3, 1, "n") == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
