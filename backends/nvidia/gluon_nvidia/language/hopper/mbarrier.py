"""`gl.nvidia.hopper.mbarrier`."""

from gluon_nvidia.language.mbarrier import (
    MBarrierLayout,
    allocate_mbarrier,
    expect,
    fence_init_release_cluster,
    init,
    invalidate,
    sync_cluster_init,
    wait,
)
from gluon_nvidia.language.mbarrier import arrive_counted as arrive

__all__ = [
    "MBarrierLayout",
    "allocate_mbarrier",
    "arrive",
    "expect",
    "fence_init_release_cluster",
    "init",
    "invalidate",
    "sync_cluster_init",
    "wait",
]
