"""Readings of the arguments of a kernel by generated launch code: into a key, and as addresses."""

from __future__ import annotations

import functools
from typing import Any, Iterator, Optional, Sequence

from gluon_core.errors import ArgumentError
from gluon_core.launch.arguments import (
    DESCRIPTORS,
    LAYOUTS,
    describe,
    home_of,
    kind_of,
    layout_token,
    place_of,
    registered_kind,
    viewed,
)
from gluon_core.launch.memory import number
from gluon_core.values.constants import identity
from gluon_runtime.calls import Reading
from gluon_runtime.rules import CONSTANT, Parameter

__all__ = ["Tokens", "readings"]


class Tokens:
    """Small ints for constants that are costly to compare: equal constants share one.

    A constant that cannot change is recognised by its address first, and is then kept alive so
    that the address stays its own; the memory is bounded.
    """

    def __init__(self, size: int = 1024):
        self._by_id: dict[int, int] = {}
        self._kept: list[Any] = []
        self._by_text: dict[str, int] = {}
        self._size = size

    def __call__(self, value: Any) -> int:
        token = self._by_id.get(id(value))
        return self._add(value) if token is None else token

    def _add(self, value: Any) -> int:
        known = identity(value)
        token = self._by_text.setdefault(known.text, len(self._by_text))
        if known.settled:
            if len(self._kept) >= self._size:
                self._by_id.clear()
                self._kept.clear()
            self._kept.append(value)
            self._by_id[id(value)] = token
        return token


def readings(
    token: Any, parameters: Sequence[Parameter], values: Sequence[Any]
) -> list[Optional[tuple[Any, Reading]]]:
    """Return, per parameter, the argument as kernels take it and how it is read; None for constants and for
    numbers of Python.

    Args:
        token: the stand-in of a constant in a key.
    """
    return [
        None
        if parameter.flags & CONSTANT or kind_of(value) in ("bool", "int", "float", "none")
        else _reading(token, viewed(value))
        for parameter, value in zip(parameters, values)
    ]


def _reading(token: Any, value: Any) -> tuple[Any, Reading]:
    kind = kind_of(value)
    if kind == "tuple":
        names: dict[str, Any] = {"nested": functools.partial(tuple_key, token)}
        return value, Reading(("{nested}({it})",), names=names)
    if kind == "constant":
        return value, Reading(("_g_token({it})",))
    if kind == "registered":
        return value, _registered_reading(value)
    if kind == "unknown":
        describe(value)  # raises
    known = kind == "pointer" and hasattr(value, "get_device")
    return value, Reading(
        ("{it}.dtype",) if known else ("{it}.dtype", "{place}({it})"),
        device="{it}.get_device()" if known else "",
        read="{it}.data_ptr()" if kind == "pointer" else "{it}.ctypes.data",
        value="{own}",
        memory=True,
        names={"place": place_of},
    )


def _registered_reading(value: Any) -> Reading:
    kind = registered_kind(type(value))
    assert kind is not None
    if kind is not DESCRIPTORS:
        at = "" if kind.place is None else "{home}({at}({it}))"
        names: dict[str, Any] = {"part": kind.key, "at": kind.place, "home": home_of}
        return Reading(("{part}({it})",), device=at, names=names)
    # As `DESCRIPTORS.key` and `.place`, without their calls. The class of the tensor is no class of an
    # argument: it is not guarded, it is looked at.
    key = [
        "{it}.base.dtype",
        "{layouts}.get(id({it}.layout)) or {layout}({it}.layout)",
        "*{it}.block_shape",
    ]
    if value.input_rank is not None:
        key.append("{it}.input_rank")
    return Reading(
        tuple(key),
        device="({it}.base.get_device() if {it}.base.__class__ is {base} else {home}({it}.base))",
        names={
            "base": type(value.base) if hasattr(value.base, "get_device") else None,
            "home": home_of,
            "layout": layout_token,
            "layouts": LAYOUTS,
        },
    )


_NEVER = object()  # in the key of no kernel
_BITS = 32  # of offsets into small storage


def tuple_key(token: Any, value: Any) -> Any:
    """Return the key of a tuple argument: types, marks, constants and places, nested."""
    return tuple([type(value), *_item_keys(token, value)])


def _item_keys(token: Any, value: Any) -> Iterator[Any]:
    for item in value:
        if isinstance(item, tuple):
            yield tuple_key(token, item)
            continue
        if number(item) is not item:
            yield object()  # in no key: the call is made again with a number of Python
            continue
        kind = registered_kind(type(item))
        if kind is not None:
            at = kind.place(item) if kind.place is not None else None
            yield type(item), kind.key(item), home_of(at)
            continue
        try:
            described = describe(item, pointer_range_bits=_BITS)
        except ArgumentError:
            if not hasattr(item, "__dlpack__"):
                raise
            yield _NEVER  # the call is made again with the tensor that it is a view of
            continue
        constant = (
            token(described.attributes) if described.kind == "constexpr" else described.attributes
        )
        yield described.kind, constant, place_of(item)
