"""Order what a kernel stores, and loads again through the same pointers.

    tl.store(t_ptrs, scale)
    scale = tl.load(t_ptrs)

is a race where several threads hold an element: one of them stores it. A barrier between the two orders them.
"""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["loaded_again"]


def loaded_again(port: Any, jit: ast.FunctionDef) -> None:
    """Insert barriers before statements that load what a statement before them in their block stored."""
    for node in ast.walk(jit):
        for block in (getattr(node, "body", ()), getattr(node, "orelse", ())):
            if isinstance(block, list):
                _ordered(port, block)


def _ordered(port: Any, block: list[ast.stmt]) -> None:
    stored: dict[str, set[str]] = {}  # text of the pointers -> the names in it
    for statement in block:
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        named = [(port.language(call.func), call) for call in calls]
        loaded = {ast.unparse(c.args[0]) for name, c in named if name == "load" and c.args}
        if loaded & set(stored):
            indent = " " * statement.col_offset
            port.insert(port.span(statement)[0], f"gl.thread_barrier()\n{indent}")
            stored.clear()
        if any(name == "debug_barrier" for name, _ in named):
            stored.clear()
        names = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
        changed = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        stored = {text: own for text, own in stored.items() if not own & changed}
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if port.language(call.func) == "store" and call.args:
                own = {n.id for n in ast.walk(call.args[0]) if isinstance(n, ast.Name)}
                stored[ast.unparse(call.args[0])] = own
