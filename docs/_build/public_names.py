"""Find the public names of the language, of host code and of plugins, and the examples that show them."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).parent))

import sections  # noqa: E402
import gluon_core as gluon  # noqa: E402
from gluon_core import language as gl  # noqa: E402
from gluon_core.errors import GluonError  # noqa: E402

ROOT = Path(__file__).parents[2]
VENDORS = ("nvidia", "amd")

# Modules that plugins are written with, under `gluon_core`.
ROOMS = (
    "values",
    *(
        f"plugin.{name}"
        for name in (
            "backend builder compiler device hookspec host_descriptor language launcher machine_code ops options paths "
            "reference semantic simulation targets triton_compiler"
        ).split()
    ),
    *(f"simulation.{name}" for name in ("assembly", "host_memory", "ranks", "recorder", "settings", "stored_addresses", "watch")),
    "portable.requests",
    "registry.load",
)


def language_names() -> list[str]:
    """Return every public name of the language itself, dotted: `where`, `portable.mma`, `fpsan.embed`."""
    names = []
    for name in dir(gl):
        value = getattr(gl, name)
        if name in VENDORS or name.startswith("@"):  # pytest's own, in modules it rewrites
            continue
        if inspect.ismodule(value):
            names += [f"{name}.{inner}" for inner in dir(value) if not inner.startswith(("_", "@"))]
        else:
            names.append(name)
    return names


# Modules of `gluon_core` that are public with the names in their `__all__` (docs/stability.md).
LIBRARIES = ("distributed", "layouts", "testing", "torch", "tune")


OPERATORS = "gluon_kernels"


@functools.lru_cache(maxsize=None)
def known_host_names() -> frozenset[str]:
    return frozenset(host_names())


def host_names() -> list[str]:
    """Return the public names of `gluon_core` and its libraries, and of plugins' parts for host code."""
    modules = {"language", "plugins", "portable", "standin", "targets", "testing", "torch", *VENDORS}
    names = [f"gluon.{n}" for n in dir(gluon) if not n.startswith(("_", "@")) and n not in modules]
    for library in LIBRARIES:
        module = _imported(library)
        names += [f"gluon.{library}.{name}" for name in getattr(module, "__all__", ())]
    for vendor in VENDORS:
        names += _host_names_of(_imported(vendor), f"gluon.{vendor}", set())
    with contextlib.suppress(ImportError):  # torch is not installed
        names += [f"{OPERATORS}.{n}" for n in importlib.import_module(OPERATORS).__all__]
    return names


def room_names() -> list[str]:
    """Return the names that plugins are written with, each with the path that it is imported from."""
    rooms = {f"gluon_core.{room}": importlib.import_module(f"gluon_core.{room}") for room in ROOMS}
    return [f"{path}.{name}" for path, room in rooms.items() for name in room.__all__]


def is_host(name: str) -> bool:
    """Return True if a name is shown as it is, and not under `gl`."""
    return name.startswith(("gluon.", "gluon_core.", f"{OPERATORS}."))


def _imported(name: str) -> Optional[ModuleType]:
    """Return a module of `gluon_core`; None where its requirements, such as torch, are not installed."""
    try:
        return importlib.import_module(f"gluon_core.{name}")
    except ImportError:
        return None


def _host_names_of(module: Any, path: str, seen: set[int]) -> list[str]:
    names = []
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith(("_", "@")) or id(value) in seen:
            continue
        if inspect.ismodule(value):
            names += _host_names_of(value, f"{path}.{name}", seen | {id(value)})
        else:
            names.append(f"{path}.{name}")
    return names


def vendor_names(vendor: str) -> dict[str, Any]:
    """Names of `gl.<vendor>`, each under the oldest generation that has it."""
    names: dict[str, Any] = {}
    seen: set[int] = set()

    def walk(module: ModuleType, path: str) -> None:
        for name in dir(module):
            value = None if name.startswith(("_", "@")) else getattr(module, name, None)
            if value is None or id(value) in seen:
                continue
            seen.add(id(value))
            if inspect.ismodule(value):
                walk(value, f"{path}.{name}")
            else:
                names[f"{path}.{name}"] = value

    walk(getattr(gl, vendor), vendor)
    return names


def resolve(name: str) -> Any:
    if name.startswith(("gluon_core.", f"{OPERATORS}.")):
        path, _, last = name.rpartition(".")
        return getattr(importlib.import_module(path), last)
    value: Any = gluon if name.startswith("gluon.") else gl
    for path in (*LIBRARIES, *VENDORS):
        if name.startswith(f"gluon.{path}."):
            importlib.import_module(f"gluon_core.{path}")
    for part in name.removeprefix("gluon.").split("."):
        value = getattr(value, part)
    return value


def shown_sections(file: Path) -> list[sections.Section]:
    """Without the names that the installed Triton lacks: a page made with an older one leaves them out."""
    every = sections.sections(file)
    kept = (replace(one, names=tuple(filter(_there, one.names))) for one in every)
    return [one for one in kept if one.names]


def _there(name: str) -> bool:
    try:
        resolve(name)
    except (GluonError, AttributeError, ImportError):
        return False
    return True


@functools.cache
def exampled() -> dict[str, sections.Section]:
    """Name -> the example that shows it; a vendor's op also under the name of its first module."""
    return {name: s for file in sections.files() for s in shown_sections(file) for name in s.names}


@functools.cache
def used_in_examples() -> dict[str, list[str]]:
    """Map each identifier to the files of examples and of gluon_kernels that use it; tests run these on the simulator."""
    files: dict[str, list[str]] = {}
    files_of = (ROOT / "examples").glob("*/*.py"), (ROOT / "kernels" / "gluon_kernels").rglob("*.py")
    for file in (*sorted(files_of[0]), *sorted(files_of[1])):
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.Attribute, ast.Name)):
                names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        for name in names:
            files.setdefault(name, []).append(str(file.relative_to(ROOT)))
    return files


def missing(vendor: Optional[str] = None) -> list[str]:
    """Names without an example of their own, and that no example or kernel uses."""
    have = exampled()
    if vendor is None:
        # A layout is shown under its name in the language.
        ids = {id(resolve(name)) for name in have if not inspect.ismodule(resolve(name))}
        every = [*language_names(), *host_names(), *room_names()]
        apart = ("gluon.layouts.", *(f"gluon.{vendor}." for vendor in VENDORS))
        return [
            n
            for n in every
            if n not in have and not (n.startswith(apart) and id(resolve(n)) in ids)
        ]
    ids = {id(resolve(name)) for name in have}
    used = used_in_examples()
    return [
        name
        for name, value in vendor_names(vendor).items()
        if id(value) not in ids and name.rpartition(".")[2] not in used
    ]
