"""Checks of single operands that vendors' ops share; each raises before a builder can abort."""

from __future__ import annotations

from typing import Any, Optional

from gluon_core._triton import ir, tl, unwrap
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_core.semantic.base import describe
from gluon_core.values import shared_memory_descriptor

__all__ = ["compile_time_int", "handle_or_absent", "predicate", "scalar_int32", "shared_memory"]


def handle_or_absent(semantic: Any, value: Any) -> Any:
    """The handle of an optional operand. Triton's builder wants an empty value for an absent one."""
    if value is not None:
        return value.handle
    return ir.value() if isinstance(semantic.builder, ir.builder) else None


def shared_memory(value: Any, argument: str) -> Any:
    """`value` if it is a view of shared memory."""
    value = unwrap(value)
    if not isinstance(value, shared_memory_descriptor):
        raise DtypeError(
            "not shared memory",
            argument=argument,
            expected="a shared_memory_descriptor",
            got=describe(value),
        )
    return value


def compile_time_int(value: Any, argument: str, low: int, high: Optional[int] = None) -> int:
    """A compile-time integer of `low` to `high`."""
    value = unwrap(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(
            "must be a compile-time integer", argument=argument, got=describe(value)
        )
    if value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"{low} to {high}"
        raise ArgumentError("out of range", argument=argument, expected=wanted, got=value)
    return value


def scalar_int32(semantic: Any, value: Any, argument: str) -> Any:
    """A run-time or compile-time integer scalar as int32."""
    value = _scalar(semantic, value, argument)
    if not value.dtype.is_int():
        raise DtypeError("must be an integer", argument=argument, expected="int32", got=value.dtype)
    return value if value.dtype in (tl.int32, tl.uint32) else semantic.cast(value, tl.int32)


def predicate(semantic: Any, value: Any, argument: str = "pred") -> Any:
    """A boolean scalar."""
    value = _scalar(semantic, value, argument)
    if value.dtype != tl.int1:
        raise DtypeError("must be boolean", argument=argument, expected="int1", got=value.dtype)
    return value


def _scalar(semantic: Any, value: Any, argument: str) -> Any:
    value = unwrap(value)
    if not isinstance(value, (bool, int, tl.tensor)):
        raise DtypeError("not a scalar", argument=argument, got=describe(value))
    value = semantic.to_tensor(value)
    if value.type.is_block():
        raise ShapeError("must be a scalar", argument=argument, got=describe(value))
    return value
