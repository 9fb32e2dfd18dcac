"""Making tensors, changing their shape and layout."""

# Functions that `library` declares have no body.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from gluon_core._triton import constexpr, tensor, tl, tl_core, unwrap
from gluon_core.language._library import library
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.typing import Const, Dtype, Operand, RegisterLayout, Scalar, Shape
from gluon_core.semantic import layer
from gluon_core.values import unwrap_shape

__all__ = [
    "arange",
    "broadcast",
    "convert_layout",
    "expand_dims",
    "fp4_to_fp",
    "full",
    "join",
    "max_constancy",
    "max_contiguous",
    "multiple_of",
    "permute",
    "ravel",
    "reshape",
    "set_auto_layout",
    "split",
    "to_linear_layout",
    "to_tensor",
]


@builtin
def broadcast(input: Operand, other: Operand) -> tuple[tensor, tensor]:
    """Return both operands with one shape."""
    return tl_core.broadcast(input, other, _semantic=semantic_layer())


@builtin
def expand_dims(input: tensor, axis: Union[Const[int], Sequence[Const[int]]]) -> tensor:
    """`input` with a dimension of size 1 at `axis` (or each of them).

    Its layout must be a SliceLayout along that axis, and the result has the parent layout.
    """
    return tl_core.expand_dims(input, axis, _semantic=semantic_layer())


@builtin
def to_tensor(x: Scalar[float]) -> tensor:
    """Return a Python or constexpr number as a scalar tensor."""
    return tl_core.to_tensor(x, _semantic=semantic_layer())


@builtin
def multiple_of(input: tensor, values: Union[Const[int], Sequence[Const[int]]]) -> tensor:
    """`input`, of which each dimension's first values are multiples of `values`."""
    return tl_core.multiple_of(input, values, _semantic=semantic_layer())


@builtin
def max_contiguous(input: tensor, values: Union[Const[int], Sequence[Const[int]]]) -> tensor:
    """`input`, which counts up by one within runs of `values` per dimension."""
    return tl_core.max_contiguous(input, values, _semantic=semantic_layer())


@builtin
def max_constancy(input: tensor, values: Union[Const[int], Sequence[Const[int]]]) -> tensor:
    """`input`, which is constant within runs of `values` per dimension."""
    return tl_core.max_constancy(input, values, _semantic=semantic_layer())


@library(tl.ravel)
def ravel(x: tensor, can_reorder: Const[bool] = False) -> tensor:
    """`x` with one dimension, in row-major order."""
    ...


@builtin
def arange(start: Const[int], end: Const[int], layout: Optional[RegisterLayout] = None) -> tensor:
    """`[start, start + 1, ..., end - 1]`, int32, one dimension of `end - start` (a power of two).

    Args:
        layout: layout of the result; AutoLayout by default.

    Raises:
        ShapeError: not a positive power-of-two number of elements, or outside int32.
        LayoutError: the layout does not fit.
    """
    return semantic_layer().arange(start, end, layout=layout)


@builtin
def full(
    shape: Shape, value: Scalar[float], dtype: Dtype, layout: Optional[RegisterLayout] = None
) -> tensor:
    """Return a tensor of `shape` and `dtype` filled with the scalar `value`."""
    return semantic_layer().full(unwrap_shape(shape), value, dtype, layout)


@builtin
def reshape(
    input: tensor, *shape: Union[Const[int], Shape], can_reorder: Const[bool] = False
) -> tensor:
    """`input` with another shape of as many elements, in row-major order; no data moves.

    The result's layout is inferred: each thread keeps its elements.
    """
    return semantic_layer().reshape(input, _variadic(shape), can_reorder)


@builtin
def permute(input: tensor, *dims: Union[Const[int], Shape]) -> tensor:
    """`input` with its dimensions in the order `dims`; no data moves, the layout is permuted."""
    return semantic_layer().permute(input, _variadic(dims))


@builtin
def join(a: Operand, b: Operand) -> tensor:
    """Join `a` and `b` along a new last dimension of size 2; each thread holds both."""
    return semantic_layer().join(a, b)


@builtin
def split(a: tensor) -> tuple[tensor, tensor]:
    """Return the two halves of a last dimension of size 2; the inverse of `join`."""
    return semantic_layer().split(a)


@builtin
def convert_layout(
    value: tensor, layout: RegisterLayout, assert_trivial: Const[bool] = False
) -> tensor:
    """`value` with another layout; data moves between threads if it has to.

    Args:
        assert_trivial: raise unless no data moves.

    Raises:
        LayoutError: the layout does not fit, or `assert_trivial` and data would move.
    """
    return semantic_layer().convert_layout(value, layout, assert_trivial)


@builtin
def set_auto_layout(value: tensor, layout: RegisterLayout) -> tensor:
    """`value`, whose layout is AutoLayout, with that layout decided."""
    return layer().set_auto_layout(value, layout)


@builtin
def to_linear_layout(layout: Any, shape: Shape) -> constexpr:
    """`layout` of a tensor of `shape`, spelled as a linear layout; a compile-time value."""
    return constexpr(layer().to_linear_layout(layout, shape))


@builtin
def fp4_to_fp(src: tensor, elem_type: Dtype, axis: Const[int]) -> tensor:
    """Unpack fp4 (e2m1) pairs from bytes: dimension `axis` doubles, the low nibble comes first."""
    return layer().fp4_to_fp(src, elem_type, axis)


def _variadic(values: Sequence[Any]) -> list[int]:
    """Dimensions given one by one or as one sequence."""
    if len(values) == 1 and not isinstance(unwrap(values[0]), int):
        values = values[0]
    return unwrap_shape(values)
