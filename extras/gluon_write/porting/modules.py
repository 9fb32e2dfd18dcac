"""Find the functions of other files that a file's kernels call, and copy them with those that they call."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Collection, Iterable, Mapping, Optional

from gluon_write.porting.names import Names, bound_by, bound_in, branches, is_jit, names_of
from gluon_write.text.form import free_name
from gluon_write.text.syntax import calls_in, mentions, nodes_in

__all__ = [
    "Foreign",
    "all_names",
    "copied",
    "find_function",
    "import_text",
    "imports_in",
    "reached",
]

_HELPERS = "_inductor.runtime.triton_helpers"  # of torch: functions for kernels that it writes


@dataclass(frozen=True)
class Foreign:
    """Name a function of plain Triton in another file."""

    file: Path
    name: str


def all_names(
    tree: ast.Module, file: Path, wanted: Optional[Collection[str]] = None, depth: int = 8
) -> Names:
    """Return a file's names of Triton, those included that other files import or set, as `exp = tl.exp`.

    Args:
        wanted: names that count where they come from other files; by default those in functions that
            may be kernels.
    """
    names = names_of(tree)
    wanted = _in_functions(tree) if wanted is None else wanted
    for node in imports_in(tree) if depth else ():
        if not isinstance(node, ast.ImportFrom):
            continue
        aliases = [alias for alias in node.names if bound_by(alias) in wanted]
        there = _file_of(node.module or "", node.level, file) if aliases else None
        if there is None:
            continue
        others = _names_of_file(there, frozenset(alias.name for alias in aliases), depth - 1)
        for alias in aliases:
            bound = bound_by(alias)
            known = (names.functions, others.functions), (names.modules, others.modules)
            for own, other in (*known, (names.own, others.own)):
                if alias.name in other:
                    own[bound] = other[alias.name]
                    names.copied.add(bound)
            if alias.name in others.triton:
                names.triton.add(bound)
    return names


def _in_functions(tree: ast.Module) -> set[str]:
    """Return the names in functions that are decorated or passed to a call, with their decorators."""
    calls = calls_in(tree)
    passed = {arg.id for call in calls for arg in call.args if isinstance(arg, ast.Name)}
    return {
        name.id
        for node in nodes_in(tree)
        if isinstance(node, ast.FunctionDef) and (node.decorator_list or node.name in passed)
        for name in nodes_in(node)
        if isinstance(name, ast.Name)
    }


def _names_of_file(file: Path, wanted: frozenset[str], depth: int) -> Names:
    return _names_of_file_at(file, file.stat().st_mtime_ns, wanted, depth)


@lru_cache(maxsize=1024)
def _names_of_file_at(file: Path, changed: int, wanted: frozenset[str], depth: int) -> Names:
    """Return the names of Triton of a file, as of the time that it changed."""
    return all_names(_parsed(file), file, wanted, depth)


def find_function(
    imports: Iterable[ast.Import | ast.ImportFrom], file: Path, node: ast.expr
) -> Optional[Foreign]:
    """Return the function of plain Triton that an expression names, where an import binds it.

    Args:
        imports: of the file. node: a name, or an attribute of a module.
    """
    for imported in imports:
        for alias in imported.names:
            function = _resolved(imported, alias, file, node)
            if function is not None:
                return function
    return None


def _resolved(
    imported: ast.Import | ast.ImportFrom, alias: ast.alias, file: Path, node: ast.expr
) -> Optional[Foreign]:
    bound = alias.asname or alias.name
    level = imported.level if isinstance(imported, ast.ImportFrom) else 0
    module = imported.module or "" if isinstance(imported, ast.ImportFrom) else alias.name
    if isinstance(node, ast.Name):
        if isinstance(imported, ast.Import) or node.id != bound:
            return None
        return _in_module(_file_of(module, level, file), alias.name)
    if not isinstance(node, ast.Attribute) or ast.unparse(node.value) != bound:
        return None
    if isinstance(imported, ast.ImportFrom):
        module = f"{module}.{alias.name}" if module else alias.name
    return _in_module(_file_of(module, level, file), node.attr)


def imports_in(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports of a file, those in its functions included."""
    return [node for node in nodes_in(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]


def _in_module(file: Optional[Path], name: str, depth: int = 8) -> Optional[Foreign]:
    """Return a function of plain Triton that a file defines, or imports from another."""
    if file is None or not depth:
        return None
    tree = _parsed(file)
    names = _names_of_file(file, frozenset(_in_functions(tree)), depth)
    for node in nodes_in(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            jit = any(is_jit(decorator, names) for decorator in node.decorator_list)
            return Foreign(file, name) if jit else None
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    there = _file_of(node.module or "", node.level, file)
                    return _in_module(there, alias.name, depth - 1)
    return None


def _parsed(file: Path) -> ast.Module:
    return _parsed_at(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _parsed_at(file: Path, changed: int) -> ast.Module:
    """Return the tree of a file, as of the time that it changed."""
    try:
        return ast.parse(file.read_text())
    except (SyntaxError, UnicodeDecodeError, OSError):
        return ast.Module([], [])


def _file_of(module: str, level: int, file: Path) -> Optional[Path]:
    """Return the file of a module as Python would find it for `file`, without an import."""
    first, _, inner = module.partition(".")
    if not level and (first in ("triton", "numpy") or first == "torch" and inner != _HELPERS):
        return None
    folder = file.resolve().parent
    if level:
        for _ in range(level - 1):
            folder = folder.parent
        places = [folder]
    else:
        places = [folder]
        while (places[-1] / "__init__.py").exists():
            places.append(places[-1].parent)
        places += [Path.cwd(), *(Path(entry) for entry in sys.path if entry)]
    parts = [part for part in module.split(".") if part]
    for place in places:
        path = place.joinpath(*parts)
        for candidate in (path.with_suffix(".py") if parts else None, path / "__init__.py"):
            if candidate is not None and candidate.is_file():
                return candidate.resolve()
    return None


def _definitions(text: str) -> dict[str, tuple[str, ast.stmt]]:
    """Return the definitions and imports of a module by the names that they bind, in its order.

    An `if` or `try` of the module binds the names of its branches, together.
    """
    lines, texts = text.splitlines(), {}
    for node in ast.parse(text).body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(d.lineno for d in decorators)])
        for name in _bound_by_statement(node):
            texts[name] = "\n".join(lines[first - 1 : node.end_lineno]), node
    return texts


def _bound_by_statement(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [bound_by(alias) for alias in node.names]
    inner = [part for branch in branches(node) for part in branch.body]
    return list(dict.fromkeys(name for part in inner for name in _bound_by_statement(part)))


def reached(tree: ast.Module, wanted: Iterable[str]) -> set[str]:
    """Return the names of a module that the definitions of some of them use, these included."""
    statements: dict[str, ast.stmt] = {}
    for node in tree.body:
        statements |= dict.fromkeys(_bound_by_statement(node), node)
    used: set[str] = set()
    left = list(wanted)
    while left:
        name = left.pop()
        if name not in used:
            used.add(name)
            node = statements[name]
            words = mentions(node)
            words -= bound_in(node) if isinstance(node, ast.FunctionDef) else set()
            words |= set(_bound_by_statement(node))
            left += [word for word in words if word in statements]
    return used


def copied(
    text: str, wanted: Mapping[str, str], taken: set[str], bound: Mapping[str, str]
) -> list[str]:
    """Return the text of definitions of a ported file, and of those that they use, in its order.

    Args:
        wanted: names of functions there, with their names in the file that gets the text.
        taken: names that others may not have; those that are chosen are added.
        bound: names that imports of that file bind already, with the texts of the imports.
    """
    texts = _definitions(text)
    used = reached(ast.parse(text), wanted)
    spelled: dict[str, str] = {}
    for name in texts:
        text, node = texts[name]
        if name not in used:
            continue
        if name in wanted:
            spelled[name] = wanted[name]
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and (
            bound.get(name, "") in ("", _import_of(node, name))
        ):
            spelled[name] = name
        else:
            spelled[name] = free_name(name, taken)
    parts: list[str] = []
    for name in spelled:
        text, node = texts[name]
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            text = _import_of(node, name, spelled[name])
            if bound.get(name) == text:
                continue
        else:
            text = _renamed(text, spelled)
        if text not in parts:
            parts.append(text)
    return parts


def _import_of(node: ast.Import | ast.ImportFrom, name: str, other: str = "") -> str:
    """Return an import of one of its names, bound to another if there is one."""
    alias = next(alias for alias in node.names if bound_by(alias) == name)
    return import_text(node, ast.alias(alias.name, other) if other not in ("", name) else alias)


def import_text(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    """Return an import of one name, in one form for Triton's language."""
    if isinstance(node, ast.Import):
        return f"import {ast.unparse(alias)}"
    if node.module == "triton" and alias.name == "language" and not node.level:
        return f"import triton.language as {bound_by(alias)}"
    return f"from {'.' * node.level}{node.module or ''} import {ast.unparse(alias)}"


def _renamed(text: str, names: Mapping[str, str]) -> str:
    pattern = r"(?<![\w.])[A-Za-z_]\w*(?![\w\"'])"
    return re.sub(pattern, lambda match: names.get(match[0], match[0]), text)
