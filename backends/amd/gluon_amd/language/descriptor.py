"""Descriptors of tensors for the tensor data mover, TDM (gfx1250)."""

from __future__ import annotations

from typing import Any, Sequence, Union

from gluon_amd.tdm_rules import check_box
from gluon_core.layouts.base import SharedLayout
from gluon_core.plugin.ops import tl, unwrap
from gluon_core.values import descriptors as core

__all__ = ["tensor_descriptor", "tensor_descriptor_type"]

_Sizes = Union[Sequence[Any], tl.tuple]  # of a tensor, scalars


class tensor_descriptor_type(core.tensor_descriptor_type):
    """Type of a TDM descriptor.

    Args:
        block_type: dtype and shape of the box that one copy moves.
        shape_type: tuple type, an int32 for each dimension.
        strides_type: tuple type, an int64 for each dimension.
        layout: shared layout of the box: padded, or not swizzled.

    Raises:
        ShapeError, DtypeError, LayoutError: TDM cannot move such boxes.
    """

    requires = ("amd.tdm",)

    def __init__(
        self,
        block_type: tl.block_type,
        shape_type: tl.tuple_type,
        strides_type: tl.tuple_type,
        layout: SharedLayout,
    ):
        super().__init__(block_type, shape_type, strides_type, layout)
        block = [int(unwrap(size)) for size in self.block_type.shape]
        check_box(block, self.block_type.element_ty.primitive_bitwidth, self.layout)

    def make(self, handle: Any, shape: _Sizes, strides: _Sizes) -> "tensor_descriptor":
        return tensor_descriptor(handle, shape, strides, self)

    def mangle(self) -> str:
        parts = (self.block_type, self.shape_type, self.strides_type, self.layout)
        return f"TD{'_'.join(part.mangle() for part in parts)}TD"


class tensor_descriptor(core.tensor_descriptor):
    """A TDM descriptor. It is a kernel's argument, or `make_tensor_descriptor` makes it.

    Args:
        handle: the IR value.
        shape: of the tensor, int32 scalars.
        strides: of the tensor in elements, int64 scalars.
        type: a `tensor_descriptor_type`.

    ISA: gfx1250, D# groups of tensor_load_to_lds.
    """

    type_class = tensor_descriptor_type

    def __init__(
        self,
        handle: Any,
        shape: _Sizes,
        strides: _Sizes,
        type: tensor_descriptor_type,
    ):
        self.handle = handle
        self.shape = shape if isinstance(shape, tl.tuple) else tl.tuple(list(shape))
        self.strides = strides if isinstance(strides, tl.tuple) else tl.tuple(list(strides))
        self.type = type
