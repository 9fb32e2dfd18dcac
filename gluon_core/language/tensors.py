"""Making tensors, changing their shape and layout."""

from __future__ import annotations

from typing import Any

from gluon_core._triton import constexpr, tl, tl_core, unwrap
from gluon_core.builtin import adopt, builtin
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

broadcast = adopt(tl_core.broadcast, "Both operands with one shape; returns the pair.")
expand_dims = adopt(
    tl_core.expand_dims,
    "`input` with a dimension of size 1 at `axis` (or each of them). Its layout must be a "
    "SliceLayout along that axis, and the result has the parent layout.",
)
to_tensor = adopt(tl_core.to_tensor, "A Python or constexpr number as a scalar tensor.")
multiple_of = adopt(
    tl_core.multiple_of, "`input`, of which each dimension's first values are multiples of `values`."
)
max_contiguous = adopt(
    tl_core.max_contiguous, "`input`, which counts up by one within runs of `values` per dimension."
)
max_constancy = adopt(
    tl_core.max_constancy, "`input`, which is constant within runs of `values` per dimension."
)
ravel = tl.ravel


@builtin
def arange(start: Any, end: Any, layout: Any = None, _semantic: Any = None) -> Any:
    """`[start, start + 1, ..., end - 1]`, int32, one dimension of `end - start` (a power of two).

    Args:
        layout: layout of the result; AutoLayout by default.

    Raises:
        ShapeError: not a positive power-of-two number of elements, or outside int32.
        LayoutError: the layout does not fit.
    """
    return _semantic.arange(start, end, layout=layout)


@builtin
def full(shape: Any, value: Any, dtype: Any, layout: Any = None, _semantic: Any = None) -> Any:
    """A tensor of `shape` and `dtype` filled with the scalar `value`."""
    return _semantic.full(unwrap_shape(shape), value, dtype, layout)


@builtin
def reshape(
    input: Any, *shape: Any, can_reorder: Any = False, _semantic: Any = None
) -> Any:
    """`input` with another shape of as many elements, in row-major order; no data moves.

    The result's layout is inferred: each thread keeps its elements.
    """
    return _semantic.reshape(input, _variadic(shape), can_reorder)


@builtin
def permute(input: Any, *dims: Any, _semantic: Any = None) -> Any:
    """`input` with its dimensions in the order `dims`; no data moves, the layout is permuted."""
    return _semantic.permute(input, _variadic(dims))


@builtin
def join(a: Any, b: Any, _semantic: Any = None) -> Any:
    """`a` and `b` along a new last dimension of size 2; each thread holds both."""
    return _semantic.join(a, b)


@builtin
def split(a: Any, _semantic: Any = None) -> Any:
    """The two halves of a last dimension of size 2; the inverse of `join`."""
    return _semantic.split(a)


@builtin
def convert_layout(
    value: Any, layout: Any, assert_trivial: Any = False, _semantic: Any = None
) -> Any:
    """`value` with another layout; data moves between threads if it has to.

    Args:
        assert_trivial: raise unless no data moves.

    Raises:
        LayoutError: the layout does not fit, or `assert_trivial` and data would move.
    """
    return _semantic.convert_layout(value, layout, assert_trivial)


@builtin
def set_auto_layout(value: Any, layout: Any, _semantic: Any = None) -> Any:
    """`value`, whose layout is AutoLayout, with that layout decided."""
    return _semantic.set_auto_layout(value, layout)


@builtin
def to_linear_layout(layout: Any, shape: Any, _semantic: Any = None) -> Any:
    """`layout` of a tensor of `shape`, spelled as a linear layout; a compile-time value."""
    return constexpr(_semantic.to_linear_layout(layout, shape))


@builtin
def fp4_to_fp(src: Any, elem_type: Any, axis: Any, _semantic: Any = None) -> Any:
    """Unpack fp4 (e2m1) pairs from bytes: dimension `axis` doubles, the low nibble comes first."""
    return _semantic.fp4_to_fp(src, elem_type, axis)


def _variadic(values: Any) -> list[int]:
    """Dimensions given one by one or as one sequence."""
    if len(values) == 1 and not isinstance(unwrap(values[0]), int):
        values = values[0]
    return unwrap_shape(values)
