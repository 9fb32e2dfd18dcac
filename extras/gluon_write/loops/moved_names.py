"""Name what the address arithmetic of a loop assigns for a step ahead, and what it carries there."""

from __future__ import annotations

import ast
from typing import Optional

from gluon_write.loops.loops import Loop
from gluon_write.text.syntax import assigned_in, reads, stores

__all__ = ["base_of", "carried", "changed"]


def changed(loop: Loop) -> set[str]:
    """Return the names that the address arithmetic assigns."""
    return {name for statement in loop.ahead for name in stores(statement)}


def carried(loop: Loop) -> list[str]:
    """Return those that a step takes from the one before: they are read before they are assigned."""
    assigned: set[str] = set()
    names: list[str] = []
    moved = changed(loop)
    for statement in loop.node.body:
        tile = next((t for t in loop.copied if t.statement is statement), None)
        if tile is not None:
            read = tile.reads()
        elif statement in loop.ahead:
            read = reads(statement)
        else:
            continue
        names += sorted(n for n in read & moved if n not in assigned and n not in names)
        if statement in loop.ahead:
            assigned |= stores(statement)
    return names


def base_of(pointer: ast.expr, node: ast.For) -> Optional[ast.expr]:
    """Return the pointer that one in a loop moves from and that is known before it; None where a step computes it in another way."""
    root = pointer
    fresh: dict[str, ast.expr] = {}  # what a step computes anew
    moved: set[str] = set()  # what it computes from that of the step before
    for statement in node.body:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            moved.add(statement.target.id)
        elif isinstance(statement, ast.Assign):
            for name, value in assigned_in(statement.targets[0], statement.value):
                if name in reads(value):
                    moved.add(name)
                else:
                    fresh.setdefault(name, value)
    while True:
        while isinstance(root, ast.BinOp):
            root = root.left
        if not isinstance(root, ast.Name) or root.id not in fresh:
            break
        root = fresh.pop(root.id)
    known = isinstance(root, ast.Name) or not reads(root) & (stores(node) - moved)
    return root if known and not isinstance(root, ast.Starred) else None
