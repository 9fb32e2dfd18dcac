"""`gl.nvidia.ampere`: sm_80 and newer. Re-exports the hardware units' files."""

from gluon_nvidia.language.ampere import async_copy, mbarrier
from gluon_nvidia.language.cache import CachePolicy, FractionalEvictionPolicy
from gluon_nvidia.language.mma import mma_v2

__all__ = [
    "CachePolicy",
    "FractionalEvictionPolicy",
    "async_copy",
    "mbarrier",
    "mma_v2",
]
