"""Give a GEMM on Blackwell partitions: one copies tiles, one issues products, one stores sums from tensor memory.

    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)

becomes, in the partition that issues products,

    total = sums.take(turn)
    for k in range(0, K, BK):
        x, y = tiles.wait(slot)
        gl.nvidia.blackwell.tcgen05_mma(x, y, total, use_acc=k != 0)
        gl.nvidia.blackwell.tcgen05_commit(tiles.empty(slot))
        slot = slot.next()
    sums.done(turn)

and `acc = sums.wait(turn).load()` in the one that stores. The loop has a step at least: an end of a tensor is positive. Programs walk over the grid, with two accumulators:
one sum is stored while the next one grows.
"""

from __future__ import annotations

import ast
from typing import Any, Optional, Sequence

from gluon_core import language
from gluon_core.errors import GluonError
from gluon_write.loops.loops import Loop, viewed
from gluon_write.loops.tile_loops import LoopsOfTiles, wrapped
from gluon_write.partitions.partitions import Order, Partitions
from gluon_write.partitions.ring_plan import GROUP, Function, NoForm
from gluon_write.partitions.rows import parted
from gluon_write.partitions.tensor_rows import RowsInTensorMemory
from gluon_write.partitions.walk import walking
from gluon_write.text.form import bounds_of, factor, free_name
from gluon_write.text.syntax import argument, mentions, nodes_in, operands_of, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["in_tensor_memory"]

_ROWS, _MOST_COLUMNS = 128, 256  # of a sum
_WARPS = (4, 8)
_SUMS = 2
_REGISTERS = 48  # of threads that copy and that issue


def in_tensor_memory(fn: Any, drawn: Sketch, traced: Tracer, form: Optional[str] = None) -> Any:
    """Return a kernel in partitions whose sums are in tensor memory, or the kernel where that cannot be.

    Args:
        form: as in `in_partitions`.
    """
    able = traced.has("nvidia.tcgen05") and traced.warps in _WARPS
    if not able or not traced.copies_tiles(drawn) or form == "pipelined":
        return fn
    for form_of, parts in ((_TensorMemory, 1), (RowsInTensorMemory, 1), (RowsInTensorMemory, 2)):
        try:
            written = _walked(form_of, fn, drawn, traced, parts)
        except (NoForm, GluonError):
            continue
        if written.walks or form_of is RowsInTensorMemory:
            return written.kernel
    return fn


def _walked(
    form_of: type[Partitions], fn: Any, drawn: Sketch, traced: Tracer, parts: int
) -> Partitions:
    """Return a form of a kernel whose programs walk over the grid, where they can.

    Raises:
        NoForm: the kernel has no such form.
    """
    walk = walking(fn, drawn)
    order = Order(False, () if walk is None else walk.ends)
    if walk is not None:
        fn, drawn = walk.kernel, traced(walk.kernel)
    part = ""
    if parts > 1:
        halved = parted(fn, drawn, parts)
        if halved is None:
            raise NoForm
        fn, part = halved
        drawn = traced(fn, GROUP)
    return form_of(fn, drawn, traced, parts, part, order)


class _TensorMemory(Partitions):
    """Hold a kernel whose only loop of products keeps its sum in tensor memory."""

    splits_copies = False

    def _find(self) -> None:
        super()._find()
        loops = [loop for one in self.functions.values() for loop in one.loops.values()]
        if len(self.functions) != 1 or len(loops) != 1:
            raise NoForm
        reader, loop = self.functions[0].reader, loops[0]
        self.sums, self.turn = free_name("sums", self.taken), free_name("turn", self.taken)
        self.total = free_name("total", self.taken)
        self.loop = loop
        self._check(reader, loop)
        self.size = self._size(reader, loop)
        kernel = self.functions[0]
        kernel.passes = kernel.products  # the partition that issues
        kernel.products = free_name(f"{reader.tree.name}_stores", self.taken)

    def _check(self, reader: LoopsOfTiles, loop: Loop) -> None:
        """Raise NoForm unless the loop does nothing but add products to a sum that begins with zeros, and has steps."""
        if len(loop.issued) != 1:
            raise NoForm
        statement, name = next(iter(loop.issued.items()))
        assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        sides = [viewed(operand, reader) for operand in operands_of(statement.value)]
        if not self._has_steps(reader, loop):
            raise NoForm
        others = [s for s in loop.node.body if s is not statement and s not in loop.ahead
                  and s not in loop.loads]  # fmt: skip
        uses = [n for n in nodes_in(loop.node) if isinstance(n, ast.Name) and n.id == name]
        if others or len(uses) != 2 or set(sides) != set(loop.tiles) or len(set(sides)) != 2:
            raise NoForm
        for parent in nodes_in(reader.tree):
            block = getattr(parent, "body", [])
            if isinstance(block, list) and loop.node in block:
                before = [s for s in block[: block.index(loop.node)] if name in mentions(s)]
                start = before[-1] if before else None
                if len(before) == 1 and isinstance(start, ast.Assign):
                    zeros = start.value
                    dtype = argument(zeros, 1, "dtype") if isinstance(zeros, ast.Call) else None
                    single = dtype is not None and reader.text_of(dtype).endswith("float32")
                    if reader.called(zeros) is language.zeros and single:
                        return
        raise NoForm

    def _has_steps(self, reader: LoopsOfTiles, loop: Loop) -> bool:
        """Return True if a loop begins at 0 and ends at the end of a tensor."""
        if not isinstance(loop.node.iter, ast.Call) or loop.falls:
            return False
        arguments = loop.node.iter.args
        last = arguments[min(1, len(arguments) - 1)]
        if reader.called(last) is language.cdiv and isinstance(last, ast.Call):
            last = last.args[0]
        makers = [s for s in reader.tree.body if self.describes(reader, s)]
        tiles = {tile.tiles for tile in loop.tiles.values()}
        ends = {
            reader.text_of(end)
            for maker in makers
            if stores(maker) & tiles and isinstance(maker, ast.Assign)
            and isinstance(maker.value, ast.Call)
            and isinstance(maker.value.args[1], (ast.List, ast.Tuple))
            for end in maker.value.args[1].elts
        }  # fmt: skip
        first, *_ = bounds_of([reader.text_of(arg) for arg in arguments])
        text = reader.text_of(last)
        some = isinstance(last, ast.Name) or text.startswith("max(")
        return first == "0" and some and text in ends

    def _size(self, reader: LoopsOfTiles, loop: Loop) -> tuple[int, int]:
        """Return the rows and the columns of the sum."""
        shapes = {shape for statement in loop.issued for shape in reader.shapes_assigned(statement)}
        if len(shapes) != 1 or any(tile.bits != 16 for tile in loop.tiles.values()):
            raise NoForm
        rows, columns = next(iter(shapes))
        if rows != _ROWS or columns > _MOST_COLUMNS:
            raise NoForm
        return rows, columns

    def _place_own(self, kernel: Function) -> None:
        """Let the partition that stores load other tiles itself."""

    # -- the partitions -------------------------------------------------------------------------

    def _write(self, number: int, before: Sequence[ast.stmt]) -> None:
        super()._write(number, before)
        one = self.functions[number]
        makers = [s for s in before if self.describes(one.reader, s)]
        self.passing = True
        self._producer(number, one, [s for s in one.reader.tree.body if s in makers])
        self.passing = False

    def _opening(self, role: str) -> list[str]:
        if role == "consumer" and not self.passing:
            return [f"{self.turn} = {self.sums}.consumer()"]
        more = [f"{self.turn} = {self.sums}.producer()"] if self.passing else []
        return [*super()._opening(role), *more]

    def _words(self, role: str) -> str:
        own = {
            "consumer": "Store the sum of each block.",
            "passing": "Multiply the tiles of each step.",
        }
        return own.get(role) or super()._words(role)

    def _others(self) -> str:
        return "one multiplies, one stores"

    def _handed(self, role: str) -> list[str]:
        rings = super()._handed(role)
        return {"consumer": [self.sums], "producer": rings, "passing": [*rings, self.sums]}[role]

    def _rounds(
        self, one: Function, loop: Loop, inner: bool, behind: Optional[Loop] = None
    ) -> list[str]:
        """Return the lines that take a sum from tensor memory."""
        reader = one.reader
        results = reader.results_of(loop, inner)
        name = next(iter(loop.issued.values()))
        if results != [name] or not isinstance(loop.node.iter, ast.Call):
            raise NoForm
        return [
            f"{name} = {self.sums}.wait({self.turn}).load()",
            f"{self.sums}.release({self.turn})",
            f"{self.turn} = {self.turn}.next()",
        ]

    def _copied(self, one: Function, loop: Loop) -> list[str]:
        """Return the producer's loop, or that of the partition that issues products."""
        if not self.passing:
            return super()._copied(one, loop)
        reader, node = one.reader, loop.node
        assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
        bounds = reader.bounds(node)
        lines = [f"{self.total} = {self.sums}.take({self.turn})"]
        lines.append(f"for {node.target.id} in range({', '.join(bounds)}):")
        for ring, tiles in self.rings.items():
            names = [next(n for n, t in loop.tiles.items() if t.ring == ring and t.number == i)
                     for i in range(len(tiles))]  # fmt: skip
            lines.append(f"    {', '.join(names)} = {ring}.wait({self.slot})")
        operands = []
        for operand in operands_of(loop.products[0]):
            name = viewed(operand, reader) or ""
            across = isinstance(operand, ast.Name) == loop.tiles[name].transposed
            operands.append(f"{name}.permute((1, 0))" if across else name)
        unit = f"{reader.space}.nvidia.blackwell"
        more = f"{node.target.id} != {factor(bounds[0])}"
        lines.append(f"    {unit}.tcgen05_mma({', '.join(operands)}, {self.total}, use_acc={more})")
        lines += [f"    {unit}.tcgen05_commit({ring}.empty({self.slot}))" for ring in self.rings]
        return [
            *lines,
            f"    {self.slot} = {self.slot}.next()",
            f"{self.sums}.done({self.turn})",
            f"{self.turn} = {self.turn}.next()",
        ]

    # -- the kernel -----------------------------------------------------------------------------

    def _opened(self, reader: LoopsOfTiles) -> list[str]:
        rows, columns = self.size
        ring = f"{reader.space}.nvidia.blackwell.accumulator_ring([{rows}, {columns}], {_SUMS})"
        return ["# One sum is stored while the next one grows.", f"{self.sums} = {ring}"]

    def _calls(self, kernel: Function) -> tuple[list[list[str]], list[int], list[int]]:
        calls = [
            wrapped(f"({name}, (", self.written[name].arg_names, ")),")
            for name in (kernel.products, kernel.passes, kernel.copies)
        ]
        return calls, [1, 1], [_REGISTERS, _REGISTERS]
