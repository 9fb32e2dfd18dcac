"""Functions of the language that are written in it.

Triton takes every name in a traced function for one that its code needs, so annotations are quoted.
"""

from __future__ import annotations

from typing import Optional

from gluon_core._triton import tensor
from gluon_core.language.tensors import full
from gluon_core.plugin.ops import traced
from gluon_core.plugin.typing import Dtype, RegisterLayout, Scalar, Shape

__all__ = ["full_like", "zeros", "zeros_like"]


@traced
def zeros(shape: "Shape", dtype: "Dtype", layout: "Optional[RegisterLayout]" = None) -> "tensor":
    """Return a tensor of `shape` and `dtype` filled with zero; see `full`."""
    return full(shape, 0, dtype, layout)


@traced
def full_like(
    input: "tensor",
    value: "Scalar[float]",
    shape: "Optional[Shape]" = None,
    dtype: "Optional[Dtype]" = None,
    layout: "Optional[RegisterLayout]" = None,
) -> "tensor":
    """Return a tensor filled with the scalar `value`, with omitted properties taken from `input`."""
    return full(
        input.shape if shape is None else shape,
        value,
        input.dtype if dtype is None else dtype,
        input.type.layout if layout is None else layout,
    )


@traced
def zeros_like(
    input: "tensor",
    shape: "Optional[Shape]" = None,
    dtype: "Optional[Dtype]" = None,
    layout: "Optional[RegisterLayout]" = None,
) -> "tensor":
    """Return a tensor filled with zero, with omitted properties taken from `input`."""
    return full_like(input, 0, shape=shape, dtype=dtype, layout=layout)
