"""Tell the rank of a kernel's tensors, where its text shows it."""

from __future__ import annotations

import ast
from typing import Callable, Optional, Sequence

__all__ = ["Ranks"]

_SHAPED = {"zeros": 0, "full": 0, "reshape": 1, "view": 1, "broadcast_to": 1}
_SAME = frozenset("to cast trans permute dot load where exp exp2 sqrt abs maximum minimum".split())


class Ranks:
    """Follow ranks through the assignments of a function.

    Args:
        jit: the function. language: returns the name that an expression has in Triton's language,
            None for others.
    """

    def __init__(self, jit: ast.FunctionDef, language: Callable[[ast.AST], Optional[str]]):
        self.language = language
        self.names: dict[str, dict[int, int]] = {}  # name -> its ranks, by line of an assignment
        before: dict[str, dict[int, int]] = {"": {}}
        while before != self.names:
            before = {name: dict(ranks) for name, ranks in self.names.items()}
            for node in ast.walk(jit):
                if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for target in targets:
                        if isinstance(target, ast.Name) and node.value is not None:
                            known = self.of(node.value)
                            if known is not None:
                                own = self.names.setdefault(target.id, {})
                                if isinstance(node, ast.AugAssign):
                                    known = max(known, self.of(target) or 0)
                                own[node.lineno] = max(known, own.get(node.lineno, 0))

    def of(self, node: ast.expr) -> Optional[int]:
        """Return the rank of an expression, None where it is unknown."""
        if isinstance(node, ast.Name):
            ranks = self.names.get(node.id, {})
            earlier = [line for line in ranks if line < node.lineno]
            return ranks[max(earlier)] if earlier else max(ranks.values(), default=None)
        if isinstance(node, ast.Constant):
            return 0
        if isinstance(node, ast.UnaryOp):
            return self.of(node.operand)
        if isinstance(node, ast.BinOp):
            return self._largest([node.left, node.right])
        if isinstance(node, ast.Compare):
            return self._largest([node.left, *node.comparators])
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            sliced = all(isinstance(p, ast.Slice) or _is_none(p) for p in parts)
            return len(parts) if sliced else None
        if isinstance(node, ast.Attribute):
            return self.of(node.value) if node.attr == "T" else None
        return self._of_call(node) if isinstance(node, ast.Call) else None

    def _largest(self, nodes: Sequence[ast.expr]) -> Optional[int]:
        known = [rank for rank in map(self.of, nodes) if rank is not None]
        return max(known, default=None)

    def _of_call(self, node: ast.Call) -> Optional[int]:
        name = self.language(node.func)
        args = list(node.args)
        if name is None and isinstance(node.func, ast.Attribute):
            name, args = node.func.attr, [node.func.value, *args]
        if name == "arange":
            return 1
        if name in _SHAPED and len(args) > _SHAPED[name]:
            shape = args[_SHAPED[name]]
            if isinstance(shape, (ast.List, ast.Tuple)):
                return len(shape.elts)
            return len(args) - 1 if _SHAPED[name] and len(args) > 2 else None
        return self._largest(args) if name in _SAME else None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
