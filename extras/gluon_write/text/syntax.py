"""Read syntax trees: the arguments of a call, the names of a statement."""

from __future__ import annotations

import ast
from typing import Any, Iterator, Optional, Sequence

__all__ = [
    "assigned_in",
    "argument",
    "arguments",
    "calls_in",
    "first_of",
    "is_docstring",
    "is_new",
    "mentions",
    "names_in",
    "nodes_in",
    "operands_of",
    "parts_of",
    "reads",
    "sides_of",
    "stores",
]


def argument(call: ast.Call, index: int, name: str) -> Optional[ast.expr]:
    """Return an argument of a call by its index or its name; None where it is left out."""
    words = {word.arg: word.value for word in call.keywords}
    return call.args[index] if index < len(call.args) else words.get(name)


def operands_of(call: ast.Call) -> list[ast.expr]:
    """Return the two operands of a product; none where one is left out."""
    a, b = argument(call, 0, "a"), argument(call, 1, "b")
    return [a, b] if a is not None and b is not None else []


def arguments(call: ast.Call, names: Sequence[str]) -> dict[str, ast.expr]:
    """Return the arguments of a call by name, those by position by the names that these have."""
    return dict(zip(names, call.args)) | {w.arg: w.value for w in call.keywords if w.arg}


def calls_in(tree: ast.AST) -> list[ast.Call]:
    """Return the calls in a tree."""
    return [node for node in nodes_in(tree) if isinstance(node, ast.Call)]


def nodes_in(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of a tree in the order of `ast.walk`, which takes five times as long, without contexts of names."""
    nodes = [tree]
    for node in nodes:  # which grows
        parts = _PARTS.get(type(node))
        for part in _parts(type(node)) if parts is None else parts:
            value = getattr(node, part, None)
            if type(value) is list:
                nodes += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


_PARTS: dict[type, tuple[str, ...]] = {}


def _parts(kind: type) -> tuple[str, ...]:
    """Return the fields of a kind of node that may hold nodes, but for contexts."""
    if kind not in _PARTS:
        none = {"value"} if kind is ast.Constant else {"id", "attr", "arg", "ctx", "type_comment"}
        fields: tuple[str, ...] = getattr(kind, "_fields", ())
        _PARTS[kind] = tuple(part for part in fields if part not in none)
    return _PARTS[kind]


_NAMING: dict[type, tuple[str, ...]] = {}  # fields of a kind of node that may hold names


def names_in(node: ast.AST) -> list[ast.Name]:
    """Return the names in a tree, in no order; `ast.walk` takes several times as long."""
    names: list[ast.Name] = []
    todo: list[Any] = [node]
    while todo:
        node = todo.pop()
        kind = type(node)
        if kind is ast.Name:
            names.append(node)  # type: ignore[arg-type]
            continue
        parts = _NAMING.get(kind)
        if parts is None:
            parts = _NAMING[kind] = tuple(p for p in _parts(kind) if p not in ("op", "ops"))
        for part in parts:
            value = getattr(node, part, None)
            if type(value) is list:
                todo += value
            elif value is not None:
                todo.append(value)
    return names


def sides_of(
    node: ast.expr, orders: tuple[type, type] = (ast.Lt, ast.Gt)
) -> Optional[tuple[ast.expr, ast.expr]]:
    """Return the sides of `low < high` or `high > low`, the lower one first; None of other expressions.

    Args:
        orders: the comparison and its reverse.
    """
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], orders[0]):
        return left, right
    return (right, left) if isinstance(node.ops[0], orders[1]) else None


def is_docstring(statement: ast.stmt) -> bool:
    """Return True for a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def first_of(body: list[ast.stmt]) -> ast.stmt:
    """Return the first statement of a function's body behind its docstring, or the docstring alone."""
    return body[1] if len(body) > 1 and is_docstring(body[0]) else body[0]


def parts_of(node: ast.expr, kind: type[ast.operator]) -> Iterator[ast.expr]:
    """Yield what operators of a kind join, such as the terms of a sum, in their order."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, kind):
        yield from parts_of(node.left, kind)
        yield from parts_of(node.right, kind)
    else:
        yield node


def reads(node: Any) -> set[str]:
    """Return the names that a tree reads."""
    return {n.id for n in names_in(node) if isinstance(n.ctx, ast.Load)} | (
        {node.target.id}
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        else set()
    )


def stores(node: ast.AST) -> set[str]:
    """Return the names that a tree assigns."""
    return {n.id for n in names_in(node) if isinstance(n.ctx, ast.Store)}


def mentions(node: ast.AST) -> set[str]:
    """Return the names of a tree."""
    return {n.id for n in names_in(node)}


def is_new(name: str, loop: ast.For) -> bool:
    """Return True if each step assigns a name before it reads it."""
    if name in stores(loop.target):
        return True
    first = next((s for s in loop.body if name in mentions(s)), None)
    return isinstance(first, ast.Assign) and name in stores(first) and name not in reads(first)


def assigned_in(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of an assignment, each with its value: a starred tuple where that is a part of one."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        values: list[ast.expr] = [ast.Starred(value)] * len(target.elts)
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            values = value.elts
        for part, own in zip(target.elts, values):
            yield from assigned_in(part, own)
