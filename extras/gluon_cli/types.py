"""`gluon types`: write a stub package with the names that installed plugins add, for editors and checkers.

The core names no vendor, so `gl.nvidia`, `gl.NVMMASharedLayout` and `gluon_core.nvidia.hopper` are
found through the registry when a program runs; a checker does not run it. The output is the
partial stub package `gluon_core-stubs` (PEP 561), a line or two per module: the names of the core,
and those that plugins add, each imported from where it is defined. A plugin ships nothing for it.
Each module is a folder: pyright then takes it for a namespace, and asks for no source.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
import pkgutil
import shutil
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Iterable, Iterator, Optional

import gluon_core
from gluon_cli.output import Exit
from gluon_core.errors import CacheError
from gluon_core.registry.load import Registry, registry

__all__ = ["current", "package", "show", "write"]

_NAME = "gluon_core-stubs"
_WRITTEN = "# Written by `gluon types` for the plugins that are installed.\n"


def show(to: Optional[Path], check: bool) -> int:
    where = (to or _site()) / _NAME
    if check:
        good = current(to)
        print(f"{where} {'is as it should be' if good else 'is stale: run `gluon types`'}")
        return Exit.OK if good else Exit.FAILED
    names = [
        name for name, b in registry().backends.items() if b.language.namespace or b.language.host
    ]
    write(where)
    print(f"{where}: gluon_core and {', '.join(names) or 'no plugin'}")
    return Exit.OK


def current(to: Optional[Path] = None) -> bool:
    """Return True if the stub package is there and knows the installed plugins."""
    return _on_disk((to or _site()) / _NAME) == package(registry())


def _site() -> Path:
    """Return the folder of the installed core, or the running environment's for a checkout."""
    folder = Path(gluon_core.__file__).parents[1]
    if folder.name in ("site-packages", "dist-packages"):
        return folder
    return Path(sysconfig.get_path("purelib"))


def write(where: Path) -> None:
    """Write the stub package, in place of an earlier one.

    Raises:
        CacheError: the folder cannot be written, or holds something else.
    """
    files = package(registry())
    try:
        if where.exists():
            init = where / "__init__.pyi"
            if not init.exists() or not init.read_text().startswith(_WRITTEN):
                raise CacheError("not written by `gluon types`", argument="--to", got=str(where))
            shutil.rmtree(where)
        for name, text in files.items():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_text(text)
    except OSError as error:
        raise CacheError(
            f"cannot be written: {error}",
            argument="--to",
            got=str(where),
            remedy="Name a folder of yours with --to, and put it on the checker's search path.",
        ) from error


def _on_disk(where: Path) -> dict[str, str]:
    files = (path for path in where.rglob("*") if path.is_file())
    return {path.relative_to(where).as_posix(): path.read_text() for path in files}


def package(plugins: Registry) -> dict[str, str]:
    """Path in the stub package -> its text."""
    hosts = {name: b.language.host for name, b in plugins.backends.items() if b.language.host}
    languages = {
        name: b.language.namespace for name, b in plugins.backends.items() if b.language.namespace
    }
    paths = {kind: plugins.offers(kind).items() for kind in ("module", "export")}
    modules = {name: c.value for name, c in paths["module"] if isinstance(c.value, str)}
    exports = [
        line
        for name, c in paths["export"]
        if ":" in c.value
        for line in _as(name, *c.value.split(":"))
    ]
    top = (*_public("gluon_core"), *_own("gluon_core", (*gluon_core._MODULES, *hosts, *modules)))
    vendors = (*_own("gluon_core.language", languages), *exports)
    files = {
        "py.typed": "partial\n",
        "__init__.pyi": _text(top),
        "language/__init__.pyi": _text((*_public("gluon_core.language"), *vendors)),
    }
    for name, root in modules.items():
        files[f"{name}/__init__.pyi"] = _text(_everything(root))
    for name, root in hosts.items():
        files.update(_mirror(name, root))
    for name, root in languages.items():
        files.update(_mirror(f"language/{name}", root))
    return files


def _text(lines: Iterable[str]) -> str:
    return _WRITTEN + "".join(f"{line}\n" for line in dict.fromkeys(lines))


def _as(name: str, module: str, source: str) -> Iterator[str]:
    """`source` of `module` as `name`: a stub exports the imports that keep their names."""
    inner = name if name == source else f"_{name}"
    yield f"from {module} import {source} as {inner}"
    if inner != name:
        yield f"{name} = {inner}"


def _own(parent: str, names: Iterable[str]) -> Iterator[str]:
    return (f"from {parent} import {name} as {name}" for name in names)


def _mirror(folder: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of a plugin: itself, and those that it offers (all by default), under the name
    that kernels have for them."""
    spec, offered = _spec(root), _offered(root)
    inside = pkgutil.iter_modules((spec and spec.submodule_search_locations) or ())
    modules = [
        child.name
        for child in inside
        if (child.name in offered if offered else not child.name.startswith("_"))
    ]
    others = [name for name in offered if name not in modules]
    alias = f"gluon_core.{folder.replace('/', '.')}"
    yield f"{folder}/__init__.pyi", _text((*_own(root, others), *_own(alias, modules)))
    for name in modules:
        yield from _mirror(f"{folder}/{name}", f"{root}.{name}")


def _everything(module: str) -> Iterator[str]:
    """Return all that a module offers, name by name: not every editor reads `__all__`."""
    return _own(module, _offered(module))


@functools.cache
def _offered(module: str) -> tuple[str, ...]:
    """Return the names that a module is for, without running it: `__all__`, else the names that it
    defines, imports under the same name, or imports with a star."""
    names: list[str] = []
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "__all__":
                try:
                    return tuple(ast.literal_eval(node.value))
                except ValueError:
                    continue
            names.append(node.targets[0].id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    names += _offered(str(node.module))
                elif alias.name == alias.asname:
                    names.append(alias.name)
    return tuple(name for name in names if not name.startswith("_"))


def _public(module: str) -> Iterator[str]:
    """Return the imports of a package of the core for others, also for checkers alone, as in a stub."""
    body = _tree(module).body
    for_checkers = [node.body for node in body if isinstance(node, ast.If)]
    renamed: dict[str, tuple[str, str]] = {}
    for node in (*body, *itertools.chain(*for_checkers)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gluon_core"):
            for alias in node.names:
                if alias.asname in (None, alias.name):
                    yield from _as(alias.name, str(node.module), alias.name)
                renamed[str(alias.asname)] = (str(node.module), alias.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.value) in renamed:
            yield from _as(ast.unparse(node.targets[0]), *renamed[ast.unparse(node.value)])


def _tree(module: str) -> ast.Module:
    spec = _spec(module)
    if spec is None or spec.origin is None:
        return ast.Module([], [])
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _spec(module: str) -> Optional[ModuleSpec]:
    """Return the file of a module. Nothing is imported: plugins may be broken, and Triton takes its time."""
    parent, _, _ = module.rpartition(".")
    if not parent:
        return importlib.util.find_spec(module)
    above = _spec(parent)
    inside = above.submodule_search_locations if above else None
    return PathFinder.find_spec(module, inside) if inside else None
