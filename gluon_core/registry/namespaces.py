"""Namespaces of plugins: `gluon_core.language.<name>` and `gluon_core.<name>` are their own modules,
and `gl.<name>` a value that a plugin exports."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from gluon_core.imports import NamespaceError, PluginImportError, Seconds, add_names, list_offers
from gluon_core.plugin.paths import load_named

if TYPE_CHECKING:
    from gluon_core.registry.load import Registry

__all__ = ["Space"]


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
        add_names(Seconds(self.package, self.path, self.adopt))
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


# (package, name) -> the registry that was asked, and its answer.
_resolved: dict[tuple[str, str], tuple[Any, Any]] = {}


def _plugins() -> Registry:
    from gluon_core.registry.load import registry

    return registry()
