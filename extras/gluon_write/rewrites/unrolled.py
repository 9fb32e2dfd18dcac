"""Write the rounds of a compile-time loop out where its expressions have tensors of other shapes in each.

    for s in gl.static_range(2):
        low, high = gl.split(gl.reshape(v, [N >> s + 1, 2]))
        v = low + high

becomes

    low, high = gl.split(gl.reshape(v, [N >> 0 + 1, 2]))
    v = low + high
    low, high = gl.split(gl.reshape(v, [N >> 1 + 1, 2]))
    v = low + high

since an expression has one layout. So are a few rounds of products in each step of a loop, whose tiles may then be copied
steps ahead. A function whose calls have loops of other rounds is copied for each call.
"""

from __future__ import annotations

import ast
from typing import Any, Iterator, Optional

from gluon_core import language, portable
from gluon_write.rewrites.per_call import copied_per_call
from gluon_write.text.form import changed_copy, edited
from gluon_write.text.syntax import mentions, nodes_in, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm
from gluon_write.tracing.tracer import Tracer

__all__ = ["unrolled"]

_MOST_LINES = 3000  # of a function
_MOST_ROUNDS = 8  # of products whose tiles are copied ahead
_MOST_COPIES = 8  # times that functions are copied, which may call each other


def unrolled(fn: Any, traced: Tracer) -> tuple[Any, Sketch]:
    """Return a kernel without compile-time loops over tensors of several shapes or over a step's products, and its trace.

    Args:
        traced: traces a kernel.
    """
    copies = 0
    while True:
        drawn = traced(fn)
        functions = [_Unroller(jit, number, drawn) for number, jit in enumerate(drawn.jits)]
        texts = (function.text() for function in functions)
        changed = {number: text for number, text in enumerate(texts) if text is not None}
        if changed:
            fn = changed_copy(fn, drawn.jits, changed, {})  # with loops in loops, which are next
            continue
        several = [jit for jit, one in zip(drawn.jits, functions) if one.has_other_rounds()]
        other = copied_per_call(fn, drawn, several)
        if other is fn or copies == _MOST_COPIES:
            return fn, drawn
        fn, copies = other, copies + 1


class _Unroller(TracedForm):
    def text(self) -> Optional[str]:
        lines = self.source.splitlines()
        changed = False
        for loop in sorted(self._loops(self.tree), key=lambda s: s.lineno, reverse=True):
            rounds = self._rounds(loop)
            new = [line for value in rounds for line in self._round(loop, value)]
            if not rounds or len(lines) + len(new) > _MOST_LINES:
                continue
            if self._is_read(loop):
                new += self._last(loop, rounds[-1])
            lines[loop.lineno - 1 : loop.end_lineno] = new
            changed = True
        return "\n".join(lines) + "\n" if changed else None

    def has_other_rounds(self) -> bool:
        """Return True for a function that calls enter with other rounds of a loop to write out."""
        loops = self.for_loops()
        return any(len(self._known(one)) > 1 and self._differs(one) for one in loops)

    def _known(self, loop: ast.For) -> set[tuple[int, ...]]:
        """Return the values of the variable of a compile-time loop, once for each time."""
        place = self.place_of(loop.iter)
        return self.drawn.rounds.get(place, set()) if place else set()

    def _loops(self, node: ast.AST, in_step: bool = False) -> Iterator[ast.For]:
        """Yield the outermost loops to write out.

        Args:
            in_step: the node is within a loop that runs on the device.
        """
        for child in ast.iter_child_nodes(node):
            rounds = self._rounds(child) if isinstance(child, ast.For) else ()
            if isinstance(child, ast.For) and rounds:
                if self._differs(child) or in_step and self._feeds_products(child, len(rounds)):
                    yield child
                    continue
            steps = isinstance(child, ast.For) and not self._known(child)
            yield from self._loops(child, in_step or steps)

    def _feeds_products(self, loop: ast.For, rounds: int) -> bool:
        """Return True for a few rounds that load tiles and multiply them."""
        called = [self.called(node) for node in nodes_in(loop)]
        loads = language.load in called or portable.load in called
        return loads and portable.mma in called and rounds <= _MOST_ROUNDS

    def _rounds(self, loop: ast.For) -> tuple[int, ...]:
        """Return the values of the variable of a compile-time loop; none where its body assigns it."""
        known = self._known(loop)
        if len(known) != 1 or not isinstance(loop.target, ast.Name) or loop.orelse:
            return ()
        if any(loop.target.id in stores(s) for s in loop.body):
            return ()
        alone = self.begins_line(loop)
        return next(iter(known)) if alone else ()

    def _is_read(self, loop: ast.For) -> bool:
        """Return True if code behind a loop may read its variable."""
        assert isinstance(loop.target, ast.Name)
        name = loop.target.id
        inside = {id(node) for node in nodes_in(loop)}
        others = [node for node in nodes_in(self.tree) if id(node) not in inside]
        read = any(isinstance(n, ast.Name) and n.id == name and _reads(n) for n in others)
        again = any(
            name in mentions(other) and other is not loop
            for other in nodes_in(self.tree)
            if isinstance(other, ast.For) and id(other) not in inside and not _around(other, loop)
        )
        return read and not again

    def _last(self, loop: ast.For, value: int) -> list[str]:
        """Return the lines of a round that does nothing, behind which the variable has a value."""
        assert isinstance(loop.iter, ast.Call)
        outer, maker = " " * loop.col_offset, self.text_of(loop.iter.func)
        name = ast.unparse(loop.target)
        return [f"{outer}for {name} in {maker}({value}, {value + 1}):", f"{outer}    pass"]

    def _differs(self, loop: ast.For) -> bool:
        """Return True if an expression has tensors of several shapes, here or in functions that the variable's value reaches."""
        if not isinstance(loop.target, ast.Name):
            return False
        for node in (node for statement in loop.body for node in nodes_in(statement)):
            place = self.place_of(node)
            if place is None:
                continue
            if _several(self.drawn.returned.get(place, ())):
                return True
            called = self.drawn.called.get(place) if loop.target.id in mentions(node) else None
            if called is not None and self._inner_differs(called, set()):
                return True
        return False

    def _inner_differs(self, called: Any, seen: set[int]) -> bool:
        """Return True if a function, or one that it calls, has expressions of several shapes."""
        number = next((i for i, one in enumerate(self.drawn.jits) if one is called), -1)
        if number < 0 or number in seen:
            return False
        seen.add(number)
        if any(_several(vs) for place, vs in self.drawn.returned.items() if place[-1] == number):
            return True
        inner = [one for place, one in self.drawn.called.items() if place[-1] == number]
        return any(self._inner_differs(one, seen) for one in inner)

    def _round(self, loop: ast.For, value: int) -> list[str]:
        """Return the lines of a round, in which a number is in place of the variable."""
        assert isinstance(loop.target, ast.Name)
        uses: list[tuple[ast.expr, str]] = [
            (node, str(value) if value >= 0 else f"({value})")
            for statement in loop.body
            for node in nodes_in(statement)
            if isinstance(node, ast.Name) and node.id == loop.target.id
        ]
        text = edited(self.source, uses).splitlines()
        lines = text[loop.iter.end_lineno or 0 : loop.end_lineno]
        first, outer = loop.body[0], " " * loop.col_offset
        deeper = " " * first.col_offset
        if first.lineno == loop.iter.end_lineno:  # behind the colon
            lines.insert(0, deeper + text[first.lineno - 1].encode()[first.col_offset :].decode())
        return [outer + line[len(deeper) :] if line.startswith(deeper) else line for line in lines]


def _several(values: Any) -> bool:
    """Return True for tensors of several shapes."""
    return len({tuple(getattr(value.type, "dims", ())) for value in values}) > 1


def _reads(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _around(outer: ast.AST, inner: ast.AST) -> bool:
    return any(node is inner for node in nodes_in(outer))
