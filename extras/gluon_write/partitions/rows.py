"""Write a kernel that computes a part of the rows of each block, by its number.

    row = gl.program_id(0) * BM + gl.arange(0, BM)
    acc = gl.zeros([BM, BN], gl.float32)

becomes, for two parts,

    part: gl.constexpr = 0
    row = gl.program_id(0) * BM + (gl.arange(0, BM // 2) + part * (BM // 2))
    acc = gl.zeros([BM // 2, BN], gl.float32)

where the rows are an axis of their own (see `axes`). Tiles of descriptors are parts, too.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_core import language, portable
from gluon_write.text.form import changed_copy, factor, free_name, public_name
from gluon_write.text.syntax import argument, first_of, nodes_in
from gluon_write.tracing.axes import Axes
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["PART", "parted"]

PART = "part"  # the name that a kernel gives its number among the parts
_SHAPED = {"zeros": 0, "full": 0, "reshape": 1, "broadcast_to": 1}
_METHODS = ("reshape", "broadcast_to")
_LEAST = 64  # rows of a product of a warp group


@dataclass(frozen=True)
class _Edit:
    """Hold the text that replaces bytes of a source."""

    first: int
    last: int
    text: str


def parted(fn: Any, drawn: Sketch, parts: int) -> Optional[tuple[Any, str]]:
    """Return a kernel that computes part 0 of `parts`, and the name of the part's number; None where rows cannot be split.

    The kernel's first statement gives the number, which the functions take that need it.
    """
    axes = Axes(drawn)
    if not axes.size or axes.size % parts or axes.size // parts < _LEAST:
        return None
    taken = {word for jit in drawn.jits for word in re.findall(r"\w+", jit.src)}
    part = free_name(PART, taken)
    readers = [_RowParts(jit, i, drawn, axes, parts, part) for i, jit in enumerate(drawn.jits)]
    edits = [reader.edits() for reader in readers]
    if any(one is None for one in edits):
        return None
    using = {i for i, reader in enumerate(readers) if reader.uses_part}
    while True:
        callers = {i for i, r in enumerate(readers) if r.calls_of(using, drawn)} - using
        if not callers:
            break
        using |= callers
    texts: dict[int, str] = {}
    for number, reader in enumerate(readers):
        own = list(edits[number] or ())
        own += [reader.passes(call) for call in reader.calls_of(using, drawn)]
        if number == 0:
            own.append(reader.begins())
        elif number in using:
            own.append(reader.takes())
        if own:
            texts[number] = reader.applied(own)
    return changed_copy(fn, drawn.jits, texts, {}), part


class _RowParts(TracedForm):
    """Edit one function of a kernel."""

    def __init__(self, fn: Any, number: int, drawn: Sketch, axes: Axes, parts: int, part: str):
        super().__init__(fn, number, drawn)
        self.axes = axes
        self.parts, self.part = parts, part
        self.uses_part = False

    def edits(self) -> Optional[list[_Edit]]:
        """Return the edits of the function; None where one of its expressions has no such form."""
        edits: list[_Edit] = []
        for node in nodes_in(self.tree):
            if isinstance(node, ast.Call):
                own = self._call(node)
                if own is None:
                    return None
                edits += own
        return edits

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Optional[list[_Edit]]:
        called = self.called(node)
        name = public_name(called)
        word = name.rpartition(".")[2]
        if called is portable.descriptor:
            return self._descriptor(node)
        if called is portable.store:
            return self._tile(node, argument(node, 2, "value"))
        rows = self.axes.rows_of(self.place_of(node))
        if rows is None:
            return None
        if not rows:
            return []
        if called is portable.load:
            return self._tile(node, node)
        if called is language.arange:
            return self._range(node) if rows == {0} else None
        if isinstance(node.func, ast.Attribute) and called is None and node.func.attr in _METHODS:
            shape: Optional[ast.expr] = argument(node, 0, "shape")
            if len(node.args) > 1:
                return None
            return self._shape(shape, rows)
        if word in _SHAPED and called is getattr(language, word, None):
            return self._shape(argument(node, _SHAPED[word], "shape"), rows)
        return []

    def _range(self, node: ast.Call) -> Optional[list[_Edit]]:
        first, last = argument(node, 0, "start"), argument(node, 1, "end")
        if first is None or last is None or self.text_of(first) != "0":
            return None
        own = self._share(last)
        self.uses_part = True
        start, stop = self.range_of(node)
        a, b = self.range_of(last)
        text = self.source.encode()
        inner = text[start:a].decode() + own + text[b:stop].decode()
        return [_Edit(start, stop, f"({inner} + {self.part} * {factor(own)})")]

    def _shape(self, shape: Optional[ast.expr], rows: set[int]) -> Optional[list[_Edit]]:
        if isinstance(shape, ast.Attribute) and shape.attr == "shape":
            return []
        if not isinstance(shape, (ast.List, ast.Tuple)):
            return None
        edits = []
        for dim in rows:
            one = shape.elts[dim]
            if not re.search(r"\.shape\b", self.text_of(one)):
                edits.append(_Edit(*self.range_of(one), self._share(one)))
        return edits

    def _share(self, size: ast.expr) -> str:
        """Return the expression of a part's rows."""
        if isinstance(size, ast.Constant) and isinstance(size.value, int):
            return str(size.value // self.parts)
        return f"{factor(self.text_of(size))} // {self.parts}"

    # -- tiles ----------------------------------------------------------------------------------

    def _tile(self, node: ast.Call, value: Optional[ast.expr]) -> Optional[list[_Edit]]:
        """Move the place of a tile that is loaded or stored."""
        rows = self._rows(value)
        if rows is None or value is None:
            return None
        if not rows:
            return []
        descriptor, place = argument(node, 0, "ptr"), argument(node, 1, "offsets")
        if not isinstance(descriptor, ast.Name) or not isinstance(place, (ast.List, ast.Tuple)):
            return None
        share = self.axes.size // self.parts
        self.uses_part = True
        edits = []
        first = len(place.elts) - self._rank(value)  # before it, indices of matrices
        for dim in rows:
            one = place.elts[first + dim]
            text = self.text_of(one)
            moved = f"{self.part} * {share}"
            new = moved if text == "0" else f"{text} + {moved}"
            if isinstance(one, (ast.IfExp, ast.Compare, ast.BoolOp, ast.Lambda, ast.NamedExpr)):
                new = f"({text}) + {moved}"
            edits.append(_Edit(*self.range_of(one), new))
        return edits

    def _rank(self, value: ast.expr) -> int:
        values = self.values_of(value)
        return max(len(one.type.dims) for one in values)

    def _rows(self, value: Optional[ast.expr]) -> Optional[set[int]]:
        """Return the dimensions along the rows of a tile's value."""
        if isinstance(value, ast.Attribute) and value.attr == "T":
            return None
        return self.axes.rows_of(self.place_of(value)) if value is not None else None

    def _descriptor(self, node: ast.Call) -> Optional[list[_Edit]]:
        """Give a descriptor blocks of the part's rows, where its tiles have them."""
        target = next(
            (s.targets[0] for s in nodes_in(self.tree)
             if isinstance(s, ast.Assign) and s.value is node and len(s.targets) == 1), None
        )  # fmt: skip
        if not isinstance(target, ast.Name):
            return None
        rows = self._uses(target.id)
        shape = argument(node, 3, "block_shape")
        if not rows:
            return None if rows is None else []
        if isinstance(shape, ast.Attribute) and shape.attr == "block_shape":
            return self._smaller(node, self.text_of(shape.value), rows, target.id)
        return self._shape(shape, rows)

    def _smaller(
        self, node: ast.Call, tensor: str, rows: set[int], name: str
    ) -> Optional[list[_Edit]]:
        """Let the kernel make a descriptor that host code made, with blocks of the part's rows."""
        places = (
            argument(other, 1, "offsets")
            for other in nodes_in(self.tree)
            if isinstance(other, ast.Call) and self.called(other) in (portable.load, portable.store)
            and getattr(argument(other, 0, "ptr"), "id", "") == name
        )  # fmt: skip
        rank = next((len(one.elts) for one in places if isinstance(one, (ast.List, ast.Tuple))), 0)
        if not rank or len(node.args) != 4 or [word.arg for word in node.keywords] != ["host"]:
            return None
        parts = [f" // {self.parts}" if d in rows else "" for d in range(rank)]
        sizes = ", ".join(f"{tensor}.block_shape[{d}]{part}" for d, part in enumerate(parts))
        strides = ", ".join([*(f"{tensor}.strides[{d}]" for d in range(rank - 1)), "1"])
        start, stop = self.range_of(node.args[2])[0], self.range_of(node)[1]
        return [_Edit(start, stop, f"[{strides}], [{sizes}])")]

    def _uses(self, name: str, seen: Sequence[tuple[int, str]] = ()) -> Optional[set[int]]:
        """Return the dimensions along the rows of all tiles of a descriptor, in the functions that take it, too."""
        answers: list[set[int]] = []
        for node in nodes_in(self.tree):
            if not isinstance(node, ast.Call):
                continue
            called = self.called(node)
            own = isinstance(argument(node, 0, "ptr"), ast.Name)
            if called in (portable.load, portable.store) and own:
                first = argument(node, 0, "ptr")
                if isinstance(first, ast.Name) and first.id == name:
                    value = node if called is portable.load else argument(node, 2, "value")
                    rows = self._rows(value)
                    if rows is None:
                        return None
                    answers.append(rows)
            index = next((i for i, jit in enumerate(self.drawn.jits) if jit is called), None)
            if index is None or (index, name) in seen:
                continue
            inner = _RowParts(called, index, self.drawn, self.axes, self.parts, self.part)
            for position, arg in enumerate(node.args):
                if isinstance(arg, ast.Name) and arg.id == name:
                    parameter = inner.tree.args.args[position].arg
                    rows = inner._uses(parameter, (*seen, (index, name)))
                    if rows is None:
                        return None
                    answers.append(rows) if inner.loads(parameter) else None
            if any(isinstance(w.value, ast.Name) and w.value.id == name for w in node.keywords):
                return None
        if any(one != answers[0] for one in answers):
            return None
        return answers[0] if answers else set()

    def loads(self, name: str) -> bool:
        """Return True if the function uses a name at all."""
        names = (n for n in nodes_in(self.tree) if isinstance(n, ast.Name))
        return any(n.id == name for n in names)

    # -- the part's number ----------------------------------------------------------------------

    def calls_of(self, numbers: set[int], drawn: Sketch) -> list[ast.Call]:
        """Return the calls of some of the kernel's functions."""
        return [
            node
            for node in nodes_in(self.tree)
            if isinstance(node, ast.Call)
            and any(self.called(node) is drawn.jits[number] for number in numbers)
        ]

    def passes(self, call: ast.Call) -> _Edit:
        """Return the edit that passes the number first."""
        place = self.range_of(call.func)[1]
        text = self.source.encode()
        place = text.index(b"(", place) + 1
        more = ", " if call.args or call.keywords else ""
        return _Edit(place, place, f"{self.part}{more}")

    def takes(self) -> _Edit:
        """Return the edit that takes the number first."""
        text = self.source.encode()
        place = text.index(b"(", text.index(b"def ")) + 1
        more = ", " if ast.unparse(self.tree.args) else ""
        return _Edit(place, place, f"{self.part}: {self.space}.constexpr{more}")

    def begins(self) -> _Edit:
        """Return the edit that gives the number."""
        first = first_of(self.tree.body)
        start = self.starts[first.lineno - 1]
        indent = " " * first.col_offset
        return _Edit(start, start, f"{indent}{self.part}: {self.space}.constexpr = 0\n")

    # -- text -----------------------------------------------------------------------------------

    def applied(self, edits: Sequence[_Edit]) -> str:
        """Return the source with edits; of nested ones, the inner ones go first."""
        data = self.source.encode()
        for edit in sorted(edits, key=lambda e: (e.first, -e.last), reverse=True):
            data = data[: edit.first] + edit.text.encode() + data[edit.last :]
        return data.decode()
