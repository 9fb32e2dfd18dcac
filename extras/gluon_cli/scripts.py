"""Run a file as Python does; one of a package as `python -m` does, so that it has its relative imports."""

from __future__ import annotations

import ast
import runpy
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Iterator

__all__ = ["absolute_imports", "add_folders", "importable", "package_of", "run_script"]


def package_of(file: Path) -> str:
    """Return the name of the package that a file belongs to, "" outside of packages."""
    names: list[str] = []
    folder = file.resolve().parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


@contextmanager
def importable(file: Path) -> Iterator[None]:
    """Let a file import the modules next to it, and its package."""
    before = list(sys.path)
    add_folders(file)
    try:
        yield
    finally:
        sys.path[:] = before


def add_folders(file: Path) -> None:
    """Put the folder of a file, and that of its package, in front of the paths of imports."""
    folder = file.resolve().parent
    depth = len(package_of(file).split(".")) if package_of(file) else 0
    root = folder.parents[depth - 1] if depth else folder
    sys.path[:0] = list(dict.fromkeys([str(folder), str(root)]))


def run_script(file: str) -> None:
    """Run a file as `__main__`."""
    package = package_of(Path(file))
    if not package:
        runpy.run_path(file, run_name="__main__")
        return
    module = ModuleType("__main__")
    module.__file__, module.__package__ = file, package
    code = compile(Path(file).read_bytes(), file, "exec")
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)
    finally:
        sys.modules["__main__"] = before


def absolute_imports(text: str, package: str) -> str:
    """Return the text of a file of a package with absolute imports in place of relative ones."""
    if not package:
        return text
    lines = text.splitlines()
    parts = package.split(".")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level and node.level <= len(parts):
            dots = "." * node.level
            start = parts[: len(parts) - node.level + 1]
            line = lines[node.lineno - 1]
            absolute = ".".join([*start, node.module] if node.module else start)
            lines[node.lineno - 1] = line.replace(
                f"from {dots}{node.module or ''}", f"from {absolute}", 1
            )
    return "\n".join(lines) + "\n"
