"""Break long lines of a written function where Black would: at arguments, or in front of operators. Parentheses
around a call, a name, a product or a whole argument go."""

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
        if all(line.strip() in kept for line in held):
            continue
        whole = _one_line(held)
        plain = None if whole is None else _plain(whole)
        short = all(len(line) <= _WIDTH for line in held)
        if plain is not None and not (short and len(held) == 1 and plain == whole):
            lines[first:last] = _of_statement(plain, " " * statement.col_offset)
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


def _plain(text: str) -> str:
    """Return a statement in one line without idle parentheses around calls, names, products and whole arguments."""
    meaning = ast.dump(ast.parse(text))
    start = 0
    while (start := text.find("(", start)) >= 0:
        end = _idle_pair(text, start)
        shorter = text if end is None else f"{text[:start]}{text[start + 1 : end]}{text[end + 1 :]}"
        if shorter != text and _parses(shorter) and ast.dump(ast.parse(shorter)) == meaning:
            text = shorter
        else:
            start += 1
    return text


def _idle_pair(text: str, start: int) -> Optional[int]:
    """Return where the parenthesis at `start` is closed if it holds a call, a name, a product or a whole argument."""
    before = text[:start].rstrip()
    if text[start - 1 : start].isalnum() or before[-1:] in ("_", *_CLOSED, "'", '"'):
        return None
    pair = next(_marks(text[start:]), None)
    if pair is None or pair.text != "(":
        return None
    end = start + pair.end - 1
    inside = text[start + 1 : end].strip()
    node = ast.parse(inside, mode="eval").body if _parses(inside) and "\n" not in inside else None
    whole = before[-1:] in (*_OPEN, ",", "=") and text[end + 1 :].lstrip()[:1] in (
        "",
        ",",
        *_CLOSED,
    )
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return end
    whole |= isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    idle = whole and isinstance(node, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare))
    return end if idle else None


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
    pair = _split_pair(text, _WIDTH - len(indent + before), _WIDTH - len(indent + after))
    if pair is None:
        return [f"{indent}{before}{text}{after}"]
    begin, close = pair
    body = _within(text[begin:close].strip(), indent + _INDENT)
    return [f"{indent}{before}{text[:begin]}", *body, f"{indent}{text[close:]}{after}"]


def _split_pair(text: str, first: int, last: int) -> Optional[tuple[int, int]]:
    """Return where the inside of the brackets begins and ends at which lines are split; None without any.

    The last call with room in front of it, not the index of `convert_layout(...)[None, :]`; else the last pair.

    Args:
        first: the width of the line in front. last: the width of the line behind.
    """
    pairs = [mark for mark in _marks(text) if mark.text in _OPEN]
    if not pairs or pairs[-1].end != len(text) or not text[pairs[-1].start + 1 : -1].strip():
        return None
    fitting = (
        mark
        for mark in reversed(pairs)
        if mark.text == "("
        and mark.end - mark.start > 2
        and mark.start < first
        and len(text) - mark.end < last
    )
    chosen = next(fitting, pairs[-1])
    return chosen.start + 1, chosen.end - 1


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
