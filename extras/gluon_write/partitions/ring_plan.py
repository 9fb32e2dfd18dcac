"""Find the functions of a kernel with loops of tiles, and give the tiles rings that partitions share."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field
from typing import Any, Iterator, Optional, Sequence

from gluon_core import language, portable
from gluon_write.loops.loops import Loop, Tile, viewed
from gluon_write.loops.single_step import has_at_most_one_step, has_one_step, loop_before
from gluon_write.loops.tile_loops import LoopsOfTiles, loops_of_tiles
from gluon_write.partitions.own_tiles import DEPTH, OwnTile, own_stores, own_tiles
from gluon_write.rewrites.largest import negated
from gluon_write.text.form import free_name
from gluon_write.text.syntax import argument, is_docstring, nodes_in, operands_of, reads, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["COMPOUND", "GROUP", "Crowded", "Function", "NoForm", "NoRoom", "RingPlan", "by_ring"]

COMPOUND = (ast.For, ast.While, ast.If)
GROUP = 4  # warps
_BARRIERS = 1024  # bytes of shared memory
_MOST_SLOTS = 4


class NoForm(Exception):
    """Say that a kernel has no such form."""


class Crowded(NoForm):
    """Say that so many groups leave no registers for a form of several loops."""


class NoRoom(NoForm):
    """Say that the rings of a form do not fit shared memory."""


@dataclass
class Function:
    """Hold a function with loops of tiles.

    Attributes:
        loops: id of a loop's node -> the loop. rings: name of a descriptor -> that of its ring.
        products, copies: names of the consumer's and the producer's copy.
        passes: name of the copy of a consumer that lets all tiles pass.
        taken: parameters of the producer's copy.
    """

    reader: LoopsOfTiles
    loops: dict[int, Loop]
    rings: dict[str, str] = field(default_factory=dict)
    products: str = ""
    copies: str = ""
    passes: str = ""
    taken: list[str] = field(default_factory=list)


class RingPlan:
    """Hold the functions, loops and rings of a kernel.

    Args:
        fn: a kernel of one part of the rows, as `rows.parted` writes it, and `drawn`, its trace.
        parts: consumers. part: the name of a part's number, "" of one part.
        group: warps of a consumer. walks: one program on each multiprocessor walks over the grid;
            a loop around loops counts as such a walk.

    Raises:
        NoForm: the kernel has no such form.
    """

    @property
    def any_order(self) -> bool:
        """Return True if steps of loops may come in any order."""
        return False

    def __init__(
        self,
        fn: Any,
        drawn: Sketch,
        traced: Tracer,
        parts: int,
        part: str,
        group: int = GROUP,
        walks: bool = False,
    ):
        self.fn, self.drawn, self.target = fn, drawn, traced.target
        self.stages, self.room = traced.stages, traced.room
        self.parts, self.part, self.group = parts, part, group
        self.readers = loops_of_tiles(drawn, self.target, group)
        self.taken = {
            word for one in self.readers for word in (*re.findall(r"\w+", one.source), *one.scope)
        }
        self.slot = free_name("slot", self.taken)
        self.functions: dict[int, Function] = {}
        self.rings: dict[str, list[Tile]] = {}  # name -> the tiles of a slot in one of the loops
        self.descriptors: dict[str, str] = {}  # the kernel's name of a descriptor -> its ring
        self.depth = 0
        self.own: list[OwnTile] = []
        self._find()
        kernel = self.functions[0]
        self.described = {
            name
            for s in kernel.reader.tree.body
            if self.describes(kernel.reader, s)
            for name in stores(s)
        }
        own_walk = any(isinstance(s, ast.For) and self.is_around(kernel, s)
                       for s in kernel.reader.tree.body)  # fmt: skip
        self.walks = walks or own_walk
        self.stored = own_stores(
            kernel.reader, lambda loop: self.is_around(kernel, loop), self.described, self.taken
        )
        self._place_rings()
        self._share_slots()
        self._fit()
        self.before = self._before(kernel.reader)
        self._place_own(kernel)

    # -- functions, loops and rings -------------------------------------------------------------

    def _find(self) -> None:
        for number, reader in enumerate(self.readers):
            loops = {id(loop.node): loop for loop in reader.loops()}
            if loops:
                self.functions[number] = Function(reader, loops)
        changed = True
        while changed:
            changed = False
            for number, reader in enumerate(self.readers):
                if number not in self.functions and any(True for _ in self.calls_in(reader)):
                    self.functions[number] = Function(reader, {})
                    changed = True
        if 0 not in self.functions:
            raise NoForm
        for number, one in self.functions.items():
            name = one.reader.tree.name
            word = f"{name}_rows" if number == 0 and self.parts > 1 else f"{name}_products"
            one.products = free_name(word, self.taken)
            one.copies = free_name(f"{name}_copies", self.taken)
            one.passes = free_name(f"{name}_passes", self.taken)
            returns = [n for n in nodes_in(one.reader.tree) if isinstance(n, ast.Return)]
            last = one.reader.tree.body[-1]
            if any(r is not last for r in returns) or number == 0 and returns:
                raise NoForm

    def calls_in(
        self, reader: LoopsOfTiles, within: Optional[ast.AST] = None
    ) -> Iterator[tuple[ast.Call, int]]:
        """Yield the calls of functions that have loops of tiles, those of a statement alone where it is given."""
        for node in nodes_in(reader.tree if within is None else within):
            if isinstance(node, ast.Call):
                number = self.number_of(reader, node)
                if number in self.functions:
                    yield node, number

    def loops_of(self, one: Function) -> int:
        """Return the number of loops of tiles with several steps in a function and those that it calls."""
        inner = (self.functions[number] for _, number in self.calls_in(one.reader))
        own = sum(not has_one_step(one.reader, loop.node) for loop in one.loops.values())
        return own + sum(map(self.loops_of, inner))

    def number_of(self, reader: LoopsOfTiles, node: ast.AST) -> int:
        called = reader.called(node)
        return next((i for i, jit in enumerate(self.drawn.jits) if jit is called), -1)

    def callees_first(self, numbers: Sequence[int]) -> list[int]:
        order: list[int] = []

        def add(number: int) -> None:
            if number not in order:
                for _, callee in self.calls_in(self.functions[number].reader):
                    add(callee)
                order.append(number)

        for number in numbers:
            add(number)
        return order

    def _place_rings(self) -> None:
        """Give each descriptor whose tiles are copied ahead a ring; loops take one slot of each in a round.

        Raises:
            NoForm: a function has several descriptors for one name, or a loop has not all rings.
        """
        for number in reversed(self.callees_first(list(self.functions))):
            one = self.functions[number]
            if number:
                one.rings = self._passed(number)
            for loop in one.loops.values():
                for tile in loop.tiles.values():
                    if number == 0:
                        one.rings[tile.tiles] = self._ring(tile.tiles, tile)
                    if tile.tiles not in one.rings:
                        raise NoForm
        names = set(self.rings)
        for one in self.functions.values():
            for loop in one.loops.values():
                for tile in loop.tiles.values():
                    tile.ring = one.rings[tile.tiles]
                    known = self.rings[tile.ring][0]
                    if (tile.shape, tile.bits) != (known.shape, known.bits):
                        raise NoForm
                if sorted(tile.ring for tile in loop.tiles.values()) != sorted(names):
                    raise NoForm

    def _share_slots(self) -> None:
        """Let both operands of a product come in one slot, where all loops have the same products."""
        loops = [loop for one in self.functions.values() for loop in one.loops.values()]
        pairs = {
            tuple(loop.tiles[name].ring for name in _operands(product, loop, one.reader))
            for one in self.functions.values()
            for loop in one.loops.values()
            for product in loop.products
        }
        if len(pairs) != 1 or len(names := pairs.pop()) < 2 or set(names) != set(self.rings):
            return
        if len(set(names)) < len(names) or any(_moves(loop) for loop in loops):
            return
        ring = free_name("tiles", self.taken)
        for one in self.functions.values():
            for loop in one.loops.values():
                for tile in loop.tiles.values():
                    tile.number, tile.ring = names.index(tile.ring), ring
            one.rings = dict.fromkeys(one.rings, ring)
        listed = sorted(self.descriptors, key=lambda name: names.index(self.descriptors[name]))
        self.descriptors = dict.fromkeys(listed, ring)
        self.rings = {ring: [self.rings[name][0] for name in names]}

    def _fit(self) -> None:
        """Choose the slots of the rings.

        Raises:
            NoRoom: there is no memory for two, or in one partition for as many as are asked for.
        """
        room = self.room - self._other_memory()
        # A program that walks has its multiprocessor for itself: one partition takes the memory that is there.
        wanted = _MOST_SLOTS if self.walks and self.parts == 1 else 2
        self.depth = min(max(self.stages, wanted), room // self._slot_bytes)
        if self.depth < (self.stages if self.parts == 1 else 2):
            raise NoRoom

    @property
    def _slot_bytes(self) -> int:
        """Return the bytes of a slot of all rings."""
        return sum(tile.bytes for tiles in self.rings.values() for tile in tiles)

    def _other_memory(self, own: Sequence[OwnTile] = ()) -> int:
        """Return the bytes of shared memory through which the consumers move other tiles than their own."""
        copied = {
            id(node)
            for one in self.functions.values()
            for loop in one.loops.values()
            for tile in loop.tiles.values()
            for node in nodes_in(tile.statement)
        }
        copied |= {id(one.statement.value) for one in self.stored}
        copied |= {id(node) for one in own for node in nodes_in(one.tile.statement)}
        most = 0
        for reader in self.readers:
            for node in nodes_in(reader.tree):
                called = reader.called(node)
                if not isinstance(node, ast.Call) or id(node) in copied:
                    continue
                moved: Optional[ast.expr] = node
                if called in (portable.store, language.store):
                    moved = argument(node, 2 if called is portable.store else 1, "value")
                elif called not in (portable.load, language.load):
                    continue
                kind = reader.type_of(moved) if moved is not None else None
                if kind is not None:
                    most = max(most, kind[0][0] * kind[0][1] * kind[1] // 8)
        return self.parts * (most + sum(one.bytes for one in self.stored)) + _BARRIERS

    def _place_own(self, kernel: Function) -> None:
        """Give each part rings of the tiles that a round of a loop around loops loads, where there is memory."""
        own = own_tiles(
            kernel.reader, lambda loop: self.is_around(kernel, loop), self.described, self.taken
        )
        size = self.depth * self._slot_bytes
        more = DEPTH * self.parts * sum(one.tile.bytes for one in own)
        room = self.room - self._other_memory(own)
        self.own = own if size + more <= room else []

    def own_of(self, statement: ast.stmt) -> list[OwnTile]:
        """Return the tiles that a statement loads, or a loop in its rounds."""
        return [one for one in self.own if statement in (one.tile.statement, one.loop)]

    @property
    def held(self) -> set[str]:
        """Return the names of the first operands that all steps of a loop of the kernel's own text read."""
        kernel, names = self.functions[0], set()
        for loop in kernel.loops.values():
            first = {
                viewed(one, kernel.reader) for p in loop.products for one in operands_of(p)[:1]
            }
            names |= first - {name for s in loop.node.body for name in stores(s)}
        return {name for name in names if name}

    def _ring(self, descriptor: str, tile: Tile) -> str:
        """Return the ring of one of the kernel's descriptors."""
        if descriptor not in self.descriptors:
            ring = free_name(f"{tile.name}_ring", self.taken)
            self.descriptors[descriptor] = ring
            self.rings[ring] = [tile]
        return self.descriptors[descriptor]

    def _passed(self, number: int) -> dict[str, str]:
        """Return the rings of the descriptors that a function's calls pass, by parameter."""
        one = self.functions[number]
        rings: dict[str, str] = {}
        tiles = {t.tiles: t for loop in one.loops.values() for t in loop.tiles.values()}
        for caller in self.functions.values():
            for call, callee in self.calls_in(caller.reader):
                if callee != number:
                    continue
                for name, value in self.bound(call, one.reader).items():
                    if name not in tiles:
                        continue
                    if not isinstance(value, ast.Name):
                        raise NoForm
                    ring = caller.rings.get(value.id)
                    if ring is None and caller is self.functions[0]:
                        ring = caller.rings[value.id] = self._ring(value.id, tiles[name])
                    if ring is None or rings.get(name, ring) != ring:
                        raise NoForm
                    rings[name] = ring
        return rings

    def bound(self, call: ast.Call, callee: LoopsOfTiles) -> dict[str, ast.expr]:
        """Return the arguments of a call by parameter."""
        names = [arg.arg for arg in callee.tree.args.args]
        if any(isinstance(arg, ast.Starred) for arg in call.args) or len(call.args) > len(names):
            raise NoForm
        bound = dict(zip(names, call.args))
        for word in call.keywords:
            if word.arg is None:
                raise NoForm
            bound[word.arg] = word.value
        return bound

    # -- the statements before the partitions -----------------------------------------------------

    def describes(self, reader: LoopsOfTiles, statement: ast.stmt) -> bool:
        """Return True for a statement that makes a descriptor."""
        called = reader.called(getattr(statement, "value", None))
        return isinstance(statement, ast.Assign) and called is portable.descriptor

    def _before(self, reader: LoopsOfTiles) -> list[ast.stmt]:
        """Return the kernel's statements that make descriptors of rings, with those that these need.

        Raises:
            NoForm: a ring's descriptor is made within a loop or a branch.
        """
        body = [s for s in reader.tree.body if not is_docstring(s)]
        makers = [s for s in body if self.describes(reader, s)]
        described = {name for s in makers for name in stores(s)}
        if not set(self.descriptors) <= described:
            raise NoForm
        last = max(body.index(s) for s in makers)
        chosen = list(makers)
        needed = {name for s in makers for name in reads(s)}
        for statement in reversed(body[: last + 1]):
            if statement not in chosen and stores(statement) & needed:
                plain = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign))
                if not plain or not reader.ahead(statement) or self.part in reads(statement):
                    raise NoForm
                chosen.append(statement)
                needed |= reads(statement)
        return [s for s in body if s in chosen]

    def masked_behind(self, one: Function, loop: Loop) -> Optional[Loop]:
        """Return the loop of the masked step right behind a loop of whole steps, where it may come first; else None.

        A row without a column in its first step would have no number as its weights if its mask was infinite.
        """
        if not self.any_order:
            return None
        for other in one.loops.values():
            node = other.node
            if node is loop.node or loop_before(one.reader, node) is not loop.node:
                continue
            calls = [n for n in nodes_in(node) if one.reader.called(n) is language.where]
            low = (argument(call, 2, "y") for call in calls if isinstance(call, ast.Call))
            if all(map(_is_number, low)) and has_at_most_one_step(one.reader, node):
                return other
        return None

    def is_around(self, one: Function, loop: ast.For) -> bool:
        """Return True for a loop around loops of tiles."""
        return id(loop) not in one.loops and self.has_loops(one, loop)

    def has_loops(self, one: Function, statement: ast.stmt) -> bool:
        inner = any(id(n) in one.loops for n in nodes_in(statement))
        return inner or any(True for _ in self.calls_in(one.reader, statement))

    def slice_of(self, one: Function) -> set[str]:
        """Return the names that the copies and the control flow around them need."""
        reader = one.reader
        needed: set[str] = set()
        for node in nodes_in(reader.tree):
            loop = one.loops.get(id(node))
            if loop is not None:
                needed |= {name for tile in loop.tiles.values() for name in tile.reads()}
                needed |= {name for arg in loop.node.iter.args for name in reads(arg)}  # type: ignore[attr-defined]
            elif isinstance(node, COMPOUND) and self.has_loops(one, node):
                head = node.iter if isinstance(node, ast.For) else node.test
                needed |= reads(head)
        if one is self.functions[0]:
            needed |= {n for own in self.own for n in own.slice(self.part)[1]}
        for call, callee in self.calls_in(reader):
            inner = self.functions[callee]
            for name, value in self.bound(call, inner.reader).items():
                if name in inner.taken:
                    needed |= reads(value)
        changed = True
        while changed:
            before = set(needed)
            for node in nodes_in(reader.tree):
                if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
                    if not isinstance(node, COMPOUND) and stores(node) & needed:
                        needed |= reads(node)
                    elif isinstance(node, COMPOUND) and stores(node) & needed:
                        head = node.iter if isinstance(node, ast.For) else node.test
                        needed |= reads(head)
            changed = needed != before
        return needed

    def is_operand(self, one: Function, name: str) -> bool:
        """Return True if units alone read a tile, in this function and those that it is passed to."""
        reader = one.reader
        inner = {
            id(node)
            for loop in one.loops.values()
            for product in loop.products
            for node in operands_of(product)[:1]
        }
        asked = {
            id(node.value)
            for node in nodes_in(reader.tree)
            if isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype")
        }
        passed = {
            id(n) for s in nodes_in(reader.tree)
            if isinstance(s, ast.If) and negated(s) == name
            for n in nodes_in(s)
        }  # fmt: skip
        for call, number in self.calls_in(reader):
            callee = self.functions[number]
            for parameter, value in self.bound(call, callee.reader).items():
                if isinstance(value, ast.Name) and value.id == name:
                    if not self.is_operand(callee, parameter):
                        return False
                    passed.add(id(value))
        names = [n for n in nodes_in(reader.tree) if isinstance(n, ast.Name) and n.id == name]
        read = [n for n in names if isinstance(n.ctx, ast.Load)]
        return all(id(n) in inner | asked | passed for n in read)


def _operands(product: ast.Call, loop: Loop, reader: LoopsOfTiles) -> list[str]:
    """Return the names of a product's operands that are tiles of the loop."""
    names = [viewed(operand, reader) or "" for operand in operands_of(product)]
    return [name for name in names if name in loop.tiles]


def _moves(loop: Loop) -> bool:
    """Return True if the place of a tile changes before the last tile of the loop is loaded."""
    body = loop.node.body
    last = max(body.index(tile.statement) for tile in loop.tiles.values())
    return any(
        stores(statement) & tile.reads()
        for tile in loop.tiles.values()
        for statement in body[body.index(tile.statement) + 1 : last]
    )


def _is_number(node: Optional[ast.expr]) -> bool:
    """Return True for a finite literal."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    value = inner.value if isinstance(inner, ast.Constant) else None
    return isinstance(value, (int, float)) and math.isfinite(value)


def by_ring(loop: Loop) -> dict[str, list[Tile]]:
    """Return the tiles of a loop by ring, in the order of its slots."""
    rings: dict[str, list[Tile]] = {}
    for tile in sorted(loop.tiles.values(), key=lambda tile: tile.number):
        rings.setdefault(tile.ring, []).append(tile)
    return rings
