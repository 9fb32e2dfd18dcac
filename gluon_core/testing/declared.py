"""The names that the contract declares."""

from __future__ import annotations

import re

from gluon_core.plugin.builder import METHODS, RESULTS, Builder

__all__ = ["members", "methods_of"]


def members(protocol: type) -> frozenset[str]:
    """Return the names of the attributes and methods that a protocol declares, inherited ones included."""
    names: set[str] = set()
    for cls in protocol.__mro__:
        if cls.__module__.startswith("gluon_core."):
            names.update(cls.__dict__.get("__annotations__", ()))  # noqa: RUF063
            names.update(name for name in vars(cls) if not name.startswith("_"))
    if Builder in protocol.__mro__:
        for method, ops in METHODS.items():
            names.update(method.partition("(")[0].format(op) for op in ops.split())
    return frozenset(names)


def methods_of(result: str) -> frozenset[str]:
    """Return the names in `RESULTS` of a kind of result."""
    return frozenset(re.sub(r"\([^)]*\)", "", RESULTS[result]).split())
