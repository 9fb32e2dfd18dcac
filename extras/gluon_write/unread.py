"""Leave out the statements of a kernel whose values nothing reads."""

from __future__ import annotations

import ast
from typing import Any, Iterator, Mapping, Sequence

from gluon_core import language
from gluon_core._triton import unwrap

__all__ = ["without_unread"]

_PURE = (
    "arange", "cdiv", "expand_dims", "full", "max_contiguous", "maximum", "minimum", "multiple_of",
    "num_programs", "program_id", "to_tensor", "zeros",
)  # fmt: skip
_METHODS = ("to",)
_BUILT_IN = ("min", "max")


def without_unread(text: str, scope: Mapping[str, Any]) -> str:
    """Return a function without the assignments whose names it reads nowhere else: arithmetic, ranges and comparisons.

    Args:
        text: the source. scope: what its names mean outside.
    """
    while True:
        tree = ast.parse(text).body[0]
        assert isinstance(tree, ast.FunctionDef)
        dead = list(_unread(tree, scope))
        if not dead:
            return text
        lines = text.splitlines()
        for statement in reversed(dead):
            lines[statement.lineno - 1 : statement.end_lineno] = []
        text = "\n".join(lines) + "\n"


def _unread(tree: ast.FunctionDef, scope: Mapping[str, Any]) -> Iterator[ast.stmt]:
    """Yield such assignments, in the order of the lines; the last statement of a block stays."""
    moves = {
        id(s.target)
        for s in ast.walk(tree)
        if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name)
    }
    reads = {
        n.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store) and id(n) not in moves
    }
    chosen = [
        statement
        for block in _blocks(tree)
        for statement in block
        if len(block) > 1 and _is_unread(statement, reads, scope)
    ]
    lines = [s.lineno for block in _blocks(tree) for s in block]
    yield from sorted((s for s in chosen if lines.count(s.lineno) == 1), key=lambda s: s.lineno)


def _blocks(tree: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield block


def _is_unread(statement: ast.stmt, reads: set[str], scope: Mapping[str, Any]) -> bool:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: Any = statement.targets[0]
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
    else:
        return False
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(part, ast.Name) and part.id not in reads for part in parts):
        return False
    return all(_is_pure(n, scope) for n in ast.walk(statement.value) if isinstance(n, ast.Call))


def _is_pure(call: ast.Call, scope: Mapping[str, Any]) -> bool:
    """Return True for a call that changes nothing."""
    place = call.func
    if isinstance(place, ast.Attribute):
        owner = scope.get(place.value.id) if isinstance(place.value, ast.Name) else None
        if unwrap(owner) is language:
            return place.attr in _PURE
        return place.attr in _METHODS
    return isinstance(place, ast.Name) and place.id in _BUILT_IN
