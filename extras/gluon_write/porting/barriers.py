"""Order what a kernel stores, and loads again through the same pointers.

    tl.store(t_ptrs, scale)
    scale = tl.load(t_ptrs)

is a race where several threads hold an element: one of them stores it. A barrier between the two orders them.
A tile is stored in the background: what loads it, or adds to it, also waits until it is in memory.
"""

from __future__ import annotations

import ast
from typing import Any, Iterator, Optional

from gluon_write.porting.kinds import TILES
from gluon_write.text.syntax import calls_in, mentions, nodes_in

__all__ = ["loaded_again"]

_STORES, _OTHER = ("store", "scatter"), ("load", "gather")
_FUNCTIONS = {"load_tensor_descriptor": "load", "store_tensor_descriptor": "store"}


def loaded_again(port: Any, jit: ast.FunctionDef) -> None:
    """Insert barriers before statements that load what a statement before them in their block stored."""
    for node in nodes_in(jit):
        for block in (getattr(node, "body", ()), getattr(node, "orelse", ())):
            if isinstance(block, list):
                _ordered(port, block)
                if len(block) > 1:
                    _written(port, block)


def _ordered(port: Any, block: list[ast.stmt]) -> None:
    stored: dict[str, set[str]] = {}  # text of the pointers -> the names in it
    for statement in block:
        calls = calls_in(statement)
        named = [(port.language(call.func), call) for call in calls]
        loaded = {ast.unparse(c.args[0]) for name, c in named if name == "load" and c.args}
        if loaded & set(stored):
            indent = " " * statement.col_offset
            port.insert(port.span(statement)[0], f"gl.thread_barrier()\n{indent}")
            stored.clear()
        if any(name == "debug_barrier" for name, _ in named):
            stored.clear()
        names = (n for n in nodes_in(statement) if isinstance(n, ast.Name))
        changed = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        stored = {text: own for text, own in stored.items() if not own & changed}
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if port.language(call.func) == "store" and call.args:
                own = mentions(call.args[0])
                stored[ast.unparse(call.args[0])] = own


def _written(port: Any, block: list[ast.stmt]) -> None:
    """Wait for the tiles that statements of a block stored, before one that reads the same memory."""
    stored: set[str] = set()  # names of descriptors, and of their memory
    for statement in block:
        accesses = list(_accesses(port, statement))
        read = {name for name, writes in accesses if not writes}
        if stored & _memory(port, read):
            indent = " " * statement.col_offset
            port.insert(port.span(statement)[0], f"{port.need('tiles_written')}()\n{indent}")
            stored.clear()
        stored |= _memory(port, {name for name, writes in accesses if writes})


def _accesses(port: Any, statement: ast.stmt) -> Iterator[tuple[str, bool]]:
    """Yield the names through which a statement accesses memory, and True for tiles that it stores."""
    for call in nodes_in(statement):
        if not isinstance(call, ast.Call):
            continue
        name = port.language(call.func)
        tile: Optional[ast.expr] = None
        if name in _FUNCTIONS:
            tile, name = (call.args[0] if call.args else None), _FUNCTIONS[name]
        elif isinstance(call.func, ast.Attribute) and port.kind_of(call.func.value) == TILES:
            tile, name = call.func.value, call.func.attr
        if isinstance(tile, ast.Name):
            yield tile.id, name in _STORES
        elif call.args and name and (name in _OTHER or name.startswith("atomic_")):
            yield _first(port, call.args[0]), False


def _memory(port: Any, names: set[str]) -> set[str]:
    """Return names of pointers and descriptors, and the pointers that they come from."""
    memory, left = set[str](), list(names)
    while left:
        name = left.pop()
        if name not in memory:
            memory.add(name)
            left += [_first(port, value) for value in port.values.get(name, ())]
    return memory - {""}


def _first(port: Any, node: ast.expr) -> str:
    """Return the name that an expression of a pointer, or of a descriptor, begins with; "" for others."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.BinOp):
            node = node.left
        elif isinstance(node, ast.Call):
            passed = [*node.args[:1], *(w.value for w in node.keywords if w.arg == "base")]
            if isinstance(node.func, ast.Attribute) and port.language(node.func) is None:
                passed.append(node.func.value)
            if not passed:
                return ""
            node = passed[0]
        else:
            return ""
    return node.id
