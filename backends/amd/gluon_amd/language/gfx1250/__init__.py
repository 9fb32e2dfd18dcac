"""`gl.amd.gfx1250` (MI450). Re-exports the hardware units' files; `gl.amd.cdna5` is the same."""

from gluon_amd.language.buffer import buffer_load, buffer_store
from gluon_amd.language.gfx1250 import async_copy, cluster, mbarrier, tdm
from gluon_amd.language.lds_transpose import load_shared_fp4_repacked
from gluon_amd.language.scaled import (
    get_scaled_upcast_fp4_scale_layout,
    scaled_downcast,
    scaled_upcast,
)
from gluon_amd.language.wmma import wmma_v3 as wmma
from gluon_amd.language.wmma_layouts import get_wmma_scale_layout, make_partitioned_dot_layouts
from gluon_amd.language.wmma_scaled import wmma_scaled
from gluon_amd.layouts import PartitionedSharedLayout

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
