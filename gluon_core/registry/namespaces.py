"""Namespaces of plugins: `gluon_core.language.<name>` and `gluon_core.<name>` are their own modules.

`import gluon_core.language.acme.unit`, `gl.acme.unit` and `import gluon_acme.language.unit` give
one and the same module object, so that isinstance checks, constexpr identity and monkeypatching
agree however a kernel spells its imports. A finder at the head of `sys.meta_path` answers for
those names; it comes before Python's own because that one would find the plugin's files through
the parent's `__path__` and load them a second time.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence

from gluon_core.errors import GluonError, PluginError, did_you_mean
from gluon_core.plugin.paths import load_named
from gluon_core.registry import own_modules

if TYPE_CHECKING:
    from gluon_core.registry.load import Registry

__all__ = ["NamespaceError", "PluginImportError", "Space", "list_offers", "when_imported"]


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


class Space(NamedTuple):
    """A package of the core to which plugins add names.

    Args:
        package: its name.
        kind: of the names that plugins claim there, `export` or `module`.
        adopt: called with each module or exported value of a plugin that is loaded, and its name below
            the package.
    """

    package: str
    kind: str
    adopt: Callable[[Any, str], None] = list_offers

    def open(self) -> Space:
        """Let imports below the package find the modules of plugins."""
        _install()
        if all(space.package != self.package for space in _spaces):
            _spaces.insert(0, self)
        return self

    def offered(self) -> list[str]:
        """Return the names that the installed plugins add."""
        claims = _plugins().offers(self.kind)
        return [name for name, claim in claims.items() if isinstance(claim.value, str)]

    def path(self, name: str) -> str:
        """Return the path behind the name of a plugin: of a module, or of an exported value.

        Raises:
            NamespaceError: no plugin has it.
            PluginImportError: its plugin did not load, or two plugins have it.
        """
        plugins = _plugins()
        claim = plugins.offers(self.kind).get(name)
        if claim is not None and isinstance(claim.value, str):
            return claim.value
        plugins.refuse_clash(self.kind, name, PluginImportError)
        if name in plugins.backends:
            raise NamespaceError(f"backend {name!r} has no namespace in {self.package}")
        plugins.raise_if_failed(name, PluginImportError)
        own = (n for n in vars(sys.modules[self.package]) if not n.startswith("_"))
        known = sorted({*plugins.backends, *plugins.failures, *self.offered(), *own})
        message = f"module {self.package!r} has no attribute {name!r}"
        raise NamespaceError(message, remedy=plugins.remedy(name, known))

    def resolve(self, name: str) -> Any:
        """Return a plugin's `name`: a namespace, a module, or an exported value.

        Raises:
            AttributeError: no installed plugin has it, or two have.
            PluginImportError: its plugin did not load.
        """
        if name.startswith("_"):  # protocols probe for dunders; do not load plugins for that
            raise AttributeError(f"module {self.package!r} has no attribute {name!r}")
        plugins = _plugins()
        known_to, value = _resolved.get((self.package, name), (None, None))
        if known_to is plugins:  # host code names layouts at every launch
            return value
        try:
            plugins.refuse_clash(self.kind, name, NamespaceError)
            path = self.path(name)
        except NamespaceError as error:
            raise AttributeError(str(error)) from None
        if ":" in path:
            value = load_named(path, f"exports[{name!r}] of a plugin")
            self.adopt(value, name)
        else:
            value = importlib.import_module(f"{self.package}.{name}")
        _resolved[self.package, name] = plugins, value
        return value


_spaces: list[Space] = []  # the innermost package first
# (package, name) -> the registry that was asked, and its answer.
_resolved: dict[tuple[str, str], tuple[Any, Any]] = {}
_awaited: dict[str, list[Callable[[ModuleType], None]]] = {}


def _plugins() -> Registry:
    from gluon_core.registry.load import registry

    return registry()


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of plugins, and puts each into `sys.modules` under its name in the core.

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
        space = next((s for s in _spaces if fullname.startswith(f"{s.package}.")), None)
        if space is None:
            return None
        name, _, inner = fullname[len(space.package) + 1 :].partition(".")
        if name.startswith("_") or name in own_modules(space.package):
            return None
        root = space.path(name)
        real = f"{root}.{inner}" if inner else root
        if inner and real not in sys.modules:
            _check_inside(root, inner, fullname)
        return ModuleSpec(fullname, self, origin=real, loader_state=space, is_package=not inner)

    def get_code(self, fullname: str) -> Any:
        """Return the code of the real module, for `python -m`."""
        alias: Any = self.find_spec(fullname)
        spec: Any = importlib.util.find_spec(alias.origin)
        return spec.loader.get_code(alias.origin)

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        alias, real, space = spec.name, spec.origin, spec.loader_state
        try:
            sys.modules[alias] = importlib.import_module(real)
        except ModuleNotFoundError as error:
            # The path that a plugin names is wrong; a module that is missing inside it is another matter.
            inner = alias.count(".") > space.package.count(".") + 1
            if inner or not f"{real}.".startswith(f"{error.name}."):
                raise
            message = f"{alias}: {real!r} cannot be loaded: {error}"
            raise PluginImportError(message, argument=alias) from error
        # Importing a submodule binds its name in the package, also where the package has given that
        # name to a function since; a module that is in `sys.modules` already is not bound again.
        # Innermost first: `adopt` may ask what is left of a module's parts.
        inside = [name for name in sys.modules if f"{name}.".startswith(f"{real}.")]
        for name in sorted(inside, key=lambda name: -name.count(".")):
            short = alias + name[len(real) :]
            sys.modules.setdefault(short, sys.modules[name])
            space.adopt(sys.modules[name], short[len(space.package) + 1 :])


def _check_inside(root: str, inner: str, fullname: str) -> None:
    """Raise NamespaceError unless the package `root` of a plugin has a module `inner`."""
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


_FINDER = _Finder()


def _install() -> None:
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Call `call` with the module `name`: now if it is loaded, else when somebody imports it."""
    if name in sys.modules:
        call(sys.modules[name])
    else:
        _awaited.setdefault(name, []).append(call)
        _install()


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
