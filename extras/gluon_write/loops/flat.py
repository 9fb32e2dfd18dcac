"""Keep the ring of a mainloop full across the tiles of a loop around it.

    for tile in range(gl.program_id(0), tiles, PROGRAMS):
        row, column = place_of(tile)
        acc = gl.zeros([BM, BN], gl.float32)
        for k in range(0, K, BK):
            x = gl.portable.load(a_tiles, [row, k])
            y = gl.portable.load(b_tiles, [k, column])
            acc = gl.portable.mma(x, y, acc)
        gl.portable.store(c_tiles, [row, column], acc)

The copies walk over tiles and steps on their own, some steps ahead of the products: the first steps of a
tile are copied while the last ones of the tile before are multiplied and its result is stored.
"""

from __future__ import annotations

import ast
from typing import Callable, Iterator, Optional

from gluon_core import language, portable
from gluon_core._triton import tl
from gluon_write.loops.loops import falling
from gluon_write.text.form import Form, bounds_of, factor, free_name
from gluon_write.text.syntax import argument, calls_in, mentions, nodes_in, reads, stores
from gluon_write.tracing.sketch import Sketch

__all__ = ["Around", "around", "lines_of", "room_of"]

_PURE = (ast.Assign, ast.AugAssign)
_FREE = (language.load, portable.load, portable.mma, portable.store, language.store)


class Around:
    """Hold a loop around a mainloop whose steps are as many in each round.

    Attributes:
        node: the loop; its bounds as text are `first`, `last` and `stride`.
        ahead: the statements that the coordinates of the tiles need.
        moved: names of theirs and of the variable -> names for the round that is copied.
    """

    def __init__(self, node: ast.For, texts: list[str], ahead: list[ast.stmt], taken: set[str]):
        self.node, self.ahead = node, ahead
        self.first, self.last, self.stride = bounds_of(texts)
        assert isinstance(node.target, ast.Name)
        names = {name for statement in ahead for name in stores(statement)}
        self.variable = node.target.id
        self.moved = {
            name: free_name(f"{name}_ahead", taken) for name in sorted({*names, self.variable})
        }

    def rounds(self, space: str) -> str:
        """Return the number of rounds as text, 0 or less where there is none."""
        count = self.last if self.first == "0" else f"{self.last} - {factor(self.first)}"
        if self.stride != "1":
            return f"{space}.cdiv({count}, {self.stride})"
        return factor(count)


def around(
    reader: Form, drawn: Sketch, inner: ast.For, coordinates: set[str], taken: set[str]
) -> Optional[Around]:
    """Return the loop around a mainloop; None where copies cannot walk over its rounds on their own.

    Args:
        coordinates: names that the tiles' coordinates need, other than the mainloop's variable.
        taken: names in use, which new ones join.
    """
    node = next(
        (n for n in nodes_in(reader.tree) if isinstance(n, ast.For) and inner in n.body), None
    )
    if node is None or not isinstance(node.target, ast.Name) or not isinstance(node.iter, ast.Call):
        return None
    if node.orelse or falling(node, 0, drawn) or node.body[-1] is inner:
        return None
    called = reader.called(node.iter)
    if called is not tl.range and reader.text_of(node.iter.func) != "range":
        return None
    changed = stores(node)
    bounds = {name for arg in (*node.iter.args, inner.iter) for name in mentions(arg)}
    if bounds & changed:
        return None
    wanted, ahead = set(coordinates), list[ast.stmt]()
    before = node.body[: node.body.index(inner)]
    for statement in reversed(before):
        if not stores(statement) & wanted:
            continue
        calls = calls_in(statement)
        if not isinstance(statement, _PURE) or any(reader.called(c) in _FREE for c in calls):
            return None
        ahead.insert(0, statement)
        wanted |= reads(statement)
    own = {name for statement in ahead for name in stores(statement)}
    if wanted & (changed - own - {node.target.id}):
        return None  # a value that a round takes from the one before
    if stores(inner) & own or any(node.target.id in stores(s) for s in node.body):
        return None  # a result's place may have the same names, behind the mainloop
    if _carried(ahead, own):
        return None
    return Around(node, [reader.text_of(arg) for arg in node.iter.args], ahead, taken)


def _carried(statements: list[ast.stmt], own: set[str]) -> bool:
    """Return True if one of the names is read before it is assigned."""
    assigned: set[str] = set()
    for statement in statements:
        if reads(statement) & own - assigned:
            return True
        assigned |= stores(statement)
    return False


def room_of(reader: Form, drawn: Sketch, node: ast.For, stages: int) -> int:
    """Return the bytes of shared memory for the rings of a loop, and for the largest value that it stores."""
    rings, stored = 0, 0
    for call in nodes_in(node):
        called = reader.called(call)
        if called is portable.load and isinstance(call, ast.expr):
            rings += stages * _bytes(drawn, call)
        if called in (portable.store, language.store) and isinstance(call, ast.Call):
            value = argument(call, 1 if called is language.store else 2, "value")
            stored = max(stored, _bytes(drawn, value))
    return rings + stored


def _bytes(drawn: Sketch, node: Optional[ast.expr]) -> int:
    """Return the bytes of the tensor that an expression gave."""
    values = drawn.values_of(node, 0)
    size = max((int(getattr(value.type.element, "bits", 32)) // 8 for value in values), default=0)
    for extent in values[0].type.dims if values else ():
        size *= extent
    return size


def lines_of(
    outer: Around,
    renamed: Callable[[ast.stmt, dict[str, str]], str],
    fetch: Callable[[str], list[str]],
    steps: str,
    count: str,
    indent: str,
) -> Iterator[str]:
    """Yield the lines that copy one step and go on to the next one.

    Args:
        renamed: `f(statement, names)` returns its text with other names.
        fetch: `f(indent)` returns the lines of the copy. count: name of the step that is copied.
        steps: name of the number of steps in each round.
    """
    variable = outer.moved[outer.variable]
    yield from fetch(indent)
    yield f"{indent}{count} += 1"
    yield f"{indent}if {count} == {steps}:"
    yield f"{indent}    {count} = 0"
    yield f"{indent}    {variable} += {factor(outer.stride)}"
    for statement in outer.ahead:
        yield f"{indent}    {renamed(statement, outer.moved)}"
