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
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from gluon_core.errors import CapabilityError, GluonError, PluginError, did_you_mean
from gluon_core.features import Feature, dotted
from gluon_core.layouts import pictures
from gluon_core.layouts.dialect import compiler_version, follows
from gluon_core.plugin.paths import load_named
from gluon_core.registry.moved import GONE_IN, MOVED, SHORT

if TYPE_CHECKING:
    from gluon_core.plugin.backend import Backend

__all__ = [
    "NamespaceError",
    "PluginImportError",
    "install",
    "offered",
    "resolve",
    "resolve_host",
    "stand_in",
]

_HOST = "gluon_core"
_LANGUAGE = "gluon_core.language"


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
    return NotInReleaseError(feature.refusal(f"{path}.{name}", dotted(compiler_version())))


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


class _Moved(_Alias):
    """An alias of a module that stood elsewhere; it says so once for each place that imports it."""

    def exec_module(self, module: ModuleType) -> None:
        # Python leaves out its own import machinery: the level is that of the `import`.
        warnings.warn(
            f"{module.__name__} has moved to {self.real}; the older path goes in {GONE_IN}",
            DeprecationWarning,
            stacklevel=2,
        )
        super().exec_module(module)


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
    if module.__name__ in _withheld or not alias.startswith(_LANGUAGE):
        return
    path = alias.replace(_LANGUAGE, "gl", 1)
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
        if not fullname.startswith("gluon_core."):
            return None
        short = SHORT.get(fullname)
        if short is not None:
            return importlib.machinery.ModuleSpec(fullname, _Alias(short), origin=short)
        moved = MOVED.get(fullname)
        if moved is not None:
            return importlib.machinery.ModuleSpec(fullname, _Moved(moved), origin=moved)
        language = fullname.startswith(_LANGUAGE + ".")
        prefix = _LANGUAGE if language else _HOST
        name, _, inner = fullname[len(prefix) + 1 :].partition(".")
        if name.startswith("_") or not _is_vendor(prefix, name, path, bool(inner)):
            return None
        root = _root(prefix, name)
        real = f"{root}.{inner}" if inner else root
        if inner and not _exists(real):
            raise NamespaceError(
                f"{prefix}.{name} has no module {inner!r}",
                got=repr(fullname),
                remedy=_nearest(inner, _children(root)),
            )
        where = f"{prefix}.{name}"
        extra = _is_module(prefix, name)
        alias = (_Alias if extra else _VendorAlias)(real, None if inner else where)
        package = extra and _is_package(real)
        return importlib.machinery.ModuleSpec(fullname, alias, origin=real, is_package=package)


_FINDER = _Finder()
_core_modules: dict[tuple[str, str], bool] = {}


def install() -> None:
    """Put the finder in place, and let layouts find who draws them. `import gluon_core` calls it;
    calling it again does nothing."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
        pictures.set_source(_pictures)


def _pictures() -> Any:
    from gluon_core.registry.load import registry

    return registry().service("pictures")


def _is_vendor(prefix: str, name: str, path: Optional[Sequence[str]], inner: bool) -> bool:
    """Whether `prefix.name` is not one of the core's own modules."""
    known = _core_modules.get((prefix, name))
    if known is None:
        if inner or path is None:
            parent = sys.modules.get(prefix)
            path = getattr(parent, "__path__", None)
        own = importlib.machinery.PathFinder.find_spec(f"{prefix}.{name}", path)
        known = own is None
        _core_modules[(prefix, name)] = known
    return known


def _is_module(prefix: str, name: str) -> bool:
    """Return whether `gluon_core.name` is a module of a plugin, and not a backend's namespace."""
    from gluon_core.registry.load import registry

    return prefix == _HOST and name in registry().modules()


def _is_package(real: str) -> bool:
    try:
        spec = importlib.util.find_spec(real)
    except ImportError:  # its import says why
        return False
    return spec is not None and spec.submodule_search_locations is not None


def _root(prefix: str, name: str) -> str:
    """The module path behind the namespace `prefix.name` of a plugin."""
    from gluon_core.registry.load import registry

    if _is_module(prefix, name):
        return registry().modules()[name].path
    backend = _backend(prefix, name)
    root = backend.language.namespace if prefix == _LANGUAGE else backend.language.host
    if root is None:
        raise NamespaceError(
            f"backend {name!r} has no {'language' if prefix == _LANGUAGE else 'host'} namespace",
            got=f"{prefix}.{name}",
        )
    return root


def _backend(prefix: str, name: str) -> Backend:
    from gluon_core.registry.load import registry

    plugins = registry()
    found = plugins.backends.get(name)
    if found is not None:
        return found
    plugins.raise_if_failed(name, PluginImportError)
    near = did_you_mean(name, [*plugins.backends, *plugins.modules(), *plugins.failures])
    raise NamespaceError(
        f"{prefix} has no module {name!r} and no plugin contributes it",
        got=f"{prefix}.{name}",
        remedy=" ".join(filter(None, (near, plugins.installation(name)))),
    )


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


def resolve(name: str, opened: Callable[[type], type]) -> Any:
    """What `gl.<name>` is, for a name that the portable language does not define: a vendor's
    language namespace, or a name that a vendor exports into `gl`.

    Args:
        opened: makes the methods of an exported class callable in kernels.

    Raises:
        AttributeError: no installed plugin has it.
        PluginImportError: its plugin did not load.
    """
    return _resolve(_LANGUAGE, name, opened)


def resolve_host(name: str) -> Any:
    """What `gluon_core.<name>` is: a vendor's host namespace. Raises as `resolve` does."""
    return _resolve(_HOST, name, None)


def offered(prefix: str) -> list[str]:
    """What the installed plugins add to `gluon_core.language` or `gluon_core`: their namespaces, and
    in the language the names that they export."""
    from gluon_core.registry.load import registry

    plugins = registry()
    if prefix == _HOST:
        hosts = [name for name, backend in plugins.backends.items() if backend.language.host]
        return [*hosts, *plugins.modules()]
    spaces = [name for name, backend in plugins.backends.items() if backend.language.namespace]
    return [*spaces, *plugins.exports()]


def stand_in(wanted: str) -> None:
    """Let a plugin answer Triton for the device `wanted`, the value of GLUON_TARGET."""
    from gluon_core.registry.load import registry

    try:
        plugins = registry()
    except GluonError:  # the launch says what is wrong
        return
    if "standin" in plugins.services():
        plugins.service("standin").activate(wanted)


# (prefix, name) -> the registry that was asked, and what it answered.
_resolved: dict[tuple[str, str], tuple[Any, Any]] = {}


def _resolve(prefix: str, name: str, opened: Optional[Callable[[type], type]]) -> Any:
    if name.startswith("_"):  # protocols probe for dunders; do not load plugins for that
        raise AttributeError(f"module {prefix!r} has no attribute {name!r}")
    from gluon_core.registry.load import registry

    plugins = registry()
    known_to, value = _resolved.get((prefix, name), (None, None))
    if known_to is plugins:  # host code names layouts at every launch
        return value
    if opened is not None and name in plugins.exports():
        value = load_named(plugins.exports()[name], f"exports[{name!r}] of a plugin")
        if isinstance(value, type):
            opened(value)
        _resolved[prefix, name] = plugins, value
        return value
    if name in plugins.backends or _is_module(prefix, name):
        try:
            value = importlib.import_module(f"{prefix}.{name}")
        except NamespaceError as error:
            raise AttributeError(str(error)) from None
        _resolved[prefix, name] = plugins, value
        return value
    plugins.raise_if_failed(name, PluginImportError)
    clash = plugins.clash("export", name) if opened is not None else None
    if clash is not None and name == clash.name:
        raise AttributeError(str(GluonError(clash.text, remedy=clash.remedy)))
    known = [*plugins.backends, *plugins.failures]
    known += plugins.exports() if opened else plugins.modules()
    module = sys.modules.get(prefix)
    known += [n for n in vars(module) if not n.startswith("_")] if module else []
    text = f"module {prefix!r} has no attribute {name!r}"
    remedy = " ".join(filter(None, (did_you_mean(name, known), plugins.installation(name))))
    raise AttributeError(str(GluonError(text, remedy=remedy)))
