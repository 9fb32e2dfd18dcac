"""Modules under second names, and calls that wait for an import: one finder at the head of `sys.meta_path`.

`import gluon_core.language.acme.unit`, `gl.acme.unit` and `import gluon_acme.language.unit` give one and the same
module object, so that isinstance checks, constexpr identity and monkeypatching agree however a kernel
spells its imports. The finder comes before Python's own because that one would find the plugin's files
through the parent's `__path__` and load them a second time.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional, Sequence

from gluon_core.errors import GluonError, PluginError, did_you_mean

__all__ = [
    "NamespaceError",
    "PluginImportError",
    "Seconds",
    "WITHHELD",
    "add_names",
    "list_offers",
    "own_modules",
    "when_imported",
]


class PluginImportError(PluginError, ImportError):
    """`import` or attribute access of a vendor's namespace whose plugin did not load."""


class NamespaceError(GluonError, ModuleNotFoundError):
    """`import` of a vendor or generation that no installed plugin has."""


WITHHELD = "__withheld__"  # of a module: the names that `dir` leaves out


def list_offers(value: Any, name: str) -> None:
    """Let `dir()` of a plugin's module list its offers, not the imports of its code."""

    def names() -> list[str]:
        own = vars(value)
        public = own.get("__all__") or (n for n in own if not n.startswith("_"))
        return sorted(set(public) - {*own.get(WITHHELD, ())})

    if isinstance(value, ModuleType):
        vars(value).setdefault("__dir__", names)


class Seconds(NamedTuple):
    """Names of modules below a package of the core.

    Args:
        package: its name.
        locate: returns the path of the module behind a name below it.
        adopt: called with each module of the plugin that is loaded, and its name below the package.
    """

    package: str
    locate: Callable[[str], str]
    adopt: Callable[[Any, str], None]


_names: list[Seconds] = []  # the innermost package first
_awaited: dict[str, list[Callable[[ModuleType], None]]] = {}


@functools.cache
def own_modules(package: str) -> frozenset[str]:
    """Return the modules of a package of the core; a folder without code is none."""
    return frozenset(module.name for module in pkgutil.iter_modules(sys.modules[package].__path__))


def add_names(names: Seconds) -> None:
    """Let imports below a package find modules under their second names."""
    _install()
    if all(known.package != names.package for known in _names):
        _names.insert(0, names)


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Call `call` with the module `name`: now if it is loaded, else when somebody imports it."""
    if name in sys.modules:
        call(sys.modules[name])
    else:
        _awaited.setdefault(name, []).append(call)
        _install()


class _Finder(MetaPathFinder, Loader):
    """Finds modules, and puts each into `sys.modules` under its second name.

    The import system hands over a placeholder and, after `exec_module`, takes the entry of
    `sys.modules`; so the real module keeps its own `__name__`, `__spec__` and `__path__`.
    """

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]] = None,
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        if fullname in _awaited:
            return _watched(fullname)
        names = next((n for n in _names if fullname.startswith(f"{n.package}.")), None)
        if names is None:
            return None
        name, _, inner = fullname[len(names.package) + 1 :].partition(".")
        if name.startswith("_") or name in own_modules(names.package):
            return None
        root = names.locate(name)
        real = f"{root}.{inner}" if inner else root
        if inner and real not in sys.modules:
            _check_inside(root, inner, fullname)
        return ModuleSpec(fullname, self, origin=real, loader_state=names, is_package=not inner)

    def get_code(self, fullname: str) -> Any:
        """Return the code of the real module, for `python -m`."""
        second: Any = self.find_spec(fullname)
        spec: Any = importlib.util.find_spec(second.origin)
        return spec.loader.get_code(second.origin)

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        second, real, names = spec.name, spec.origin, spec.loader_state
        try:
            sys.modules[second] = importlib.import_module(real)
        except ModuleNotFoundError as error:
            # The path that a plugin names is wrong; a module that is missing inside it is another matter.
            inner = second.count(".") > names.package.count(".") + 1
            if inner or not f"{real}.".startswith(f"{error.name}."):
                raise
            message = f"{second}: {real!r} cannot be loaded: {error}"
            raise PluginImportError(message, argument=second) from error
        # Importing a submodule binds its name in the package, also where the package has given that
        # name to a function since; a module that is in `sys.modules` already is not bound again.
        # Innermost first: `adopt` may ask what is left of a module's parts.
        inside = [name for name in sys.modules if f"{name}.".startswith(f"{real}.")]
        for name in sorted(inside, key=lambda name: -name.count(".")):
            short = second + name[len(real) :]
            sys.modules.setdefault(short, sys.modules[name])
            names.adopt(sys.modules[name], short[len(names.package) + 1 :])


def _check_inside(root: str, inner: str, fullname: str) -> None:
    """Raise NamespaceError unless the package `root` has a module `inner`."""
    real = f"{root}.{inner}"
    parent = importlib.import_module(real.rpartition(".")[0])
    if not hasattr(parent, "__path__") or importlib.util.find_spec(real) is None:
        folders = getattr(importlib.import_module(root), "__path__", [])
        known = [m.name for m in pkgutil.iter_modules(folders) if not m.name.startswith("_")]
        raise NamespaceError(
            f"{fullname[: -len(inner) - 1]} has no module {inner!r}",
            got=repr(fullname),
            remedy=did_you_mean(inner, known) or f"It has: {', '.join(known) or 'no modules'}.",
        )


def _watched(name: str) -> Optional[ModuleSpec]:
    calls = _awaited.pop(name)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.loader is not None:
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            for call in calls:
                call(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


_FINDER = _Finder()


def _install() -> None:
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
