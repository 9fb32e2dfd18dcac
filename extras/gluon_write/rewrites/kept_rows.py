"""Keep the blocks of a row in registers between loops that read it again.

    for start in range(0, n, BLOCK):
        columns = start + gl.arange(0, BLOCK)
        total += gl.load(x + columns, mask=columns < n, other=0.0)
    mean = gl.sum(total, 0) / n
    for start in range(0, n, BLOCK):
        columns = start + gl.arange(0, BLOCK)
        far = gl.load(x + columns, mask=columns < n, other=0.0) - mean
        ...

becomes

    if n == 2 * BLOCK:  # 2 blocks are a row, which stays in registers
        columns = gl.arange(0, BLOCK)
        block = gl.load(x + columns)
        total += block
        columns = BLOCK + gl.arange(0, BLOCK)
        block_2 = gl.load(x + columns)
        total += block_2
        mean = gl.sum(total, 0) / n
        far = block - mean
        ...
    elif ...
    else:
        ...

A row of several blocks has no masks; one of a part of a block keeps them. Where the last loop stores rows, their
distances from those that are kept decide, too; and of a size that is surely no multiple of 16, only the row of a part
of a block has code of its own.
"""

from __future__ import annotations

import ast
import copy
import math
import re
from dataclasses import dataclass, replace
from typing import Any, Iterator, Mapping, Optional, Sequence

from gluon_core import language
from gluon_core.launch.jit import GluonJITFunction
from gluon_sim.tracing.types import PointerType, TensorType
from gluon_write.rewrites.whole_steps import PLAIN, RowLoops, Unmask, WholeStep
from gluon_write.text.form import factor, free_name, rewritten
from gluon_write.text.step_masks import is_place, terms_of
from gluon_write.text.syntax import argument, is_new, mentions, nodes_in, reads, stores
from gluon_write.tracing.sketch import Sketch, place_of

__all__ = ["with_kept_rows"]

_BLOCKS = (4, 2, 1)  # of rows that have code of their own
_MOST_WORDS = 16  # registers of a thread for a row
# With those of the tensors that the loops carry. A softmax by lanes, of eight warps with 8 registers and 32, ran 3 blocks
# on an H200 for 4: 1.23 of the time for rows that its registers do not hold.
_MOST_HELD = 32
_WRITES = re.compile(r"store|atomic|asm|print|barrier|scatter|async|copy|assert")
_PURE = ("to", "cast", "reshape")  # methods
_BUILTINS = ("min", "max", "abs", "float", "int", "range")
_LOAD_WORDS = ("pointer", "mask", "other", "eviction_policy")
_INDEX = (ast.BinOp, ast.Compare)  # around the variable of a loop
Known = Mapping[str, Optional[ast.expr]]  # name -> its value before the loops and of the step


def with_kept_rows(fn: Any, drawn: Sketch, threads: int) -> Any:
    """Return a kernel without products that reads rows of few blocks once, or the kernel.

    Args:
        threads: of a program.
    """
    readers = [_Rows(jit, number, drawn, threads) for number, jit in enumerate(drawn.jits)]
    if any(one.has_products(one.tree) for one in readers):
        return fn
    return rewritten(fn, drawn.jits, lambda _, number: readers[number].text())


@dataclass
class _Load:
    """Hold a load of a step.

    Attributes:
        node: the call. pointer: its address, by values before the loops and of the step.
        mask, other: the same, "" without. holds: its mask is true in whole steps.
        words: registers of a thread for the result. size: bytes of an element.
    """

    node: ast.Call
    pointer: ast.expr
    mask: str
    other: str
    holds: bool
    words: int
    size: int

    def key(self, whole: bool) -> tuple[str, str, str]:
        """Return what loads of the same block have in common."""
        masks = ("", "") if whole and self.holds else (self.mask, self.other)
        return (ast.unparse(self.pointer), *masks)


@dataclass
class _Region:
    """Hold the loops over a row, and the statements between them.

    Attributes:
        end, step: of each loop. loads: of each loop. apart: see `_Rows._apart`.
    """

    body: list[ast.stmt]
    loops: list[ast.For]
    end: ast.expr
    step: str
    loads: list[list[_Load]]
    apart: Sequence[tuple[str, str, bool]] = ()

    def kept(self, whole: bool) -> dict[tuple[str, str, str], _Load]:
        """Return the first loads of the blocks that a later loop reads again, by key."""
        first: dict[tuple[str, str, str], _Load] = {}
        again = set()
        for loads in self.loads:
            again |= {load.key(whole) for load in loads} & set(first)
            first = {**{load.key(whole): load for load in reversed(loads)}, **first}
        return {key: load for key, load in first.items() if key in again}


class _Rows(RowLoops):
    def __init__(self, fn: Any, number: int, drawn: Sketch, threads: int):
        super().__init__(fn, number, drawn)
        self.threads = threads
        self.taken = self.names_in_use()
        self.place = free_name("place", self.taken)  # of a step

    def text(self) -> Optional[str]:
        lines, changed = self.source.splitlines(), False
        for region in sorted(self._regions(), key=lambda r: r.body[0].lineno, reverse=True):
            new = self._written(region)
            if new:
                lines[region.body[0].lineno - 1 : region.body[-1].end_lineno] = new
                changed = True
        return "\n".join(lines) + "\n" if changed else None

    # -- the loops over a row ---------------------------------------------------------------------

    def _regions(self) -> Iterator[_Region]:
        """Yield loops with the same bounds, with plain statements between them alone."""
        for node in nodes_in(self.tree):
            for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
                if isinstance(body, list) and isinstance(node, ast.stmt) and self.space:
                    region = self._region(body)
                    if region is not None:
                        yield region

    def _region(self, body: Sequence[ast.stmt]) -> Optional[_Region]:
        """Return the loops over a row of a block of statements; None without two that have loads in common."""
        loops = [s for s in body if isinstance(s, ast.For) and self.steps_of(s) is not None]
        loops = [s for s in loops if ast.unparse(s.iter) == ast.unparse(loops[0].iter)]
        if len(loops) < 2:
            return None
        between = list(body[body.index(loops[0]) : body.index(loops[-1]) + 1])
        steps = self.steps_of(loops[0])
        assert steps is not None
        changing = {name for s in between for name in stores(s)}
        plain = all(s in loops or isinstance(s, PLAIN) for s in between)
        if not plain or changing & reads(loops[0].iter) or not self._is_pure(between, loops[-1]):
            return None
        if not all(_is_index(loop) for loop in loops):
            return None
        loads = [list(self._loads(loop, *steps, changing)) for loop in loops]
        region = _Region(between, loops, *steps, loads)
        apart = self._apart(region, changing) if region.kept(True) else None
        return None if apart is None else replace(region, apart=apart)

    def _is_pure(self, statements: Sequence[ast.stmt], last: ast.For) -> bool:
        """Return True if nothing writes but stores of the last loop."""
        for statement in statements:
            for node in nodes_in(statement):
                called = self.called(node)
                if not isinstance(node, ast.Call) or called is language.store and statement is last:
                    continue
                name = getattr(called, "__name__", "")
                if isinstance(called, GluonJITFunction) or _WRITES.search(name):
                    return False
                if called is None and not _is_harmless(node.func):
                    return False
        return True

    def _steps_values(
        self, loop: ast.For, changing: set[str]
    ) -> Iterator[tuple[ast.stmt, dict[str, Optional[ast.expr]]]]:
        """Yield the statements of a step, each with the values that names have before it; None of others."""
        assert isinstance(loop.target, ast.Name)
        known: dict[str, Optional[ast.expr]] = dict.fromkeys(changing)
        known[loop.target.id] = ast.Name(self.place, ast.Load())
        for statement in loop.body:
            yield statement, known
            value = _inlined(statement.value, known) if isinstance(statement, ast.Assign) else None
            known.update(dict.fromkeys(stores(statement)))
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                known[statement.targets[0].id] = value if len(statement.targets) == 1 else None

    def _loads(
        self, loop: ast.For, end: ast.expr, step: str, changing: set[str]
    ) -> Iterator[_Load]:
        """Yield the loads of a loop whose places do not depend on what the loops compute."""
        whole = WholeStep(self, loop, terms_of(end), step)
        for statement, known in self._steps_values(loop, changing):
            for node in nodes_in(statement):
                if isinstance(node, ast.Call) and self.called(node) is language.load:
                    load = self._load(node, known, whole)
                    if load is not None:
                        yield load

    def _load(self, node: ast.Call, known: Known, whole: WholeStep) -> Optional[_Load]:
        if any(word.arg not in _LOAD_WORDS for word in node.keywords) or len(node.args) > 3:
            return None
        pointer, *masks = (argument(node, i, n) for i, n in enumerate(_LOAD_WORDS[:3]))
        place = None if pointer is None else _inlined(pointer, known)
        values = [None if mask is None else _inlined(mask, known) for mask in masks]
        types = {value.type for value in self.values_of(node)}
        if place is None or len(types) != 1 or self._loaded(place):
            return None
        if any(mask is not None and value is None for mask, value in zip(masks, values)):
            return None
        type = types.pop()
        bits = int(getattr(type.element, "bits", 64)) if isinstance(type, TensorType) else 0
        if not bits:
            return None
        words = -(-math.prod(type.dims) * bits // (32 * self.threads))
        mask, other = ("" if value is None else ast.unparse(value) for value in values)
        holds = masks[0] is None or whole.holds(masks[0])
        return _Load(node, place, mask, other, holds, words, max(1, bits // 8))

    def _loaded(self, node: ast.expr) -> bool:
        """Return True for a place that memory names."""
        return any(self.called(one) is language.load for one in nodes_in(node))

    # -- stores -----------------------------------------------------------------------------------

    def _apart(self, region: _Region, changing: set[str]) -> Optional[list[tuple[str, str, bool]]]:
        """Return distances of rows that are stored from those that are kept, in bytes: from how many on no step changes
        a later one, and whether 0 is allowed, too; None where they are not known.
        """
        kept = region.kept(True).values()
        again = {load.key(True) for load in kept}
        stored = False
        conditions: list[tuple[str, str, bool]] = []
        for statement, known in self._steps_values(region.loops[-1], changing):
            own = [load for load in region.loads[-1] if load.key(True) in again]
            if stored and any(load.node in nodes_in(statement) for load in own):
                return None
            for node in nodes_in(statement):
                if not isinstance(node, ast.Call) or self.called(node) is not language.store:
                    continue
                stored = True
                pointer = argument(node, 0, "pointer")
                place = None if pointer is None else _inlined(pointer, known)
                size = self._size(pointer)
                first = None if place is None or self._loaded(place) else self._first(place, region)
                if first is None or not size:
                    return None
                for load in kept:
                    other = self._first(load.pointer, region)
                    if other is None:
                        return None
                    if other != first or size != load.size:
                        far = f"{factor(self.text_of(region.end))} * {max(size, load.size)}"
                        int64 = f"{self.space}.int64"
                        apart = f"{self.space}.abs({first}.to({int64}) - {other}.to({int64}))"
                        conditions.append((apart, far, size == load.size))
        return list(dict.fromkeys(conditions))

    def _size(self, pointer: Optional[ast.expr]) -> int:
        """Return the bytes of an element that a pointer names; 0 where they are not known."""
        types = {value.type for value in self.values_of(pointer)} if pointer is not None else set()
        elements = {type.element for type in types if isinstance(type, TensorType)}
        pointees = {one.pointee for one in elements if isinstance(one, PointerType)}
        return int(getattr(pointees.pop(), "bits", 0)) // 8 if len(pointees) == 1 else 0

    def _first(self, pointer: ast.expr, region: _Region) -> Optional[str]:
        """Return the address of a row's first element as a factor; None if steps do not have the blocks of a row in turn."""
        terms = terms_of(pointer)
        if terms.pop((self.place,), 0) != 1:
            return None
        rest = []
        for product, count in terms.items():
            ranges = [is_place(self, text) for text in product]
            node = ranges[0] if len(product) == 1 and count == 1 else None
            if node is not None:
                if [ast.unparse(arg) for arg in node.args] != ["0", region.step]:
                    return None
                rest.append("")
            elif count != 1 or not all(map(self._is_scalar, product)):
                return None
            else:
                rest.append(" * ".join(map(factor, product)))
        sums = [text for text in rest if text]
        return factor(" + ".join(sums)) if len(sums) + 1 == len(rest) and sums else None

    def _is_scalar(self, text: str) -> bool:
        """Return True for an expression of scalars."""
        names = mentions(ast.parse(text))
        nodes = [n for n in nodes_in(self.tree) if isinstance(n, ast.Name) and n.id in names]
        values = (value for node in nodes for value in self.values_of(node))
        calls = any(isinstance(node, ast.Call) for node in nodes_in(ast.parse(text)))
        return not calls and not any(isinstance(value.type, TensorType) for value in values)

    def _sums(self, loop: ast.For) -> int:
        """Return the registers of a thread for the tensors that a step takes from the one before."""
        words = 0
        named = [n for s in loop.body for n in nodes_in(s) if isinstance(n, ast.Name)]
        carried = {name for s in loop.body for name in stores(s) if not is_new(name, loop)}
        for name in carried:
            types = [value.type for n in named if n.id == name for value in self.values_of(n)]
            sizes = [math.prod(one.dims) for one in types if isinstance(one, TensorType)]
            words += -(-max(sizes, default=0) // self.threads)
        return words

    # -- the text ---------------------------------------------------------------------------------

    def _written(self, region: _Region) -> list[str]:
        """Return the lines of a region with code of their own for rows of few blocks; none where no row fits."""
        outer = " " * region.body[0].col_offset
        end, step = factor(self.text_of(region.end)), factor(region.step)
        branches: list[tuple[str, int]] = []  # the size of a row, and its blocks
        sums = max(map(self._sums, region.loops))
        for blocks in _BLOCKS:
            kept = region.kept(blocks > 1)
            words = blocks * sum(load.words for load in kept.values())
            if not kept or words > _MOST_WORDS or words + sums > _MOST_HELD:
                continue
            if blocks > 1 and self.never_whole(region.end, region.step):
                continue
            size = (
                f"{end} == {blocks} * {step}" if blocks > 1 else f"(0 < {end}) & ({end} <= {step})"
            )
            branches.append((size, blocks))
        if not branches:
            return []
        lines, few = self._distances(region, [size for size, _ in branches], outer)
        for number, (size, blocks) in enumerate(branches):
            word = f"{blocks} blocks are a row, which stays" if blocks > 1 else "the row stays"
            last = size == branches[-1][0]  # the only size that is left
            test = (few if last else f"{few} & ({size})") if few else size
            lines.append(f"{outer}{'elif' if number else 'if'} {test}:  # {word} in registers")
            lines += [f"{outer}    {line}" for line in self._unrolled(region, blocks)]
        old = self.source.splitlines()[region.body[0].lineno - 1 : region.body[-1].end_lineno]
        return [*lines, f"{outer}else:", *(f"    {line}" if line else "" for line in old)]

    def _distances(
        self, region: _Region, sizes: Sequence[str], outer: str
    ) -> tuple[list[str], str]:
        """Return the lines that ask for the distances of rows of few blocks, and the name of their answer; "" without."""
        if not region.apart:
            return [], ""
        few = free_name("few", self.taken)
        lines = [f"{outer}{few} = {' | '.join(f'({size})' for size in sizes)}", f"{outer}if {few}:"]
        conditions: list[str] = []
        for distance, far, equal in region.apart:
            name = free_name("apart", self.taken)
            lines.append(f"{outer}    {name} = {distance}  # bytes from a row that is stored")
            conditions.append(
                f"(({name} == 0) | ({name} >= {far}))" if equal else f"({name} >= {far})"
            )
        return [*lines, f"{outer}    {few} = {' & '.join(conditions)}"], few

    def _unrolled(self, region: _Region, blocks: int) -> list[str]:
        """Return the lines of a row of `blocks` blocks, without indent."""
        keys = region.kept(blocks > 1)
        names: dict[tuple[Any, int], str] = {}
        written: list[ast.stmt] = []
        for statement in region.body:
            if statement not in region.loops:
                written.append(statement)
                continue
            assert isinstance(statement, ast.For)
            own = region.loads[region.loops.index(statement)]
            kept = {place_of(load.node, 0): load.key(blocks > 1) for load in own}
            kept = {place: key for place, key in kept.items() if key in keys}
            whole = WholeStep(self, statement, terms_of(region.end), region.step)
            for number in range(blocks):
                step = _Step(
                    self,
                    statement.target,
                    whole if blocks > 1 else None,
                    kept,
                    names,
                    number,
                    region.step,
                )
                for part in statement.body:
                    step.before = []
                    new = step.visit(copy.deepcopy(part))
                    written += [*step.before, new]
        within = {id(node) for s in region.body for node in nodes_in(s)}
        outside = {
            n.id for n in nodes_in(self.tree) if isinstance(n, ast.Name) and id(n) not in within
        }
        return "\n".join(map(ast.unparse, _read(written, outside))).splitlines()


class _Step(Unmask):
    """Write a step of a loop: with its place for the loop's variable, and names for the blocks that are kept.

    Args:
        kept: place of a load -> its key. names: key and number of a step -> name of the block, new ones are added.

    Attributes:
        before: the statements that load blocks for the first time.
    """

    def __init__(
        self, form: _Rows, variable: Any, whole: Optional[WholeStep], kept: Mapping[Any, Any],
        names: dict[tuple[Any, int], str], number: int, step: str,
    ):  # fmt: skip
        super().__init__(form, whole)  # type: ignore[arg-type]
        self.rows, self.variable, self.kept, self.names, self.number = (
            form,
            variable.id,
            kept,
            names,
            number,
        )
        text = f"{number} * {factor(step)}" if number > 1 else step if number else "0"
        self.index = ast.parse(text, mode="eval").body
        self.before: list[ast.stmt] = []

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Return the name of a block that is kept, other calls without masks that hold."""
        key = self.kept.get(place_of(node, 0))
        new = super().visit_Call(node) if self.step is not None else self.generic_visit(node)
        assert isinstance(new, ast.expr)
        if key is None:
            return new
        name = self.names.get((key, self.number))
        if name is None:
            name = self.names[key, self.number] = free_name("block", self.rows.taken)
            self.before.append(ast.Assign([ast.Name(name, ast.Store())], new, lineno=0))
        return ast.Name(name, ast.Load())

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the place of the step for the variable of the loop."""
        return copy.deepcopy(self.index) if node.id == self.variable else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Return a sum without the place of the first step."""
        sides = [node.left, node.right]
        first = [isinstance(s, ast.Name) and s.id == self.variable for s in sides]
        self.generic_visit(node)
        if isinstance(node.op, ast.Add) and any(first) and self.number == 0:
            return node.left if first[1] else node.right
        return node


def _is_harmless(function: ast.expr) -> bool:
    """Return True for a method without effects, and for functions of Python."""
    if isinstance(function, ast.Attribute):
        return function.attr in _PURE
    return isinstance(function, ast.Name) and function.id in _BUILTINS


def _is_index(loop: ast.For) -> bool:
    """Return True if the variable of a loop is a side of arithmetic wherever it is read."""
    assert isinstance(loop.target, ast.Name)
    nodes = [n for s in loop.body for n in nodes_in(s)]
    sides = {id(side) for n in nodes if isinstance(n, _INDEX) for side in ast.iter_child_nodes(n)}
    named = (n for n in nodes if isinstance(n, ast.Name) and n.id == loop.target.id)
    return all(id(name) in sides for name in named)


def _inlined(node: ast.expr, known: Known) -> Optional[ast.expr]:
    """Return an expression with names replaced by their values; None where one is not known."""
    names = mentions(node)
    if any(name in known and known[name] is None for name in names):
        return None
    return _Inline(known).visit(copy.deepcopy(node))  # type: ignore[no-any-return]


class _Inline(ast.NodeTransformer):
    def __init__(self, known: Known):
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the value of a name."""
        return self.known.get(node.id) or node


def _read(statements: Sequence[ast.stmt], outside: set[str]) -> list[ast.stmt]:
    """Return statements in turn without those whose values nothing reads, neither when they run again.

    Args:
        outside: names that are read elsewhere.
    """
    again: set[str] = set()
    while True:
        left: list[ast.stmt] = []
        live = outside | again
        for statement in reversed(statements):
            if isinstance(statement, ast.Assign):
                if not stores(statement) & live:
                    continue
                live -= stores(statement)
            live |= reads(statement)
            left.insert(0, statement)
        if live <= outside | again:
            return left
        again |= live
