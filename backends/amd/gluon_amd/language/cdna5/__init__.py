"""`gl.amd.cdna5`: gfx1250 (MI450) by the name of its generation; with every Triton."""

from gluon_amd.language.cdna5 import async_copy, cluster, mbarrier, tdm
from gluon_amd.language.gfx1250 import PartitionedSharedLayout, buffer_load, buffer_store, wmma

__all__ = [
    "PartitionedSharedLayout",
    "async_copy",
    "buffer_load",
    "buffer_store",
    "cluster",
    "mbarrier",
    "tdm",
    "wmma",
]
