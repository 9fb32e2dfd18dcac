"""Hand the operands of products without a matrix unit on through shared memory.

    acc = gl.portable.mma(x, y, acc)

becomes

    x_buffer = gl.allocate_shared_memory(x.dtype, x.shape, value=x)
    y_buffer = gl.allocate_shared_memory(y.dtype, y.shape, value=y)
    product = acc
    for part in gl.static_range(0, 64, 8):
        product = gl.portable.mma(
            x_buffer.slice(part, 8, dim=1).load(), y_buffer.slice(part, 8, dim=0).load(), product
        )
    acc = product

A thread multiplies whole rows by whole columns. It converts an operand all at once, and holds it until both are
there: those of a tile of 64x64x64 took all registers and 6 kB of local memory. Loads of a buffer may wait until
their numbers are multiplied; ptxas 12.9 moves all of them to the front, so a part has no more than fit.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Iterator, Optional, Sequence, Union

from gluon_sim.tracing.types import TensorType
from gluon_write.rewrites.held import Operands
from gluon_write.text.form import edited, free_name, one_line
from gluon_write.text.syntax import calls_in, mentions, nodes_in, operands_of, stores
from gluon_write.tracing.sketch import Sketch

__all__ = ["Buffered", "Loops", "with_operand_buffers"]

# Registers of a thread for both operands, that conversions may take. On an H200 a chunk of eight products of 16x16 and
# 16x32 that took 64 each has 128 registers for 175, and takes 0.67 of the time.
_MOST_HELD = 32
_PART = 128  # registers for the parts of both that are multiplied at a time
_LATER = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)  # parts may not be evaluated
_WRITES = re.compile(r"store|atomic|asm|print|barrier|scatter|copy|assert|wait|arrive")
_PLAIN = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
Loops = list[Union[ast.For, ast.While]]


def with_operand_buffers(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose products of threads read their operands from shared memory, or the kernel."""
    if not drawn.unaided:
        return fn
    return Buffered.rewrite(fn, drawn)


class Buffered(Operands):
    def __init__(self, fn: Any, number: int, drawn: Sketch):
        super().__init__(fn, number, drawn)
        self.before: dict[int, list[str]] = {}  # a line -> those that come before it
        # Line of a loop, and text of an operand -> its buffer.
        self.early: dict[tuple[int, str], str] = {}
        self.taken = self.names_in_use()
        self.held: dict[ast.Call, int] = {}  # registers of a thread for the operands of a product

    def text(self) -> Optional[str]:
        if not self.space:
            return None
        edits: list[tuple[ast.expr, str]] = []
        for body, loops in self._bodies(self.tree, []):
            buffers: dict[str, str] = {}  # text of an operand -> its buffer
            loaded: dict[tuple[str, ...], list[str]] = {}  # texts of both -> what was loaded
            for statement in body:
                for call in self._products(statement):
                    edits += self.product(call, statement, loops, buffers, loaded)
                for known in (buffers, loaded):
                    _forget(known, stores(statement))
        if not edits:
            return None
        emptied = {
            line for node, _ in edits for line in range(node.lineno, node.end_lineno or node.lineno)
        }
        text: list[str] = []
        for number, line in enumerate(edited(self.source, edits).splitlines()):
            indent = re.match(r"\s*", line)
            assert indent is not None
            text += [indent[0] + one for one in self.before.get(number + 1, ())]
            text += [] if number in emptied else [line]
        return "\n".join(text) + "\n"

    def _bodies(self, node: ast.AST, loops: Loops) -> Iterator[tuple[list[ast.stmt], Loops]]:
        """Yield blocks of statements with the loops around them."""
        loops = [*loops, node] if isinstance(node, (ast.For, ast.While)) else loops
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield body, loops
                for statement in body:
                    yield from self._bodies(statement, loops)

    def _products(self, statement: ast.stmt) -> Iterator[ast.Call]:
        """Yield the products of a statement that is on lines of its own, and writes at its end at most."""
        if not isinstance(statement, _PLAIN) or not self.begins_line(statement):
            return
        if any(isinstance(node, _LATER) for node in nodes_in(statement)):
            return
        calls = calls_in(statement)
        last = statement.value if isinstance(statement, ast.Expr) else None
        if any(_WRITES.search(self._named(call)) for call in calls if call is not last):
            return
        for call in calls:
            if self.suits(call):
                yield call

    def suits(self, call: ast.Call) -> bool:
        """Return True for a product whose operands come from buffers."""
        return self.place_of(call) in self.drawn.unaided and self._is_large(call)

    def _named(self, call: ast.Call) -> str:
        called = self.called(call)
        if called is not None:
            return str(getattr(called, "src", getattr(called, "__name__", "")))
        return call.func.attr if isinstance(call.func, ast.Attribute) else "asm"

    def _is_large(self, call: ast.Call) -> bool:
        """Return True if a thread has more of the operands than it may hold, and both are in registers."""
        operands = operands_of(call)
        if not operands or any(one.lineno != one.end_lineno for one in operands):
            return False
        if any(
            self.place_of(node) in self.drawn.unaided for one in operands for node in nodes_in(one)
        ):
            return False  # a product of a product, whose operands have buffers
        held = 0
        for index, one in enumerate(operands):
            sizes = {self._held(value, index, call) for value in self.values_of(one)}
            if not sizes or 0 in sizes:
                return False
            held += max(sizes)
        self.held[call] = held
        return held > _MOST_HELD

    def _held(self, value: Any, index: int, call: ast.Call) -> int:
        """Return the registers of a thread for an operand; 0 of one that comes from shared memory."""
        owner = getattr(value.resolve(), "owner", None)
        if not isinstance(value.type, TensorType) or getattr(owner, "name", "") == "local_load":
            return 0
        place = self.place_of(call)
        assert place is not None
        layout = self.drawn.unaided[place]
        rows, columns = value.type.dims
        free, depth = (rows, columns) if index == 0 else (columns, rows)
        tile = (
            layout.size_per_thread[index]
            * layout.threads_per_warp[index]
            * layout.warps_per_cta[index]
        )
        own = layout.size_per_thread[index] * max(1, free // tile)
        return int(min(own, free) * depth)

    def product(
        self,
        call: ast.Call,
        statement: ast.stmt,
        loops: Loops,
        buffers: dict[str, str],
        loaded: dict[tuple[str, ...], list[str]],
    ) -> list[tuple[ast.expr, str]]:
        """Note the lines before a product, and return the edits of its operands."""
        operands = operands_of(call)
        texts = [one_line(self.text_of(one)) for one in operands]
        key = tuple(texts)
        lines = self.before.setdefault(statement.lineno, [])
        depth, part = self._parts(call, operands)
        if part < depth:
            x, y = (self.buffer(t, o, statement, loops, buffers) for t, o in zip(texts, operands))
            name, place = free_name("product", self.taken), free_name("part", self.taken)
            options = [f"{k.arg}={one_line(self.text_of(k.value))}" for k in call.keywords]
            sliced = f"{x}.slice({place}, {part}, dim=1).load(), {y}.slice({place}, {part}, dim=0).load()"
            lines += [
                f"{name} = {one_line(self.text_of(call.args[2]))}",
                f"for {place} in {self.space}.static_range(0, {depth}, {part}):",
                f"    {name} = {self.text_of(call.func)}({sliced}, {', '.join([name, *options])})",
            ]
            return [(call, name)]
        if key not in loaded:
            names = [
                self.buffer(text, one, statement, loops, buffers)
                for text, one in zip(texts, operands)
            ]
            words = [re.sub(r"_buffer(?=(_\d+)?$)", "_operand", name) for name in names]
            loaded[key] = [free_name(word, self.taken) for word in words]
            lines += [f"{one} = {name}.load()" for one, name in zip(loaded[key], names)]
        return list(zip(operands, loaded[key]))

    def _parts(self, call: ast.Call, operands: Sequence[ast.expr]) -> tuple[int, int]:
        """Return the depth of a product, and that of the parts in which it is made: as much as a thread may hold."""
        depth = next(value.type.dims[1] for value in self.values_of(operands[0]))
        inner = call.args[2:] if len(call.args) == 3 and all(k.arg for k in call.keywords) else []
        nodes = [node for sums in inner for node in nodes_in(sums)]
        if not inner or any(self.place_of(node) in self.drawn.unaided for node in nodes):
            return depth, depth  # the sum is named, or of another product
        part = depth
        while part > 4 and self.held[call] * part > _PART * depth:
            part //= 2
        return depth, part

    def buffer(
        self,
        text: str,
        operand: ast.expr,
        statement: ast.stmt,
        loops: Loops,
        buffers: dict[str, str],
    ) -> str:
        """Return the name of an operand's buffer, and note the lines that fill it: before the loops that keep it."""
        loop = self.kept(operand, loops)
        if loop is not None:
            text = self.before_loop(operand, loop)
            key = loop.lineno, text
            if key not in self.early:
                self.early[key] = self._filled(text, operand, loop)
            return self.early[key]
        if text not in buffers:
            buffers[text] = self._filled(text, operand, statement)
        return buffers[text]

    def _filled(self, text: str, operand: ast.expr, place: ast.stmt) -> str:
        """Note the lines before a statement that fill a buffer with an operand; return its name."""
        word = next((n.id for n in nodes_in(operand) if isinstance(n, ast.Name)), "")
        word = word if word and word != self.space else "product"
        lines = self.before.setdefault(place.lineno, [])
        if not isinstance(operand, ast.Name):
            value = free_name(f"{word}_value", self.taken)
            lines.append(f"{value} = {text}")
            text = value
        name = free_name(f"{word}_buffer", self.taken)
        shape = f"{text}.dtype, {text}.shape, value={text}"
        lines.append(f"{name} = {self.space}.allocate_shared_memory({shape})")
        return name


def _forget(known: dict[Any, Any], changed: set[str]) -> None:
    """Drop what was noted of expressions that mention names with new values."""
    for key in list(known):
        texts = (key,) if isinstance(key, str) else key
        if any(mentions(ast.parse(text)) & changed or "(" in text for text in texts):
            del known[key]
