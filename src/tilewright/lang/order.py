"""Program order: which tile of C a program takes.

Programs that run at the same time should share rows of A and columns of B, so that the cache serves them. Row-major
order walks whole rows of tiles; grouped order walks a band of ``GROUP`` tiles before it takes the next column.
"""

import triton
import triton.language as tl


@triton.jit
def grouped(index, tiles_outer, tiles_inner, GROUP: tl.constexpr):
    """(outer, inner) of the tile of that index, for bands of GROUP outer tiles walked along the inner dimension."""
    if GROUP == 1:
        outer = index // tiles_inner
        inner = index % tiles_inner
    else:
        in_band = GROUP * tiles_inner
        first = index // in_band * GROUP
        size = tl.minimum(tiles_outer - first, GROUP)
        outer = first + index % in_band % size
        inner = index % in_band // size
    return outer, inner


@triton.jit
def tile_of(index, tiles_m, tiles_n, GROUP: tl.constexpr, ORDER: tl.constexpr):
    """(tile_m, tile_n) of the tile of that index; ORDER is the dimension that GROUP counts along."""
    if ORDER == "m":
        tile_m, tile_n = grouped(index, tiles_m, tiles_n, GROUP)
    else:
        tile_n, tile_m = grouped(index, tiles_n, tiles_m, GROUP)
    return tile_m, tile_n
