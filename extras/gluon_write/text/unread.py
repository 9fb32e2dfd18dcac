"""Leave out the statements of a kernel whose values nothing reads."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any, Collection, Iterator, Mapping, Optional, Sequence

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.text.syntax import nodes_in, reads, stores

__all__ = ["without_unread"]

_PURE = (
    "arange", "cdiv", "expand_dims", "full", "max_contiguous", "maximum", "minimum", "multiple_of",
    "num_programs", "program_id", "to_tensor", "zeros",
)  # fmt: skip
_METHODS = ("to",)
_BUILT_IN = ("min", "max")


def without_unread(
    text: str,
    scope: Mapping[str, Any],
    among: Optional[Collection[str]] = None,
    notes: bool = False,
) -> str:
    """Return a function without the assignments whose names it reads nowhere else: arithmetic, ranges and comparisons.

    Nor do loops go on with names that neither they nor the lines behind them read.

    Args:
        text: the source. scope: what its names mean outside. among: the names that may go; None for all.
        notes: comments right above them go, too.
    """
    tree = ast.parse(text).body[0]
    assert isinstance(tree, ast.FunctionDef)
    dead = _unread(tree, scope, among)
    if not dead:
        return text
    lines = text.splitlines()
    for statement in reversed(dead):
        first = statement.lineno - 1
        while notes and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        lines[first : statement.end_lineno] = []
    return "\n".join(lines) + "\n"


def _unread(
    tree: ast.FunctionDef, scope: Mapping[str, Any], among: Optional[Collection[str]]
) -> list[ast.stmt]:
    """Return such assignments, in the order of the lines; the last statement of a block stays."""
    blocks = list(_blocks(tree))
    lines = Counter(s.lineno for block in blocks for s in block)
    chosen = [
        s
        for block in blocks
        for s in block
        if lines[s.lineno] == 1
        and _is_plain(s, scope)
        and (among is None or stores(s) <= set(among))
    ]
    kept = [block[-1] for block in blocks if all(s in chosen for s in block)]
    chosen = [s for s in chosen if s not in kept]
    inside = {id(node) for s in chosen for node in nodes_in(s)}
    names = [n for n in nodes_in(tree) if isinstance(n, ast.Name) and id(n) not in inside]
    moved = {
        s.target for s in nodes_in(tree) if isinstance(s, ast.AugAssign) and id(s) not in inside
    }
    uses = [n for n in names if not isinstance(n.ctx, ast.Store) or n in moved]
    behind = {
        id(n): (loop.lineno, skipped)
        for loop, skipped in _loops(tree, set())
        for n in nodes_in(loop)
    }
    needed: list[ast.stmt] = []
    while True:
        alive = []
        for s in chosen:
            first, skipped = behind.get(id(s), (0, set()))
            after = [n for n in needed if n.lineno >= first and id(n) not in skipped]
            read = {name for n in after for name in reads(n)}
            read |= {n.id for n in uses if n.lineno >= first and id(n) not in skipped}
            alive += [s] if stores(s) & read else []
        if not alive:
            break
        needed += alive
        chosen = [s for s in chosen if s not in alive]
    return sorted(chosen, key=lambda s: s.lineno)


def _loops(node: ast.AST, skipped: set[int]) -> Iterator[tuple[ast.stmt, set[int]]]:
    """Yield the outermost loops, each with the ids of what does not run where it has run: the other branches around it."""
    for child in ast.iter_child_nodes(node):
        others = node.orelse if isinstance(node, ast.If) and child in node.body else []
        within = skipped | {id(n) for s in others for n in nodes_in(s)}
        if isinstance(child, (ast.For, ast.While)):
            yield child, within
        elif isinstance(child, ast.stmt):
            yield from _loops(child, within)


def _blocks(tree: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for node in nodes_in(tree):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield block


def _is_plain(statement: ast.stmt, scope: Mapping[str, Any]) -> bool:
    """Return True for an assignment to names that does nothing else."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: Any = statement.targets[0]
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
    else:
        return False
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(part, ast.Name) for part in parts):
        return False
    return all(_is_pure(n, scope) for n in nodes_in(statement.value) if isinstance(n, ast.Call))


def _is_pure(call: ast.Call, scope: Mapping[str, Any]) -> bool:
    """Return True for a call that changes nothing."""
    place = call.func
    if isinstance(place, ast.Attribute):
        owner = scope.get(place.value.id) if isinstance(place.value, ast.Name) else None
        if unwrap(owner) is language:
            quiet = not any(word.arg in (None, "volatile") for word in call.keywords)
            return place.attr in _PURE or place.attr == "load" and quiet
        return place.attr in _METHODS
    return isinstance(place, ast.Name) and place.id in _BUILT_IN
