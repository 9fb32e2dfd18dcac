"""Leave out casts of tensors to the dtype that they have, in loops of products, whose operands are then tiles.

    s = gl.portable.mma(q, k.to(q.dtype), zeros)

becomes, where both have one dtype,

    s = gl.portable.mma(q, k, zeros)
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_write.text.form import edited
from gluon_write.text.syntax import nodes_in
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["without_casts"]


def without_casts(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops of products cast no tensor to its own dtype, or the kernel."""
    return _Casts.rewrite(fn, drawn)


class _Casts(TracedForm):
    def text(self) -> Optional[str]:
        edits: dict[Any, str] = {}
        for loop in nodes_in(self.tree):
            if isinstance(loop, ast.For) and self.has_products(loop):
                casts: list[Any] = [node for node in nodes_in(loop) if self._keeps(node)]
                edits |= {cast: self.text_of(cast.func.value) for cast in casts}
        inner = {n for call in edits for n in nodes_in(call) if n is not call}
        outer = [(call, text) for call, text in edits.items() if call not in inner]
        return edited(self.source, outer) if outer else None

    def _keeps(self, call: Any) -> bool:
        """Return True for a cast that gives a tensor the dtype that it has, in all traces of it."""
        if not isinstance(call, ast.Call) or call.keywords:
            return False
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "to":
            return False
        if len(call.args) != 1 or call.lineno != call.end_lineno:
            return False
        kinds = [self._dtypes(node) for node in (call.func.value, call)]
        return len(kinds[0]) == 1 and kinds[0] == kinds[1]

    def _dtypes(self, node: ast.expr) -> set[str]:
        values = self.values_of(node)
        tensors = [value.type for value in values if getattr(value.type, "dims", ())]
        return {str(one.element) for one in tensors} if len(tensors) == len(values) else set()
