"""Build the import graph of this project's packages, with every way in which a file imports another.

Imports inside functions count, imports for type checkers count, and so do strings that are
imported: in any expression the name of a module (`"gluon_nvidia.launcher"`) with or without an
attribute (`"gluon_nvidia.launcher:make"`), a name relative to a package in the package's own file,
and a bare package name that a function gets which imports or runs modules.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import grimp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    ROOT,
    *sorted(ROOT.glob("backends/*")),
    ROOT / "runtime",
    ROOT / "extras",
    ROOT / "kernels",
)
IMPORTERS = {"import_module", "load_path", "load_named", "find_spec", "run_module", "__import__"}

Graph = dict[str, set[str]]  # module -> the modules that it imports


class Contract(NamedTuple):
    name: str
    kind: str
    options: dict[str, list[str]]

    def excuses(self, importer: str, imported: str) -> bool:
        return any(
            matches(importer, a.strip()) and matches(imported, b.strip())
            for a, b in (line.split("->") for line in self.options.get("ignore_imports", ()))
        )


def matches(module: str, pattern: str) -> bool:
    """Match a module's name with a pattern of import-linter: `*` is one part, `**` are several."""
    parts = (r".+" if part == "**" else part.replace("*", r"[^.]+") for part in pattern.split("."))
    return re.fullmatch(r"\.".join(parts), module) is not None


@functools.cache
def contracts() -> list[Contract]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [Contract(c["name"], c["type"], c) for c in settings["contracts"]]


def packages() -> list[str]:
    """Return the packages of this checkout."""
    folders = (p.parent for folder in FOLDERS for p in folder.glob("gluon_*/__init__.py"))
    return sorted(folder.name for folder in folders)


def file_of(module: str) -> Path:
    path = Path(*module.split("."))
    names = path / "__init__.py", path.with_suffix(".py")
    return next(folder / name for folder in FOLDERS for name in names if (folder / name).is_file())


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def import_graph() -> Graph:
    """Return the arrows between all files of all packages."""
    sys.path[:0] = [str(folder) for folder in FOLDERS if str(folder) not in sys.path]
    graph = grimp.build_graph(*packages(), cache_dir=None)
    modules = graph.modules
    return {
        module: graph.find_modules_directly_imported_by(module)
        | set(_named(module, modules)) - {module}
        for module in sorted(modules)
    }


def _named(module: str, modules: set[str]) -> Iterator[str]:
    """Yield the modules that strings of a file name."""
    file = file_of(module)
    text = file.read_text()
    # Most files hold no such string; parsing all of them took most of the time.
    if file.name != "__init__.py" and not re.search(r"[\"']gluon_", text):
        return
    for node in ast.walk(ast.parse(text)):
        imports = isinstance(node, ast.Call) and _last_name(node.func) in IMPORTERS
        for string in _strings(node):
            name = string.partition(":")[0].rstrip(".")
            if name in modules and ("." in name or imports):
                yield name
            elif file.name == "__init__.py" and f"{module}.{name}" in modules:
                yield f"{module}.{name}"


def _strings(node: ast.AST) -> Iterable[str]:
    """Yield the strings that are parts of an expression: no docstrings."""
    if isinstance(node, ast.Expr):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


def _last_name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def circles(graph: Graph) -> list[list[str]]:
    """Return every set of modules that reach each other, as Tarjan finds them."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    closed: set[str] = set()
    result: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for imported in sorted(graph.get(module, ())):
            if imported not in number:
                visit(imported)
            if imported not in closed:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == number[module]:
            start = stack.index(module)
            result.append(sorted(stack[start:]))
            closed.update(stack[start:])
            del stack[start:]

    sys.setrecursionlimit(10_000)
    for module in graph:
        if module not in number:
            visit(module)
    return [members for members in result if len(members) > 1]


def shortest_circle(graph: Graph, members: list[str]) -> list[str]:
    """Return a shortest way from a module back to itself within a set of modules."""
    best: list[str] = []
    for start in members:
        before: dict[str, str] = {}
        queue = [start]
        for module in queue:
            for imported in sorted(graph[module] & set(members)):
                if imported not in before:
                    before[imported] = module
                    queue.append(imported)
        way = [start]
        while not way[1:] or way[-1] != start:
            way.append(before[way[-1]])
        if not best or len(way) < len(best):
            best = way[::-1]
    return best
