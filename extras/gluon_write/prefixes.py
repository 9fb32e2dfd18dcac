"""Let consumers share tiles where blocks have the steps of the block before them, and more, as under a causal mask.

The producer copies the tiles of the last block among those of its consumers, and each consumer lets the tiles pass that its own
rows do not need. All bounds have to be whole steps that grow with the index of the block.
"""

from __future__ import annotations

import ast
import copy
import re
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional, Sequence

from gluon_core._triton import unwrap
from gluon_write.loops import Loop, reads, stores
from gluon_write.ring_plan import Function, NoForm, RingPlan
from gluon_write.tile_loops import LoopsOfTiles

__all__ = ["Rest", "rest_of"]

Line = tuple[int, int]  # a factor of the index, and a summand


@dataclass(frozen=True)
class Rest:
    """Hold the steps that a consumer lets pass, those between its own last one and the last of all.

    Attributes:
        after: the statement with the consumer's last steps. begin, end, step: of its loop.
        differing: statements before it that differ by consumer, and that `end` needs.
        last: the number of the last consumer. member: the name of a consumer's number.
    """

    after: ast.stmt
    begin: str
    step: str
    differing: tuple[ast.stmt, ...]
    last: str
    member: str

    def lines(self, reader: LoopsOfTiles, rings: Sequence[str], slot: str, name: str) -> list[str]:
        """Return the lines that let tiles pass.

        Args:
            name: of the loop's variable.
        """
        names = {n for statement in self.differing for n in stores(statement)}
        new = {self.member: self.last, **{n: f"{n}_last" for n in names}}
        words = re.compile(rf"\b({'|'.join(new)})\b")
        texts = [*(line for s in self.differing for line in reader.piece(s)), self.begin]
        *own, end = (words.sub(lambda m: new[m[1]], text) for text in texts)
        return [
            *own,
            f"for {name} in range({self.begin}, {end}, {self.step}):",
            *(f"    {ring}.{word}({slot})" for ring in rings for word in ("wait", "release")),
            f"    {slot} = {slot}.next()",
        ]

    def of_last(self, line: str) -> str:
        """Return a line of the producer, which copies for the last consumer."""
        return re.sub(rf"\b{self.member}\b", self.last, line)


@dataclass(frozen=True)
class _Unit:
    """Hold a loop of steps, in a kernel's names.

    Attributes:
        statement: of the kernel's loop around loops. places: of the tiles, where the loop's variable is `_`.
    """

    statement: ast.stmt
    low: ast.expr
    high: ast.expr
    step: ast.expr
    places: tuple[str, ...]
    names: frozenset[str]


def rest_of(plan: RingPlan, index: str, member: str, together: str) -> Optional[Rest]:
    """Return the steps that consumers let pass; None where all of them have the same.

    Args:
        index: name of the block's index. member: of a consumer's number. together: of the number of consumers.

    Raises:
        NoForm: blocks do not have the steps of those before them.
    """
    kernel = plan.functions[0]
    loops = [s for s in kernel.reader.tree.body if isinstance(s, ast.For)]
    around = [loop for loop in loops if plan.is_around(kernel, loop)]
    if len(around) != 1:
        raise NoForm
    body, names = around[0].body, {member}
    while more := {n for s in body if reads(s) & names for n in stores(s)} - names:
        names |= more
    units = list(_units(plan, kernel, body))
    if not any(names & (reads(u.low) | reads(u.high) | reads(u.step) | u.names) for u in units):
        return None
    values = _Values(plan, kernel, body, index)
    _check(units, names, values)
    last = units[-1]
    needed = reads(last.high)
    chosen: list[ast.stmt] = []
    for statement in reversed(body[: body.index(last.statement)]):
        if reads(statement) & names and stores(statement) & needed:
            chosen.insert(0, statement)
            needed |= reads(statement)
    return Rest(
        last.statement,
        ast.unparse(last.high),
        ast.unparse(last.step),
        tuple(chosen),
        f"({together} - 1)",
        member,
    )


def _check(units: Sequence[_Unit], differing: set[str], values: "_Values") -> None:
    """Raise NoForm unless the steps of a block are the first ones of the next."""
    first = units[0]
    step = values.constant(first.step)
    if step is None or step < 1 or reads(first.low) & differing:
        raise NoForm
    bounds = [values.line(first.low)]
    for unit, next_unit in zip(units, [*units[1:], None]):
        if unit.places != first.places or unit.names & differing:
            raise NoForm
        if ast.dump(unit.step) != ast.dump(first.step):
            raise NoForm
        if next_unit is not None and ast.dump(next_unit.low) != ast.dump(unit.high):
            raise NoForm
        bounds.append(values.line(unit.high))
    for (factor, summand), (other, more) in zip(bounds, bounds[1:]):
        rises = other >= factor and more >= summand
        if not rises or (other - factor) % step or (more - summand) % step:
            raise NoForm


def _units(plan: RingPlan, kernel: Function, body: Sequence[ast.stmt]) -> Iterator[_Unit]:
    """Yield the loops of steps of a round, those of functions in the names of the kernel.

    Raises:
        NoForm: one is within a branch or another loop.
    """
    calls = {id(call): (call, number) for call, number in plan.calls_in(kernel.reader)}
    for statement in body:
        loop = kernel.loops.get(id(statement))
        if loop is not None:
            yield _unit(statement, kernel.reader, loop, {})
            continue
        inner = [calls[id(n)] for n in ast.walk(statement) if id(n) in calls]
        if not inner and not any(id(n) in kernel.loops for n in ast.walk(statement)):
            continue
        if len(inner) != 1 or not isinstance(statement, (ast.Assign, ast.Expr)):
            raise NoForm
        call, number = inner[0]
        callee = plan.functions[number]
        inner_loops = [*callee.loops.values()]
        if len(inner_loops) != 1 or inner_loops[0].node not in callee.reader.tree.body:
            raise NoForm
        bound = plan.bound(call, callee.reader)
        yield _unit(statement, callee.reader, inner_loops[0], bound)


def _unit(
    statement: ast.stmt, reader: LoopsOfTiles, loop: Loop, bound: Mapping[str, ast.expr]
) -> _Unit:
    node = loop.node
    assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
    listed = node.iter.args
    low = listed[0] if len(listed) > 1 else ast.Constant(0)
    high = listed[min(1, len(listed) - 1)]
    step = listed[2] if len(listed) > 2 else ast.Constant(1)
    places = [place for tile in loop.tiles.values() for place in tile.place]
    own = reader.locals - {*bound, node.target.id} if bound else set()
    if loop.ahead or any(reads(part) & own for part in (low, high, step, *places)):
        raise NoForm  # a place takes more than the step and what the function is given
    words = {**bound, node.target.id: ast.Name("_", ast.Load())}
    low, high, step = (_with(one, bound) for one in (low, high, step))
    named = [_with(place, words) for place in places]
    names = frozenset(name for place in named for name in reads(place)) - {"_"}
    return _Unit(statement, low, high, step, tuple(map(ast.dump, named)), names)


class _Named(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]):
        self.values = values

    def visit_Name(self, node: ast.Name) -> Any:
        return copy.deepcopy(self.values.get(node.id, node))


def _with(node: ast.expr, values: Mapping[str, ast.expr]) -> Any:
    """Return an expression with others in place of names."""
    return _Named(values).visit(copy.deepcopy(node))


class _Values:
    """Evaluate expressions of a round as lines over the index of the block."""

    def __init__(self, plan: RingPlan, kernel: Function, body: Sequence[ast.stmt], index: str):
        self.index = index
        self.constants = {n: unwrap(v) for n, v in plan.drawn.constants.items()}
        self.assigned: dict[str, Optional[ast.expr]] = {}
        for statement in body:
            for name in stores(statement):
                plain = isinstance(statement, ast.Assign) and isinstance(
                    statement.targets[0], ast.Name
                )
                value = statement.value if plain and isinstance(statement, ast.Assign) else None
                self.assigned[name] = None if name in self.assigned else value

    def constant(self, node: ast.expr) -> Optional[int]:
        """Return the value of an expression that is the same for all blocks and launches; None if it differs."""
        try:
            factor, summand = self.line(node)
        except NoForm:
            return None
        return None if factor else summand

    def line(self, node: Optional[ast.expr]) -> Line:
        """Return an expression as a line.

        Raises:
            NoForm: it is none.
        """
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return 0, node.value
        if isinstance(node, ast.Name):
            if node.id == self.index:
                return 1, 0
            if node.id in self.assigned:
                return self.line(self.assigned[node.id])
            value = self.constants.get(node.id)
            if type(value) is int:
                return 0, value
        if isinstance(node, ast.BinOp):
            (a, b), (c, d) = self.line(node.left), self.line(node.right)
            if isinstance(node.op, (ast.Add, ast.Sub)):
                sign = 1 if isinstance(node.op, ast.Add) else -1
                return a + sign * c, b + sign * d
            if isinstance(node.op, ast.Mult) and not (a and c):
                return a * d + c * b, b * d
        raise NoForm
