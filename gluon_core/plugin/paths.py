"""Texts of a fixed form, and paths of code, `"package.module:attribute"`, loaded when they are needed.

The registry checks each value against the annotation of its field when a plugin registers.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, NamedTuple

from gluon_core.errors import PluginError, did_you_mean

__all__ = [
    "Capability",
    "CodePath",
    "Form",
    "ModulePath",
    "Name",
    "Words",
    "load_named",
    "load_path",
]


class Form(NamedTuple):
    """The form of a text or number: a pattern that it matches as a whole, and the words of the error."""

    pattern: str
    words: str


_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
ModulePath = Annotated[str, Form(_DOTTED, "not a module path such as 'package.module'")]
CodePath = Annotated[
    str, Form(rf"{_DOTTED}:[A-Za-z_]\w*", "not a path such as 'package.module:attribute'")
]
Name = Annotated[str, Form(r"[a-z][a-z0-9_]*", "must be a lower-case identifier")]
Words = Annotated[str, Form(r"(?s).+", "must be text")]
Capability = Annotated[
    str,
    Form(
        r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+",
        "a capability is a dotted lower-case name such as 'vendor.unit'",
    ),
]


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
    except RecursionError:  # the caller's: kernels whose calls are nested too deep
        raise
    except Exception as error:
        module, _, attribute = path.partition(":")
        lacks = attribute and isinstance(error, AttributeError) and module in sys.modules
        remedy = did_you_mean(attribute, vars(sys.modules[module])) if lacks else None
        raise PluginError(
            f"{where}: {path!r} cannot be loaded: {type(error).__name__}: {error}", remedy=remedy
        ) from error
