"""Constant expressions: PTX ISA 4.5.5."""

from __future__ import annotations

import ast
import re
from typing import Any, Callable

__all__ = ["evaluated"]

_UNSIGNED = re.compile(r"\b(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U\b")
_OCTAL = re.compile(r"(?<![\w.])0([0-7]+)(?![\w.])")
_CAST = re.compile(r"\(\s*\.[us]64\s*\)")


def _quotient(a: Any, b: Any) -> Any:
    """Divide integers toward zero, as C does."""
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    whole = abs(a) // abs(b)
    return whole if (a < 0) == (b < 0) else -whole


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: _quotient, ast.Mod: lambda a, b: a - b * _quotient(a, b),
    ast.LShift: lambda a, b: a << b, ast.RShift: lambda a, b: a >> b, ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b, ast.BitXor: lambda a, b: a ^ b,
}  # fmt: skip
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: lambda a: -a, ast.UAdd: lambda a: a, ast.Invert: lambda a: ~a
}  # fmt: skip
_ORDER: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: lambda a, b: a < b, ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b, ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b,
}  # fmt: skip


def evaluated(text: str) -> Any:
    """Return the value of an expression.

    Raises:
        ValueError, SyntaxError, ZeroDivisionError, RecursionError: it is none.
    """
    plain = _CAST.sub("", _OCTAL.sub(r"0o\1", _UNSIGNED.sub(r"\1", text)))
    plain = re.sub(r"!(?!=)", " await ", plain)  # binds as tightly as C's `!`, other than `not`
    plain = plain.replace("&&", " and ").replace("||", " or ")
    return _value(ast.parse(_choices(plain).strip(), mode="eval").body)


def _choices(text: str) -> str:
    """Write `a ? b : c` as Python does."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):  # what is in parentheses first
        if letter == "(":
            depth += 1
            if depth == 1:
                parts.append(text[start : place + 1])
                start = place + 1
        elif letter == ")":
            depth -= 1
            if depth == 0:
                parts += [_choices(text[start:place]), ")"]
                start = place + 1
    parts.append(text[start:])
    depth, level, first, second = 0, 0, -1, -1
    whole = "".join(parts)
    for place, letter in enumerate(whole):
        depth += (letter == "(") - (letter == ")")
        if depth:
            continue
        if letter == "?":
            level += 1
            first = place if first < 0 else first
        elif letter == ":" and level:
            level -= 1
            if not level:
                second = place
                break
    if first < 0 or second < 0:
        return whole
    then, other = _choices(whole[first + 1 : second]), _choices(whole[second + 1 :])
    return f"(({then}) if ({whole[:first]}) else ({other}))"


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.Await):
        return int(not _value(node.value))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _ORDER:
        return int(_ORDER[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(one)) for one in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.IfExp):
        return _value(node.body) if _value(node.test) else _value(node.orelse)
    raise ValueError("no constant expression")
