"""Divide rows by a number each with one division.

    acc = acc / total[:, None]

becomes

    acc = acc * (1.0 / total)[:, None]

The unit's quotients of 32 bits are off by two units in the last place (PTX ISA 9.7.3.8, `div.full`), where the divisor is
normal and no more than 2^126; so are these. A thread has many columns of a row, and the compiler scales both numbers of
each division.
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_core.plugin.targets import Target
from gluon_write.text.form import Form, edited, factor, one_line, rewritten
from gluon_write.text.syntax import nodes_in
from gluon_write.tracing.sketch import Sketch

__all__ = ["with_reciprocals"]

_PRODUCT = "gl.portable.mma"


def with_reciprocals(fn: Any, drawn: Sketch, target: Target) -> Any:
    """Return a kernel with products that divides each row of a tile once, or the kernel."""
    if not target.has("nvidia.wgmma") or _PRODUCT not in drawn.functions.values():
        return fn
    return rewritten(fn, drawn.jits, lambda jit, number: _text(Form(jit), number, drawn))


def _text(form: Form, number: int, drawn: Sketch) -> Optional[str]:
    """Return the text of a function; None where nothing changes."""
    edits: list[tuple[Any, str]] = []
    for node in nodes_in(form.tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            left, right, word = node.left, node.right, "*"
            kind = _kind(node, number, drawn)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            left, right, word = node.target, node.value, "*="
            kind = _kind(node, number, drawn) or _kind(node.target, number, drawn)
        else:
            continue
        row = _row(right)
        if (
            row is None
            or kind != ("fp32", 2)
            or any(_row(getattr(n, "right", None)) for n in nodes_in(left))
        ):
            continue
        view = one_line(form.text_of(right))[len(one_line(form.text_of(row))) :]
        text = f"(1.0 / {factor(one_line(form.text_of(row)))}){view}"
        edits.append((node, f"{one_line(form.text_of(left))} {word} {text}"))
    return edited(form.source, edits) if edits else None


def _row(node: Any) -> Optional[ast.expr]:
    """Return the vector of `vector[:, None]`; None of others."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return None
    first, *last = node.slice.elts
    whole = isinstance(first, ast.Slice) and not (first.lower or first.upper or first.step)
    new = len(last) == 1 and isinstance(last[0], ast.Constant) and last[0].value is None
    return node.value if whole and new else None


def _kind(node: Any, number: int, drawn: Sketch) -> Optional[tuple[str, int]]:
    """Return the dtype and the rank of a value; None where calls differ."""
    values = drawn.values_of(node, number)
    kinds = {(str(value.type.element), len(value.type.dims)) for value in values}
    return kinds.pop() if len(kinds) == 1 else None
