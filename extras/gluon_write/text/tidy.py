"""Name index vectors that a text computes several times, or in a long line, and break lines that are longer.

    gl.store(out + (start + gl.arange(0, N, layout=layout)), x, mask=(start + gl.arange(0, N, layout=layout)) < n)

becomes

    columns_2 = start + gl.arange(0, N, layout=layout)
    gl.store(out + columns_2, x, mask=columns_2 < n)

where `columns` is the name that the user's source has for them.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from functools import lru_cache
from typing import Any, Iterable, Iterator, Mapping, Sequence

from gluon_write.text.breaking import broken
from gluon_write.text.form import free_name
from gluon_write.text.syntax import mentions, nodes_in, reads, stores

__all__ = ["tidied", "tidied_tree"]

_MOST_OPERATORS = 8  # of a statement in one line
_FREE = ("arange", "program_id", "num_programs")
_PLAIN = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)


@lru_cache(maxsize=1 << 6)  # a file's variants are compared, and written again
def tidied(text: str, before: str, space: str) -> str:
    """Return a function's text with names for repeated vectors; lines that are the user's stay as they are.

    Args:
        before: the text that the function had. space: name of the language.
    """
    named = _Text(text, space).text()
    named = _renumbered(named, before)
    return broken(named, {line.strip() for line in before.splitlines()})


def tidied_tree(function: ast.FunctionDef, space: str, taken: Iterable[str]) -> None:
    """Name a tree's vectors as `tidied` does: both compile to the same instructions in the same order.

    Args:
        taken: names that are not free.
    """
    _Tree(function, space, taken).change()


class _Vectors:
    """Name the vectors of one function."""

    def __init__(self, space: str):
        self.space = space
        self.taken: set[str] = set()
        self.bases: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def edits_of(
        self, tree: ast.FunctionDef
    ) -> list[tuple[ast.stmt, dict[ast.expr, str], list[str]]]:
        """Return statements, the names of vectors in them, and the definitions that go before them."""
        self.counts = Counter(
            ast.unparse(node)
            for statement in nodes_in(tree)
            if isinstance(statement, _PLAIN)
            for node in nodes_in(statement)
            if self._is_vector(node) and node is not getattr(statement, "value", None)
        )
        edits: list[tuple[ast.stmt, dict[ast.expr, str], list[str]]] = []
        self._block(tree.body, edits, {})
        return edits

    def named(self, tree: ast.AST) -> dict[str, str]:
        """Return the names that a function has for values: text without layouts -> name."""
        return {
            _plain(node.value): node.targets[0].id
            for node in nodes_in(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    def dead(self, tree: ast.FunctionDef) -> list[ast.stmt]:
        """Return the statements that make vectors, or layouts, that nothing reads."""
        read = {
            n.id for n in nodes_in(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        dead: list[ast.stmt] = []
        for block in _blocks(tree):
            unread = [
                s
                for s in block
                if isinstance(s, (ast.Assign, ast.AnnAssign))
                and s.value is not None
                and not stores(s) & read
                and (self._pure(s.value) and self._has_range(s.value) or _is_layout(s))
                and not self._kept(tree, stores(s))
            ]
            dead += unread if len(unread) < len(block) else []
        names = {name for statement in dead for name in stores(statement)}
        return dead + [s for s, _ in self._moves(tree) if stores(s) & names]

    def _moves(self, tree: ast.FunctionDef) -> Iterator[tuple[ast.AugAssign, Sequence[ast.stmt]]]:
        """Yield the statements that add to a variable, each with its block."""
        for block in _blocks(tree):
            for statement in block:
                if isinstance(statement, ast.AugAssign):
                    yield statement, block

    def _kept(self, tree: ast.FunctionDef, names: set[str]) -> bool:
        """Return True if a statement adds to one of some vectors, and cannot be left out."""
        return any(
            stores(statement) & names and (len(block) < 2 or not self._pure(statement.value))
            for statement, block in self._moves(tree)
        )

    def _block(
        self,
        body: Sequence[ast.stmt],
        edits: list[tuple[ast.stmt, dict[ast.expr, str], list[str]]],
        known: dict[str, tuple[str, set[str]]],
    ) -> None:
        """Collect the edits of a block.

        Args:
            known: text of a vector -> its name, and the names that it reads.
        """
        known = dict(known)
        for statement in body:
            kept = {text: one for text, one in known.items() if not one[1] & stores(statement)}
            for inner in ("body", "orelse"):
                self._block(getattr(statement, inner, []), edits, kept)
            if isinstance(statement, _PLAIN):
                names: dict[ast.expr, str] = {}
                defined = []
                for vector in self._vectors(statement):
                    text = ast.unparse(vector)
                    if text not in known:
                        name = free_name(self.bases.get(_plain(vector), "index"), self.taken)
                        known[text] = name, reads(vector)
                        defined.append(f"{name} = {text}")
                    names[vector] = known[text][0]
                if names:
                    edits.append((statement, names, defined))
            changed = stores(statement)
            known = {text: one for text, one in known.items() if not one[1] & changed}

    def _vectors(self, statement: ast.stmt) -> Iterator[ast.expr]:
        """Yield the largest vectors within a statement's expressions: repeated ones, and in a long statement those that the source names."""
        long = sum(isinstance(n, ast.BinOp) for n in nodes_in(statement)) > _MOST_OPERATORS

        def within(node: ast.AST) -> Iterator[ast.expr]:
            again = self._is_vector(node) and self.counts[ast.unparse(node)] > 1
            if again or long and self._is_named(node):
                assert isinstance(node, ast.expr)
                yield node
                return
            for child in ast.iter_child_nodes(node):
                yield from within(child)

        whole = getattr(statement, "value", None)  # which has a name
        for child in ast.iter_child_nodes(statement):
            if child is not whole or not (self._is_vector(child) or self._is_named(child)):
                yield from within(child)

    def _is_vector(self, node: ast.AST) -> bool:
        flat = not any(isinstance(part, ast.Subscript) for part in nodes_in(node))
        return flat and isinstance(node, ast.BinOp) and self._pure(node) and self._has_range(node)

    def _is_named(self, node: ast.AST) -> bool:
        pure = isinstance(node, ast.BinOp) and self._pure(node) and self._has_range(node)
        return pure and _plain(node) in self.bases  # type: ignore[arg-type]

    def _pure(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BinOp):
            return self._pure(node.left) and self._pure(node.right)
        if isinstance(node, ast.Call):
            return self._is_free(node)
        if isinstance(node, ast.Subscript):
            return self._pure(node.value) and _adds_dimensions(node.slice)
        return isinstance(node, (ast.Name, ast.Constant))

    def _is_free(self, node: ast.AST) -> bool:
        function = node.func if isinstance(node, ast.Call) else None
        names = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
        return names and function.value.id == self.space and function.attr in _FREE  # type: ignore[union-attr]

    def _has_range(self, node: ast.expr) -> bool:
        return any(
            self._is_free(part) and any(w.arg == "layout" for w in part.keywords)  # type: ignore[attr-defined]
            for part in nodes_in(node)
        )


class _Text(_Vectors):
    """Name the vectors in the text of a function."""

    def __init__(self, source: str, space: str):
        super().__init__(space)
        self.bases = self.named(ast.parse(source))
        source = self._alive(source)
        self.lines = source.splitlines()
        self.tree = _function(source)
        self.taken = set(re.findall(r"\w+", source))

    def text(self) -> str:
        """Return the function with the names."""
        edits = self.edits_of(self.tree)
        for statement, names, defined in sorted(edits, key=lambda e: e[0].lineno, reverse=True):
            for node in sorted(names, key=lambda n: (n.lineno, n.col_offset), reverse=True):
                self._put(node, names[node])
            indent = " " * statement.col_offset
            self.lines[statement.lineno - 1 : statement.lineno - 1] = [indent + m for m in defined]
        return "\n".join(self.lines) + "\n"

    def _alive(self, source: str) -> str:
        """Return a text without vectors that nothing reads any more, and without their layouts."""
        dead = self.dead(_function(source))
        lines = source.splitlines()
        for statement in sorted(dead, key=lambda s: s.lineno, reverse=True):
            first = statement.lineno - 1
            while _is_layout(statement) and lines[first - 1].lstrip().startswith("#"):
                first -= 1
            del lines[first : statement.end_lineno]
        text = "\n".join(lines) + "\n"
        return self._alive(text) if dead else text

    def _put(self, node: ast.expr, name: str) -> None:
        """Replace an expression, and parentheses around it, by a name."""
        if node.end_lineno != node.lineno:
            held = [self.lines[i].encode() for i in range(node.lineno - 1, node.end_lineno or 0)]
            start, stop = held[0][: node.col_offset], held[-1][node.end_col_offset or 0 :]
            self.lines[node.lineno - 1 : node.end_lineno] = [
                (start + name.encode() + stop).decode()
            ]
            return
        held_line = self.lines[node.lineno - 1].encode()
        start, stop = held_line[: node.col_offset], held_line[node.end_col_offset or 0 :]
        if re.search(rb"(^|[^\w\])])\($", start) and stop.startswith(b")"):
            start, stop = start[:-1], stop[1:]
        self.lines[node.lineno - 1] = (start + name.encode() + stop).decode()


class _Tree(_Vectors):
    """Name the vectors in the tree of a function, whose nodes keep their places."""

    def __init__(self, function: ast.FunctionDef, space: str, taken: Iterable[str]):
        super().__init__(space)
        self.function = function
        self.bases = self.named(function)
        self.taken = {node.id for node in nodes_in(function) if isinstance(node, ast.Name)}
        self.taken |= {arg.arg for arg in nodes_in(function.args) if isinstance(arg, ast.arg)}
        self.taken |= set(taken)

    def change(self) -> None:
        """Put the names into the tree."""
        while dead := {id(statement) for statement in self.dead(self.function)}:
            for block in _blocks(self.function):
                block[:] = [statement for statement in block if id(statement) not in dead]
        edits = self.edits_of(self.function)
        before: dict[int, list[ast.stmt]] = {}
        names: dict[int, str] = {}
        for statement, named, defined in edits:
            names |= {id(node): name for node, name in named.items()}
            definitions = before[id(statement)] = [
                part for text in defined for part in ast.parse(text).body
            ]
            for part in (node for one in definitions for node in nodes_in(one)):
                if isinstance(part, (ast.expr, ast.stmt, ast.keyword)):
                    ast.copy_location(part, statement)
        _Named(names).visit(self.function)
        for block in list(_blocks(self.function)):
            block[:] = [one for s in block for one in (*before.get(id(s), ()), s)]


class _Named(ast.NodeTransformer):
    """Put names in the place of expressions."""

    def __init__(self, names: Mapping[int, str]):
        self.names = names

    def visit(self, node: Any) -> Any:
        name = self.names.get(id(node))
        if name is not None:
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        return self.generic_visit(node)


def _function(source: str) -> ast.FunctionDef:
    """Return the tree of a function's text."""
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _adds_dimensions(index: ast.expr) -> bool:
    """Return True for an index such as `[:, None]`."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        isinstance(part, ast.Slice) or isinstance(part, ast.Constant) and part.value is None
        for part in parts
    )


def _plain(node: ast.expr) -> str:
    """Return the text of an expression without layouts."""
    bare = copy.deepcopy(node)
    for part in nodes_in(bare):
        if isinstance(part, ast.Call):
            part.keywords = [word for word in part.keywords if word.arg != "layout"]
    return ast.unparse(bare)


def _renumbered(text: str, before: str) -> str:
    """Return a text whose written names have no number where no other name needs it: `tiles` of `tiles_2`.

    Args:
        before: the text that the function had, whose names stay.
    """
    tree, own = _function(text), {*re.findall(r"\w+", before)}
    words = mentions(tree) | {arg.arg for arg in nodes_in(tree) if isinstance(arg, ast.arg)}
    for name in sorted(stores(tree) - own):
        base = re.sub(r"_\d+$", "", name)
        if base not in words:
            text = re.sub(rf"\b{name}\b", base, text)
            words.add(base)
    return text


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements of a function."""
    for node in nodes_in(tree):
        for block in (getattr(node, "body", ()), getattr(node, "orelse", ())):
            if isinstance(block, list):
                yield block


def _is_layout(statement: ast.stmt) -> bool:
    """Return True for the definition of a layout."""
    call = getattr(statement, "value", None)
    name = call.func if isinstance(call, ast.Call) else None
    word = name.attr if isinstance(name, ast.Attribute) else ""
    return isinstance(statement, ast.AnnAssign) and word.endswith("Layout")
