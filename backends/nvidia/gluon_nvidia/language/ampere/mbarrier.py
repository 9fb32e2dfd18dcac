"""`gl.nvidia.ampere.mbarrier`."""

from gluon_nvidia.language.mbarrier import (
    MBarrierLayout,
    allocate_mbarrier,
    arrive,
    init,
    invalidate,
    wait,
)

__all__ = ["MBarrierLayout", "allocate_mbarrier", "arrive", "init", "invalidate", "wait"]
