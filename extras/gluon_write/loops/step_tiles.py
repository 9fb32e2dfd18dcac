"""Hand the tiles that a step of a loop stores in buffers on to its products."""

from __future__ import annotations

import ast
from typing import Any

from gluon_write.loops.loops import Loop, Tile, viewed
from gluon_write.text.syntax import operands_of

__all__ = ["buffer_of", "handed_on", "last_before"]


def buffer_of(tile: Tile, index: str) -> str:
    """Return the text of a buffer of a tile's ring, as a tensor of the tile's shape."""
    return f"{tile.ring}.index({index}){'.permute((1, 0))' if tile.flipped else ''}"


def handed_on(reader: Any, latest: Tile, loop: Loop, step: str) -> tuple[int, list[str]]:
    """Return the lines that store tiles, and let products read them, with the line of the first such product.

    The tiles of a product are stored behind the last of them: a barrier, which no load passes, comes first.

    Args:
        reader: of the kernel's loops. latest: the last tile of those that the lines store.
    """
    stored = [tile for tile in loop.tiles.values() if tile.stored]
    stored = [tile for tile in stored if last_before(reader, tile, loop) is latest.statement]
    buffers = [buffer_of(tile, reader.index_of(tile, loop, step)) for tile in stored]
    lines = [f"{buffer}.store({tile.name})" for tile, buffer in zip(stored, buffers)]
    if stored and reader.on_shared(loop):
        lines.append(f"{reader.space}.nvidia.hopper.fence_async_shared()")
    for tile, buffer in zip(stored, buffers):
        load = "" if reader.shared(tile, loop) else ".load()"
        lines += [] if tile.kept else [f"{tile.name} = {buffer}{load}"]
    first = min((_product_line(reader, tile, loop) for tile in stored), default=0)
    within = (s.lineno for s in loop.node.body if s.lineno <= first)
    return max(within, default=first), lines


def last_before(reader: Any, tile: Tile, loop: Loop) -> ast.stmt:
    """Return the last statement of a tile before the product of this one."""
    line = _product_line(reader, tile, loop)
    statements = (one.statement for one in loop.tiles.values())
    return max((s for s in statements if s.lineno < line), key=lambda s: s.lineno)


def _product_line(reader: Any, tile: Tile, loop: Loop) -> int:
    """Return the line of the first product of a tile."""
    return next(
        call.lineno
        for call in loop.products
        if tile.name in [viewed(operand, reader) for operand in operands_of(call)]
    )
