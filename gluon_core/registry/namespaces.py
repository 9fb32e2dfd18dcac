"""Namespaces of plugins: `gluon_core.language.<name>` and `gluon_core.<name>` are their own modules.

`import gluon_core.language.acme.unit`, `gl.acme.unit` and `import gluon_acme.language.unit` give
one and the same module object, so that isinstance checks, constexpr identity and monkeypatching
agree however a kernel spells its imports. A finder at the head of `sys.meta_path` answers for
those names; it stands before Python's own because that one would find the plugin's files through
the parent's `__path__` and load them a second time.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pkgutil
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional, Sequence

from gluon_core import errors
from gluon_core.errors import CapabilityError, GluonError, PluginError, did_you_mean
from gluon_core.features import Feature
from gluon_core.layouts import pictures
from gluon_core.layouts.dialect import compiler_version, follows
from gluon_core.plugin.paths import load_named

if TYPE_CHECKING:
    from gluon_core.plugin.backend import Backend

__all__ = [
    "ALIASES",
    "NamespaceError",
    "PluginImportError",
    "Space",
    "alias",
    "stand_in",
    "when_imported",
]


class PluginImportError(PluginError, ImportError):
    """`import` or attribute access of a vendor's namespace whose plugin did not load."""


class NamespaceError(GluonError, ModuleNotFoundError):
    """`import` of a vendor or generation that no installed plugin has."""


class NotInReleaseError(CapabilityError, AttributeError):
    """A name of a namespace that the installed Triton has nothing for; `hasattr` finds it missing."""


_withheld: dict[str, dict[str, Feature]] = {}  # by the module that it was taken out of


def withhold(names: dict[str, Any]) -> dict[str, Feature]:
    """Take out of a namespace what the installed Triton cannot emit, so that `hasattr` tells it.

    What the module itself defines stays: its code may use it.

    Returns:
        What was taken out, with what it needs: `missing` says so.
    """
    taken = {}
    for name, value in list(names.items()):
        own = getattr(value, "__module__", None) == names["__name__"]
        feature = None if own or name.startswith("_") else _lacks(value)
        if feature is not None:
            taken[name] = feature
            del names[name]
    _withheld[names["__name__"]] = taken
    return taken


def missing(name: str, path: str, feature: Feature) -> NotInReleaseError:
    """The error for a name that was taken out."""
    return NotInReleaseError(feature.refusal(f"{path}.{name}", compiler_version()))


def _lacks(value: Any) -> Optional[Feature]:
    """The feature without which the installed Triton can do nothing with `value`."""
    if isinstance(value, ModuleType):
        taken = _withheld.get(value.__name__, {})
        ops = [op for op in vars(value).values() if getattr(op, "__triton_builtin__", False)]
        needs = [getattr(op, "since", None) for op in ops]
        if any(need is None or follows(need) for need in needs):
            return None
        return next((need for need in [*taken.values(), *needs] if need is not None), None)
    since = getattr(value, "since", None)
    return since if isinstance(since, Feature) and not follows(since) else None


class _Alias(importlib.abc.Loader):
    """Puts a module, imported under its own name, into `sys.modules` under the alias.

    The import system hands over a placeholder and, after `exec_module`, takes whatever stands in
    `sys.modules`; so the real module keeps its own `__name__`, `__spec__` and `__path__`.
    """

    def __init__(self, real: str, where: Optional[str] = None):
        self.real = real
        self.where = where  # whose path it is, of a plugin's

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def get_code(self, fullname: str) -> Any:
        """Return the code of the real module, for `python -m`."""
        spec: Any = importlib.util.find_spec(self.real)
        return spec.loader.get_code(self.real)

    def exec_module(self, module: ModuleType) -> None:
        alias = module.__name__
        try:
            sys.modules[alias] = importlib.import_module(self.real)
        except ModuleNotFoundError as error:
            # The path that a plugin names is wrong; what is missing inside it is another matter.
            if self.where is None or not f"{self.real}.".startswith(f"{error.name}."):
                raise
            raise PluginImportError(
                f"{self.where}: {self.real!r} cannot be loaded: {error}", argument=alias
            ) from error
        # Importing a submodule binds its name in the package, also where the package has given that
        # name to a function since; what is in `sys.modules` already is not bound again.
        for name, loaded in list(sys.modules.items()):
            if name.startswith(self.real + "."):
                sys.modules.setdefault(alias + name[len(self.real) :], loaded)


class _VendorAlias(_Alias):
    """An alias of what users type `dir()` of."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        # Innermost first: a module of which nothing is left is taken out of its parent.
        for name, loaded in sorted(sys.modules.items(), key=lambda item: -item[0].count(".")):
            if f"{name}.".startswith(f"{self.real}."):
                _tidy(loaded)
                # Files of ops list what they define, and use what they import themselves.
                if "__all__" not in vars(loaded) or name == self.real:
                    _withhold_from(loaded, module.__name__ + name[len(self.real) :])


def _tidy(module: ModuleType) -> None:
    """`dir()` of a vendor's module is what it offers, not what its code imports."""
    if "__dir__" not in vars(module):
        module.__dir__ = lambda: sorted(_public(module))  # type: ignore[method-assign]


def _withhold_from(module: ModuleType, alias: str) -> None:
    space = next((space for space in _spaces if alias.startswith(space.package + ".")), None)
    if module.__name__ in _withheld or space is None or space.opened is None:
        return
    path = alias.replace(space.package, space.shown, 1)
    taken, otherwise = withhold(vars(module)), vars(module).get("__getattr__")
    if not taken:
        return

    def absent(name: str) -> Any:
        if name in taken:
            raise missing(name, path, taken[name])
        if otherwise is not None:
            return otherwise(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__getattr__ = absent  # type: ignore[method-assign]


def _public(module: ModuleType) -> Sequence[str]:
    names: Optional[Sequence[str]] = vars(module).get("__all__")
    given = names or [name for name in vars(module) if not name.startswith("_")]
    return [name for name in given if name not in _withheld.get(module.__name__, {})]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]] = None,
        target: Optional[ModuleType] = None,
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if fullname in _awaited:
            return _observed(fullname)
        if not fullname.startswith("gluon_core."):
            return None
        real = ALIASES.get(fullname)
        if real is not None:
            return importlib.machinery.ModuleSpec(fullname, _Alias(real), origin=real)
        space = next(space for space in _spaces if fullname.startswith(space.package + "."))
        prefix = space.package
        name, _, inner = fullname[len(prefix) + 1 :].partition(".")
        if name.startswith("_") or not _is_vendor(prefix, name, path, bool(inner)):
            return None
        root, extra = space.root(name), space.is_module(name)
        real = f"{root}.{inner}" if inner else root
        if inner and not _exists(real):
            raise NamespaceError(
                f"{prefix}.{name} has no module {inner!r}",
                got=repr(fullname),
                remedy=_nearest(inner, _children(root)),
            )
        loader = (_Alias if extra else _VendorAlias)(real, None if inner else f"{prefix}.{name}")
        package = extra and _is_package(real)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=real, is_package=package)


_FINDER = _Finder()
_core_modules: dict[tuple[str, str], bool] = {}
ALIASES: dict[str, str] = {}  # path that users type -> the module of the core
_spaces: list[Space] = []  # the innermost package first


def alias(paths: Mapping[str, str]) -> None:
    """Let users import modules of the core by shorter paths: path -> module."""
    ALIASES.update(paths)


_awaited: dict[str, list[Callable[[ModuleType], None]]] = {}


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Call `call` with the module `name`: now if it is loaded, else when somebody imports it."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        call(loaded)
        return
    _awaited.setdefault(name, []).append(call)
    _install()


def _observed(name: str) -> Optional[importlib.machinery.ModuleSpec]:
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


def _is_vendor(prefix: str, name: str, path: Optional[Sequence[str]], inner: bool) -> bool:
    """Whether `prefix.name` is not one of the core's own modules."""
    known = _core_modules.get((prefix, name))
    if known is None:
        if inner or path is None:
            parent = sys.modules.get(prefix)
            path = getattr(parent, "__path__", None)
        own = importlib.machinery.PathFinder.find_spec(f"{prefix}.{name}", path)
        # A folder without modules, such as one that an older checkout left, has no origin.
        known = own is None or own.origin is None
        _core_modules[(prefix, name)] = known
    return known


def _is_package(real: str) -> bool:
    try:
        spec = importlib.util.find_spec(real)
    except ImportError:  # its import says why
        return False
    return spec is not None and spec.submodule_search_locations is not None


def _exists(real: str) -> bool:
    """Whether the module `real` is there, without swallowing an error inside its parents."""
    if real in sys.modules:
        return True
    parent = importlib.import_module(real.rpartition(".")[0])
    if not hasattr(parent, "__path__"):
        return False
    return importlib.util.find_spec(real) is not None


def _children(root: str) -> list[str]:
    path = getattr(importlib.import_module(root), "__path__", [])
    return [m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_")]


def _nearest(word: str, known: Sequence[str]) -> str:
    return did_you_mean(word, known) or f"It has: {', '.join(known) or 'no modules'}."


class Space(NamedTuple):
    """A package of the core to which plugins add names.

    Args:
        package: its name.
        shown: what users call it.
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
        pictures.set_source(_pictures)
        errors.set_source(_error)
        if all(space.package != self.package for space in _spaces):
            _spaces.insert(0, self)
        return self

    def is_module(self, name: str) -> bool:
        """Return whether `name` is a module of a plugin, and not a backend's namespace."""
        from gluon_core.registry.load import registry

        return self.opened is None and name in registry().modules()

    def root(self, name: str) -> str:
        """Return the module path behind the namespace `name` of a plugin.

        Raises:
            NamespaceError: no plugin has it.
            PluginImportError: its plugin did not load, or two plugins have it.
        """
        from gluon_core.registry.load import registry

        plugins = registry()
        if self.is_module(name):
            return plugins.modules()[name].path
        plugins.refuse_clash(self._kind, name, PluginImportError)
        backend = plugins.backends.get(name)
        if backend is None:
            plugins.raise_if_failed(name, PluginImportError)
            near = did_you_mean(name, [*plugins.backends, *plugins.modules(), *plugins.failures])
            raise NamespaceError(
                f"{self.package} has no module {name!r} and no plugin contributes it",
                got=f"{self.package}.{name}",
                remedy=" ".join(filter(None, (near, plugins.installation(name)))),
            )
        root = self.path(backend)
        if root is None:
            raise NamespaceError(
                f"backend {name!r} has no namespace in {self.package}", got=f"{self.package}.{name}"
            )
        return root

    @property
    def _kind(self) -> str:
        return "module" if self.opened is None else "export"

    def offered(self) -> list[str]:
        """Return the names that the installed plugins add."""
        from gluon_core.registry.load import registry

        plugins = registry()
        spaces = [name for name, backend in plugins.backends.items() if self.path(backend)]
        return [*spaces, *(plugins.modules() if self.opened is None else plugins.exports())]

    def resolve(self, name: str) -> Any:
        """Return what a plugin has for `name`: a namespace, a module, or an exported value.

        Raises:
            AttributeError: no installed plugin has it, or two have.
            PluginImportError: its plugin did not load.
        """
        if name.startswith("_"):  # protocols probe for dunders; do not load plugins for that
            raise AttributeError(f"module {self.package!r} has no attribute {name!r}")
        from gluon_core.registry.load import registry

        plugins = registry()
        known_to, value = _resolved.get((self.package, name), (None, None))
        if known_to is plugins:  # host code names layouts at every launch
            return value
        clash = plugins.clash(self._kind, name)
        if clash is not None:
            raise AttributeError(str(GluonError(clash.text, remedy=clash.remedy)))
        if self.opened is not None and name in plugins.exports():
            value = load_named(plugins.exports()[name], f"exports[{name!r}] of a plugin")
            if isinstance(value, type):
                self.opened(value)
        elif name in plugins.backends or self.is_module(name):
            try:
                value = importlib.import_module(f"{self.package}.{name}")
            except NamespaceError as error:
                raise AttributeError(str(error)) from None
        else:
            plugins.raise_if_failed(name, PluginImportError)
            raise AttributeError(self._unknown(name))
        _resolved[self.package, name] = plugins, value
        return value

    def _unknown(self, name: str) -> str:
        from gluon_core.registry.load import registry

        plugins = registry()
        own = vars(sys.modules[self.package]) if self.package in sys.modules else {}
        known = [*plugins.backends, *plugins.failures, *self.offered()]
        near = did_you_mean(name, [*known, *(n for n in own if not n.startswith("_"))])
        remedy = " ".join(filter(None, (near, plugins.installation(name))))
        return str(GluonError(f"module {self.package!r} has no attribute {name!r}", remedy=remedy))


# (package, name) -> the registry that was asked, and what it answered.
_resolved: dict[tuple[str, str], tuple[Any, Any]] = {}


def _pictures() -> Any:
    from gluon_core.registry.load import registry

    return registry().service("pictures")


def _error(name: str) -> Any:
    """Return the error class of a plugin that offers its module of errors as a service."""
    from gluon_core.registry.load import registry

    try:
        plugins = registry()
    except GluonError:  # it is loading
        services = []
    else:
        services = [service for service in plugins.services() if service.endswith(".errors")]
    for service in services:
        module = plugins.service(service)
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(
        f"module 'gluon_core.errors' has no attribute {name!r}, and no installed plugin adds it"
    )


def stand_in(wanted: str) -> None:
    """Let a plugin answer Triton for the device `wanted`, the value of GLUON_TARGET."""
    from gluon_core.registry.load import registry

    try:
        plugins = registry()
    except GluonError:  # the launch says what is wrong
        return
    if "standin" in plugins.services():
        plugins.service("standin").activate(wanted)
