"""Copy an operand that all steps multiply to shared memory, without registers on the way.

    q = gl.load(q_ptr + ..., mask=..., other=0.0)
    for start in range(0, length, BN):
        score = gl.portable.mma(q, gl.load(...), nothing)

The loop's copies run ahead, and the first step waits for its own: an operand that is copied in front of them comes with them.
Loaded to registers, it is stored when it has come, and then a fence and a barrier follow. On an H200 a copy takes 0.96
of the time of short attention.
"""

from __future__ import annotations

import ast
from typing import Sequence

from gluon_write.loops.loop_reader import LoopReader
from gluon_write.loops.loops import Edit, Loop, Tile, only_asked
from gluon_write.text.form import one_line
from gluon_write.text.syntax import names_in, nodes_in, operands_of, stores

__all__ = ["copied_operands", "copying"]


def copied_operands(reader: LoopReader, loops: Sequence[Loop]) -> list[Tile]:
    """Return the loads in front of loops that follow each other, which copies may replace: products alone read them.

    Args:
        loops: whose products read shared memory.
    """
    block = next(b for b in _blocks(reader.tree) if loops[0].node in b)
    before = block[: block.index(loops[0].node)]
    names: dict[str, int] = {}
    for loop in loops:
        for product in loop.products if loop.issued else ():
            operand = operands_of(product)[0]
            if isinstance(operand, ast.Name) and operand.id not in loop.tiles:
                names[operand.id] = names.get(operand.id, 0) + 1
    tiles = []
    for name, uses in names.items():
        places = [n for n in names_in(reader.tree) if n.id == name]
        read = [n for n in places if isinstance(n.ctx, ast.Load) and not only_asked(n, reader.tree)]
        definitions = [s for s in before if isinstance(s, ast.Assign) and name in stores(s)]
        stored = sum(isinstance(n.ctx, ast.Store) for n in places)
        if len(definitions) == stored == 1 and len(read) == uses:
            tile = reader.tile(definitions[0])
            tiles += [] if tile is None or tile.stored else [tile]
    return tiles


def copying(reader: LoopReader, tile: Tile, start: str, dtype: str) -> Edit:
    """Return the edit that copies a tile in place of its load.

    Args:
        start: the op that starts a copy. dtype: of the tile, as text.
    """
    statement, (rows, columns) = tile.statement, tile.shape
    indent = " " * statement.col_offset
    place = one_line(reader.text_of(tile.pointer))
    if tile.mask is not None:
        place += f", mask={one_line(reader.text_of(tile.mask))}"
    lines = [
        f"{indent}{tile.name} = {reader.space}.allocate_shared_memory({dtype}, [{rows}, {columns}])",
        f"{indent}{start}({tile.name}, {place})",
    ]
    return statement.lineno, statement.end_lineno or 0, lines


def _blocks(tree: ast.AST) -> list[list[ast.stmt]]:
    """Return the lists of statements in a tree."""
    parts = [getattr(n, kind, None) for n in nodes_in(tree) for kind in ("body", "orelse")]
    return [part for part in parts if isinstance(part, list)]
