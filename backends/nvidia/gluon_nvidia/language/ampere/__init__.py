"""`gl.nvidia.ampere`: sm_80 and newer. Re-exports the hardware units' files."""

from gluon_nvidia.language.ampere import async_copy as async_copy
from gluon_nvidia.language.ampere import mbarrier as mbarrier
from gluon_nvidia.language.cache import CachePolicy as CachePolicy
from gluon_nvidia.language.cache import FractionalEvictionPolicy as FractionalEvictionPolicy
from gluon_nvidia.language.mma import mma_v2 as mma_v2
