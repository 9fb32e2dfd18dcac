"""A function's text and tree, for passes that change the form of its loops."""

from __future__ import annotations

import ast
from typing import Any

from gluon_core._triton import unwrap

__all__ = ["Form", "bounds_of", "free_name"]


class Form:
    """Hold the source of a function, and answer by its nodes.

    Args:
        fn: a `@gluon.jit` function.
    """

    def __init__(self, fn: Any):
        self.source: str = fn.src
        self.tree = ast.parse(self.source).body[0]
        self.scope = fn.get_capture_scope()

    def called(self, node: Any) -> Any:
        """Return the function that a call names, None where it is computed."""
        if not isinstance(node, ast.Call):
            return None
        parts: list[str] = []
        place: Any = node.func
        while isinstance(place, ast.Attribute):
            parts.insert(0, place.attr)
            place = place.value
        value = self.scope.get(place.id) if isinstance(place, ast.Name) else None
        for part in parts:
            value = getattr(value, part, None)
        return unwrap(value)

    def text_of(self, node: ast.AST) -> str:
        """Return the text of a node."""
        return ast.get_source_segment(self.source, node) or ast.unparse(node)


def bounds_of(texts: list[str]) -> tuple[str, str, str]:
    """Return first, last and step of the arguments of a range."""
    first = "0" if len(texts) == 1 else texts[0]
    return first, texts[min(1, len(texts) - 1)], texts[2] if len(texts) > 2 else "1"


def free_name(word: str, taken: set[str]) -> str:
    """Return a name that no other has, and take it."""
    name, number = word, 2
    while name in taken:
        name, number = f"{word}_{number}", number + 1
    taken.add(name)
    return name
