"""Aggregates: classes whose instances kernels pass around, flattened to their fields."""

from __future__ import annotations

import inspect
import sys
from traceback import walk_stack
from typing import Any, Callable, TypeVar

from gluon_core import _triton
from gluon_core._triton import tl, tl_core
from gluon_core.errors import ArgumentError, did_you_mean
from gluon_core.features import AGGREGATE_CONSTRUCTORS

__all__ = ["aggregate", "aggregate_replace"]

C = TypeVar("C", bound=type)
T = TypeVar("T")


def aggregate(cls: C) -> C:
    """Decorate a class whose annotated fields are kernel values.

    A class without a constructor gets one that takes its fields in order; another must set each. Methods may be `@gluon.jit`.
    """
    if "__init__" not in vars(cls) and not _triton.has(AGGREGATE_CONSTRUCTORS):
        setattr(cls, "__init__", _constructor(cls))  # noqa: B010 - of a TypeVar
    frames = [
        frame for frame, _ in walk_stack(sys._getframe(1))
    ]  # a file may postpone its annotations
    own = (frame for frame in frames if frame.f_globals.get("__name__") == cls.__module__)
    names, module = next(own, frames[0]), sys.modules.get(cls.__module__)
    scope = {**names.f_globals, **getattr(module, "__dict__", {}), **names.f_locals}
    cls.__annotations__ = inspect.get_annotations(cls, globals=scope, eval_str=True)
    return tl_core._aggregate(cls)  # type: ignore[no-any-return]


def _constructor(cls: type) -> Callable[..., None]:
    """Return a constructor that takes the fields of a class; what the class sets is their default."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    fields = [
        inspect.Parameter(name, kind, default=vars(cls).get(name, inspect.Parameter.empty))
        for name in vars(cls).get("__annotations__", ())
    ]
    signature = inspect.Signature([inspect.Parameter("self", kind), *fields])

    def init(self: Any, *args: Any, **named: Any) -> None:
        bound = signature.bind(self, *args, **named)
        bound.apply_defaults()
        for field in fields:
            setattr(self, field.name, _kernel_value(bound.arguments[field.name]))

    vars(init).update(__signature__=signature, __triton_builtin__=True)
    return init


def _kernel_value(value: Any) -> Any:
    """Return the value of a field: constants are compile-time values."""
    if isinstance(value, tuple):
        return tl.tuple([_kernel_value(part) for part in value])
    return value if isinstance(value, _triton.base_value) else tl.constexpr(value)


def aggregate_replace(instance: T, **changes: Any) -> T:
    """Return a copy of an aggregate with some fields replaced; the constructor does not run.

    Raises:
        ArgumentError: not an aggregate, or no such field.
    """
    if hasattr(tl_core, "aggregate_replace"):
        return tl_core.aggregate_replace(instance, **changes)  # type: ignore[no-any-return]
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
