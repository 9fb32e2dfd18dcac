"""Convert an operand that all steps of a loop multiply once, before the loop.

    for k in range(0, K, BK):
        score = gl.portable.mma(q, gl.load(k_ptrs), zeros)

becomes

    q_operand = gl.convert_layout(q)
    for k in range(0, K, BK):
        score = gl.portable.mma(q_operand, gl.load(k_ptrs), zeros)

A first operand of `warpgroup_mma` goes to shared memory instead, where there is room:

    q_operand = gl.allocate_shared_memory(q.dtype, q.shape, value=q)
    gl.nvidia.hopper.fence_async_shared()

That leaves registers for sums: on an H200 gradients of attention take 0.70 of the time from shared memory, attention 0.98 to 1.01.

A second operand goes there, too, where the loop has products of `warpgroup_mma`: its product becomes one,
and gradients of attention with keys on both sides take 0.85 and, causal, 0.89 of the time on an H200.

A later loop of products with the same shape multiplies what was converted for the first one.

Warps that share rows have copies of a first operand. Where it takes too many registers of a thread, each step loads it:

    q_operand = gl.allocate_shared_memory(q.dtype, q.shape, value=q)
    for k in range(0, K, BK):
        score = gl.portable.mma(q_operand.load(), gl.load(k_ptrs), zeros)
"""

from __future__ import annotations

import ast
import math
import re
from typing import Any, Iterator, Optional

from gluon_core import language, portable
from gluon_sim.tracing.types import TensorType
from gluon_write.text.form import edited, free_name, one_line, public_name, rewritten
from gluon_write.text.syntax import argument, calls_in, mentions, nodes_in, operands_of, stores
from gluon_write.tracing.dtypes import dtype_of
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.sketcher import multiplies
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["Operands", "held"]

_PRODUCT = "warpgroup_mma"
# Line of a loop, text of an operand, and whether the unit may read it from shared memory: "first", "second" or "".
_Key = tuple[int, str, str]
_OWN_ROWS = 16  # of each warp in `warpgroup_mma`: on an H200 warps that share rows take 1.11 of the time of a product from registers
_MOST_HELD = 32  # registers of a thread for an operand that a loop keeps
_LANES, _WORD = 32, 32
_SPARE = 4096  # bytes of shared memory for conversions of vectors in a loop


def held(fn: Any, drawn: Sketch, room: int = 0, group: int = 0, warps: int = 0) -> Any:
    """Return a kernel whose loops multiply operands that were converted before, or the kernel.

    Args:
        room: bytes of shared memory of a program.
        group: warps that can multiply together. warps: of the program.
    """
    left = 0 if drawn.warps else room - _SPARE  # partitions keep theirs in registers
    left -= sum(map(_buffers, drawn.program.functions.values()))

    def text_of(jit: Any, number: int) -> Optional[str]:
        operands = Operands(jit, number, drawn)
        operands.room, operands.group, operands.warps = left, group, warps
        return operands.text()

    return rewritten(fn, drawn.jits, text_of)


def _buffers(function: Any) -> int:
    """Return the bytes of the shared memory that a traced function allocates."""

    def within(region: Any) -> int:
        ops = [op for block in region.blocks for op in block.ops]
        own = (op.results[0].type for op in ops if op.name == "local_alloc")
        size = sum(int(math.prod(kind.dims) * kind.element.bits // 8) for kind in own)
        return size + sum(within(part) for op in ops for part in op.regions)

    return within(function.body)


class Operands(TracedForm):
    room = 0  # bytes of shared memory that are left
    group = 0  # warps that can multiply together
    warps = 0  # of the program

    def __init__(self, fn: Any, number: int, drawn: Sketch):
        super().__init__(fn, number, drawn)
        self.converted = {
            name
            for node in nodes_in(self.tree)
            if isinstance(node, ast.Assign) and self.called(node.value) is language.convert_layout
            for name in stores(node)
        }

    def text(self) -> Optional[str]:
        if not self.space:
            return None
        taken = self.names_in_use()
        names: dict[_Key, str] = {}
        shapes: dict[_Key, Any] = {}  # of the products that it was converted for
        stored: set[_Key] = set()  # of those that shared memory holds, for products of any shape
        loaded: set[_Key] = set()  # of those that steps load from it
        first: dict[tuple[int, str], _Key] = {}  # loop and first operand -> of what it multiplies
        edits: list[tuple[ast.expr, str]] = []
        for operand, loop, product in self._operands(self.tree, []):
            text, shape = self.before_loop(operand, loop), self._shapes(product)
            role = self._role(operand, product, loop)
            others = self._loops_before(loop, mentions(operand))
            before = [(one.lineno, text, role) for one in others]
            alike = [k for k in before if k in stored or shape and shapes.get(k) == shape]
            key = alike[0] if alike else (loop.lineno, text, role)
            if role == "second":
                key = first.get((loop.lineno, text), key)  # both are read by rows
            if key not in names:
                parts = (n for n in nodes_in(operand) if isinstance(n, ast.Name))
                word = next(part.id for part in parts if self._is_tensor(part))
                names[key] = free_name(f"{word}_operand", taken)
                shapes[key] = shape
                large = not role and self._registers(operand, product) > _MOST_HELD
                if (role or large) and self._fits(operand):
                    (stored if role else loaded).add(key)
            if role == "first" and key in stored:
                first[loop.lineno, text] = key
            if role == "second" and key in stored:
                edits.append((product, self._in_group(product, names[key])))
            else:
                edits.append((operand, names[key] + ".load()" * (key in loaded)))
        if not edits:
            return None
        lines = edited(self.source, edits).splitlines()
        for (line, text, role), name in sorted(names.items(), reverse=True):
            indent = re.match(r"\s*", lines[line - 1])
            assert indent is not None
            new = [f"{name} = {self.space}.convert_layout({text})"]
            if (line, text, role) in stored | loaded:
                plain = text.isidentifier()
                value = text if plain else name
                words = f"{value}.dtype, {value}.shape, value={value}"
                new = [
                    *([] if plain else [f"{name} = {text}"]),
                    f"{name} = {self.space}.allocate_shared_memory({words})",
                    *[f"{self.space}.nvidia.hopper.fence_async_shared()"]
                    * ((line, text, role) in stored),
                ]
            lines[line - 1 : line - 1] = [indent[0] + one for one in new]
        return "\n".join(lines) + "\n"

    def _registers(self, operand: ast.expr, product: ast.Call) -> int:
        """Return the registers of a thread for a first operand, of which each warp has whole rows; 0 for others."""
        traced = self.values_of(operand)[-1:]
        if not self.drawn.matrices or operand is not operands_of(product)[0] or not traced:
            return 0
        kind = traced[0].type
        parts = max(1, min(self.warps, kind.dims[0] // _OWN_ROWS))
        return int(math.prod(kind.dims) * kind.element.bits // (_WORD * _LANES * parts))

    def _role(self, operand: ast.expr, product: ast.Call, loop: ast.For | ast.While) -> str:
        """Return "first" or "second" for an operand that the unit may read from shared memory."""
        a, b = operands_of(product)
        if self._is_group(product):
            return "first" if operand is a else ""
        if operand is not b or not self.group or self.called(product) is not portable.mma:
            return ""
        shape = [value.type for node in (a, b, product) for value in self.values_of(node)[-1:]]
        if len(shape) < 3 or any(kind.element.bits != 16 for kind in shape[:2]):
            return ""
        if shape[2].dims[0] < _OWN_ROWS * self.group or not mentions(a) & stores(loop):
            return ""
        inner = [node for node in nodes_in(product) if node is not product]
        alone = not any(isinstance(node, ast.Call) and self._multiplies(node) for node in inner)
        return "second" if alone and any(map(self._is_group, nodes_in(loop))) else ""

    def _is_group(self, node: ast.AST) -> bool:
        return public_name(self.called(node)).rpartition(".")[2] == _PRODUCT

    def _in_group(self, product: ast.Call, name: str) -> str:
        """Return the text of a product by a group of warps, whose second operand has a name."""
        acc: Any = argument(product, 2, "acc")
        texts = [one_line(self.text_of(operands_of(product)[0])), name, one_line(self.text_of(acc))]
        texts += ["use_acc=False"] if self.called(acc) is language.zeros else []
        return f"{self.space}.nvidia.hopper.{_PRODUCT}({', '.join(texts)})"

    def _fits(self, operand: ast.expr) -> bool:
        """Return True, and take the room, if shared memory can hold an operand."""
        place = self.place_of(operand)
        if place is None:
            return False
        value = self.drawn.returned[place][-1].type
        size = math.prod(value.dims) * value.element.bits // 8
        if size > self.room:
            return False
        self.room -= size
        return True

    def _operands(
        self, node: ast.AST, loops: list[ast.For | ast.While]
    ) -> Iterator[tuple[ast.expr, ast.For | ast.While, ast.Call]]:
        """Yield operands of products, each with the outermost loop that keeps its value, and its product."""
        if isinstance(node, (ast.For, ast.While)):
            loops = [*loops, node]
        if isinstance(node, ast.Call) and loops and self._multiplies(node):
            for operand in () if self.is_unaided(node) else operands_of(node):
                loop = self.kept(operand, loops)
                if loop is not None:
                    yield operand, loop, node
        for child in ast.iter_child_nodes(node):
            yield from self._operands(child, loops)

    def _loops_before(
        self, loop: ast.For | ast.While, names: set[str]
    ) -> list[ast.For | ast.While]:
        """Return the loops before one in its block, the first one first, behind which no statement assigns `names`."""
        for parent in nodes_in(self.tree):
            for kind in ("body", "orelse"):
                body = getattr(parent, kind, None)
                if not isinstance(body, list) or loop not in body:
                    continue
                before: list[ast.For | ast.While] = []
                for statement in reversed(body[: body.index(loop)]):
                    if stores(statement) & names:
                        break
                    if isinstance(statement, (ast.For, ast.While)):
                        before.insert(0, statement)
                return before
        return []

    def _shapes(self, product: ast.Call) -> set[Any]:
        """Return the shapes and dtypes of a product's values."""
        values = self.values_of(product)
        return {
            (tuple(value.type.dims), str(value.type.element))
            for value in values
            if isinstance(value.type, TensorType)
        }

    def is_unaided(self, product: ast.Call) -> bool:
        """Return True for a product that no matrix unit takes: threads read its operands from shared memory."""
        return self.place_of(product) in self.drawn.unaided

    def kept(
        self, operand: ast.expr, loops: list[ast.For | ast.While]
    ) -> Optional[ast.For | ast.While]:
        """Return the outermost loop whose steps all have one value of an operand; None without one."""
        if operand.lineno != operand.end_lineno or not self._is_tensor(operand):
            return None
        if not self._plain(operand) or mentions(operand) & self.converted:
            return None
        asked = [node.value for node in self._casts(operand)]
        parts = (node for node in nodes_in(operand) if node not in asked)
        names = {node.id for node in parts if isinstance(node, ast.Name)}
        outermost = None
        for loop in reversed(loops):
            if names & stores(loop):
                break
            outermost = loop
        return outermost

    def _casts(self, operand: ast.expr) -> list[Any]:
        """Return the parts of a plain operand that ask for the dtype of a tensor, which the trace knows."""
        calls = calls_in(operand)
        casts = [
            argument
            for call in calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == "to"
            for argument in call.args
            if isinstance(argument, ast.Attribute) and argument.attr == "dtype"
        ]
        known = (
            n for n in casts if isinstance(n.value, ast.Name) and dtype_of(self.values_of(n.value))
        )
        return sorted(known, key=lambda node: node.col_offset)

    def before_loop(self, operand: ast.expr, loop: ast.For | ast.While) -> str:
        """Return the text of an operand before a loop: dtypes of tensors that the loop assigns are named."""
        line = self.source.splitlines()[operand.lineno - 1].encode()
        text, copied = b"", operand.col_offset
        for node in self._casts(operand):
            if node.value.id in stores(loop):
                dtype = f"{self.space}.{dtype_of(self.values_of(node.value))}"
                text += line[copied : node.col_offset] + dtype.encode()
                copied = node.end_col_offset
        return (text + line[copied : operand.end_col_offset]).decode()

    def _multiplies(self, node: ast.Call) -> bool:
        called = self.called(node)
        return called is not None and multiplies(public_name(called), called)

    def _plain(self, node: ast.expr) -> bool:
        """Return True for a name, which may be transposed or cast."""
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
                return self._plain(node.func.value)
            return self.called(node) is language.permute and self._plain(node.args[0])
        if isinstance(node, ast.Attribute) and node.attr == "T":
            node = node.value
        return isinstance(node, ast.Name)

    def _is_tensor(self, node: ast.expr) -> bool:
        values = self.values_of(node)
        return bool(values) and all(isinstance(value.type, TensorType) for value in values)
