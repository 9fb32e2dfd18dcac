"""`gl.nvidia.hopper`: sm_90 and newer. Re-exports the hardware units' files."""

from gluon_nvidia.language.cache import CachePolicy as CachePolicy
from gluon_nvidia.language.cache import FractionalEvictionPolicy as FractionalEvictionPolicy
from gluon_nvidia.language.cluster import async_store as async_store
from gluon_nvidia.language.fence import fence_async_shared as fence_async_shared
from gluon_nvidia.language.hopper import async_copy as async_copy
from gluon_nvidia.language.hopper import cluster as cluster
from gluon_nvidia.language.hopper import mbarrier as mbarrier
from gluon_nvidia.language.hopper import multimem as multimem
from gluon_nvidia.language.hopper import tma as tma
from gluon_nvidia.language.mma import mma_v2 as mma_v2
from gluon_nvidia.language.ordered_barrier import ordered_barrier as ordered_barrier
from gluon_nvidia.language.ordered_barrier import ordered_barrier_type as ordered_barrier_type
from gluon_nvidia.language.ring import ring_position as ring_position
from gluon_nvidia.language.ring import tile_ring as tile_ring
from gluon_nvidia.language.ring import tma_ring as tma_ring
from gluon_nvidia.language.wgmma import warpgroup_mma as warpgroup_mma
from gluon_nvidia.language.wgmma import warpgroup_mma_accumulator as warpgroup_mma_accumulator
from gluon_nvidia.language.wgmma import (
    warpgroup_mma_accumulator_type as warpgroup_mma_accumulator_type,
)
from gluon_nvidia.language.wgmma import warpgroup_mma_init as warpgroup_mma_init
from gluon_nvidia.language.wgmma import warpgroup_mma_wait as warpgroup_mma_wait
from gluon_nvidia.language.writer import tile_writer as tile_writer
from gluon_nvidia.language.writer import tma_writer as tma_writer
