"""Begin the sum of a block with its first product, where a program works on one block after the other.

    for tile in range(first, tiles, programs):
        acc = gl.zeros([BM, BN], gl.float32)
        for k in range(0, K, BK):
            ...
            acc = gl.nvidia.hopper.warpgroup_mma(x, y, acc, is_async=True)

becomes

    acc = gl.zeros([BM, BN], gl.float32)
    for tile in range(first, tiles, programs):
        for k in range(0, K, BK):
            ...
            acc = gl.nvidia.hopper.warpgroup_mma(x, y, acc, is_async=True, use_acc=k != 0)

The registers of a sum need no zeros then. Without a step, no block has one, and the sum is what it was: zero.
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_core import language
from gluon_write.text.form import Form, bounds_of, edited, rewritten
from gluon_write.text.syntax import mentions, nodes_in, reads, stores
from gluon_write.tracing.sketch import Sketch

__all__ = ["with_first_products"]

_PRODUCT, _WAIT = "warpgroup_mma", "warpgroup_mma_wait"


def with_first_products(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose sums begin with their first products, or the kernel."""
    return rewritten(fn, drawn.jits, lambda jit, _: _Sums(jit).text())


class _Sums(Form):
    def text(self) -> Optional[str]:
        for outer in nodes_in(self.tree):
            if not isinstance(outer, ast.For):
                continue
            for start in outer.body:
                inner = self._loop(outer, start)
                if inner is not None:
                    return self._moved(outer, start, inner)
        return None

    def _loop(self, outer: ast.For, start: ast.stmt) -> Optional[ast.For]:
        """Return the loop that adds all there is to a sum of zeros; None of other statements and loops."""
        if not isinstance(start, ast.Assign) or self.called(start.value) is not language.zeros:
            return None
        name, changing = ast.unparse(start.targets[0]), {n for s in outer.body for n in stores(s)}
        changing |= stores(outer.target)
        after = [s for s in outer.body[outer.body.index(start) + 1 :] if name in mentions(s)]
        inner = after[0] if after else None
        if not isinstance(inner, ast.For) or not isinstance(inner.target, ast.Name):
            return None
        bounds = inner.iter
        if not isinstance(bounds, ast.Call) or ast.unparse(bounds.func) != "range":
            return None
        if changing & (reads(bounds) | reads(start)) or inner.target.id in stores(inner.body[0]):
            return None
        first, _, _ = bounds_of([self.text_of(arg) for arg in bounds.args])
        own = [s for s in inner.body if name in mentions(s)]
        rest = [s for s in after[1:] if name in stores(s)]
        plain = bool(own) and self._calls(own[0], _PRODUCT, name)
        plain = plain and "use_acc" not in ast.unparse(own[0])
        plain &= all(self._calls(s, _WAIT, name) for s in (*own[1:], *rest))
        return inner if plain and first == "0" and start.lineno == start.end_lineno else None

    def _calls(self, statement: ast.stmt, function: str, name: str) -> bool:
        """Return True for `name = function(...)`."""
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            return False
        called = getattr(self.called(statement.value), "__name__", "")
        return called == function and ast.unparse(statement.targets[0]) == name

    def _moved(self, outer: ast.For, start: ast.stmt, inner: ast.For) -> str:
        """Return the text with the zeros before the outer loop."""
        assert isinstance(inner.target, ast.Name)
        name = next(iter(stores(start)))
        statement = next(s for s in inner.body if name in mentions(s))
        assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        call = statement.value
        last = call.keywords[-1].value if call.keywords else call.args[-1]
        more = f"{self.text_of(last)}, use_acc={inner.target.id} != 0"
        lines = edited(self.source, [(last, more)]).splitlines()
        zeros = " " * outer.col_offset + lines[start.lineno - 1].lstrip()
        del lines[start.lineno - 1]
        lines.insert(outer.lineno - 1, zeros)
        return "\n".join(lines) + "\n"
