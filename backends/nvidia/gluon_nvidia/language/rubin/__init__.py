"""`gl.nvidia.rubin`: sm_107 and newer. Re-exports the hardware units' files."""

from gluon_nvidia.language.cache import CachePolicy, FractionalEvictionPolicy
from gluon_nvidia.language.cluster import async_store
from gluon_nvidia.language.fence import fence_async_shared
from gluon_nvidia.language.mma import mma_v2
from gluon_nvidia.language.packed import add2, add4, fma2, fma4, max2, min2, mul2, mul4, sub2, sub4
from gluon_nvidia.language.rubin import async_copy, clc, cluster, mbarrier, tma
from gluon_nvidia.language.tcgen05 import (
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
    tcgen05_mma_scaled,
)
from gluon_nvidia.language.tensor_memory import (
    allocate_tensor_memory,
    tensor_memory_descriptor,
    tensor_memory_descriptor_type,
)
from gluon_nvidia.tensor_memory import RubinTensorMemoryScalesLayout as TensorMemoryScalesLayout
from gluon_nvidia.tensor_memory import TensorMemoryLayout, _TensorMemoryLinearLayout

__all__ = [
    "CachePolicy",
    "FractionalEvictionPolicy",
    "TensorMemoryLayout",
    "TensorMemoryScalesLayout",
    "_TensorMemoryLinearLayout",
    "add2",
    "add4",
    "allocate_tensor_memory",
    "async_copy",
    "async_store",
    "clc",
    "cluster",
    "fence_async_shared",
    "fma2",
    "fma4",
    "max2",
    "mbarrier",
    "min2",
    "mma_v2",
    "mul2",
    "mul4",
    "sub2",
    "sub4",
    "tcgen05_commit",
    "tcgen05_copy",
    "tcgen05_mma",
    "tcgen05_mma_barrier_count",
    "tcgen05_mma_scaled",
    "tensor_memory_descriptor",
    "tensor_memory_descriptor_type",
    "tma",
]
