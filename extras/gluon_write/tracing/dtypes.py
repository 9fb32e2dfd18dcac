"""Name the dtypes of traced values."""

from __future__ import annotations

from typing import Any, Iterable, Optional

from gluon_core import language

__all__ = ["dtype_of"]

_NAMES = ("float16", "bfloat16", "float32", "float8e4nv", "float8e5")


def dtype_of(values: Iterable[Any]) -> Optional[str]:
    """Return the name in the language of the dtype that tensors of floats have; None of several, and of another."""
    kinds = {str(getattr(value.type, "element", "")) for value in values}
    names = [name for name in _NAMES if {getattr(language, name).name} == kinds]
    return names[0] if names else None
