"""Break long lines of a written function where Black would: at arguments, or in front of operators."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Collection, Iterator, NamedTuple, Optional

from gluon_write.text.syntax import nodes_in

__all__ = ["broken"]

_WIDTH = 100  # of a line
_INDENT = " " * 4
_PLAIN = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)
_OPERATORS = (  # those that bind least first
    ("if", "else"), ("or",), ("and",), ("<", ">", "==", "!=", "<=", ">=", "in", "is"), ("|",), ("^",),
    ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "//", "%", "@"),
)  # fmt: skip
_OPEN, _CLOSED = "([{", ")]}"


class _Mark(NamedTuple):
    """Hold a token outside of brackets: its text and where it begins; one stands for a pair of brackets."""

    text: str
    start: int
    end: int
    binary: bool  # something precedes it that it can join to what follows


def broken(text: str, kept: Collection[str]) -> str:
    """Return a function's text without long lines, but for those that are kept.

    Args:
        kept: lines of the user's, without the spaces around them.
    """
    lines = text.splitlines()
    statements = [node for node in nodes_in(ast.parse(text)) if isinstance(node, _PLAIN)]
    for statement in sorted(statements, key=lambda s: s.lineno, reverse=True):
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        held = lines[first:last]
        short = all(len(line) <= _WIDTH for line in held)
        if short and len(held) == 1 or all(line.strip() in kept for line in held):
            continue
        whole = _one_line(held)
        if whole is not None:
            lines[first:last] = _of_statement(whole, " " * statement.col_offset)
    changed = "\n".join(lines) + "\n"
    same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text))
    return changed if same else text


def _one_line(lines: list[str]) -> Optional[str]:
    """Return a statement in one line; None where a comment or a string of several lines is in it."""
    tokens = list(tokenize.generate_tokens(io.StringIO("\n".join(lines).strip()).readline))
    if any(
        t.type == tokenize.COMMENT or t.start[0] != t.end[0] and t.string.strip() for t in tokens
    ):
        return None
    whole = ""
    for line in (line.strip() for line in lines):
        if whole[-1:] in _OPEN or line[:1] in _CLOSED or not whole:
            whole = whole.removesuffix(",") if line[:1] in _CLOSED and whole else whole
            whole += line
        else:
            whole += f" {line}"
    return whole if _parses(whole) else None


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _of_statement(text: str, indent: str) -> list[str]:
    """Return the lines of a statement."""
    node = ast.parse(text).body[0]
    value = getattr(node, "value", None)
    if value is None or len(indent + text) <= _WIDTH:
        return [indent + text]
    before = text.encode()[: value.col_offset].decode()
    while before[-1:] == "(":
        before = before[:-1]
    expression = text[len(before) :]
    if before and _lowest(expression) is not None:
        return [f"{indent}{before}(", *_within(expression, indent + _INDENT), f"{indent})"]
    return _of_expression(before, expression, indent, "")


def _of_expression(before: str, text: str, indent: str, after: str) -> list[str]:
    """Return the lines of an expression between words that stay with it."""
    if len(f"{indent}{before}{text}{after}") <= _WIDTH:
        return [f"{indent}{before}{text}{after}"]
    parts = _operands(text)
    if len(parts) > 1:
        lines = []
        for number, part in enumerate(parts):
            head, _, rest = ("", "", part) if number == 0 else part.partition(" ")
            head = before if number == 0 else f"{head} "
            end = after if number == len(parts) - 1 else ""
            lines += _of_expression(head, rest, indent, end)
        return lines
    marks = list(_marks(text))
    if len(marks) < 1 or text[-1:] not in _CLOSED or marks[-1].text not in _OPEN:
        return [f"{indent}{before}{text}{after}"]
    start = marks[-1].start + 1
    inside = text[start:-1].strip()
    if not inside:
        return [f"{indent}{before}{text}{after}"]
    body = _within(inside, indent + _INDENT)
    return [f"{indent}{before}{text[:start]}", *body, f"{indent}{text[-1]}{after}"]


def _within(text: str, indent: str) -> list[str]:
    """Return the lines between brackets, in one line where they fit."""
    parts = _listed(text)
    if len(indent + text) <= _WIDTH or len(parts) == 1:
        return _of_argument(text, indent, "")
    return [line for part in parts for line in _of_argument(part, indent, ",")]


def _of_argument(text: str, indent: str, after: str) -> list[str]:
    """Return the lines of an argument, which may have a name."""
    name, sign, value = text.partition("=")
    if sign and name.isidentifier() and value[:1] != "=":
        return _of_expression(f"{name}=", value, indent, after)
    return _of_expression("", text, indent, after)


def _marks(text: str) -> Iterator[_Mark]:
    """Yield the tokens of an expression outside of brackets; a pair of brackets is one."""
    depth, before, begun = 0, "", _Mark("", 0, 0, False)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        word = token.string
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.NL):
            continue
        start, end = token.start[1], token.end[1]
        if word in _CLOSED:
            depth -= 1
            if depth == 0:
                yield begun._replace(end=end)
        elif word in _OPEN:
            if depth == 0:
                begun = _Mark(word, start, end, False)
            depth += 1
        elif depth == 0:
            yield _Mark(word, start, end, _ends_operand(before))
        before = word


def _ends_operand(word: str) -> bool:
    """Return True if a token can be the last one of an operand: a sign behind it is an operator."""
    words = {one for group in _OPERATORS for one in group} | {"not", "lambda", ""}
    return word not in words and (word[-1:].isalnum() or word[-1:] in "_)]}'\".")


def _lowest(text: str) -> Optional[tuple[str, ...]]:
    """Return the operators that an expression is split at, None without any."""
    marks = list(_marks(text))
    if any(mark.text == "lambda" for mark in marks):
        return None
    words = {mark.text for mark in marks if mark.binary}
    return next((group for group in _OPERATORS if words & {*group}), None)


def _operands(text: str) -> list[str]:
    """Return the operands of an expression, each but the first behind its operator."""
    lowest = _lowest(text)
    if lowest is None or len(_listed(text)) > 1:
        return [text]
    starts = [mark.start for mark in _marks(text) if mark.binary and mark.text in lowest]
    ends = [*starts[1:], len(text)]
    return [text[: starts[0]].strip(), *(text[a:b].strip() for a, b in zip(starts, ends))]


def _listed(text: str) -> list[str]:
    """Return the parts between commas."""
    commas = [mark.start for mark in _marks(text) if mark.text == ","]
    starts, ends = [0, *(comma + 1 for comma in commas)], [*commas, len(text)]
    return [part for a, b in zip(starts, ends) if (part := text[a:b].strip())]
