"""Namespaces of plugins: `gluon_core.language.<name>` and `gluon_core.<name>` are their own modules.

`import gluon_core.language.acme.unit`, `gl.acme.unit` and `import gluon_acme.language.unit` give
one and the same module object, so that isinstance checks, constexpr identity and monkeypatching
agree however a kernel spells its imports. A finder at the head of `sys.meta_path` answers for
those names; it comes before Python's own because that one would find the plugin's files through
the parent's `__path__` and load them a second time.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import pkgutil
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence

from gluon_core import errors
from gluon_core.errors import CapabilityError, GluonError, PluginError, did_you_mean
from gluon_core.features import Feature
from gluon_core.layouts import pictures
from gluon_core.layouts.dialect import compiler_version, follows
from gluon_core.plugin.paths import load_named
from gluon_core.registry import own_modules

if TYPE_CHECKING:
    from gluon_core.plugin.backend import Backend

__all__ = [
    "NamespaceError",
    "PluginImportError",
    "Space",
    "stand_in",
    "when_imported",
    "withhold",
]


class PluginImportError(PluginError, ImportError):
    """`import` or attribute access of a vendor's namespace whose plugin did not load."""


class NamespaceError(GluonError, ModuleNotFoundError):
    """`import` of a vendor or generation that no installed plugin has."""


class NotInReleaseError(CapabilityError, AttributeError):
    """A name of a namespace that the installed Triton has nothing for; `hasattr` finds it missing."""


# -- imports that somebody waits for -------------------------------------------------------------

_awaited: dict[str, list[Callable[[ModuleType], None]]] = {}


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


def _install() -> None:
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


# -- names that the installed Triton lacks --------------------------------------------------------

_WITHHELD = "__withheld__"  # of a namespace: name -> the feature that it needs


def withhold(module: ModuleType, path: str) -> None:
    """Take out of a namespace the names of ops that the installed Triton cannot emit.

    `hasattr` and `dir` miss them, and asking for one says which release has it.

    Args:
        module: a namespace; ops that it defines itself stay, as its code may use them.
        path: its name for users, such as `gl.acme`.
    """
    names = vars(module)
    if _WITHHELD in names:
        return
    lacking = {name: _lacks(value) for name, value in names.items() if not name.startswith("_")}
    withheld = {
        name: feature
        for name, feature in lacking.items()
        if feature is not None and getattr(names[name], "__module__", None) != module.__name__
    }
    for name in withheld:
        del names[name]
    names[_WITHHELD], otherwise = withheld, names.get("__getattr__")

    def absent(name: str) -> Any:
        if name in withheld:
            refusal = withheld[name].refusal(f"{path}.{name}", compiler_version())
            raise NotInReleaseError(refusal)
        if otherwise is None:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return otherwise(name)

    names["__getattr__"] = absent


def _lacks(value: Any) -> Optional[Feature]:
    """Return the feature without which the installed Triton can do nothing with `value`."""
    if not isinstance(value, ModuleType):
        since = getattr(value, "since", None)
        return since if isinstance(since, Feature) and not follows(since) else None
    ops = [op for op in vars(value).values() if getattr(op, "__triton_builtin__", False)]
    needs = [*vars(value).get(_WITHHELD, {}).values(), *(getattr(op, "since", None) for op in ops)]
    usable = any(need is None or follows(need) for need in needs)
    return None if usable or not needs else needs[0]


def _list(module: ModuleType) -> None:
    """Let `dir()` of a vendor's module list its offers, not the imports of its code."""

    def names() -> list[str]:
        own = vars(module).get("__all__") or [n for n in vars(module) if not n.startswith("_")]
        return sorted(set(own) - vars(module).get(_WITHHELD, {}).keys())

    vars(module).setdefault("__dir__", names)


# -- imports -------------------------------------------------------------------------------------


class _Loader(importlib.abc.Loader):
    """Puts a module, imported under its own name, into `sys.modules` under the one of the core.

    The import system hands over a placeholder and, after `exec_module`, takes the entry of
    `sys.modules`; so the real module keeps its own `__name__`, `__spec__` and `__path__`.
    """

    def __init__(self, space: Space, real: str):
        self.space, self.real = space, real

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def get_code(self, fullname: str) -> Any:
        """Return the code of the real module, for `python -m`."""
        spec: Any = importlib.util.find_spec(self.real)
        return spec.loader.get_code(self.real)

    def exec_module(self, module: ModuleType) -> None:
        alias, package = module.__name__, self.space.package
        try:
            sys.modules[alias] = importlib.import_module(self.real)
        except ModuleNotFoundError as error:
            # The path that a plugin names is wrong; a module that is missing inside it is another matter.
            nested = alias.count(".") > package.count(".") + 1
            if nested or not f"{self.real}.".startswith(f"{error.name}."):
                raise
            message = f"{alias}: {self.real!r} cannot be loaded: {error}"
            raise PluginImportError(message, argument=alias) from error
        # Importing a submodule binds its name in the package, also where the package has given that
        # name to a function since; a module that is in `sys.modules` already is not bound again.
        inside = [name for name in sys.modules if f"{name}.".startswith(f"{self.real}.")]
        listed = not self.space.is_module(alias[len(package) + 1 :].partition(".")[0])
        # Innermost first: a module of which nothing is left is withheld from its parent.
        for name in sorted(inside, key=lambda name: -name.count(".")):
            loaded, short = sys.modules[name], alias + name[len(self.real) :]
            sys.modules.setdefault(short, loaded)
            if listed:
                _list(loaded)
            # Files of ops list what they define, and use what they import themselves.
            if self.space.opened and ("__all__" not in vars(loaded) or name == self.real):
                withhold(loaded, short.replace(package, self.space.shown, 1))


class _Finder(importlib.abc.MetaPathFinder):
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
        root = space.root(name)
        real = f"{root}.{inner}" if inner else root
        if inner and real not in sys.modules:
            parent = importlib.import_module(real.rpartition(".")[0])
            if not hasattr(parent, "__path__") or importlib.util.find_spec(real) is None:
                folders = getattr(importlib.import_module(root), "__path__", [])
                known = [
                    m.name for m in pkgutil.iter_modules(folders) if not m.name.startswith("_")
                ]
                listed = f"It has: {', '.join(known) or 'no modules'}."
                raise NamespaceError(
                    f"{space.package}.{name} has no module {inner!r}",
                    got=repr(fullname),
                    remedy=did_you_mean(inner, known) or listed,
                )
        loader, package = _Loader(space, real), False
        if not inner and space.is_module(name):  # `python -m` runs its `__main__`
            with suppress(ImportError):  # its import says why
                own = importlib.util.find_spec(real)
                package = own is not None and own.submodule_search_locations is not None
        return ModuleSpec(fullname, loader, origin=real, is_package=package)


_FINDER = _Finder()
_spaces: list[Space] = []  # the innermost package first


class Space(NamedTuple):
    """A package of the core to which plugins add names.

    Args:
        package: its name.
        shown: its name for users.
        path: the module path of a backend's namespace in it, None where it has none.
        opened: makes the methods of an exported class callable in kernels; None for a package that
            takes modules of plugins rather than exports.
    """

    package: str
    shown: str
    path: Callable[[Backend], Optional[str]]
    opened: Optional[Callable[[type], type]] = None

    def open(self) -> Space:
        """Let imports below the package find the modules of plugins."""
        _install()
        pictures.set_source(lambda: _plugins().service("pictures"))
        errors.set_source(_error)
        if all(space.package != self.package for space in _spaces):
            _spaces.insert(0, self)
        return self

    @property
    def _kind(self) -> str:
        return "module" if self.opened is None else "export"

    def is_module(self, name: str) -> bool:
        """Return whether `name` is a module of a plugin, and not a backend's namespace."""
        return self.opened is None and name in _plugins().modules()

    def offered(self) -> list[str]:
        """Return the names that the installed plugins add."""
        plugins = _plugins()
        spaces = [name for name, backend in plugins.backends.items() if self.path(backend)]
        return [*spaces, *(plugins.modules() if self.opened is None else plugins.exports())]

    def root(self, name: str) -> str:
        """Return the module path behind the namespace `name` of a plugin.

        Raises:
            NamespaceError: no plugin has it.
            PluginImportError: its plugin did not load, or two plugins have it.
        """
        plugins = _plugins()
        if self.is_module(name):
            return str(plugins.modules()[name].path)
        plugins.refuse_clash(self._kind, name, PluginImportError)
        backend = plugins.backends.get(name)
        if backend is None:
            plugins.raise_if_failed(name, PluginImportError)
            own = (n for n in vars(sys.modules[self.package]) if not n.startswith("_"))
            known = {*plugins.backends, *plugins.failures, *self.offered(), *own}
            message = f"module {self.package!r} has no attribute {name!r}"
            raise NamespaceError(message, remedy=plugins.remedy(name, sorted(known)))
        root: Optional[str] = self.path(backend)
        if root is None:
            raise NamespaceError(f"backend {name!r} has no namespace in {self.package}")
        return root

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
            plugins.refuse_clash(self._kind, name, NamespaceError)
            if self.opened is not None and name in plugins.exports():
                value = load_named(plugins.exports()[name], f"exports[{name!r}] of a plugin")
                if isinstance(value, type):
                    self.opened(value)
            else:
                value = importlib.import_module(f"{self.package}.{name}")
        except NamespaceError as error:
            raise AttributeError(str(error)) from None
        _resolved[self.package, name] = plugins, value
        return value


# (package, name) -> the registry that was asked, and its answer.
_resolved: dict[tuple[str, str], tuple[Any, Any]] = {}


def _plugins() -> Any:
    from gluon_core.registry.load import registry

    return registry()


def _services() -> Sequence[str]:
    """Return the services of plugins; none while plugins load, or where they cannot be."""
    try:
        return [*_plugins().services()]
    except GluonError:  # the launch reports it
        return []


def _error(name: str) -> Any:
    """Return the error class of a plugin that offers its module of errors as a service."""
    for service in _services():
        if service.endswith(".errors") and name in _plugins().service(service).__all__:
            return getattr(_plugins().service(service), name)
    raise AttributeError(
        f"module 'gluon_core.errors' has no attribute {name!r}, and no installed plugin adds it"
    )


def stand_in(wanted: str) -> None:
    """Let a plugin answer Triton for the device `wanted`, the value of GLUON_TARGET."""
    if "standin" in _services():
        _plugins().service("standin").activate(wanted)
