"""Name the values that claims are about.

    tl.multiple_of(a_ptrs, [16, 16])

becomes

    a_ptrs = gl.multiple_of(a_ptrs, [16, 16])

so that tiles that a loop copies ahead, under names of their own, have the claim, too.
"""

from __future__ import annotations

import ast
from typing import Any

from gluon_write.text.syntax import nodes_in, stores

__all__ = ["claimed"]

_CLAIMS = ("multiple_of", "max_contiguous", "max_constancy")


def claimed(port: Any, statement: ast.Expr) -> None:
    """Let a statement that makes a claim about a variable assign it, unless a loop would then carry what it only reads."""
    call = statement.value
    if not isinstance(call, ast.Call) or port.language(call.func) not in _CLAIMS or not call.args:
        return
    value = call.args[0]
    if not isinstance(value, ast.Name) or value.id not in port.bound or value.id in port.kept:
        return
    loops = [
        node
        for jit in port.jits
        for node in nodes_in(jit)
        if isinstance(node, (ast.For, ast.While)) and statement in nodes_in(node)
    ]
    inner = max(loops, key=lambda loop: loop.lineno, default=None)
    if inner is None or any(value.id in stores(one) for one in inner.body):
        port.insert(port.span(statement)[0], f"{value.id} = ")
