"""Values that kernels hold: types of tensors in registers, and values that are one handle."""

from __future__ import annotations

import functools
import math
from typing import Any, Sequence, TypeAlias

from gluon_core import _triton
from gluon_core._triton import base_type, base_value, block_type, unwrap
from gluon_core.errors import LayoutError, ShapeError
from gluon_core.layouts import AutoLayout, CoalescedLayout
from gluon_core.layouts import base as layouts_base
from gluon_core.layouts.base import DistributedLayout

__all__ = ["check_block_shape", "describe", "distributed_type", "handle_value", "unwrap_shape"]


layouts_base.set_type_factory(_triton.constexpr_type)


def unwrap_shape(shape: Any, argument: str = "shape") -> list[int]:
    """Return the dimensions of `shape`, a sequence of compile-time integers, as a list.

    Raises:
        ShapeError: not a sequence, or an entry is not a compile-time integer.
    """
    try:
        shape = unwrap(shape)
    except AttributeError:  # older releases ask each item for its type
        shape = list(shape)
    if isinstance(shape, int):
        raise ShapeError(
            "a shape is a sequence of integers",
            argument=argument,
            expected=f"[{shape}]",
            got=shape,
        )
    if type(shape) in (list, tuple) and all(type(item) is int for item in shape):
        return list(shape)
    if isinstance(shape, str) or not hasattr(shape, "__iter__") and not hasattr(shape, "values"):
        raise ShapeError(
            "not a shape",
            argument=argument,
            expected="a tuple of compile-time integers",
            got=str(shape) if isinstance(shape, _triton.dtype) else repr(shape),
        )
    result = []
    for item in shape:
        item = unwrap(item)
        if not isinstance(item, int):
            raise ShapeError(
                "every dimension must be a compile-time integer",
                argument=argument,
                got=_shortly(item),
            )
        result.append(int(item))
    return result


def _shortly(value: Any) -> str:
    """`repr`, but an array by its kind: a message is no place for its elements."""
    if hasattr(value, "shape") and hasattr(value, "dtype") and not hasattr(value, "type"):
        return f"an array of shape {tuple(value.shape)}"
    return repr(value)


def check_block_shape(shape: Sequence[int], subject: str) -> None:
    for dim, size in enumerate(shape):
        if size < 1 or size & (size - 1):
            raise ShapeError(
                f"{subject} must have power-of-two dimensions",
                argument="shape",
                got=f"{list(shape)} (dimension {dim} is {size})",
                remedy=f"Round up to {1 << max(size - 1, 0).bit_length()} and mask the rest.",
            )


_MAX_ELEMENTS = 1 << 20
_shapes: dict[tuple[int, ...], tuple[Any, int]] = {}  # legal ones, in Triton's form; their sizes


class distributed_type(block_type):
    """Type of a tensor whose elements are spread over the threads of a block by `layout`."""

    def __init__(self, element_ty: Any, shape: Sequence[int], layout: Any):
        shape = tuple(unwrap_shape(shape))
        layout = unwrap(layout)
        if not isinstance(layout, DistributedLayout):
            raise LayoutError(
                "not a layout for tensors in registers",
                argument="layout",
                expected="a distributed layout such as BlockedLayout",
                got=repr(layout),
            )
        layout.check()
        known = _shapes.get(shape)
        if known is None:
            check_block_shape(shape, "a tensor")
            if math.prod(shape) > _MAX_ELEMENTS:
                raise ShapeError(
                    "too many elements for one tensor",
                    argument="shape",
                    expected=f"at most {_MAX_ELEMENTS}",
                    got=f"{math.prod(shape)} in {list(shape)}",
                    remedy="Use a smaller tile.",
                )
            super().__init__(element_ty, list(shape))
            del self.name  # of Triton's own tensors
            known = _shapes[shape] = self.shape, self.numel
        self.element_ty = element_ty
        self.shape, self.numel = known  # as Triton has them; one kernel makes dozens of types
        self.layout = layout
        if isinstance(layout, (AutoLayout, CoalescedLayout)):
            return
        if layout.rank != len(self.shape):
            raise LayoutError(
                "the rank of the layout is not that of the tensor",
                argument="layout",
                expected=f"rank {len(self.shape)} for shape {list(self.shape)}",
                got=f"rank {layout.rank}: {layout}",
            )

    @functools.cached_property
    def name(self) -> str:  # type: ignore[override]  # made when an error asks
        """Return its name in errors."""
        return f"<{[int(unwrap(size)) for size in self.shape]}, {self.element_ty}, {self.layout}>"

    def to_ir(self, builder: Any) -> Any:
        element = self.element_ty.to_ir(builder)
        return builder.get_distributed_ty(element, list(self.shape), self.layout._to_ir(builder))

    def mangle(self) -> str:
        shape = "_".join(map(str, self.shape))
        return f"{self.scalar.mangle()}S{shape}SL{self.layout.mangle()}L"

    def with_element_ty(self, scalar_ty: Any) -> "distributed_type":
        return distributed_type(scalar_ty, self.shape, self.layout)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, distributed_type):
            return False
        return super().__eq__(other) and self.layout == other.layout

    def __hash__(self) -> int:
        return hash((str(self.element_ty), tuple(self.shape), self.layout))


class handle_type(base_type):
    """Type of a value that is one handle of the builder."""

    def to_ir(self, builder: Any) -> Any:
        """Return the type as the builder has it."""
        raise NotImplementedError

    def _value(self, handle: Any) -> Any:
        """Return the value of this type that is `handle`."""
        raise NotImplementedError

    def _parts(self) -> tuple[Any, ...]:
        """Return the properties that tell types of one class apart."""
        return ()

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None:
        out.append(self.to_ir(builder))

    def _unflatten_ir(self, handles: Sequence[Any], cursor: int) -> tuple[Any, int]:
        return self._value(handles[cursor]), cursor + 1

    def __repr__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, handle_type)
            and self._parts() == other._parts()
        )

    def __hash__(self) -> int:
        return hash((type(self), *self._parts()))


class handle_value(base_value):
    """A value that is one handle of the builder. Its type derives from `handle_value.Type`."""

    Type: TypeAlias = handle_type
    handle: Any
    type: Any

    def _flatten_ir(self, handles: list[Any]) -> None:
        handles.append(self.handle)

    def _set_name(self, builder: Any, name: str) -> None:
        self.handle.set_loc(builder.create_name_loc(name, self.handle.get_loc()))

    def __str__(self) -> str:
        return str(self.type)


def describe(value: Any) -> str:
    """Describe a value for error messages."""
    value = unwrap(value)
    if isinstance(value, base_value):
        if isinstance(value.type, distributed_type):
            kind = value.type
            layout = "" if isinstance(kind.layout, AutoLayout) else f", in {kind.layout}"
            return f"a tensor of {kind.scalar}, {list(kind.shape)}{layout}"
        return str(value.type)
    if value is None:
        return "None"
    shown = str(value) if isinstance(value, _triton.dtype) else repr(value)
    return f"{shown} ({type(value).__name__})"
