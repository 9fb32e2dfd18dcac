"""Gather along the first dimension: that of the elements which are neighbours in shared memory.

    y = gl.gather(x, columns, 1)

has the rows of a column one after the other, so that the elements of a row are some 16 words apart and meet
in the same banks. It becomes

    y = gl.permute(gl.gather(gl.permute(x, (1, 0)), gl.permute(columns, (1, 0)), 0), (1, 0))

where a permutation moves nothing.
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_core import language
from gluon_write.text.form import edited, one_line
from gluon_write.text.syntax import argument, nodes_in
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["gathered_along_first"]


def gathered_along_first(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel that gathers along first dimensions alone, or the kernel."""
    return _Gathers.rewrite(fn, drawn)


class _Gathers(TracedForm):
    def text(self) -> Optional[str]:
        edits: list[tuple[ast.expr, str]] = []
        inner: set[int] = set()
        for node in nodes_in(self.tree):
            text = None if not self.space or id(node) in inner else self._permuted(node)
            if text is not None and isinstance(node, ast.Call):
                edits.append((node, text))
                inner |= {id(part) for part in nodes_in(node)}
        return edited(self.source, edits) if edits else None

    def _permuted(self, node: ast.AST) -> Optional[str]:
        """Return a gather along the first dimension in place of one along another; None of other expressions."""
        if self.called(node) is not language.gather or not isinstance(node, ast.Call):
            return None
        source, index, axis = (
            argument(node, place, name) for place, name in enumerate(("src", "index", "axis"))
        )
        place = self.place_of(node)
        if source is None or index is None or axis is None or place is None:
            return None
        ranks = {len(value.type.dims) for value in self.drawn.returned.get(place, ())}
        if len(ranks) != 1 or node.lineno != node.end_lineno:
            return None
        try:
            rank, dim = ranks.pop(), int(ast.literal_eval(axis))
        except (ValueError, TypeError):  # a constant of the launch
            return None
        dim %= rank
        if not dim:
            return None
        order = f"({', '.join(map(str, [dim, *(d for d in range(rank) if d != dim)]))})"
        back = f"({', '.join(map(str, [*range(1, dim + 1), 0, *range(dim + 1, rank)]))})"
        first, second = (
            f"{self.space}.permute({one_line(self.text_of(one))}, {order})"
            for one in (source, index)
        )
        return f"{self.space}.permute({self.space}.gather({first}, {second}, 0), {back})"
