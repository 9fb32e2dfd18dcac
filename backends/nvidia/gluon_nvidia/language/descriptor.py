"""Tensor descriptors of NVIDIA's TMA inside kernels (sm_90)."""

from __future__ import annotations

from typing import Any

from gluon_core import _triton
from gluon_core import descriptors as core
from gluon_core.errors import LayoutError
from gluon_nvidia.layouts import NVMMASharedLayout

__all__ = [
    "tensor_descriptor",
    "tensor_descriptor_im2col",
    "tensor_descriptor_im2col_type",
    "tensor_descriptor_type",
]


class tensor_descriptor_type(core.tensor_descriptor_type):
    """Type of a descriptor of a tiled tensor: one copy moves a box of `block_type`'s shape.

    Args:
        block_type: dtype and shape of the box.
        shape_type: tuple type, an int32 for each dimension.
        strides_type: tuple type, an int64 for each dimension.
        layout: NVMMASharedLayout of the box.

    Raises:
        LayoutError: another layout, or one of another rank.
    """

    def __init__(self, block_type: Any, shape_type: Any, strides_type: Any, layout: Any):
        super().__init__(block_type, shape_type, strides_type, layout)
        if not isinstance(self.layout, NVMMASharedLayout):
            raise LayoutError(
                "TMA writes shared memory in its own layouts only",
                argument="layout",
                expected="NVMMASharedLayout",
                got=repr(self.layout),
                remedy="NVMMASharedLayout.get_default_for(block_shape, dtype) makes one.",
            )

    def make(self, handle: Any, shape: Any, strides: Any) -> Any:
        return tensor_descriptor(handle, shape, strides, self.block_type, self.layout)


class tensor_descriptor(core.tensor_descriptor):
    """A descriptor of a tiled tensor. It is a kernel's argument, or `make_tensor_descriptor` makes
    it.

    Args:
        handle: the IR value.
        shape: of the tensor, int32 scalars.
        strides: of the tensor in elements, int64 scalars.
        block_type: dtype and shape of the box that one copy moves.
        layout: NVMMASharedLayout of the box.

    ISA: PTX 5.5, tensors.
    """

    type_class = tensor_descriptor_type


class tensor_descriptor_im2col_type(tensor_descriptor_type):
    """Type of a descriptor in im2col mode (Triton 3.8): one copy moves `block_type` = [pixels,
    channels] of a tensor of rank 3 to 5, of which `shape_type` and `strides_type` speak."""

    _name = "tensor_descriptor_im2col"
    _prefix = "TDI"

    def _to_ir(self, builder: Any) -> Any:
        _triton.require((3, 8), "tensor_descriptor_im2col")
        element = self.block_type.element_ty
        return builder.get_tensor_descriptor_im2col_layout_type(
            self.block_type.to_ir(builder), element.is_int_signed(), self.layout._to_ir(builder)
        )

    to_ir = _to_ir

    def make(self, handle: Any, shape: Any, strides: Any) -> Any:
        return tensor_descriptor_im2col(handle, shape, strides, self.block_type, self.layout)


class tensor_descriptor_im2col(tensor_descriptor):
    """A descriptor in im2col mode: an argument of a kernel, with Triton 3.8 and newer.

    ISA: PTX 5.5.4, im2col mode.
    """

    type_class = tensor_descriptor_im2col_type
