"""Give each tile that a step of a loop loads a name of its own, where the kernel gives one name to several.

    for k in range(0, K, BK):
        x = gl.load(a_tile)
        acc = gl.portable.mma(x, y, acc)
        x = gl.load(b_tile)
        other = gl.portable.mma(x, y, other)

becomes

    for k in range(0, K, BK):
        x_2 = gl.load(a_tile)
        acc = gl.portable.mma(x_2, y, acc)
        x = gl.load(b_tile)
        other = gl.portable.mma(x, y, other)

so that both may be copied ahead; so does a tile that a step changes, `x = gl.maximum(x, 0)`, before it is multiplied, and
each operand of a product that it computes. The last tile keeps the name, which the next step and the text behind the loop may read.
"""

from __future__ import annotations

import ast
from typing import Any, Iterator, Optional

from gluon_core import language, portable
from gluon_write.loops.loops import viewed
from gluon_write.text.form import Form, edited, free_name, rewritten
from gluon_write.text.syntax import calls_in, nodes_in, operands_of
from gluon_write.tracing.sketch import Sketch

__all__ = ["with_own_names"]


def with_own_names(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops load each tile into a name of its own, or the kernel."""
    return rewritten(fn, drawn.jits, lambda jit, number: _Names(jit).text())


class _Names(Form):
    def text(self) -> Optional[str]:
        taken = self.names_in_use()
        edits: list[tuple[ast.expr, str]] = []
        for loop in nodes_in(self.tree):
            for one, other in self._pairs(loop) if isinstance(loop, ast.For) else ():
                assert isinstance(one.targets[0], ast.Name) and isinstance(loop, ast.For)
                name = one.targets[0].id
                between = loop.body[loop.body.index(one) + 1 : loop.body.index(other)]
                parts = [n for s in (*between, other.value) for n in nodes_in(s)]
                if any(isinstance(n, (ast.Lambda, ast.FunctionDef)) for n in parts):
                    continue
                fresh = free_name(name, taken)
                edits.append((one.targets[0], fresh))
                edits += [(n, fresh) for n in parts if isinstance(n, ast.Name) and n.id == name]
        return edited(self.source, edits) if edits else None

    def _pairs(self, loop: ast.For) -> Iterator[tuple[ast.Assign, ast.Assign]]:
        """Yield each load or operand of a product whose name another statement of a loop takes, and that statement."""
        named: dict[str, list[ast.Assign]] = {}
        calls = calls_in(loop)
        products = [call for call in calls if self.called(call) is portable.mma]
        operands = {viewed(one, self) for node in products for one in operands_of(node)}
        for statement in loop.body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name):
                    named.setdefault(target.id, []).append(statement)
        for name, stored in named.items():
            loads = [s for s in stored if self.called(s.value) in (language.load, portable.load)]
            changed = products and loads and stored[-1] not in loads
            if name in operands:
                yield from zip(stored, stored[1:])
            elif len(loads) > 1 or changed:
                yield from ((s, t) for s, t in zip(stored, stored[1:]) if s in loads)
