"""Tell the names under which a file has Triton, its language, and the functions of both."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, Collection, Iterator, Optional

from gluon_write.text.form import free_name
from gluon_write.text.syntax import nodes_in

__all__ = [
    "Names",
    "bound_by",
    "bound_in",
    "branches",
    "imports_of",
    "is_jit",
    "kernels_of",
    "names_of",
    "rewritten",
    "without_locals",
]

_LANGUAGE = "triton.language"
_DESCRIPTORS = "triton.tools.tensor_descriptor"
_MODULES = frozenset("core math standard random extra target_info".split())
_SAME = (
    "core.",
    "math.",
    "standard.",
    "random.",
)  # modules whose functions the language lists, too
Import = ast.Import | ast.ImportFrom


@dataclass
class Names:
    """Hold the file's names of Triton and its language.

    Attributes:
        triton: of the package. modules: of the language and its modules, with their place in it.
        functions: of the language, imported one by one, with their names there. own: the same for
            the package. descriptors: classes of descriptors on the host. copied: names that
            come through other files.
    """

    triton: set[str] = field(default_factory=set)
    modules: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    descriptors: set[str] = field(default_factory=set)
    copied: set[str] = field(default_factory=set)

    def language(self, node: ast.AST, bound: frozenset[str] = frozenset()) -> Optional[str]:
        """Return the name that an expression has in Triton's language; None for others.

        Args:
            bound: names that the function at hand binds itself.
        """
        full = self.full(node, bound)
        return _short(full) if full else None

    def full(self, node: ast.AST, bound: frozenset[str] = frozenset()) -> str:
        """Return the name with that of the module within the language; "" for other expressions."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in bound:
            return ""
        if node.id in self.functions and not parts:
            return self.functions[node.id]
        if node.id in self.modules and parts:
            return ".".join(p for p in (self.modules[node.id], *parts) if p)
        if node.id in self.triton and parts[:1] == ["language"] and len(parts) > 1:
            return ".".join(parts[1:])
        return ""

    def of_triton(self, node: ast.AST, bound: frozenset[str] = frozenset()) -> Optional[str]:
        """Return the name that an expression has in the package Triton; None for others."""
        if isinstance(node, ast.Name) and node.id not in bound:
            return self.own.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr if node.value.id in self.triton - bound else None
        return None


def _short(name: str) -> str:
    """Return the name of a function without the module that defines it."""
    for prefix in _SAME:
        name = name.removeprefix(prefix)
    return name


def imports_of(tree: ast.AST) -> Iterator[Import]:
    """Yield the imports of Triton and of its modules."""
    for node in nodes_in(tree):
        if isinstance(node, ast.Import):
            if any(alias.name.partition(".")[0] == "triton" for alias in node.names):
                yield node
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if (node.module or "").partition(".")[0] == "triton":
                yield node


def bound_by(alias: ast.alias) -> str:
    """Return the name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def names_of(tree: ast.AST) -> Names:
    """Return a file's names of Triton."""
    names = Names()
    for node in imports_of(tree):
        for alias in node.names:
            if isinstance(node, ast.Import):
                _imported(names, alias)
            else:
                _imported_from(names, node.module or "", alias)
    for name, value in _assigned(tree):
        _named_again(names, name, value)
    return names


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables of a module, and of its branches, that are set to a name or attribute."""
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute)):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
        for branch in branches(node):
            yield from _assigned(branch)


def branches(node: ast.AST) -> list[ast.Module]:
    """Return the parts of an `if` or `try` of a module."""
    if isinstance(node, ast.If):
        bodies = [node.body, node.orelse]
    elif isinstance(node, ast.Try):
        handlers = [handler.body for handler in node.handlers]
        bodies = [node.body, *handlers, node.orelse, node.finalbody]
    else:
        bodies = []
    return [ast.Module(body, []) for body in bodies]


def _named_again(names: Names, name: str, value: ast.expr) -> None:
    """Note another name of Triton's language, or of a function of it; of several the last public one counts."""
    full = names.full(value)
    if full in _MODULES or full.startswith("extra."):
        names.modules[name] = full
    elif full and not (name in names.functions and full.rpartition(".")[2].startswith("_")):
        names.functions[name] = full
    elif names.of_triton(value) == "language":
        names.modules[name] = ""
    elif isinstance(value, ast.Name) and value.id in names.modules:
        names.modules[name] = names.modules[value.id]


def _imported(names: Names, alias: ast.alias) -> None:
    if alias.name == "triton" or not alias.asname:
        names.triton.add(bound_by(alias))
    elif alias.name.startswith(_LANGUAGE):
        names.modules[alias.asname] = alias.name.removeprefix(_LANGUAGE).removeprefix(".")


def _imported_from(names: Names, module: str, alias: ast.alias) -> None:
    name = bound_by(alias)
    if module == _DESCRIPTORS:
        names.descriptors.add(name)
    elif module == "triton" and alias.name == "language":
        names.modules[name] = ""
    elif module == "triton":
        names.own[name] = alias.name
    elif module == _LANGUAGE and alias.name in _MODULES:
        names.modules[name] = alias.name
    elif module.startswith(_LANGUAGE):
        inner = module.removeprefix(_LANGUAGE).removeprefix(".")
        full = f"{inner}.{alias.name}" if inner else alias.name
        library = inner.startswith("extra") and not inner.endswith("libdevice")
        (names.modules if library else names.functions)[name] = full


def is_jit(decorator: ast.expr, names: Names) -> bool:
    """Return True for a decorator that makes a kernel of plain Triton."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return names.of_triton(called) == "jit"


def bound_in(jit: ast.FunctionDef) -> frozenset[str]:
    """Return the names that a function binds: its parameters and variables."""
    names = {node.arg for node in nodes_in(jit) if isinstance(node, ast.arg)}
    stored = (
        node.id
        for node in nodes_in(jit)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return frozenset(names | set(stored))


def rewritten(node: Import, stays: list[ast.alias]) -> str:
    """Return the text of an import with some of its names."""
    left = ", ".join(f"{a.name} as {a.asname}" if a.asname else a.name for a in stays)
    if isinstance(node, ast.Import):
        return f"import {left}" if stays else ""
    return f"from {'.' * node.level}{node.module or ''} import {left}" if stays else ""


def without_locals(
    text: str,
    tree: ast.AST,
    jits: list[ast.FunctionDef],
    names: Collection[str],
    taken: set[str],
) -> str:
    """Return a file whose kernels have no variables of some names; the file where something else has the name, too.

    Parameters of functions that kernels call are variables, unless a call names them.

    Args:
        taken: names in use.
    """
    inside = {id(node) for jit in jits for node in nodes_in(jit)}
    called = {
        node.func.id
        for jit in jits
        for node in nodes_in(jit)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    functions = [jit for jit in jits if jit.name in called]
    params = [n for one in functions for n in nodes_in(one) if isinstance(n, ast.arg)]
    edits: list[tuple[int, int, str, str]] = []
    for name in names:
        uses: list[Any] = [n for n in nodes_in(tree) if isinstance(n, ast.Name) and n.id == name]
        uses += [param for param in params if param.arg == name]
        others = any(
            getattr(n, "arg", None) == name and n not in uses
            or isinstance(n, ast.alias) and bound_by(n) == name
            or getattr(n, "name", None) == name
            for n in nodes_in(tree)
        )  # fmt: skip
        if uses and not others and all(id(use) in inside for use in uses):
            new = free_name(f"{name}_value", taken)
            edits += [(use.lineno - 1, use.col_offset, name, new) for use in uses]
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for number, first, name, new in sorted(edits, reverse=True):
        line = lines[number]
        lines[number] = line[:first] + new.encode() + line[first + len(name) :]
    return b"".join(lines).decode()


def kernels_of(
    tree: ast.Module, jits: list[ast.FunctionDef], names: Names
) -> list[ast.FunctionDef]:
    """Return the functions that host code launches, and those without a value that no other of them names.

    One that host code passes to a function may be launched there, unless it returns a value.
    """
    inside = {id(part) for jit in jits for part in nodes_in(jit)}
    named = {
        part.id
        for jit in jits
        for bound in [bound_in(jit)]
        for part in nodes_in(jit)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id not in bound
    }
    members = {
        part.name
        for node in nodes_in(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef)
    }
    parts = (part for jit in jits for part in nodes_in(jit) if isinstance(part, ast.Attribute))
    named |= {part.attr for part in parts if part.attr in members}
    calls = [n for n in nodes_in(tree) if isinstance(n, ast.Call) and not is_jit(n.func, names)]
    passed = {
        id(argument): isinstance(call.func, ast.Subscript)
        for call in calls
        for argument in (*call.args, *(word.value for word in call.keywords))
    }
    outside = [n for n in nodes_in(tree) if isinstance(n, ast.Name) and id(n) not in inside]
    valued = {jit.name for jit in jits if _returns(jit)}
    launched = {node.id for node in outside if id(node) not in passed}
    grids = (call.func for call in calls if isinstance(call.func, ast.Subscript))
    launched |= {g.value.attr for g in grids if isinstance(g.value, ast.Attribute)} & members
    constants = {n.id for n in outside if n.id in valued and id(n) in passed or passed.get(id(n))}
    constants -= launched
    called = named | constants | valued
    return [jit for jit in jits if jit.name in launched or jit.name not in called]


def _returns(jit: ast.FunctionDef) -> bool:
    """Return True for a function that returns a value."""
    returns = (node for node in nodes_in(jit) if isinstance(node, ast.Return))
    return any(node.value is not None for node in returns)
