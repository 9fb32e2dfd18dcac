"""Paths of code: `"package.module"` or `"package.module:attribute"`, loaded when they are needed."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from gluon_core.errors import PluginError, did_you_mean

__all__ = ["load_named", "load_path"]


def load_path(path: str) -> Any:
    """Return the module, or with `module:attribute` the attribute, that `path` names."""
    module, _, attribute = path.partition(":")
    value = importlib.import_module(module)
    return getattr(value, attribute) if attribute else value


def load_named(path: str, where: str) -> Any:
    """Return the module or attribute at `path`; `where` says whose path it is.

    Raises:
        PluginError: there is no such module or name, or the module cannot be imported.
    """
    try:
        return load_path(path)
    except Exception as error:
        module, _, attribute = path.partition(":")
        remedy = None
        if attribute and isinstance(error, AttributeError) and module in sys.modules:
            remedy = did_you_mean(attribute, vars(sys.modules[module]))
        raise PluginError(
            f"{where}: {path!r} cannot be loaded: {type(error).__name__}: {error}", remedy=remedy
        ) from error
