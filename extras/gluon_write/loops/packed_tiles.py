"""Copy ahead the tiles from which each step of a loop computes an operand of its product.

    for k in range(0, K, BK):
        words = gl.load(w_ptrs, mask=..., other=0)
        w = unpack(words)
        acc = gl.portable.mma(x, w, acc)

Words that registers of a thread hold are loaded in the step that unpacks them, which waits for them. On an H200 a product of
300 rows and weights of 4 bits took 0.49 of the time with the words in a ring of buffers. Tiles between products, as the mask or
the bias of attention, are such, too, and keys and values of bytes that warps multiply as halves.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from gluon_write.loops.loops import Loop
from gluon_write.text.syntax import operands_of, reads, stores

__all__ = ["is_between", "with_packed_tiles"]


def is_between(loop: Loop) -> bool:
    """Return True if no operand of a loop's products is computed from tiles alone: others come between them."""
    return len(loop.products) > 1 and not any(tile.dtype for tile in loop.tiles.values())


def with_packed_tiles(reader: Any, loop: Loop) -> Loop:
    """Return a loop that copies such tiles, too, or the loop.

    Args:
        reader: of the function, a `Prefetcher`.
    """
    described = any(tile.tiles for tile in loop.tiles.values())
    if described or len(loop.products) > 1 and not loop.issued and loop.tiles:
        return loop
    ranks = (2,) if is_between(loop) else (1, 2)
    packed = {}
    feeding = {
        name for product in loop.products for one in operands_of(product) for name in reads(one)
    }
    for statement in reversed(loop.node.body):
        if stores(statement) & feeding:
            feeding |= reads(statement)
    for statement in loop.node.body:
        tile = reader.tile(statement, ranks) if isinstance(statement, ast.Assign) else None
        if tile is None or tile.name in loop.tiles or tile.stored or tile.name not in feeding:
            continue
        if sum(tile.name in stores(one) for one in loop.node.body) == 1:
            packed[tile.name] = tile
    more = replace(loop, tiles={**packed, **loop.tiles}, ahead=[])
    if not packed or not reader.slices(more):
        return loop
    return more if all(reader.knows_dtype(tile, more) for tile in packed.values()) else loop
