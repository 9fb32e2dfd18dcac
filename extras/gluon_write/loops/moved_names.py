"""Name what the address arithmetic of a loop assigns for a step ahead, and what it carries there."""

from __future__ import annotations

from gluon_write.loops.loops import Loop
from gluon_write.text.syntax import reads, stores

__all__ = ["carried", "changed"]


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
