"""Checks of single operands that vendors' ops share; each raises before a builder can abort."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from gluon_core._triton import ir, tl, unwrap
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.layouts import SwizzledSharedLayout
from gluon_core.semantic.base import describe
from gluon_core.values import shared_memory_descriptor

__all__ = [
    "check_barrier",
    "check_matmul_shapes",
    "compile_time_bool",
    "compile_time_int",
    "handle_or_absent",
    "predicate",
    "scalar_int32",
    "shared_memory",
]


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


def compile_time_bool(value: Any, argument: str) -> bool:
    """A compile-time boolean, or 0 or 1."""
    value = unwrap(value)
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise ArgumentError(
            "must be a compile-time boolean", argument=argument, got=describe(value)
        )
    return bool(value)


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


def check_barrier(value: Any, argument: str, remedy: str, seen: Optional[int] = None) -> Any:
    """`value` if it is a barrier in shared memory.

    Args:
        value: what was given.
        argument: its name.
        remedy: how such a barrier is allocated.
        seen: how many barriers of a cluster its shape counts; those of its layout by default.

    Raises:
        DtypeError: no shared memory, or not of 64-bit integers.
        LayoutError: not the layout of a barrier.
        ShapeError: not one barrier per block.
    """
    value = shared_memory(value, argument)
    if value.dtype not in (tl.int64, tl.uint64):
        raise DtypeError(
            "a barrier is a 64-bit integer",
            argument=argument,
            expected="int64",
            got=value.dtype,
            remedy=remedy,
        )
    layout = value.layout
    if not isinstance(layout, SwizzledSharedLayout) or layout.rank != 1:
        raise LayoutError(
            "not the layout of a barrier",
            argument=argument,
            expected="MBarrierLayout()",
            got=repr(layout),
            remedy=remedy,
        )
    wanted = seen or 1 << sum(any(basis) for basis in layout.cga_layout)
    if list(value.shape) != [wanted]:
        raise ShapeError(
            "not one barrier",
            argument=argument,
            expected=[wanted],
            got=list(value.shape),
            remedy="Pick one of several with .index(i).",
        )
    return value


def check_matmul_shapes(
    a: Sequence[int], b: Sequence[int], acc: Sequence[int], batches: bool = True
) -> None:
    """Raise ShapeError unless the shapes multiply; with `batches` all may have one dimension more."""
    shapes = [list(shape) for shape in (a, b, acc)]
    ranks = (2, 3) if batches else (2,)
    for name, shape in zip(("a", "b", "acc"), shapes):
        if len(shape) not in ranks or len(shape) != len(shapes[2]):
            what = "a matrix, or a batch of them as acc is" if batches else "a matrix"
            raise ShapeError(f"must be {what}", argument=name, got=shape)
    (*batch_a, m, k), (*batch_b, rows, n), result = shapes
    if rows != k or batch_a != batch_b or result != [*batch_a, m, n]:
        raise ShapeError(
            "the shapes do not multiply",
            expected="a [M, K], b [K, N], acc [M, N]",
            got=", ".join(map(str, shapes)),
        )
