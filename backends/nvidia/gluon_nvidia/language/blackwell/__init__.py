"""`gl.nvidia.blackwell`: sm_100 and sm_120 and newer. Re-exports the hardware units' files."""

from gluon_nvidia.language.accumulators import accumulator_ring as accumulator_ring
from gluon_nvidia.language.accumulators import tmem_ring as tmem_ring
from gluon_nvidia.language.blackwell import async_copy as async_copy
from gluon_nvidia.language.blackwell import clc as clc
from gluon_nvidia.language.blackwell import cluster as cluster
from gluon_nvidia.language.blackwell import float2 as float2
from gluon_nvidia.language.blackwell import mbarrier as mbarrier
from gluon_nvidia.language.blackwell import tma as tma
from gluon_nvidia.language.cache import CachePolicy as CachePolicy
from gluon_nvidia.language.cache import FractionalEvictionPolicy as FractionalEvictionPolicy
from gluon_nvidia.language.cluster import async_store as async_store
from gluon_nvidia.language.fence import fence_async_shared as fence_async_shared
from gluon_nvidia.language.hopper import multimem as multimem
from gluon_nvidia.language.mma import mma_v2 as mma_v2
from gluon_nvidia.language.packed import add2 as add2
from gluon_nvidia.language.packed import fma2 as fma2
from gluon_nvidia.language.packed import max2 as max2
from gluon_nvidia.language.packed import min2 as min2
from gluon_nvidia.language.packed import mul2 as mul2
from gluon_nvidia.language.packed import sub2 as sub2
from gluon_nvidia.language.tcgen05 import tcgen05_commit as tcgen05_commit
from gluon_nvidia.language.tcgen05 import tcgen05_copy as tcgen05_copy
from gluon_nvidia.language.tcgen05 import tcgen05_mma as tcgen05_mma
from gluon_nvidia.language.tcgen05 import tcgen05_mma_barrier_count as tcgen05_mma_barrier_count
from gluon_nvidia.language.tcgen05 import tcgen05_mma_scaled as tcgen05_mma_scaled
from gluon_nvidia.language.tensor_memory import allocate_tensor_memory as allocate_tensor_memory
from gluon_nvidia.language.tensor_memory import get_tmem_reg_layout as get_tmem_reg_layout
from gluon_nvidia.language.tensor_memory import tensor_memory_descriptor as tensor_memory_descriptor
from gluon_nvidia.language.tensor_memory import (
    tensor_memory_descriptor_type as tensor_memory_descriptor_type,
)
from gluon_nvidia.tensor_memory import TensorMemoryLayout as TensorMemoryLayout
from gluon_nvidia.tensor_memory import TensorMemoryScalesLayout as TensorMemoryScalesLayout
from gluon_nvidia.tensor_memory import _TensorMemoryLinearLayout as _TensorMemoryLinearLayout
