"""Find a loop that goes on with the steps and the loads of the loop before it.

    masked_from = gl.cdiv(max(min(length, length - BN + 1), 0), BN) * BN
    for start in range(0, masked_from, BN):
        y = gl.load(pointers + start * stride, mask=..., other=0.0)
        ...
    for start in range(masked_from, length, BN):
        y = gl.load(pointers + start * stride, mask=..., other=0.0)
        ...

Copies ahead of the first loop may be those of the second one: its first steps need not wait for memory.
"""

from __future__ import annotations

import ast
from typing import Any, Callable, NamedTuple, Optional

from gluon_core import language
from gluon_core._triton import tl
from gluon_write.loops.loop_reader import LoopReader
from gluon_write.loops.loops import Loop
from gluon_write.text.form import bounds_of
from gluon_write.text.syntax import mentions, nodes_in, reads, stores

__all__ = ["Rings", "bounds_in", "continuation"]


class Rings(NamedTuple):
    """Name what a loop takes over from the one that it goes on with.

    Attributes:
        step: the number of a step. moved: a name of the addresses -> that of the step which is copied.
        tiles: a tile -> its ring. end: the last loop that has these rings.
        stages: buffers that the first loop has room for: it copies tiles that are loaded before it, too.
        refilled: each tile is copied to the buffer that was read.
    """

    step: str
    moved: dict[str, str]
    tiles: dict[str, str]
    end: ast.For
    stages: int
    refilled: bool = False


def continuation(
    form: LoopReader, loop: Loop, read: Callable[[ast.For], Optional[Loop]]
) -> Optional[Loop]:
    """Return the next loop behind another one if it goes on with its steps, and loads the same; None without one."""
    block, second = _around(form.tree, loop.node)
    own, later = bounds_in(loop.node), None if second is None else bounds_in(second)
    if second is None or own is None or later is None or loop.falls:
        return None
    (first, middle, step), (begin, _, other) = own, later
    same = ast.unparse(loop.node.target) == ast.unparse(second.target) and step == other
    definition = _definition(block[: block.index(loop.node)], middle)
    if not same or middle != begin or not _meets(form, definition, first, middle, step):
        return None
    fixed = reads(second.iter) | reads(loop.node.iter)
    if fixed & {name for statement in loop.node.body for name in stores(statement)}:
        return None
    between = block[block.index(loop.node) + 1 : block.index(second)]
    if not all(isinstance(s, ast.Assign) and form.ahead(s) for s in between):
        return None
    behind = read(second)
    if behind is None or not behind.tiles or _loads(loop) != _loads(behind):
        return None
    parts = [*behind.ahead, *behind.loads]
    needed = fixed.union(*map(mentions, parts))
    return None if needed & {name for s in between for name in stores(s)} else behind


def _around(tree: ast.AST, node: ast.For) -> tuple[list[ast.stmt], Optional[ast.For]]:
    """Return the block of a loop, and the next loop in it."""
    for parent in nodes_in(tree):
        for name in ("body", "orelse"):
            body = getattr(parent, name, None)
            if isinstance(body, list) and node in body:
                later = body[body.index(node) + 1 :]
                return body, next((s for s in later if isinstance(s, ast.For)), None)
    return [], None


def _definition(before: list[ast.stmt], name: str) -> Optional[ast.stmt]:
    """Return the last statement of a block that assigns a name."""
    return next((s for s in reversed(before) if name in stores(s)), None)


def bounds_in(node: ast.For) -> Optional[tuple[str, str, str]]:
    """Return where a loop with three bounds begins and ends, and its step; None of others."""
    call = node.iter
    if not isinstance(call, ast.Call) or call.keywords or len(call.args) != 3 or node.orelse:
        return None
    first, last, step = bounds_of([ast.unparse(arg) for arg in call.args])
    return first, last, step


def _meets(
    form: LoopReader, definition: Optional[ast.stmt], first: str, middle: str, step: str
) -> bool:
    """Return True for `middle = first + cdiv(max(..., 0), step) * step`: a step of the loop starts there, or its end is there."""
    if not isinstance(definition, ast.Assign) or ast.unparse(definition.targets[0]) != middle:
        return False
    value = definition.value
    if first != "0":
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            return False
        if ast.unparse(value.left) != first:
            return False
        value = value.right
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return False
    count = value.left
    if ast.unparse(value.right) != step or not isinstance(count, ast.Call):
        return False
    if form.called(count) not in (language.cdiv, tl.cdiv) or len(count.args) != 2:
        return False
    many, each = count.args
    if not isinstance(many, ast.Call) or ast.unparse(many.func) != "max":
        return False
    return ast.unparse(many.args[-1]) == "0" and ast.unparse(each) == step


def _loads(loop: Loop) -> list[Any]:
    """Return what two loops with the same rings have in common: tiles, the statements of addresses, products."""
    tiles = [
        (tile.name, *map(ast.unparse, tile.place), tile.shape, tile.bits, tile.stored, tile.flipped, tile.dtype, tile.uses)
        for tile in loop.tiles.values()
    ]  # fmt: skip
    latest = max(loop.tiles.values(), key=lambda tile: tile.statement.lineno)
    ahead = [ast.unparse(statement) for statement in loop.ahead]
    return [tiles, ahead, len(loop.issued), latest.name]
