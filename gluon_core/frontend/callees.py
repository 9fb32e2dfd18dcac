"""Name the functions that a kernel calls in its module: different ones differently.

Triton's code generator takes a function that is called twice under one name for the same. It makes
names of the path to the function and of how the compile-time arguments print, so that two closures
of one factory share a name, and two calls with objects that print alike.

Nor are two calls the same where known facts of their arguments select another lowering.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Sequence

from gluon_core._triton import code_generator, constexpr_type
from gluon_core.values.constants import text_of

__all__ = ["naming"]


class _Path(str):
    """The full name of a function, and the function."""

    fn: Any


@dataclass
class _Variant:
    """A function of the module, among those of one name.

    Args:
        constants: the function and its compile-time arguments.
        multiples: known multiples of its arguments.
        by_multiples: whether that selected anything in it.
    """

    constants: Sequence[Any]
    multiples: Mapping[str, Any]
    by_multiples: bool = False

    def fits(self, constants: Sequence[Any], multiples: Mapping[str, Any]) -> bool:
        if self.by_multiples and self.multiples != multiples:
            return False
        return all(map(_same, constants, self.constants))


def naming(session: Any) -> Mapping[str, Callable[..., Any]]:
    """Replace the code generator's own functions, for one module."""
    known: dict[str, list[_Variant]] = {}

    def get_full_name(fn: Any) -> _Path:
        path = _Path(code_generator.get_full_name(fn))
        path.fn = fn
        return path

    def mangle_fn(path: _Path, types: Any, *more: Any) -> str:
        name: str = code_generator.mangle_fn(path, types, *more)
        constants = [path.fn, *_constants(types)]
        for extra in more:
            if isinstance(extra, dict):  # up to Triton 3.6 they come apart from the types
                constants += extra.values()
        alike = known.setdefault(name, [])
        multiples = {} if session.passing is None else session.passing.by_name
        fitting = (n for n, one in enumerate(alike) if one.fits(constants, multiples))
        number = next(fitting, len(alike))
        if number == len(alike):
            alike.append(_Variant(constants, multiples))
        if session.passing is not None:
            session.passing.variant = alike[number]
            session.multiples.asked += alike[number].by_multiples
        return f"{name}${number}" if number else name

    return {"get_full_name": get_full_name, "mangle_fn": mangle_fn}


def _constants(types: Any) -> Iterator[Any]:
    """Yield the compile-time values in types of arguments."""
    for kind in types:
        if isinstance(kind, constexpr_type):
            yield kind.value
        elif hasattr(kind, "types"):
            yield from _constants(kind.types)
        elif hasattr(kind, "fields"):
            yield from _constants(field for _, field in kind.fields)


def _same(one: Any, other: Any) -> bool:
    return one is other or text_of(one) == text_of(other)
