"""Name the language otherwise in a ported file that has `gl` or `gluon` for something else."""

from __future__ import annotations

import ast
import io
import itertools
import re
import string
import tokenize
from types import MappingProxyType
from typing import Any, Collection, Iterator, Mapping

from gluon_write.porting.names import bound_by
from gluon_write.text.form import free_name
from gluon_write.text.syntax import nodes_in

__all__ = ["OURS", "Aliases", "taken_names"]

OURS = {"gluon": "import gluon_core as gluon", "gl": "from gluon_core import language as gl"}
_ALIASES = {"gluon": "gluon_core", "gl": "language"}


def taken_names(tree: ast.Module, kernels: Collection[ast.AST]) -> list[str]:
    """Return the language's names that a file has for something else, where its kernels see it.

    Args:
        kernels: functions, and calls that make them.
    """
    nodes = list(_outside(tree, {id(node) for node in kernels}))
    return [name for name in OURS if any(_names(node, name) for node in nodes)]


class Aliases:
    """Keep a file's own names of `OURS`, and give the language others.

    While the file is ported, its names are words of the same length, so that columns stay.

    Args:
        names: of `OURS` that the file has. taken: names in use; those that are chosen are added.
        outer: words in the file that gets functions of this one, whose names stay hidden.
    """

    def __init__(
        self,
        text: str,
        names: Collection[str],
        taken: set[str],
        outer: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        own = [name for name in names if name not in outer]
        used = {*taken, *re.findall(r"\w+", text)} if own else set()
        words = {name: _word(name, used) for name in own}
        self.aliases = {name: free_name(_ALIASES[name], taken) for name in own}
        self.names = {word: name for name, word in words.items()}
        self.words = {**outer, **words}
        taken |= {*words.values()}
        self.hidden = _replaced(text, self.words)  # the file with words in place of its names

    def shown(self, text: str) -> str:
        """Return a ported text with the file's names again."""
        return _replaced(text, {**self.names, **self.aliases})


def _word(name: str, taken: set[str]) -> str:
    """Return a free name that is as long as another, and take it."""
    letters = string.ascii_lowercase + string.digits + "_"
    ends = itertools.product(reversed(letters), repeat=len(name) - 1)
    word = next(w for w in (name[0] + "".join(end) for end in ends) if w not in taken)
    taken.add(word)
    return word


def _replaced(text: str, words: Mapping[str, str]) -> str:
    """Return a text with other names, whose imports still name the same modules and functions."""
    if not words:
        return text
    lines = text.splitlines(keepends=True)
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
    ]
    edits: list[tuple[int, int, int, str]] = []
    kind, binds = "", False  # of the import at hand, and whether its names are bound
    for before, token, after in zip([tokens[0], *tokens], tokens, [*tokens[1:], tokens[-1]]):
        new = token.type == tokenize.NEWLINE or token is tokens[0] or token.string == ";"
        starts = (
            before.type == tokenize.NEWLINE or before.string in (";", ":") or token is tokens[0]
        )
        if starts and token.string in ("import", "from"):
            kind, binds = token.string, token.string == "import"
        elif new:
            kind = ""
        elif kind == "from" and token.string == "import":
            binds = True
        if token.type != tokenize.NAME or token.string not in words:
            continue
        (row, first), (_, last), word = token.start, token.end, words[token.string]
        if kind and before.string == "as":
            named = tokens[tokens.index(before) - 1]
            if named.string == word and named.end[0] == row:
                first, word = named.end[1], ""
        elif kind and (not binds or after.string == "as" or before.string == "."):
            continue
        elif kind and after.string != ".":
            word = f"{token.string} as {word}"
        edits.append((row - 1, first, last, word))
    for row, first, last, word in reversed(edits):
        lines[row] = lines[row][:first] + word + lines[row][last:]
    return "".join(lines)


def _names(node: ast.AST, name: str) -> bool:
    """Return True for a node that reads or binds a name."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any(bound_by(alias) == name for alias in node.names)
    own = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "name", None)
    return own == name and hasattr(node, "lineno") and not isinstance(node, ast.alias)


def _outside(node: ast.AST, kernels: Collection[int]) -> Iterator[Any]:
    """Yield the nodes of a file but for those within functions without a kernel, whose variables are their own.

    Args:
        kernels: ids of kernels, and of calls that make them.
    """
    yield node
    own = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    if not own or any(id(part) in kernels for part in nodes_in(node)):
        for child in ast.iter_child_nodes(node):
            yield from _outside(child, kernels)
