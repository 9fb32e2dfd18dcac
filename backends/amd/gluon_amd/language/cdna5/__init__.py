"""`gl.amd.cdna5`: gfx1250 (MI450) by the name of its generation; with every Triton."""

from gluon_amd.language.cdna5 import async_copy, cluster, mbarrier, tdm
from gluon_amd.language.gfx1250 import (
    PartitionedSharedLayout,
    buffer_load,
    buffer_store,
    get_wmma_scale_layout,
    make_partitioned_dot_layouts,
    wmma,
    wmma_scaled,
)

__all__ = [
    "PartitionedSharedLayout",
    "async_copy",
    "buffer_load",
    "buffer_store",
    "cluster",
    "get_wmma_scale_layout",
    "make_partitioned_dot_layouts",
    "mbarrier",
    "tdm",
    "wmma",
    "wmma_scaled",
]
