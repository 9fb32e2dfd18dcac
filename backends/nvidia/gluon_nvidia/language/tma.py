"""The tensor memory accelerator: asynchronous copies of boxes of a tensor (sm_90)."""

from __future__ import annotations

from gluon_nvidia.language.descriptor import (
    tensor_descriptor,
    tensor_descriptor_im2col,
    tensor_descriptor_im2col_type,
    tensor_descriptor_type,
)

__all__ = [
    "tensor_descriptor",
    "tensor_descriptor_im2col",
    "tensor_descriptor_im2col_type",
    "tensor_descriptor_type",
]
