"""Keep the sum of a loop of products in tensor memory: operands come through pointers, a few steps ahead.

    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a_ptrs, mask=..., other=0.0)
        y = gl.load(b_ptrs, mask=..., other=0.0)
        acc = gl.portable.mma(x, y, acc)
        ...

`cp.async` fills rings in the layout that the unit reads, and the sum is an accumulator of
`gl.portable`, which is read after the loop.
"""

from __future__ import annotations

import ast
from typing import Any, Callable, Optional

from gluon_core import language
from gluon_write.loops.loops import Loop, Tile
from gluon_write.pipelines.prefetch import Prefetcher
from gluon_write.text.form import free_name
from gluon_write.text.syntax import argument, mentions, nodes_in, operands_of
from gluon_write.tracing.sketch import Sketch

__all__ = ["accumulated"]

_ROWS = (64, 128)
_MOST_COLUMNS = 256
_BITS = 16


def accumulated(fn: Any, drawn: Sketch, stages: int, room: int) -> Any:
    """Return a kernel with the sums of its loops of products in tensor memory, or the kernel.

    Args:
        stages: buffers for each operand.
        room: bytes of shared memory of a program.
    """
    return _Accumulator.rewrite(fn, drawn, True, stages=stages, room=room)


class _Accumulator(Prefetcher):
    layouts = ""

    def read(self, node: ast.For) -> Optional[Loop]:
        """Return a loop with one product whose sum nothing else in it uses."""
        loop = super().read(node)
        if loop is None or len(loop.issued) != 1 or self._start(loop) is None:
            return None
        statement, name = next(iter(loop.issued.items()))
        names = [n for n in nodes_in(node) if isinstance(n, ast.Name) and n.id == name]
        if self.chained(statement, loop) != {name} or len(names) != 2:
            return None
        operands = operands_of(loop.products[0])
        tiles = [loop.tiles.get(o.id) if isinstance(o, ast.Name) else None for o in operands]
        a, b = tiles
        if a is None or b is None or a is b or a.bits != _BITS or b.bits != _BITS:
            return None
        columns = b.shape[1]
        fits = a.shape[0] in _ROWS and columns <= _MOST_COLUMNS and columns % 16 == 0
        return loop if fits else None

    def _start(self, loop: Loop) -> Optional[ast.Assign]:
        """Return the statement before the loop that makes the sum zero; None if there are others."""
        name = next(iter(loop.issued.values()))
        for parent in nodes_in(self.tree):
            for block in (getattr(parent, "body", []), getattr(parent, "orelse", [])):
                if not isinstance(block, list) or loop.node not in block:
                    continue
                before = block[: block.index(loop.node)]
                uses = [s for s in before if name in mentions(s)]
                one = uses[-1] if uses else None
                if not isinstance(one, ast.Assign) or self.called(one.value) is not language.zeros:
                    return None
                dtype = argument(one.value, 1, "dtype") if isinstance(one.value, ast.Call) else None
                single = len(one.targets) == 1 and isinstance(one.targets[0], ast.Name)
                full = dtype is not None and self.text_of(dtype).endswith("float32")
                return one if single and full else None
        return None

    def _written(
        self, loop: Loop, stages: int, taken: set[str]
    ) -> list[tuple[int, int, list[str]]]:
        self.layouts = free_name("layouts", taken)
        edits = super()._written(loop, stages, taken)
        start = self._start(loop)
        assert start is not None
        a, b = (loop.tiles[o.id] for o in operands_of(loop.products[0]) if isinstance(o, ast.Name))
        gl, outer = self.space, " " * loop.node.col_offset
        sizes = f"{a.shape[0]}, {b.shape[1]}, {a.shape[1]}"
        dtypes = ", ".join(self.dtype_of(tile, loop, {}) for tile in (a, b))
        zeros = f"{gl}.zeros([{a.shape[0]}, {b.shape[1]}], {gl}.float32"
        opened = [
            f"{outer}{self.layouts}: {gl}.constexpr = {gl}.portable.mma_layouts(",
            f'{outer}    {sizes}, {dtypes}, operands="shared"',
            f"{outer})",
            f"{outer}{self._sum(loop)} = {gl}.portable.accumulator(",
            f"{outer}    {self.layouts}, {zeros}, layout={self.layouts}.accumulator)",
            f"{outer})",
        ]
        edits.append((start.lineno, start.end_lineno or 0, []))
        edits.append((loop.node.lineno, loop.node.lineno - 1, opened))
        return edits

    def _sum(self, loop: Loop) -> str:
        return next(iter(loop.issued.values()))

    def opened(self, tile: Tile, loop: Loop, dtype: str, stages: int) -> str:
        """Return the line that makes the ring of a tile, in the layout of the unit."""
        first = operands_of(loop.products[0])[0]
        part = "a_shared" if isinstance(first, ast.Name) and first.id == tile.name else "b_shared"
        shape = f"[{stages}, {tile.shape[0]}, {tile.shape[1]}]"
        make = f"{self.space}.allocate_shared_memory"
        return f"{tile.ring} = {make}({dtype}, {shape}, {self.layouts}.{part})"

    def multiplied(self, call: ast.Call, loop: Loop, spelled: Callable[[ast.expr], str]) -> str:
        """Return the text of a product of tensor memory."""
        operands = ", ".join(spelled(operand) for operand in operands_of(call))
        return f"{self.space}.portable.mma({operands}, {self._sum(loop)}, is_async=True)"

    def waits(
        self, loop: Loop, copies: list[str], inner: str, outer: str
    ) -> tuple[list[str], dict[int, list[str]], list[str]]:
        """Return lines before a loop, before lines in it, and after it."""
        statement = next(iter(loop.issued))
        name, portable = self._sum(loop), f"{self.space}.portable"
        wait = f"{inner}{name} = {portable}.mma_wait({name}, pending=1)  # frees the step before"
        lines = {(statement.end_lineno or 0) + 1: [wait, *copies]}
        return [], lines, [f"{outer}{name} = {portable}.read({name})"]
