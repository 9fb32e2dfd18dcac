"""Record the identity of compile-time values: the objects that were read for them, and where."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["ABSENT", "Identity", "Read"]

ABSENT = object()


class Read(NamedTuple):
    """A variable that a function finds outside of itself.

    Args:
        name: as the function spells it, without the module before it.
        scope: where it is, a mapping.
        value: its value when it was read.
        text: of that value.
        settled: no part of that value can change.
        by_value: the value is known by its content, not only as the object that it is.
    """

    name: str
    scope: Any
    value: Any
    text: str
    settled: bool
    by_value: bool

    @property
    def place(self) -> tuple[str, int]:
        """Differs between variables."""
        return self.name, id(getattr(self.scope, "origin", self.scope))


class Identity(NamedTuple):
    """The identity of a compile-time value.

    Args:
        text: differs wherever the compiled code may.
        lasting: another process would say the same text and mean the same by it.
        settled: no part of the value can change, so that it may be recognised by its address.
        reads: the variables that kernels within the value depend on.
        files: the source files of these kernels, in an order that the text determines.
    """

    text: str
    lasting: bool
    settled: bool
    reads: tuple[Read, ...]
    files: tuple[str, ...] = ()
