"""Expressions of the assembler: symbols and integers of 64 bits, with LLVM's operators and their order."""

from __future__ import annotations

import re
from typing import Callable

from gluon_core.errors import BackendError

__all__ = ["evaluate", "symbols_of"]

_TOKEN = re.compile(
    r'\s*(?:(?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)(?![\w$])'
    r'|(?P<symbol>"[^"]+"|[A-Za-z_.$][\w.$]*)'
    r"|(?P<operator><<|>>|==|!=|<=|>=|&&|\|\||[-+*/%&|^~!<>(),]))"
)  # fmt: skip
_BITS = (1 << 64) - 1

# operator -> its precedence, and its function of two integers
_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a or b))),
    "&&": (2, lambda a, b: int(bool(a and b))),
    "==": (3, lambda a, b: -int(a == b)),
    "!=": (3, lambda a, b: -int(a != b)),
    "<": (3, lambda a, b: -int(a < b)),
    "<=": (3, lambda a, b: -int(a <= b)),
    ">": (3, lambda a, b: -int(a > b)),
    ">=": (3, lambda a, b: -int(a >= b)),
    "+": (4, lambda a, b: a + b),
    "-": (4, lambda a, b: a - b),
    "|": (5, lambda a, b: a | b),
    "^": (5, lambda a, b: a ^ b),
    "&": (5, lambda a, b: a & b),
    "*": (6, lambda a, b: a * b),
    "/": (6, lambda a, b: int(a / b)),
    "%": (6, lambda a, b: a - b * int(a / b)),
    "<<": (6, lambda a, b: a << b),
    ">>": (6, lambda a, b: (a & _BITS) >> b),
}
_UNARY: dict[str, Callable[[int], int]] = {
    "-": lambda a: -a,
    "+": lambda a: a,
    "~": lambda a: ~a,
    "!": lambda a: int(not a),
}


def _any_of(*values: int) -> int:
    result = 0
    for value in values:
        result |= value
    return result


def _total_vgprs(agprs: int, vgprs: int) -> int:
    """Return the number of registers: accumulation ones start at a multiple of four (gfx90a and later)."""
    return -(-vgprs // 4) * 4 + agprs if agprs else vgprs


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "max": max,
    "or": _any_of,
    "alignto": lambda value, to: -(-value // to) * to,
    "totalnumvgprs": _total_vgprs,
}


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise BackendError(f"not an expression: {text!r}")
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind]))
        position = match.end()
    return tokens


def symbols_of(text: str) -> list[str]:
    """Return the symbols that an expression names.

    Raises:
        BackendError: the text is no expression.
    """
    return [word for kind, word in _tokens(text) if kind == "symbol"]


def evaluate(text: str, value_of: Callable[[str], int]) -> int:
    """Return the value of an expression, as an integer that is not reduced to any width.

    Args:
        value_of: the value of a symbol; it raises KeyError for one that is not defined.

    Raises:
        BackendError: the text is no expression, or names a symbol or function that is not defined.
    """
    tokens = _tokens(text)
    place = 0

    def peek() -> str:
        return tokens[place][1] if place < len(tokens) else ""

    def take() -> tuple[str, str]:
        nonlocal place
        if place == len(tokens):
            raise BackendError(f"an expression ends too early: {text!r}")
        place += 1
        return tokens[place - 1]

    def expect(word: str) -> None:
        if take()[1] != word:
            raise BackendError(f"not an expression: {text!r}", expected=word)

    def primary() -> int:
        kind, word = take()
        if kind == "number":
            return int(word, 0) if not re.match(r"0\d", word) else int(word, 8)
        if word in _UNARY:
            return _UNARY[word](primary())
        if word == "(":
            value = binary(1)
            expect(")")
            return value
        if kind != "symbol":
            raise BackendError(f"not an expression: {text!r}")
        if peek() == "(":
            return call(word)
        try:
            return value_of(word)
        except KeyError:
            raise BackendError(f"the symbol {word} is not defined") from None

    def call(name: str) -> int:
        if name not in _FUNCTIONS:
            raise BackendError(f"the function {name} of the assembler is not known")
        expect("(")
        arguments = [binary(1)]
        while peek() == ",":
            take()
            arguments.append(binary(1))
        expect(")")
        return _FUNCTIONS[name](*arguments)

    def binary(least: int) -> int:
        left = primary()
        while peek() in _BINARY and _BINARY[peek()][0] >= least:
            strength, function = _BINARY[take()[1]]
            try:
                left = function(left, binary(strength + 1))
            except (ZeroDivisionError, ValueError) as error:
                raise BackendError(f"{error} in {text!r}") from None
        return left

    value = binary(1)
    if place != len(tokens):
        raise BackendError(f"not an expression: {text!r}")
    return value
