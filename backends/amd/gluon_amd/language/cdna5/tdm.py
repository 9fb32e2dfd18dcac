"""`gl.amd.cdna5.tdm`."""

from gluon_amd.language.tdm import (
    async_gather,
    async_load,
    async_load_fused,
    async_scatter,
    async_store,
    async_wait,
    make_tensor_descriptor,
    prefetch,
    tensor_descriptor,
    tensor_descriptor_type,
    update_tensor_descriptor,
)

__all__ = [
    "async_gather",
    "async_load",
    "async_load_fused",
    "async_scatter",
    "async_store",
    "async_wait",
    "make_tensor_descriptor",
    "prefetch",
    "tensor_descriptor",
    "tensor_descriptor_type",
    "update_tensor_descriptor",
]
