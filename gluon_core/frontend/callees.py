"""What the functions that a kernel calls are named in its module: different ones differently.

Triton's code generator takes a function that is called twice under one name for the same. It makes
names of the path to the function and of how the compile-time arguments print, so that two closures
of one factory share a name, and two calls with objects that print alike.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping

from gluon_core._triton import code_generator, constexpr_type
from gluon_core.values.constants import text_of

__all__ = ["naming"]


class _Path(str):
    """The full name of a function, and the function."""

    fn: Any


def naming() -> Mapping[str, Callable[..., Any]]:
    """What takes the place of the code generator's own functions, for one module."""
    known: dict[str, list[list[Any]]] = {}

    def get_full_name(fn: Any) -> _Path:
        path = _Path(code_generator.get_full_name(fn))
        path.fn = fn
        return path

    def mangle_fn(path: _Path, types: Any, *more: Any) -> str:
        name: str = code_generator.mangle_fn(path, types, *more)
        constants = [path.fn, *_constants(types)]
        for given in more:
            if isinstance(given, dict):  # up to Triton 3.6 they come apart from the types
                constants += given.values()
        alike = known.setdefault(name, [])
        found = (n for n, others in enumerate(alike) if all(map(_same, constants, others)))
        number = next(found, len(alike))
        if number == len(alike):
            alike.append(constants)
        return f"{name}${number}" if number else name

    return {"get_full_name": get_full_name, "mangle_fn": mangle_fn}


def _constants(types: Any) -> Iterator[Any]:
    """The compile-time values in types of arguments."""
    for kind in types:
        if isinstance(kind, constexpr_type):
            yield kind.value
        elif hasattr(kind, "types"):
            yield from _constants(kind.types)
        elif hasattr(kind, "fields"):
            yield from _constants(field for _, field in kind.fields)


def _same(one: Any, other: Any) -> bool:
    return one is other or text_of(one) == text_of(other)
