"""Leave out the branches of a text that conditions of plain constants do not take.

    if 2 == 2:
        score = gl.where(inside, score, 0.0)

becomes the second line.
"""

from __future__ import annotations

import ast
from typing import Any, Iterator, Optional

from gluon_write.text.form import edited
from gluon_write.text.syntax import nodes_in

__all__ = ["with_taken_branches"]

_PLAIN = (
    ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.cmpop, ast.boolop, ast.unaryop, ast.operator,
)  # fmt: skip


def with_taken_branches(text: str) -> str:
    """Return statements without the conditions that are plain constants."""
    while True:
        tree = ast.parse(text)
        chosen = [
            node
            for node in nodes_in(tree)
            if isinstance(node, ast.IfExp) and _holds(node.test) is not None
        ]
        if chosen:
            node = chosen[0]
            one = node.body if _holds(node.test) else node.orelse
            text = edited(
                text,
                [
                    (
                        node,
                        f"({ast.unparse(one)})" if isinstance(one, ast.IfExp) else ast.unparse(one),
                    )
                ],
            )
            continue
        for statement, alone in _conditions(tree):
            new = _without(statement, text.splitlines(), alone)
            if new is not None:
                text = "\n".join(new) + "\n"
                break
        else:
            return text


def _holds(test: ast.expr) -> Optional[bool]:
    """Return the value of a condition of plain constants, None of others."""
    if not all(isinstance(node, _PLAIN) for node in nodes_in(test)):
        return None
    try:
        return bool(
            eval(compile(ast.Expression(test), "<condition>", "eval"), {"__builtins__": {}})
        )
    except (TypeError, ValueError, ArithmeticError):
        return None


def _conditions(tree: ast.Module) -> Iterator[tuple[ast.If, bool]]:
    """Yield the first `if` of each chain, and whether it is alone in its block."""
    for node in nodes_in(tree):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if not isinstance(block, list) or _is_elif(node, block):
                continue
            for statement in block:
                if isinstance(statement, ast.If):
                    yield statement, len(block) == 1 and not isinstance(node, ast.Module)


def _is_elif(node: Any, block: list[Any]) -> bool:
    """Return True for the block of an `elif`, which begins where its `if` does."""
    chain = isinstance(node, ast.If) and block is node.orelse and len(block) == 1
    return chain and isinstance(block[0], ast.If) and block[0].col_offset == node.col_offset


def _without(statement: ast.If, lines: list[str], alone: bool) -> Optional[list[str]]:
    """Return the lines without the branches of a chain that are not taken; None where all may be."""
    parts: list[tuple[str, list[str]]] = []
    node, changed = statement, False
    while True:
        if node.body[0].lineno == node.test.end_lineno:  # on the line of its condition
            return None
        holds = _holds(node.test)
        changed |= holds is not None
        body = lines[node.test.end_lineno or node.test.lineno : node.body[-1].end_lineno]
        if holds is None:
            rows = lines[node.test.lineno - 1 : node.test.end_lineno]
            parts.append(("\n".join(rows).strip().removeprefix("el").removeprefix("if"), body))
        elif holds:
            parts.append(("", body))
        if holds or not node.orelse:
            break
        if not _is_elif(node, node.orelse):
            first = node.body[-1].end_lineno or 0
            while not lines[first].lstrip().startswith("else"):
                first += 1
            if node.orelse[0].lineno == first + 1:
                return None
            parts.append(("", lines[first + 1 : node.orelse[-1].end_lineno]))
            break
        node = node.orelse[0]  # type: ignore[assignment]
    if not changed:
        return None
    indent = " " * statement.col_offset
    new: list[str] = []
    for number, (test, body) in enumerate(parts):
        if test:
            new += [f"{indent}{'elif' if number else 'if'}{test}", *body]
        elif number:
            new += [f"{indent}else:", *body]
        else:
            header = next(line for line in body if line.strip())
            size = len(header) - len(header.lstrip()) - len(indent)
            new += [line[size:] if line.strip() else line for line in body]
    if not new and alone:
        new = [f"{indent}pass"]
    return [*lines[: statement.lineno - 1], *new, *lines[statement.end_lineno :]]
