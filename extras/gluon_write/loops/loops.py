"""Hold loops of products: the tiles that they load, and the facts of a loop that need no types."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from math import prod
from typing import Any, Iterator, Optional

from gluon_core import language
from gluon_write.text.form import Form
from gluon_write.text.syntax import calls_in, nodes_in, reads
from gluon_write.tracing.sketch import Sketch, place_of

__all__ = [
    "Edit",
    "Loop",
    "Tile",
    "behind",
    "falling",
    "may_write",
    "only_asked",
    "orders_memory",
    "viewed",
]

#: The first and the last line that new lines replace.
Edit = tuple[int, int, list[str]]

_ORDERS_OF_TWO = ("1, 0", "(1, 0)", "[1, 0]")
_TRANSPOSED = {("trans", ""), *((n, t) for n in ("trans", "permute") for t in _ORDERS_OF_TWO)}
_WRITES = re.compile(r"store|atomic|asm|print|barrier|scatter")
_ORDERS = re.compile(r"\b(thread_)?barrier\b")


@dataclass
class Tile:
    """Hold a load that becomes a copy.

    Attributes:
        name: of the loaded tensor. statement: of its load.
        place: the expressions of the address: pointer and perhaps mask, or coordinates.
        shape, bits: of the tensor and its elements. tiles: name of the descriptor.
        ring: name of the buffers. number: of the tile among those of a slot of the ring.
        transposed: the load transposes the tile. flipped: its buffers hold it transposed.
        stored: each step loads the tile and stores it in a buffer: its addresses are not aligned as copies need it.
        dtype: name of that of a tile that a step computes, which has no place.
        uses: operands of products that are the tile; each of several reads the buffer itself.
        kept: other statements read its elements: its name is that of a tensor, and products read the buffer.
    """

    name: str
    statement: ast.Assign
    place: list[ast.expr]
    shape: tuple[int, ...]
    bits: int
    tiles: str = ""
    transposed: bool = False
    flipped: bool = False
    stored: bool = False
    dtype: str = ""
    uses: int = 1
    kept: bool = False
    ring: str = ""
    number: int = 0

    @property
    def pointer(self) -> ast.expr:
        """Return the expression of the pointers."""
        return self.place[0]

    @property
    def mask(self) -> Optional[ast.expr]:
        """Return the expression of the mask, None without one."""
        return self.place[1] if len(self.place) > 1 else None

    @property
    def bytes(self) -> int:
        """Return the bytes of the tensor."""
        return prod(self.shape) * self.bits // 8

    def reads(self) -> set[str]:
        """Return the names that the address needs."""
        return {name for part in self.place for name in reads(part)}


@dataclass
class Loop:
    """Hold a loop of products.

    Attributes:
        ahead: the statements that the addresses need.
        issued: statements of asynchronous products -> the name of the result; all products or none.
        falls: the variable gets smaller from step to step.
    """

    node: ast.For
    tiles: dict[str, Tile]
    products: list[ast.Call]
    ahead: list[ast.stmt] = field(default_factory=list)
    issued: dict[ast.stmt, str] = field(default_factory=dict)
    falls: bool = False

    @property
    def copied(self) -> list[Tile]:
        """Return the tiles that are copied ahead."""
        return [tile for tile in self.tiles.values() if not tile.stored]

    @property
    def loads(self) -> list[ast.Assign]:
        """Return the statements that load tiles."""
        return [tile.statement for tile in self.tiles.values()]

    @property
    def by_statement(self) -> dict[int, Tile]:
        """Return the tiles by the ids of their statements."""
        return {id(tile.statement): tile for tile in self.tiles.values()}

    def inside(self, variable: str, last: str) -> str:
        """Return the condition that a step is one of the loop."""
        return f"{variable} {'>' if self.falls else '<'} {last}"


def falling(node: ast.For, number: int, drawn: Sketch) -> bool:
    """Return True if the step of a range in function `number` is negative."""
    steps = node.iter.args[2:3] if isinstance(node.iter, ast.Call) else []
    return any(place_of(step, number) in drawn.falling for step in steps)


def viewed(operand: ast.expr, reader: Form) -> Optional[str]:
    """Return the name of an operand, which may be transposed."""
    operand = untransposed(operand, reader)
    return operand.id if isinstance(operand, ast.Name) else None


def untransposed(operand: ast.expr, reader: Form) -> ast.expr:
    """Return what an expression transposes; the expression where it transposes nothing."""
    if isinstance(operand, ast.Call) and reader.called(operand) is language.permute:
        if len(operand.args) == 2 and ast.unparse(operand.args[1]) in ("(1, 0)", "[1, 0]"):
            return operand.args[0]
    elif isinstance(operand, ast.Attribute) and operand.attr == "T":
        return operand.value
    elif isinstance(operand, ast.Call) and isinstance(operand.func, ast.Attribute):
        listed = ", ".join(map(ast.unparse, operand.args))
        plain = reader.called(operand) is None and not operand.keywords
        if plain and (operand.func.attr, listed) in _TRANSPOSED:
            return operand.func.value
    return operand


def only_asked(name: ast.Name, within: ast.AST) -> bool:
    """Return True for `name` in `name.dtype` and `name.shape`, which a buffer has, too."""
    return any(
        isinstance(n, ast.Attribute) and n.value is name and n.attr in ("dtype", "shape")
        for n in nodes_in(within)
    )


def orders_memory(reader: Any, node: ast.For) -> bool:
    """Return True if a step waits at a barrier: its loads may be of what other threads stored."""
    return _calls(reader, node, _ORDERS)


def may_write(reader: Any, node: ast.stmt) -> bool:
    """Return True if a statement calls a function that may write to memory."""
    return _calls(reader, node, _WRITES)


def _calls(reader: Any, node: ast.stmt, words: re.Pattern[str]) -> bool:
    """Return True if a statement calls a function of such a name, or one of the kernel's that has the word in its text."""
    calls = calls_in(node)
    called = [reader.called(call) for call in calls]
    texts = [one.src for one in called if one in reader.drawn.jits]
    return any(map(words.search, [*(ast.unparse(call.func) for call in calls), *texts]))


def behind(reader: Any, loop: Loop) -> Iterator[ast.stmt]:
    """Yield the statements of a kernel behind a loop whose products are under way, up to the next loop, which may use the rings until then."""
    body = reader.tree.body
    if reader.number or loop.node not in body or not loop.issued:
        return
    for statement in body[body.index(loop.node) + 1 :]:
        if isinstance(statement, (ast.For, ast.While)):
            return
        yield statement
