"""`gl.nvidia.blackwell`: sm_100 and sm_120 and newer. Re-exports the hardware units' files."""

from gluon_nvidia.language.ampere import async_copy
from gluon_nvidia.language.cache import CachePolicy, FractionalEvictionPolicy
from gluon_nvidia.language.mma import mma_v2

__all__ = [
    "CachePolicy",
    "FractionalEvictionPolicy",
    "async_copy",
    "mma_v2",
]
