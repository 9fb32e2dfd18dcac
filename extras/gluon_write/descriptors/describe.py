"""Move the blocks of a ported kernel as tiles of descriptors, which units for copies take.

    block = block_of(a, (M, K), (stride, 1), (row, 0), (BM, BK))
    for k in range(0, K, BK):
        x = gl.load(block_pointers(block), mask=block_mask(block, (0, 1)), other=0)
        block = block_moved(block, (0, BK))

becomes

    block = gl.portable.descriptor(a, [M, K], [stride, 1], [BM, BK])
    block_0, block_1 = row, 0
    for k in range(0, K, BK):
        x = gl.portable.load(block, [block_0, block_1 + k])

where one dimension is known to be contiguous. A dimension that no access checks has no end, so that an
access reads what pointers would read. A block without checks may begin at `a + offset`, which differs by
program: its descriptor begins at `a`, and its places `offset // stride` rows and `offset % stride` columns on,
so that all programs have one descriptor.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Iterator, Optional

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.porting.library_text import library_texts
from gluon_write.text.form import Form, bounds_of, changed_copy, factor, one_line
from gluon_write.text.syntax import mentions, nodes_in, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["described"]

_NAMES = ("block_of", "block_moved", "block_pointers", "block_mask")
_ENDLESS = "2147483647"
_HINTS = ("cache_modifier", "eviction_policy")
_RANK = 2
_LEAST_LINE = 128  # bytes: 2**31 rows of so many are more than a device has


class _Unable(Exception):
    """Say that a kernel's blocks have no such form."""


@dataclass
class _Family:
    """Hold the names that one maker's block has in the kernel and in the functions that take it.

    Attributes:
        names: (number of the function, name). maker: the call of `block_of`, in function `home`.
        checked: dimensions that accesses check. stored: a store writes through it.
    """

    home: int
    maker: ast.Call
    names: set[tuple[int, str]]
    checked: set[int] = field(default_factory=set)
    stored: bool = False
    flipped: bool = False


def described(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose blocks are tiles of descriptors, or the kernel where one of them cannot be."""
    readers = [_Blocks(jit, number, drawn) for number, jit in enumerate(drawn.jits)]
    own = [r for r in readers if not any(r.kind_of_function(name) for name in _NAMES)]
    if not any(True for r in own for _ in r.calls("block_of")):
        return fn
    try:
        families = _families(own)
        texts: dict[int, str] = {}
        for reader in own:
            text = reader.text(families)
            if text is not None:
                texts[reader.number] = text
    except _Unable:
        return fn
    return changed_copy(fn, drawn.jits, texts, {})


@lru_cache(maxsize=None)
def _library() -> dict[str, tuple[Optional[str], str]]:
    """Return the docstring and the parameters of the functions on blocks."""
    texts = library_texts()
    return {name: _head(texts[name]) for name in _NAMES}


@lru_cache(maxsize=1 << 10)
def _head(source: str) -> tuple[Optional[str], str]:
    """Return the docstring and the parameters of a function."""
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return ast.get_docstring(tree), ast.unparse(tree.args)


def _families(readers: list[_Blocks]) -> list[_Family]:
    """Return the blocks of a kernel with all of their names.

    Raises:
        _Unable: a name may be the block of several makers, or is used in another way.
    """
    families: list[_Family] = []
    for reader in readers:
        for statement in reader.statements():
            if isinstance(statement, ast.Assign) and reader.is_call(statement.value, "block_of"):
                assert isinstance(statement.value, ast.Call)
                name = reader.target(statement)
                families.append(_Family(reader.number, statement.value, {(reader.number, name)}))
    by_number = {reader.number: reader for reader in readers}
    changed = True
    while changed:
        changed = False
        for family in families:
            for number, name in sorted(family.names):
                for other in by_number[number].flows(name, by_number):
                    if other not in family.names:
                        family.names.add(other)
                        changed = True
    every = [name for family in families for name in family.names]
    if len(every) != len(set(every)):
        raise _Unable
    for family in families:
        for number, name in family.names:
            by_number[number].check(name, family)
        family.flipped = by_number[family.home].contiguous(family.maker) == 0
        if family.flipped and family.stored:
            raise _Unable
    return families


class _Blocks(TracedForm):
    """Read and edit the blocks of one function."""

    def __init__(self, fn: Any, number: int, drawn: Sketch):
        super().__init__(fn, number, drawn)
        self.fn = fn
        self.edits: list[tuple[int, int, str]] = []

    # -- questions ------------------------------------------------------------------------------

    def kind_of_function(self, name: str) -> bool:
        """Return True if this function is one of the library's on blocks."""
        return (ast.get_docstring(self.tree), ast.unparse(self.tree.args)) == _library()[name]

    def is_call(self, node: Any, name: str) -> bool:
        """Return True for a call of one of the library's functions on blocks."""
        called = self.called(node)
        source = getattr(called, "src", None)
        if source is None:
            return False
        return _head(source) == _library()[name]

    def calls(self, name: str) -> Iterator[ast.Call]:
        for node in nodes_in(self.tree):
            if isinstance(node, ast.Call) and self.is_call(node, name):
                yield node

    def statements(self) -> Iterator[ast.stmt]:
        return (node for node in nodes_in(self.tree) if isinstance(node, ast.stmt))

    def target(self, statement: ast.Assign) -> str:
        first = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(first, ast.Name):
            raise _Unable
        return first.id

    def flows(self, name: str, readers: dict[int, _Blocks]) -> Iterator[tuple[int, str]]:
        """Yield the names that get a block from another name, in this function and those that it calls."""
        for node in nodes_in(self.tree):
            if isinstance(node, ast.Assign) and self.is_call(node.value, "block_moved"):
                assert isinstance(node.value, ast.Call)
                first = node.value.args[0]
                if isinstance(first, ast.Name) and first.id == name:
                    if self.target(node) != name:  # a second name for a descriptor
                        raise _Unable
            if not isinstance(node, ast.Call):
                continue
            for number, reader in readers.items():
                if self.called(node) is reader.fn:
                    for parameter in reader.bound(node, name):
                        yield number, parameter

    def bound(self, call: ast.Call, name: str) -> list[str]:
        """Return the parameters that get a name in a call of this function."""
        names = [arg.arg for arg in self.tree.args.args]
        pairs = [*zip(names, call.args), *((w.arg or "", w.value) for w in call.keywords)]
        return [p for p, value in pairs if isinstance(value, ast.Name) and value.id == name]

    def check(self, name: str, family: _Family) -> None:
        """Note how a block is accessed.

        Raises:
            _Unable: it is used in another way than tiles are.
        """
        allowed = 0
        for node in nodes_in(self.tree):
            if isinstance(node, ast.Assign) and self.is_call(node.value, "block_of"):
                allowed += self.target(node) == name
            if isinstance(node, ast.Assign) and self.is_call(node.value, "block_moved"):
                assert isinstance(node.value, ast.Call)
                if self.target(node) == name:
                    if mentions(node.value.args[0]) != {name}:
                        raise _Unable
                    self.no_negative(node.value.args[1])
                    allowed += 2
            if isinstance(node, ast.Call):
                if self.called(node) in (language.load, language.store):
                    allowed += self._access(node, name, family)
                elif any(self.called(node) is jit for jit in self.drawn.jits):
                    passed = [*node.args, *(word.value for word in node.keywords)]
                    if not any(self.is_call(node, one) for one in _NAMES):
                        allowed += sum(isinstance(p, ast.Name) and p.id == name for p in passed)
        names = [n for n in nodes_in(self.tree) if isinstance(n, ast.Name) and n.id == name]
        if len(names) != allowed:
            raise _Unable

    def _access(self, node: ast.Call, name: str, family: _Family) -> int:
        """Return how often a load or store names a block."""
        pointers = node.args[0] if node.args else None
        if not self.is_call(pointers, "block_pointers") or mentions(pointers.args[0]) != {name}:  # type: ignore[union-attr]
            return 0
        stores_it = self.called(node) is language.store
        words = {word.arg: word.value for word in node.keywords}
        if len(node.args) != 1 + stores_it or set(words) - {"mask", "other", *_HINTS}:
            raise _Unable
        other = words.get("other")
        if other is not None and not (isinstance(other, ast.Constant) and other.value == 0):
            raise _Unable
        family.stored |= stores_it
        mask = words.get("mask")
        if mask is None:
            return 1
        if not self.is_call(mask, "block_mask"):
            raise _Unable
        assert isinstance(mask, ast.Call)
        dims = ast.literal_eval(mask.args[1])
        family.checked |= set(dims)
        return 2

    def no_negative(self, node: ast.expr) -> None:
        """Raise _Unable where an offset may be negative: no tile begins before its tensor."""
        if any(isinstance(part, (ast.USub, ast.Sub)) for part in nodes_in(node)):
            raise _Unable

    def parts(self, node: ast.expr) -> list[ast.expr]:
        if not isinstance(node, (ast.Tuple, ast.List)) or len(node.elts) != _RANK:
            raise _Unable
        return node.elts

    def contiguous(self, maker: ast.Call) -> int:
        """Return the dimension whose stride is known to be 1.

        Raises:
            _Unable: none is.
        """
        if len(maker.args) != 5 or self.number != 0:
            raise _Unable
        self.no_negative(maker.args[3])
        for dim in (1, 0):
            stride = self.parts(maker.args[2])[dim]
            if isinstance(stride, ast.Constant) and stride.value == 1:
                return dim
            if isinstance(stride, ast.Name):
                if unwrap(self.drawn.constants.get(stride.id)) == 1:
                    return dim
        raise _Unable

    # -- the text -------------------------------------------------------------------------------

    def text(self, families: list[_Family]) -> Optional[str]:
        """Return the function with descriptors; None where nothing changes."""
        names = {name: f for f in families for number, name in f.names if number == self.number}
        if not names:
            return None
        steps = {name: self._induction(name) for name in names}
        for node in nodes_in(self.tree):
            if isinstance(node, ast.arg) and node.arg in names:
                end = self.range_of(node)[1]
                self.edits.append((end, end, f", {node.arg}_0, {node.arg}_1"))
            elif isinstance(node, ast.Assign):
                self._assignment(node, names, steps)
            elif isinstance(node, ast.Call):
                self._call(node, names, steps)
        data = self.source.encode()
        for first, last, new in sorted(self.edits, reverse=True):
            data = data[:first] + new.encode() + data[last:]
        return data.decode()

    def _assignment(self, node: ast.Assign, names: dict[str, _Family], steps: Any) -> None:
        if self.is_call(node.value, "block_of"):
            assert isinstance(node.value, ast.Call)
            name = self.target(node)
            self._replace(node, self._maker(name, node.value, names[name]))
        elif self.is_call(node.value, "block_moved"):
            assert isinstance(node.value, ast.Call)
            name = self.target(node)
            moves = []
            for dim, part in enumerate(self.parts(node.value.args[1])):
                if (id(node), dim) not in steps[name] and self.text_of(part) != "0":
                    moves.append(f"{name}_{dim} = {name}_{dim} + {self.text_of(part)}")
            indent = "\n" + " " * node.col_offset
            if moves:
                self._replace(node, indent.join(moves))
            else:  # the loop's variable gives the place
                self.edits.append(
                    (self.starts[node.lineno - 1], self.starts[node.end_lineno or 0], "")
                )

    def _maker(self, name: str, call: ast.Call, family: _Family) -> str:
        base, shape, strides, offsets, sizes = call.args
        extents = [self.text_of(part) for part in self.parts(shape)]
        blocks = [self.text_of(part) for part in self.parts(sizes)]
        starts = [self.text_of(part) for part in self.parts(offsets)]
        for dim in range(_RANK):
            whole = starts[dim] == "0" and extents[dim] == blocks[dim]
            if dim not in family.checked and not whole:
                extents[dim] = _ENDLESS
        steps = [self.text_of(part) for part in self.parts(strides)]
        order = (1, 0) if family.flipped else (0, 1)
        where = self.text_of(base)
        moved = self._begin(base, family, self._line_of(call, order[1]))
        if moved is not None:
            where, offset = moved
            extents = [_ENDLESS] * _RANK
            across = factor(steps[order[0]])
            for dim, operator in zip(order, ("//", "%")):
                more = f"({factor(offset)} {operator} {across}).to({self.space}.int32)"
                starts[dim] = more if starts[dim] == "0" else f"{starts[dim]} + {more}"
        listed = [
            f"[{', '.join(values[dim] for dim in order)}]" for values in (extents, [*steps], blocks)
        ]
        listed[1] = f"[{steps[order[0]]}, 1]"
        text = f"{name} = {self.space}.portable.descriptor({where}, {', '.join(listed)})"
        indent = "\n" + " " * call_column(self, call)
        return f"{text}{indent}{name}_0, {name}_1 = {starts[0]}, {starts[1]}"

    def _line_of(self, call: ast.Call, dim: int) -> int:
        """Return the bytes along a dimension of a block; 0 where they are not known."""
        size = self.parts(call.args[4])[dim]
        count = size.value if isinstance(size, ast.Constant) else 0
        if isinstance(size, ast.Name):
            count = unwrap(self.drawn.constants.get(size.id))
        values = self.values_of(call.args[0])
        bits = [getattr(getattr(value.type, "pointee", None), "bits", 0) for value in values]
        return count * min(bits, default=0) // 8 if isinstance(count, int) else 0

    def _begin(self, base: ast.expr, family: _Family, line: int) -> Optional[tuple[str, str]]:
        """Return a parameter that points to a tensor, and the offset from it at which a block begins; None of others.

        Args:
            line: bytes of a row of a tile. Where they are few, there may be more rows than coordinates.
        """
        if not isinstance(base, ast.BinOp) or not isinstance(base.op, ast.Add):
            return None
        pointer, offset = base.left, base.right
        arguments = {arg.arg for arg in self.tree.args.args}
        if not isinstance(pointer, ast.Name) or pointer.id not in arguments or family.checked:
            return None
        values = self.values_of(offset)
        scalars = [v for v in values if not getattr(v.type, "dims", ()) and hasattr(v.type, "bits")]
        if line < _LEAST_LINE or not values or len(scalars) != len(values):
            return None
        return pointer.id, one_line(self.text_of(offset))

    def _call(self, node: ast.Call, names: dict[str, _Family], steps: Any) -> None:
        called = self.called(node)
        if called in (language.load, language.store) and node.args:
            pointers = node.args[0]
            if self.is_call(pointers, "block_pointers"):
                assert isinstance(pointers, ast.Call)
                block = pointers.args[0]
                if not isinstance(block, ast.Name) or block.id not in names:
                    raise _Unable  # a block without a name
                name = block.id
                places = [self._place(name, dim, node, steps[name]) for dim in range(_RANK)]
                flipped = names[name].flipped
                place = ", ".join(reversed(places) if flipped else places)
                value = f", {self.text_of(node.args[1])}" if called is language.store else ""
                word = "store" if called is language.store else "load"
                view = ".T" if flipped else ""
                text = f"{self.space}.portable.{word}({name}, [{place}]{value}){view}"
                self._replace(node, text)
        elif any(called is jit for jit in self.drawn.jits):
            if any(self.is_call(node, one) for one in _NAMES):
                return
            for arg in node.args:
                if isinstance(arg, ast.Name) and arg.id in names:
                    self._replace(arg, f"{arg.id}, {arg.id}_0, {arg.id}_1")
            for keyword in node.keywords:
                block = keyword.value
                if isinstance(block, ast.Name) and block.id in names:
                    more = "".join(f", {keyword.arg}_{d}={block.id}_{d}" for d in range(_RANK))
                    self._replace(block, f"{block.id}{more}")

    def _induction(self, name: str) -> dict[tuple[int, int], tuple[ast.For, str]]:
        """Return the moves of a block that a loop's variable gives: (move, dimension) -> loop, and the distance."""
        known: dict[tuple[int, int], tuple[ast.For, str]] = {}
        for loop in nodes_in(self.tree):
            if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
                continue
            moves = [
                s for s in nodes_in(loop)
                if isinstance(s, ast.Assign) and self.is_call(s.value, "block_moved")
                and self.target(s) == name
            ]  # fmt: skip
            if (
                len(moves) != 1
                or moves[0] not in loop.body
                or not isinstance(loop.target, ast.Name)
            ):
                continue
            uses = [n for n in nodes_in(self.tree) if isinstance(n, ast.Name) and n.id == name]
            inside = [n for n in nodes_in(loop) if isinstance(n, ast.Name) and n.id == name]
            last = loop.end_lineno or 0
            if any(n.lineno > last for n in uses) or any(
                n.lineno > moves[0].lineno for n in inside
            ):
                continue
            if self._is_inner(loop) or len(loop.body) == 1:
                continue
            changed = {n for s in loop.body for n in stores(s)}
            texts = [self.text_of(arg) for arg in loop.iter.args]
            first, _, step = bounds_of(texts)
            assert isinstance(moves[0].value, ast.Call)
            for dim, part in enumerate(self.parts(moves[0].value.args[1])):
                fixed = not mentions(part) & changed and not mentions(ast.parse(first)) & changed
                if self.text_of(part) == step and fixed:
                    variable = loop.target.id
                    gone = variable if first == "0" else f"{variable} - {factor(first)}"
                    known[id(moves[0]), dim] = loop, gone
        return known

    def _is_inner(self, loop: ast.For) -> bool:
        """Return True for a loop within another one, after which a block is not where it began."""
        return any(
            isinstance(node, (ast.For, ast.While)) and node is not loop and loop in nodes_in(node)
            for node in nodes_in(self.tree)
        )

    def _place(self, name: str, dim: int, node: ast.Call, steps: Any) -> str:
        for (_, moved), (loop, gone) in steps.items():
            if moved == dim and node in nodes_in(loop):
                return f"{name}_{dim} + {gone}"
        return f"{name}_{dim}"

    # -- edits ----------------------------------------------------------------------------------

    def _replace(self, node: Any, text: str) -> None:
        self.edits.append((*self.range_of(node), text))


def call_column(reader: Form, call: ast.Call) -> int:
    """Return the column of the statement of a call."""
    return next(
        s.col_offset for s in nodes_in(reader.tree) if isinstance(s, ast.Assign) and s.value is call
    )
