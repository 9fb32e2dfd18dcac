"""Aggregates: classes whose instances kernels pass around, flattened to their fields."""

from __future__ import annotations

from typing import Any, TypeVar

from gluon_core._triton import tl_core
from gluon_core.errors import ArgumentError, did_you_mean

__all__ = ["aggregate", "aggregate_replace"]

C = TypeVar("C", bound=type)
T = TypeVar("T")


def aggregate(cls: C) -> C:
    """Decorate a class whose annotated fields are kernel values.

    The constructor must set every field; methods may be `@gluon.jit`. Works on every supported
    Triton, also on those whose own namespace lacks the name.
    """
    result: C = tl_core._aggregate(cls)
    return result


def aggregate_replace(instance: T, **changes: Any) -> T:
    """Return a copy of an aggregate with some fields replaced; the constructor does not run.

    Raises:
        ArgumentError: not an aggregate, or no such field.
    """
    native = getattr(tl_core, "aggregate_replace", None)
    if native is not None:
        replaced: T = native(instance, **changes)
        return replaced
    kind: Any = type(instance)
    if not getattr(kind, "__triton_aggregate__", False):
        raise ArgumentError("not an aggregate", argument="instance", got=repr(instance))
    fields = [name for name, _ in getattr(instance, "type").fields]  # noqa: B009 - of a TypeVar
    for name in changes:
        if name not in fields:
            raise ArgumentError(
                "unknown field",
                argument=name,
                expected=", ".join(fields),
                remedy=did_you_mean(name, fields),
            )
    copy: T = kind._get_instance()
    for name in fields:
        setattr(copy, name, changes.get(name, getattr(instance, name)))
    return copy
