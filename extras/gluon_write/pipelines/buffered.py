"""Load operands of a product a step ahead into registers, where nothing copies to shared memory in the background.

    for k in range(0, K, BK):
        x = gl.load(a_ptrs, mask=..., other=0.0)
        y = gl.load(b_ptrs, mask=..., other=0.0)
        acc = gl.portable.mma(x, y, acc)
        a_ptrs += BK
        b_ptrs += BK * N

becomes a loop whose loads are those of the next step: they are under way during the product of this one.
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_write.loops.loop_reader import LoopReader
from gluon_write.loops.loops import Edit, Loop
from gluon_write.loops.moved_names import carried, changed
from gluon_write.text.form import free_name, one_line, renamed
from gluon_write.tracing.sketch import Sketch

__all__ = ["buffered"]

_MOST_BITS = 128 * 32  # of a thread for the tiles of the next step


def buffered(fn: Any, drawn: Sketch, threads: int) -> Any:
    """Return a kernel whose loops of products load a step ahead, or the kernel.

    Args:
        threads: of the program.
    """
    return _Buffered.rewrite(fn, drawn, False, threads=threads)


class _Buffered(LoopReader):
    takes_falling = True

    def text(self, threads: int) -> Optional[str]:
        """Return the function with its loops of products changed; None without one."""

        def edits_of(loop: Loop, taken: set[str]) -> list[Edit]:
            size = sum(8 * tile.bytes for tile in loop.tiles.values())
            return self._written(loop, taken) if size <= _MOST_BITS * threads else []

        return self.edited(edits_of)

    def _written(self, loop: Loop, taken: set[str]) -> list[Edit]:
        """Return the edits of a loop: first and last line, and the new lines."""
        node = loop.node
        assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
        first, last, stride = self.bounds(node)
        moved = {name: free_name(f"{name}_ahead", taken) for name in sorted(changed(loop))}
        ahead = moved.setdefault(node.target.id, free_name(f"{node.target.id}_ahead", taken))
        for tile in loop.tiles.values():
            tile.ring = free_name(f"{tile.name}_ahead", taken)
        fetch = self._fetch(loop, moved, last, ahead)
        outer, inner = " " * node.col_offset, " " * node.body[0].col_offset
        before = [
            f"{outer}# The loads of a step are under way during the products of the step before."
        ]
        before += [f"{outer}{moved[name]} = {name}" for name in carried(loop)]
        before.append(f"{outer}{ahead} = {first}")
        before += [f"{outer}{line}" for line in (*fetch, f"{ahead} += {stride}")]
        edits = [(node.lineno, node.lineno - 1, before)]
        taken_over = [f"{tile.name} = {tile.ring}" for tile in loop.tiles.values()]
        statements = loop.loads
        earliest = min(statements, key=lambda statement: statement.lineno)
        for statement in statements:
            new = [*taken_over, *fetch, f"{ahead} += {stride}"] if statement is earliest else []
            place = statement.lineno, statement.end_lineno or 0
            edits.append((*place, [f"{inner}{line}" for line in new]))
        return edits

    def _fetch(self, loop: Loop, moved: dict[str, str], last: str, ahead: str) -> list[str]:
        """Return the lines that load the tiles of a step ahead."""
        loads = loop.by_statement
        lines = []
        for statement in loop.node.body:
            tile = loads.get(id(statement))
            if tile is not None:
                inside = loop.inside(ahead, last)
                if tile.mask is not None:
                    inside = f"({renamed(self.text_of(tile.mask), moved)}) & ({inside})"
                pointer = renamed(self.text_of(tile.pointer), moved)
                words = f"{one_line(pointer)}, mask={one_line(inside)}, other=0"
                lines.append(f"{tile.ring} = {self.space}.load({words})")
            elif statement in loop.ahead:
                lines.append(one_line(renamed(self.text_of(statement), moved)))
        return lines
