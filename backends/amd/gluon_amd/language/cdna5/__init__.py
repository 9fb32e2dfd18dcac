"""`gl.amd.cdna5`: gfx1250 (MI450) by the name of its generation; with every Triton."""

from gluon_amd.language.cdna5 import async_copy, cluster, mbarrier, tdm
from gluon_amd.language.gfx1250 import (
    PartitionedSharedLayout,
    buffer_load,
    buffer_store,
    get_scaled_upcast_fp4_scale_layout,
    get_wmma_scale_layout,
    load_shared_fp4_repacked,
    make_partitioned_dot_layouts,
    scaled_downcast,
    scaled_upcast,
    wmma,
    wmma_scaled,
)

__all__ = [
    "PartitionedSharedLayout",
    "async_copy",
    "buffer_load",
    "buffer_store",
    "cluster",
    "get_scaled_upcast_fp4_scale_layout",
    "get_wmma_scale_layout",
    "load_shared_fp4_repacked",
    "make_partitioned_dot_layouts",
    "mbarrier",
    "scaled_downcast",
    "scaled_upcast",
    "tdm",
    "wmma",
    "wmma_scaled",
]
