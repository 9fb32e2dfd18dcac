"""Load the strided tiles of pointers by descriptors, which units for copies take.

    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    for k in range(0, K, BK):
        columns = k + gl.arange(0, BK)
        x = gl.load(a + rows[:, None] * K + columns[None, :], mask=(rows[:, None] < M) & (columns[None, :] < K), other=0)

becomes

    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [gl.program_id(0) * BM, k])

where pointers are the sum of a parameter, a range along each dimension times its stride, and scalars. A scalar moves
the tile along a dimension, or it numbers the matrices of a batch, which are more dimensions of the descriptor: rows
end where those of a matrix do then. A dimension without a mask has no end.

Rows that are taken modulo their number are those behind the last one in no tile of a descriptor. That is the
same where no store writes what is computed of them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Optional, Sequence

from gluon_core import language, portable
from gluon_write.loops.loops import viewed
from gluon_write.text.form import changed_copy, edited, free_name, one_line
from gluon_write.text.polynomials import Monomial, Polynomial
from gluon_write.text.syntax import (
    argument,
    arguments,
    calls_in,
    first_of,
    nodes_in,
    operands_of,
    reads,
    stores,
)
from gluon_write.text.unread import without_unread
from gluon_write.tracing.axes import Axes
from gluon_write.tracing.index_forms import IndexForms, NoIndex, Range
from gluon_write.tracing.sketch import Sketch, place_of

__all__ = ["strided"]

_ENDLESS = "2147483647"
_MOST_RANK = 5
_ALIGNED = 16  # bytes: places along a row are multiples
_LONG = 64  # bits of an integer that no coordinate has
_APART = 8  # elements, which are so many bytes
_HINTS = ("cache_modifier", "eviction_policy")
_CACHED = ("", ".ca", ".cg", ".cs", ".wb")  # hints that leave the order of accesses as it is
_BITS = (16,)  # of elements that units read from shared memory
_STORES = ("store", "masked_store")
_Limit = tuple[Range, Polynomial]  # the numbers of a range are below a number


@dataclass(frozen=True)
class _Tile:
    """Hold a tile of a tensor.

    Attributes:
        base: the parameter that points to the tensor. extents, strides, block: of the descriptor.
        place: coordinates. flipped: the tile's first dimension is the contiguous one.
        guarded: the extent of each dimension along which the tile is moved where there may be no element; None of others.
    """

    base: str
    extents: tuple[str, ...]
    strides: tuple[str, ...]
    block: tuple[int, int]
    place: tuple[str, ...]
    flipped: bool
    guarded: tuple[Optional[str], ...] = ()

    @property
    def descriptor(self) -> tuple[Any, ...]:
        """Return what makes the descriptor."""
        return (self.base, self.extents, self.strides, self.block)


def _is_some(extent: str) -> bool:
    """Return True for an extent that is surely not 0."""
    return extent.isdigit() and int(extent) > 0


def strided(fn: Any, drawn: Sketch, steps: bool = False) -> Any:
    """Return a kernel whose loops of products load tiles of descriptors, or the kernel where one of them cannot be.

    Args:
        fn: the kernel, with these loops in its own text. drawn: its trace.
        steps: loops must have a step. One that does nothing but add products gets a step of empty tiles where there is none; of others no extent at
            which one ends is 0.
    """
    try:
        reader = _StridedTiles(fn, drawn, steps)
        text = reader.text()
    except NoIndex:
        return fn
    return fn if text is None else changed_copy(fn, drawn.jits, {0: text}, {})


class _StridedTiles(IndexForms):
    def __init__(self, fn: Any, drawn: Sketch, steps: bool):
        super().__init__(fn, drawn)
        self.steps, self.ends = steps, set[str]()  # extents at which loops end
        self.stepping: dict[ast.expr, str] = {}  # ends of loops that get a step
        self.axes: dict[int, Axes] = {}

    def text(self) -> Optional[str]:
        """Return the kernel with descriptors; None without loops of products.

        Raises:
            NoIndex: the tiles of a product in a loop have no such form.
        """
        needed = self._operands()
        if not needed or any(self.called(n) is portable.descriptor for n in nodes_in(self.tree)):
            return None
        if any("atomic" in op.name for op in self.drawn.program.walk_ops()):
            return None  # they may order accesses, and copies by a unit have an order of their own
        written = self._written()
        loops = [node for node in nodes_in(self.tree) if isinstance(node, (ast.For, ast.While))]
        within = {node for loop in loops for node in nodes_in(loop)}
        edits: list[tuple[ast.expr, str]] = []
        tiles: dict[ast.Call, _Tile] = {}
        for node in nodes_in(self.tree):
            if isinstance(node, ast.Call) and self.called(node) in (language.load, language.store):
                if self.called(node) is language.load and node not in within and self._adds_once():
                    continue  # such as a residual, which threads load as fast
                try:
                    tile = self._tile(node)
                    if self.called(node) is language.load and tile.base in written:
                        raise NoIndex
                    tiles[node] = tile
                except NoIndex:
                    if node in needed:
                        raise
        taken = self.names_in_use()
        names: dict[Any, str] = {}
        behind: dict[str, str] = {}
        for node, tile in tiles.items():
            if tile.descriptor not in names:
                word = re.sub("_(ptr|desc|tiles)$", "", tile.base)
                names[tile.descriptor] = free_name(f"{word}_tiles", taken)
            for extent in tile.guarded:
                if extent is not None and extent not in behind:
                    word = extent if extent.isidentifier() else tile.base
                    behind[extent] = free_name(f"behind_{word}", taken)
            edits.append((node, self._access(node, tile, names[tile.descriptor], behind)))
        edits += self.stepping.items()
        text = edited(self.source, edits)
        lines = text.splitlines()
        body = self.tree.body
        first = first_of(body)
        indent = " " * first.col_offset
        makers = [f"{name} = {self._maker(parts)}" for parts, name in names.items()]
        if behind:
            makers.append(
                "# The descriptor of a tensor without elements has one: tiles begin behind it."
            )
            makers += [f"{n} = {_APART} * (1 - min(max({e}, 0), 1))" for e, n in behind.items()]
        lines[first.lineno - 1 : first.lineno - 1] = [f"{indent}{line}" for line in makers]
        return without_unread("\n".join(lines) + "\n", self.scope)

    def _adds_once(self) -> bool:
        """Return True for a kernel with one product."""
        nodes = list(nodes_in(self.tree))
        return sum(isinstance(n, ast.Call) and self.called(n) is portable.mma for n in nodes) == 1

    def _written(self) -> set[str]:
        """Return the parameters through which the kernel may store."""
        names: set[str] = set()
        for node in nodes_in(self.tree):
            if isinstance(node, ast.Call) and self.called(node) is language.store:
                pointer = argument(node, 0, "pointer")
                names |= reads(pointer) if pointer is not None else set()
            elif isinstance(node, ast.Call) and self._stores(self.called(node)):
                names |= reads(node)
        before: set[str] = set()
        while names != before:
            before = set(names)
            for node in nodes_in(self.tree):
                if isinstance(node, (ast.Assign, ast.AugAssign)) and stores(node) & names:
                    names |= reads(node)
        return names & self.pointers

    def _stores(self, called: Any) -> bool:
        """Return True for a function of the kernel that may store."""
        return called in self.drawn.jits and "store" in called.src

    def _operands(self) -> list[ast.Call]:
        """Return the loads in loops of products that are operands of these."""
        needed = []
        for loop in nodes_in(self.tree):
            if not isinstance(loop, ast.For):
                continue
            calls = calls_in(loop)
            products = [n for n in calls if self.called(n) is portable.mma and operands_of(n)]
            names = {viewed(one, self) for product in products for one in operands_of(product)}
            for statement in loop.body:
                target = statement.targets[0] if isinstance(statement, ast.Assign) else None
                if isinstance(target, ast.Name) and target.id in names:
                    assert isinstance(statement, ast.Assign)
                    if self.called(statement.value) is language.load:
                        assert isinstance(statement.value, ast.Call)
                        needed.append(statement.value)
        return needed

    # -- the text -----------------------------------------------------------------------------------

    def _maker(self, parts: tuple[Any, ...]) -> str:
        base, extents, *lists = parts
        some = self.ends if self.steps else ()
        most = [one if _is_some(one) or one in some else f"max({one}, 1)" for one in extents]
        listed = ", ".join(f"[{', '.join(map(str, one))}]" for one in (most, *lists))
        return f"{self.space}.portable.descriptor({base}, {listed})"

    def _access(self, node: ast.Call, tile: _Tile, name: str, behind: dict[str, str]) -> str:
        ends = [behind.get(extent or "") for extent in tile.guarded]
        moved = [f"{one} + {end}" if end else one for one, end in zip(tile.place, ends)]
        place = f"[{', '.join(moved)}]"
        if self.called(node) is language.load:
            return f"{self.space}.portable.load({name}, {place}){'.T' if tile.flipped else ''}"
        value = argument(node, 1, "value")
        assert value is not None
        text = one_line(self.text_of(value))
        return f"{self.space}.portable.store({name}, {place}, {text})"

    # -- tiles --------------------------------------------------------------------------------------

    def _tile(self, node: ast.Call) -> _Tile:
        """Return the tile that a load or store moves.

        Raises:
            NoIndex: it is none.
        """
        writes = self.called(node) is language.store
        names = ("pointer", "value", "mask") if writes else ("pointer", "mask", "other")
        words = arguments(node, names)
        if len(node.args) > 3 or set(words) - {*names, *_HINTS}:
            raise NoIndex
        other = words.get("other")
        if other is not None and not (isinstance(other, ast.Constant) and other.value == 0):
            raise NoIndex
        cached = words.get("cache_modifier")
        if cached is not None and getattr(cached, "value", None) not in _CACHED:
            raise NoIndex
        form = self.form_of(words["pointer"])
        base, nbytes = self._base(form, words["pointer"])
        rest = form - Polynomial.of(base)
        limits = self._limits(words.get("mask"))
        tile = self._placed(node, base, rest, limits, nbytes)
        if writes and tile.flipped:
            raise NoIndex
        return tile

    def _base(self, form: Polynomial, node: ast.expr) -> tuple[str, int]:
        """Return the parameter that a pointer begins at, and the bytes of an element."""
        values = self.values_of(node)
        kinds = {
            (tuple(getattr(v.type, "dims", ())), getattr(v.type, "element", v.type)) for v in values
        }
        if len(kinds) != 1:
            raise NoIndex
        ((dims, element),) = kinds
        bits = getattr(getattr(element, "pointee", None), "bits", 0)
        terms = [names for names in form.terms if set(names) & self.pointers]
        if len(dims) != 2 or bits not in _BITS or len(terms) != 1 or len(terms[0]) != 1:
            raise NoIndex
        if form.terms[terms[0]] != 1:
            raise NoIndex
        return terms[0][0], bits // 8

    @cached_property
    def types(self) -> dict[str, Any]:
        """Return the types of the parameters that are no constants."""
        functions = self.drawn.program.functions.values()
        kernel = next(one for one in functions if one.name == self.tree.name)
        passed = [name for name in self.parameters if name not in self.drawn.constants]
        return {name: one.type for name, one in zip(passed, kernel.arguments)}

    @cached_property
    def pointers(self) -> set[str]:
        """Return the parameters that are pointers."""
        return {name for name, kind in self.types.items() if hasattr(kind, "pointee")}

    @cached_property
    def wide(self) -> set[str]:
        """Return the names of integers of 64 bits."""
        names = {n for n, kind in self.types.items() if getattr(kind, "bits", 0) == _LONG}
        for statement in nodes_in(self.tree):
            if isinstance(statement, ast.Assign):
                values = self.values_of(statement.value)
                if any(getattr(value.type, "bits", 0) == _LONG for value in values):
                    names |= stores(statement)
        return names

    def _limits(self, mask: Optional[ast.expr]) -> list[_Limit]:
        """Return what a mask asks.

        Raises:
            NoIndex: it asks something else.
        """
        if mask is None:
            return []
        if isinstance(mask, ast.Name):
            limits = self._limits(self._value_of(mask))
            for _, limit in limits:
                if not self.is_known(limit, self.statement_of(mask)):
                    raise NoIndex
            return limits
        if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd):
            return [*self._limits(mask.left), *self._limits(mask.right)]
        if isinstance(mask, ast.Subscript) and isinstance(mask.slice, ast.Tuple):
            parts = mask.slice.elts
            kept = [i for i, part in enumerate(parts) if isinstance(part, ast.Slice)]
            if len(parts) != 2 or len(kept) != 1:
                raise NoIndex
            return [self._one_limit(one, kept[0]) for one in self._vectors(mask.value)]
        return [self._one_limit(mask, None)]

    def _value_of(self, name: ast.Name) -> ast.expr:
        """Return the value that a name has where it is read.

        Raises:
            NoIndex: several statements assign it, or one of another kind.
        """
        assigned = self.reaching(name.id, name)
        if not isinstance(assigned, ast.Assign) or not isinstance(assigned.targets[0], ast.Name):
            raise NoIndex
        return assigned.value

    def _vectors(self, mask: ast.expr) -> list[ast.expr]:
        """Return the comparisons of a mask of one dimension."""
        if isinstance(mask, ast.Name):
            return self._vectors(self._value_of(mask))
        if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd):
            return [*self._vectors(mask.left), *self._vectors(mask.right)]
        return [mask]

    def _one_limit(self, node: ast.expr, axis: Optional[int]) -> _Limit:
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            raise NoIndex
        one, other = self.form_of(node.left), self.form_of(node.comparators[0])
        operator = node.ops[0]
        if isinstance(operator, (ast.Gt, ast.GtE)):
            one, other = other, one
        elif not isinstance(operator, (ast.Lt, ast.LtE)):
            raise NoIndex
        difference = one - other
        if axis is not None:
            difference = self._along(difference, axis)
        names = difference.names & set(self.ranges)
        if len(names) != 1:
            raise NoIndex
        (name,) = names
        known = self.ranges[name]
        if difference.terms.get((name,)) != 1 or known.bound is not None:
            raise NoIndex
        limit = Polynomial.of(name) - difference
        if self._varies(limit) or known.axis is None:
            raise NoIndex
        if isinstance(operator, (ast.LtE, ast.GtE)):
            limit += Polynomial.of(1)
        return known, limit

    def _placed(
        self,
        node: ast.Call,
        base: str,
        rest: Polynomial,
        limits: Sequence[_Limit],
        nbytes: int,
    ) -> _Tile:
        """Return the tile of a load or store.

        Args:
            rest: of the pointers, from `base` on. nbytes: of an element.
        """
        ranges, steps = self._directions(rest)
        inner = next((axis for axis in (1, 0) if steps[axis].number == 1), None)
        if inner is None:
            raise NoIndex
        outer = 1 - inner
        stride = steps[outer]
        if [count > 0 and self.is_fixed(names) for names, count in stride.terms.items()] != [True]:
            raise NoIndex
        ends = {axis: self._limit(known, limits) for axis, known in ranges.items()}
        scalars = rest.having(lambda names: not set(names) & set(self.ranges))
        begins = {outer: Polynomial.of(0), inner: Polynomial.of(0)}
        moves = Polynomial.of(0)
        for term in scalars.each():
            rows = term.over(stride)
            if rows is None:
                moves += term
            else:
                begins[outer] += rows
        whole = moves.having(
            lambda names: (
                not (self.wide | self.widened) & {*names}  # which may move beyond any coordinate
                and self._is_aligned(Polynomial({names: moves.terms[names]}), nbytes)
            )
        )
        begins[inner] = self._with_end(moves, ends[inner], whole)
        rows = self._with_end(begins[outer], ends[outer], begins[outer])
        moves += (begins[outer] - rows) * stride - begins[inner]
        begins[outer] = rows
        extents = {
            axis: self._extent(node, axis, known, begins, ends[axis])
            for axis, known in ranges.items()
        }
        batch = self._batch(moves)
        if len(batch) > _MOST_RANK - 2 or not self._is_aligned(begins[inner], nbytes):
            raise NoIndex
        use = self.statement_of(node)
        begin = [*batch.values(), begins[outer], begins[inner]]
        place = [self.shortened(one, use) for one in begin]
        if not all(self.is_known(one, use, positive=True) for one in place):
            raise NoIndex
        guarded = [None if self._is_asked(node, extents[a]) else extents[a] for a in (outer, inner)]
        return _Tile(
            base,
            (*[_ENDLESS] * len(batch), extents[outer], extents[inner]),
            (*(step.text() for step in batch), stride.text(), "1"),
            (ranges[outer].size, ranges[inner].size),
            tuple(map(self._coordinate, place)),
            inner == 0,
            (*[None] * len(batch), *guarded),
        )

    def _coordinate(self, place: Polynomial) -> str:
        """Return the text of a coordinate, which has 32 bits."""
        wide = place.names & self.wide
        return f"({place.text()}).to({self.space}.int32)" if wide else place.text()

    def _is_asked(self, node: ast.Call, extent: str) -> bool:
        """Return True if an access is not executed where an extent is 0: its loop ends there."""
        if _is_some(extent):
            return True
        for loop in nodes_in(self.tree):
            if not isinstance(loop, ast.For) or node not in nodes_in(loop):
                continue
            if not isinstance(loop.iter, ast.Call) or ast.unparse(loop.iter.func) != "range":
                continue
            begin, end, _ = self.bounds(loop)
            counted = rf"{self.space}\.cdiv\({re.escape(extent)}, \w+\)"
            if begin != "0" or not (end == extent or re.fullmatch(counted, end)):
                continue
            if self.steps and self._adds_alone(loop):
                last = loop.iter.args[min(1, len(loop.iter.args) - 1)]
                counter = "" if end == extent else f"{self.space}.cdiv("
                behind = end[len(counter) + len(extent) :]
                self.stepping[last] = f"{counter}max({extent}, 1){behind}"
                return False
            self.ends.add(extent)
            return True
        return False

    def _adds_alone(self, loop: ast.For) -> bool:
        """Return True if a step with empty tiles changes nothing: the loop adds products, and all else that it assigns is read in it alone."""
        operands, sums, assigned = self._operands(), set[str](), stores(loop.target)
        for statement in loop.body:
            if not isinstance(statement, (ast.Assign, ast.AugAssign)):
                return False
            value = statement.value
            inner = [n for n in nodes_in(value) if isinstance(n, ast.Call) and n is not value]
            if any(self.called(call) is not language.arange for call in inner):
                return False
            if isinstance(value, ast.Call) and self.called(value) is portable.mma:
                total = argument(value, 2, "acc")
                if not isinstance(total, ast.Name) or stores(statement) != {total.id}:
                    return False
                sums.add(total.id)
            elif isinstance(value, ast.Call) and value not in operands:
                return False
            else:
                assigned |= stores(statement)
        nodes = list(nodes_in(self.tree))
        if any(isinstance(n, (ast.For, ast.While)) and loop in nodes_in(n) and n is not loop for n in nodes):  # fmt: skip
            return False  # what is assigned may be read in the next round
        end = loop.end_lineno or 0
        behind = {n.id for n in nodes if isinstance(n, ast.Name) and n.lineno > end}
        return bool(sums) and not assigned & behind

    def _directions(self, rest: Polynomial) -> tuple[dict[int, Range], dict[int, Polynomial]]:
        """Return the range of each dimension, and the distance of its neighbours in memory."""
        ranges: dict[int, Range] = {}
        steps: dict[int, Polynomial] = {}
        for name in rest.names & set(self.ranges):
            known = self.ranges[name]
            terms = Polynomial({n: count for n, count in rest.terms.items() if name in n})
            step = terms.over(Polynomial.of(name))
            if known.axis is None or known.axis in ranges or step is None or self._varies(step):
                raise NoIndex
            ranges[known.axis], steps[known.axis] = known, step
        if set(ranges) != {0, 1}:
            raise NoIndex
        return ranges, steps

    def _extent(
        self,
        node: ast.Call,
        axis: int,
        known: Range,
        begins: dict[int, Polynomial],
        end: Optional[Polynomial],
    ) -> str:
        """Return the extent of a dimension; a wrapped range begins where it would without."""
        if known.begin is not None and known.bound is not None:
            if end is not None or begins[axis] or not self._unread(node, known, axis):
                raise NoIndex
            begins[axis] = known.begin
            end = known.bound - known.begin
        if end is None:
            return _ENDLESS
        extent = begins[axis] + end
        if not all(map(self.is_fixed, extent.terms)):
            raise NoIndex
        return extent.text()

    def _is_aligned(self, place: Polynomial, nbytes: int) -> bool:
        """Return True if a tile may begin at a place along a row, whose elements have so many bytes."""
        return self.multiple_of(place) * nbytes % _ALIGNED == 0

    def _limit(self, known: Range, limits: Sequence[_Limit]) -> Optional[Polynomial]:
        """Return the number that those of a range are below; None where nothing asks.

        Raises:
            NoIndex: there are several such numbers.
        """
        along = [(other, limit) for other, limit in limits if other.axis == known.axis]
        own = {limit for _, limit in along}
        if len(own) > 1 or any(other.size != known.size for other, _ in along):
            raise NoIndex
        return own.pop() if own else None

    def _with_end(
        self, begin: Polynomial, limit: Optional[Polynomial], whole: Polynomial
    ) -> Polynomial:
        """Return the part of a place with which the end of the dimension is the same in all programs.

        Args:
            limit: the number that those of the range are below. whole: the part where nothing asks.
        """
        if limit is None:
            return whole
        varying = limit.having(lambda names: not self.is_fixed(names))
        if any(begin.terms.get(names) != -count for names, count in varying.terms.items()):
            raise NoIndex
        return begin.having(lambda names: names in varying.terms or self.is_fixed(names))

    def _batch(self, moves: Polynomial) -> dict[Polynomial, Polynomial]:
        """Return the strides of more dimensions, and the place along each."""
        batch: dict[Polynomial, Polynomial] = {}
        for names, count in moves.terms.items():
            varying: Monomial = tuple(n for n in names if not self.is_fixed((n,)))
            fixed: Monomial = tuple(n for n in names if self.is_fixed((n,)))
            if not varying or count <= 0:
                raise NoIndex
            step = Polynomial({fixed: count})
            batch[step] = batch.get(step, Polynomial.of(0)) + Polynomial({varying: 1})
        return batch

    def _unread(self, load: ast.Call, known: Range, axis: int) -> bool:
        """Return True if no store writes what is computed of the indices of a wrapped range behind its bound."""
        assert known.begin is not None and known.bound is not None
        if any(re.search("store|atomic", jit.src) for jit in self.drawn.jits[1:]):
            return False
        for dim in (0, 1):
            if dim not in self.axes:
                self.axes[dim] = Axes(self.drawn, dim)
            axes = self.axes[dim]
            if axes.size == known.size and axis in (axes.rows_of(place_of(load, 0)) or ()):
                plain = all(op.name in _STORES for _, op in axes.effects)
                return plain and all(
                    self._leaves_out(node, axes, known.bound - known.begin)
                    for node in nodes_in(self.tree)
                    if isinstance(node, ast.Call) and self.called(node) is language.store
                )
        return False

    def _leaves_out(self, store: ast.Call, axes: Axes, limit: Polynomial) -> bool:
        """Return True if a store writes no rows from a limit on."""
        pointers, mask = argument(store, 0, "pointer"), argument(store, 2, "mask")
        rows = axes.rows_of(place_of(pointers, 0)) if pointers is not None else None
        if not rows or mask is None:
            return False
        return any(
            known.axis in rows and known.size == axes.size and own == limit
            for known, own in self._limits(mask)
        )
