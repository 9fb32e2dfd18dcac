"""`gl.nvidia.hopper`: sm_90 and newer. Re-exports the hardware units' files."""

from gluon_nvidia.language.cache import CachePolicy, FractionalEvictionPolicy
from gluon_nvidia.language.cluster import async_store
from gluon_nvidia.language.fence import fence_async_shared
from gluon_nvidia.language.hopper import async_copy, cluster, mbarrier, tma
from gluon_nvidia.language.mma import mma_v2
from gluon_nvidia.language.wgmma import (
    warpgroup_mma,
    warpgroup_mma_accumulator,
    warpgroup_mma_accumulator_type,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

__all__ = [
    "CachePolicy",
    "FractionalEvictionPolicy",
    "async_copy",
    "async_store",
    "cluster",
    "fence_async_shared",
    "mbarrier",
    "mma_v2",
    "tma",
    "warpgroup_mma",
    "warpgroup_mma_accumulator",
    "warpgroup_mma_accumulator_type",
    "warpgroup_mma_init",
    "warpgroup_mma_wait",
]
