"""Functions of the language that are written in it."""

from __future__ import annotations

from gluon_core._triton import JITFunction
from gluon_core.language.tensors import full

__all__ = ["full_like", "zeros", "zeros_like"]


@JITFunction
def zeros(shape, dtype, layout=None):
    """A tensor of `shape` and `dtype` filled with zero; see `full`."""
    return full(shape, 0, dtype, layout)


@JITFunction
def full_like(input, value, shape=None, dtype=None, layout=None):
    """A tensor filled with the scalar `value`, with what is left out taken from `input`."""
    return full(
        input.shape if shape is None else shape,
        value,
        input.dtype if dtype is None else dtype,
        input.type.layout if layout is None else layout,
    )


@JITFunction
def zeros_like(input, shape=None, dtype=None, layout=None):
    """A tensor filled with zero, with what is left out taken from `input`."""
    return full_like(input, 0, shape=shape, dtype=dtype, layout=layout)
