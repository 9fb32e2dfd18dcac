"""Which tile of a result a program works on, and in which order: schedules, the same for all vendors.

tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
    row, column = tiles.at(tile)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

from gluon_core._triton import tensor, tl, tl_tuple, unwrap
from gluon_core.errors import ShapeError
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.typing import Const, Scalar, Shape, Values
from gluon_core.portable.records import Record
from gluon_core.semantic.operands import compile_time_int, scalar_int32
from gluon_core.values import unwrap_shape
from gluon_core.values.tensors import describe

__all__ = ["swizzled_tiles", "tile_order"]


@dataclass(frozen=True)
class TileOrderFacts:
    """Rows and columns of a tile, the rows of tiles that are walked together, and whether the order
    begins elsewhere than at the first."""

    block: tuple[int, ...]
    group: int
    moved: bool = False


class tile_order(Record):
    """An order of the tiles of a matrix. Its parts are the tiles along each side, and where the order
    begins elsewhere, the row of tiles that comes first."""

    @property
    def block(self) -> list[int]:
        """Rows and columns of a tile."""
        return list(self.facts.block)

    @builtin(name="tile_order.count")
    def count(self) -> tensor:
        """Return the number of tiles, an int32 scalar."""
        rows, columns = self.parts.values[:2]
        return semantic_layer().mul(rows, columns, True)

    @builtin(name="tile_order.at")
    def at(self, tile: Scalar[int]) -> tl_tuple:
        """Return the first element of a tile.

        Args:
            tile: integer scalar, from 0 to below `count()`.

        Returns:
            Its first row and its first column, int32 scalars.
        """
        semantic = semantic_layer()
        here = scalar_int32(semantic, tile, "tile")
        tiles_m, tiles_n = self.parts.values[:2]
        group = semantic.scalar_constant(self.facts.group, tl.int32)
        width = semantic.mul(group, tiles_n, True)
        first = semantic.mul(semantic.floordiv(here, width), group, True)
        left = semantic.sub(tiles_m, first, True)
        height = semantic.minimum(left, group, tl.PropagateNan.NONE)
        inside = semantic.mod(here, width)
        m = semantic.add(first, semantic.mod(inside, height), True)
        n = semantic.floordiv(inside, height)
        if self.facts.moved:
            m = semantic.add(m, self.parts.values[2], True)
            beyond = semantic.greater_equal(m, tiles_m)
            m = semantic.where(beyond, semantic.sub(m, tiles_m, True), m)
        sizes = (semantic.scalar_constant(size, tl.int32) for size in self.facts.block)
        return tl_tuple([semantic.mul(index, size, True) for index, size in zip((m, n), sizes)])


@builtin(name="gl.portable.swizzled_tiles")
def swizzled_tiles(
    shape: Union[Sequence[Scalar[int]], Values],
    block_shape: Shape,
    group: Const[int] = 8,
    first_row: Optional[Scalar[int]] = None,
) -> tile_order:
    """Return the tiles of a matrix, in an order in which programs that run together share operands:
    the order visits `group` rows of tiles at a time, column by column.

    Args:
        shape: rows and columns of the matrix, integer scalars.
        block_shape: rows and columns of a tile, compile-time integers.
        group: compile-time integer.
        first_row: row of the matrix at which the order begins, a multiple of a tile's rows and less
            than the matrix has; the rows before it come last. The first row by default.

    Returns:
        A `tile_order`.

    Raises:
        ArgumentError: `group` is no compile-time integer of at least 1.
        ShapeError: `shape` or `block_shape` is not two sizes.
    """
    semantic = semantic_layer()
    sizes, block = unwrap(shape), tuple(unwrap_shape(block_shape, "block_shape"))
    if not isinstance(sizes, (list, tuple, tl_tuple)) or len(sizes) != 2 or len(block) != 2:
        raise ShapeError(
            "not the shape of a matrix", argument="shape", expected="2 sizes", got=describe(sizes)
        )
    tiles: list[Any] = []
    for size, side in zip(sizes, block):
        extent = scalar_int32(semantic, unwrap(size), "shape")
        more = semantic.add(extent, semantic.scalar_constant(side - 1, tl.int32), True)
        tiles.append(semantic.floordiv(more, semantic.scalar_constant(side, tl.int32)))
    facts = TileOrderFacts(
        block, compile_time_int(group, "group", 1), unwrap(first_row) is not None
    )
    if facts.moved:
        first = scalar_int32(semantic, unwrap(first_row), "first_row")
        tiles.append(semantic.floordiv(first, semantic.scalar_constant(block[0], tl.int32)))
    return tile_order(tiles, facts)
