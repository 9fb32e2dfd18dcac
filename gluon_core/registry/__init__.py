"""The registry of plugins: it loads and verifies them, and finds names, targets and lowerings."""

import functools
import pkgutil
import sys

__all__ = ["CORE_PLUGINS", "own_modules"]

CORE_PLUGINS: list[str] = []
"""Paths of the core's own plugins, which `gluon_core` adds: they are registered before all others."""


@functools.cache
def own_modules(package: str) -> frozenset[str]:
    """Return the modules of a package of the core; a folder without code is none."""
    return frozenset(module.name for module in pkgutil.iter_modules(sys.modules[package].__path__))
