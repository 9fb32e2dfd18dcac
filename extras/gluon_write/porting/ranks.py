"""Tell the rank of a kernel's tensors, where its text shows it."""

from __future__ import annotations

import ast
from functools import partial
from typing import Callable, Iterator, Mapping, Optional, Sequence

from gluon_write.porting.names import Names, bound_in
from gluon_write.text.syntax import arguments, nodes_in

__all__ = ["Ranks", "ranks_of_parameters"]

_SHAPED = {"zeros": 0, "full": 0, "reshape": 1, "view": 1, "broadcast_to": 1}
_SAME = frozenset("to cast trans permute dot load where exp exp2 sqrt abs maximum minimum".split())


class Ranks:
    """Follow ranks through the assignments of a function.

    Args:
        jit: the function. language: returns the name that an expression has in Triton's language,
            None for others. parameters: ranks of those that are known.
    """

    def __init__(
        self,
        jit: ast.FunctionDef,
        language: Callable[[ast.AST], Optional[str]],
        parameters: Optional[Mapping[str, int]] = None,
    ):
        self.language = language
        # name -> its ranks, by line of an assignment
        self.names = {name: {0: rank} for name, rank in (parameters or {}).items()}
        before: dict[str, dict[int, int]] = {"": {}}
        while before != self.names:
            before = {name: dict(ranks) for name, ranks in self.names.items()}
            for node in nodes_in(jit):
                if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                    self._assign(node)

    def _assign(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
        """Note the ranks of the names of an assignment."""
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name, value in _pairs(target, node.value):
                known = self.of(value)
                if known is None:
                    continue
                if isinstance(node, ast.AugAssign):
                    known = max(known, self.of(name) or 0)
                own = self.names.setdefault(name.id, {})
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


def ranks_of_parameters(jits: Sequence[ast.FunctionDef], names: Names) -> dict[str, dict[str, int]]:
    """Return the ranks that all calls in a file pass to its functions: by function, and parameter."""
    functions = {jit.name: jit for jit in jits}
    languages = [partial(names.language, bound=bound_in(jit)) for jit in jits]
    known: dict[str, dict[str, int]] = {}
    for _ in functions:  # a rank passes through each function once
        passed: dict[tuple[str, str], set[int]] = {}
        for jit, language in zip(jits, languages):
            calls = [
                (node, functions[node.func.id])
                for node in nodes_in(jit)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in functions
            ]
            ranks = Ranks(jit, language, known.get(jit.name)) if calls else None
            for call, called in calls:
                own = [arg.arg for arg in (*called.args.posonlyargs, *called.args.args)]
                for name, value in arguments(call, own).items():
                    rank = ranks.of(value) if ranks is not None else None
                    if rank is not None:
                        passed.setdefault((called.name, name), set()).add(rank)
        before, known = known, {}
        for (function, name), several in passed.items():
            if len(several) == 1:
                known.setdefault(function, {})[name] = min(several)
        if before == known:
            break
    return known


def _pairs(target: ast.expr, value: Optional[ast.expr]) -> Iterator[tuple[ast.Name, ast.expr]]:
    """Yield the names that an assignment gives values, with them."""
    if isinstance(target, ast.Name) and value is not None:
        yield target, value
    elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for part, own in zip(target.elts, value.elts):
            yield from _pairs(part, own)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
