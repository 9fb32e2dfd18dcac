"""Tell which names of a file's kernels are block pointers, and which are tensor descriptors."""

from __future__ import annotations

import ast
from typing import Callable, Optional, Sequence

from gluon_write.text.syntax import arguments, nodes_in

__all__ = ["BLOCK", "TILES", "Kinds"]

BLOCK, TILES = "block", "tiles"
_MAKERS = {"make_block_ptr": BLOCK, "advance": BLOCK, "make_tensor_descriptor": TILES}
_METHODS = ("load", "store", "gather", "scatter")


class Kinds:
    """Follow block pointers and descriptors through assignments, calls and returns.

    Args:
        jits: the functions of a file. language: returns the name that an expression has in Triton's
            language, None for others.
    """

    def __init__(
        self,
        jits: Sequence[ast.FunctionDef],
        language: Callable[[ast.AST], Optional[str]],
    ):
        self.jits = {jit.name: jit for jit in jits}
        self.language = language
        self.names: dict[tuple[str, str], str] = {}  # of a function, and its variable
        self.returns: dict[str, list[Optional[str]]] = {}
        changed = True
        while changed:
            before = len(self.names), sum(map(len, self.returns.values()))
            for jit in jits:
                for node in nodes_in(jit):
                    self._take(jit.name, node)
            changed = before != (len(self.names), sum(map(len, self.returns.values())))

    def of(self, jit: str, node: ast.AST) -> Optional[str]:
        """Return the kind of an expression's value: `BLOCK`, `TILES`, or None."""
        if isinstance(node, ast.Name):
            return self.names.get((jit, node.id))
        if isinstance(node, ast.IfExp):
            return self.of(jit, node.body) or self.of(jit, node.orelse)
        if isinstance(node, ast.Call):
            kind = _MAKERS.get(self.language(node.func) or "")
            if kind is not None:
                return kind
            if isinstance(node.func, ast.Name):
                kinds = self.returns.get(node.func.id, [])
                return kinds[0] if len(kinds) == 1 else None
            if isinstance(node.func, ast.Attribute) and node.func.attr == "advance":
                return self.of(jit, node.func.value)
        return None

    def described(self, jit: ast.FunctionDef) -> list[str]:
        """Return the parameters of a kernel that are descriptors."""
        names = [arg.arg for arg in (*jit.args.posonlyargs, *jit.args.args, *jit.args.kwonlyargs)]
        return [name for name in names if self.names.get((jit.name, name)) == TILES]

    def _note(self, jit: str, target: ast.AST, kind: Optional[str]) -> None:
        if kind is not None and isinstance(target, ast.Name):
            self.names.setdefault((jit, target.id), kind)

    def _take(self, jit: str, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assigned(jit, target, node.value)
        elif isinstance(node, ast.Return) and node.value is not None:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            kinds = [self.of(jit, value) for value in values]
            if any(kinds):
                self.returns[jit] = kinds
        elif isinstance(node, ast.Call):
            self._called(jit, node)

    def _assigned(self, jit: str, target: ast.expr, value: ast.expr) -> None:
        self._note(jit, target, self.of(jit, value))
        if not isinstance(target, ast.Tuple):
            return
        kinds: Sequence[Optional[str]] = []
        if isinstance(value, ast.Tuple):
            kinds = [self.of(jit, part) for part in value.elts]
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            kinds = self.returns.get(value.func.id, [])
        for part, kind in zip(target.elts, kinds):
            self._note(jit, part, kind)

    def _called(self, jit: str, node: ast.Call) -> None:
        """Pass kinds to a function's parameters and back, and find descriptors by their methods."""
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            first = node.args[0] if node.args else None
            place = isinstance(first, (ast.List, ast.Tuple)) and node.func.attr in _METHODS
            if place or node.func.attr == "load" and self.language(node.func) is None:
                self._note(jit, node.func.value, TILES)
        called = self.jits.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if called is None:
            return
        names = [arg.arg for arg in (*called.args.posonlyargs, *called.args.args)]
        passed = arguments(node, names)
        for name, value in passed.items():
            kind = self.of(jit, value)
            if kind is not None:
                self.names.setdefault((called.name, name), kind)
            self._note(jit, value, self.names.get((called.name, name)))
