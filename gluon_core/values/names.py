"""The names that a function's source looks up outside of the function.

They come from the text, never from bytecode: test frameworks, coverage tools and debuggers rewrite that.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import itertools
import linecache
import os
import re
import textwrap
import time
import tokenize
import types
from typing import Any, Iterable, Iterator, NamedTuple, Optional

__all__ = ["Chain", "Names", "names_of", "names_of_code", "source_of"]

Chain = tuple[str, ...]  # a name, and the attributes that are asked of it at once

_STARTED = time.time()

_QUOTED = (
    r"'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\""
)
_NAME = r"[^\W\d]\w*"
# The one group holds a name with its attributes, and an equals sign or a string right behind it: other
# tokens are skipped.
_BETWEEN = r"[\s()\[\]{},:+*/%<>&|^~@!;-]*"  # skipped at once, as it begins no other token
_TOKENS = re.compile(
    rf"({_NAME}(?:\s*\.\s*{_NAME})*(?:\s*=(?!=)|{_QUOTED})?){_BETWEEN}"
    rf"|#[^\n]*|{_QUOTED}|\d[\w.]*{_BETWEEN}|\.\s*{_NAME}",
    re.DOTALL,
)
_HEADER = re.compile(rf"#[^\n]*|{_QUOTED}|[()\[\]{{}}:]")


class Names(NamedTuple):
    """The names in a function's text.

    Args:
        free: of names that the function does not bind.
        bound: names that it binds somewhere, apart from its parameters.
        imports: modules that it imports when it runs.
    """

    free: tuple[Chain, ...]
    bound: frozenset[str]
    imports: tuple[str, ...]

    def within(self, source: str, known: Iterable[str]) -> tuple[Chain, ...]:
        """Return the chains to look up where the names in `known` are defined outside.

        Python takes a name that a function binds for a local one; kernels read the outer value until
        the name is bound.
        """
        if self.bound.isdisjoint(known):
            return self.free
        unbound = [chain for chain in _exact(source).reads if chain[0] in self.bound]
        return (*self.free, *unbound)


@functools.lru_cache(maxsize=4096)
def names_of(source: str, code: types.CodeType) -> Names:
    """Return the names in `source`, the text of a function whose parameters and locals `code` lists."""
    chains = _chains(source)
    if chains is None or ("import",) in chains:
        exact = _exact(source)
        return Names(tuple(sorted(exact.reads)), frozenset(), tuple(sorted(exact.imports)))
    parameters = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    bound = frozenset(_bound(code)) - parameters
    local = bound | parameters
    free = tuple(sorted(chain for chain in chains if chain[0] not in local))
    return Names(free, bound, ())


@functools.lru_cache(maxsize=4096)
def names_of_code(code: types.CodeType) -> Names:
    """Return the names that `code` looks up, for a function of the host whose text cannot be read."""
    chains: dict[Chain, None] = {}
    chain: list[str] = []
    for instruction in itertools.chain(dis.get_instructions(code), [None]):
        name = "" if instruction is None else instruction.opname
        if instruction is not None and chain and name in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(instruction.argval)
            continue
        if chain and all(map(str.isidentifier, chain)):  # tools that rewrite code use other names
            chains[tuple(chain)] = None
        chain = [] if instruction is None or name not in _OUTSIDE else [instruction.argval]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            chains.update(dict.fromkeys(names_of_code(constant).free))
    return Names(tuple(sorted(chains)), frozenset(), ())


_OUTSIDE = frozenset(
    "LOAD_GLOBAL LOAD_NAME LOAD_DEREF LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF".split()
)


def _bound(code: types.CodeType) -> Iterator[str]:
    yield from code.co_varnames
    yield from code.co_cellvars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _bound(constant)


def _chains(source: str) -> Optional[set[Chain]]:
    """Return all names with their attributes, by the tokens alone; None where those do not suffice."""
    texts = set(_TOKENS.findall(_body(source)))
    texts.discard("")
    chains: set[Chain] = set()
    for text in texts:
        if text[-1] in "'\"":
            if set(text.partition(text[-1])[0].lower()).isdisjoint("ft"):
                continue  # a string without replacement fields
            try:
                chains.update(_exact(text).reads)
            except SyntaxError:
                return None  # quotes within quotes
        elif "." in text:
            chains.add(tuple(map(str.strip, text.rstrip("=").split("."))))
        elif text[-1] != "=":  # of an assignment, or of an argument by keyword
            chains.add((text,))
    return chains


def _body(source: str) -> str:
    """Return the text below the header, which was evaluated when the function was defined."""
    depth = 0
    for token in _HEADER.finditer(source, source.find("(")):
        text = token.group()
        depth += (text in "([{") - (text in ")]}")
        if text == ":" and not depth:
            return source[token.end() :]
    return source


@functools.lru_cache(maxsize=256)
def _exact(source: str) -> _Reads:
    reads = _Reads()
    reads.visit(ast.parse(source))
    return reads


class _Reads(ast.NodeVisitor):
    """Collects names that are read before the text binds them, in the order of evaluation."""

    def __init__(self) -> None:
        self.reads: dict[Chain, None] = {}
        self.imports: set[str] = set()
        self._bound: set[str] = set()
        self._declared: set[str] = set()  # by `global` and `nonlocal`
        self._inner = False

    def _bind(self, name: Optional[str]) -> None:
        if name is not None and name not in self._declared:
            self._bound.add(name)

    def _visit_all(self, *nodes: Any) -> None:
        for node in nodes:
            if isinstance(node, list):
                self._visit_all(*node)
            elif node is not None:
                self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id)
        elif node.id not in self._bound:
            self.reads[(node.id,)] = None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        attributes, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            attributes.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            self.visit(inner)
        elif inner.id not in self._bound:
            self.reads[tuple([inner.id, *reversed(attributes)])] = None

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all(node.value, node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.visit_Name(ast.Name(node.target.id, ast.Load()))
        self._visit_all(node.value, node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all(node.annotation, node.value, node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_all(node.value, node.target)

    def visit_For(self, node: Any) -> None:
        self._visit_all(node.iter, node.target, node.body, node.orelse)

    visit_AsyncFor = visit_For

    def _visit_comprehension(self, node: Any) -> None:
        before = set(self._bound)
        for generator in node.generators:
            self._visit_all(generator.iter, generator.target, generator.ifs)
        self._visit_all(*(getattr(node, part, None) for part in ("key", "value", "elt")))
        self._bound = before

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _visit_function(self, node: Any) -> None:
        if self._inner:  # of the outermost function, the header was evaluated long ago
            self._visit_all(getattr(node, "decorator_list", []))
            self._visit_all(node.args.defaults, node.args.kw_defaults)
            self._bind(getattr(node, "name", None))
        self._inner = True
        before = set(self._bound)
        arguments = node.args
        starred = filter(None, (arguments.vararg, arguments.kwarg))
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred):
            self._bound.add(one.arg)
        self._visit_all(node.body)
        self._bound = before

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(node.decorator_list, node.bases, node.keywords)
        self._bind(node.name)
        self._visit_all(node.body)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._visit_all(node.type)
        self._bind(node.name)
        self._visit_all(node.body)

    def _visit_pattern(self, node: Any) -> None:
        self.generic_visit(node)
        self._bind(getattr(node, "name", None) or getattr(node, "rest", None))

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = _visit_pattern

    def _visit_declaration(self, node: Any) -> None:
        self._declared.update(node.names)

    visit_Global = visit_Nonlocal = _visit_declaration

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports.add(alias.name)
            self._bind(alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imports.add("." * node.level + (node.module or ""))
        for alias in node.names:
            self._bind(alias.asname or alias.name)


def source_of(code: types.CodeType) -> Optional[str]:
    """Return a function's text from its `def` on; None where it is unreadable or may be newer than `code`."""
    return _source_of(code, code.co_filename)


@functools.lru_cache(maxsize=4096)
def _source_of(code: types.CodeType, path: str) -> Optional[str]:
    if not code.co_name.isidentifier():
        return None
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        pass  # a cell of a notebook, say: its text is kept for it alone
    else:
        if max(status.st_mtime, status.st_ctime) >= _STARTED:
            return None
    lines = linecache.getlines(path)
    try:
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
    except (SyntaxError, tokenize.TokenError, IndexError):
        return None
    text = textwrap.dedent("".join(block))
    start = re.search(rf"^(?:async\s+)?def\s+{code.co_name}\b", text, re.MULTILINE)
    return text[start.start() :] if start else None
