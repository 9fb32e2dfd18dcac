"""Tiles of matrix instructions, and how registers, lanes, warps and blocks repeat them."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence

from gluon_core.errors import LayoutError
from gluon_core.layouts.base import Layout
from gluon_core.layouts.linear import LinearLayout

__all__ = ["operand", "per_block", "repeat", "spread", "stack", "without"]


def stack(pieces: Iterable[tuple[str, int, int]]) -> LinearLayout:
    """Return the product of identities, most minor first; a piece is (in-dim, tensor dimension, size)."""
    layout = LinearLayout({"register": [], "lane": [], "warp": []}, {})
    for in_dim, d, size in pieces:
        layout = layout * LinearLayout.identity_1d(size, in_dim, f"dim{d}")
    return layout


def _size(layout: LinearLayout, d: int) -> int:
    return layout.out_dims.get(f"dim{d}", 1)


def per_block(shape: Sequence[int], cga_layout: Sequence[Sequence[int]]) -> list[int]:
    blocks = Layout.cga_linear(cga_layout, len(shape)).out_dims.values()
    return [max(1, size // count) for size, count in zip(shape, blocks)]


def repeat(layout: LinearLayout, d: int, size: int) -> LinearLayout:
    """Return the layout, repeated in registers until it covers `size` elements along dimension `d`."""
    times = max(1, size // _size(layout, d))
    return layout * LinearLayout.identity_1d(times, "register", f"dim{d}")


def spread(
    tile: LinearLayout,
    dims: Iterable[int],
    tiles: Sequence[int],
    warps: Sequence[int],
    cga: Sequence[Sequence[int]],
    shape: Sequence[int],
    k: Optional[int],
) -> LinearLayout:
    """Spread a tile over the tiles of one warp, over warps, and by repetition over `shape`.

    An accumulator finishes one dimension after the other, its columns for the whole cluster, so
    that some registers repeat others. In a dot operand all warps hold the same elements along `k`,
    the dimension that is summed over, and the repetitions come last.
    """
    sizes = [*per_block(shape[:-1], [basis[:-1] for basis in cga]), shape[-1]]
    layout = tile
    for d in dims:
        if d == k:
            layout = layout * LinearLayout.zeros_1d(warps[d], "warp", f"dim{d}")
            continue
        if d >= len(shape) - 2:  # a warp's tiles are of one matrix, whatever it has of a batch
            layout = layout * LinearLayout.identity_1d(tiles[d], "register", f"dim{d}")
        layout = layout * LinearLayout.identity_1d(warps[d], "warp", f"dim{d}")
        if k is None:
            layout = repeat(layout, d, sizes[d])
    return Layout.combine_with_cga(layout, cga, shape, keep_copies=True)


def without(bases: Sequence[Sequence[int]], k: int) -> list[list[int]]:
    return [[0 if d == k else v for d, v in enumerate(basis)] for basis in bases]


def operand(rank: int, operand_index: Any, k_width: Any) -> tuple[int, int, int]:
    """(dimension of rows or columns, dimension of K, k_width) of a dot operand."""
    index = Layout.check_int(operand_index, "operand_index", 0, 1)
    width = Layout.unwrap(k_width)
    if not Layout.is_power_of_two(width):
        raise LayoutError(
            "not a power of two",
            argument="k_width",
            expected="the elements along K that one lane holds, e.g. 4 or 8",
            got=k_width,
        )
    return rank - 2 + index, rank - 1 - index, width
