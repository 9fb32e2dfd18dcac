"""Name the features of each Triton release for AMD's hardware; see `gluon_core.features`."""

from __future__ import annotations

from gluon_core.features import Feature

# -- compiling and launching --------------------------------------------------------------------

RESOLVES_COALESCED = Feature((3, 9), "the first stage gives every CoalescedLayout its layout")
ALL_PRELOADED = Feature(
    (3, 7), "kernels of gfx1250 link whose arguments fill the scalar registers of a launch"
)
DESCRIPTORS_IN_TUPLES = Feature((3, 8), "the driver finds descriptors in tuples of arguments")

ANY_TARGET_FP8 = Feature((3, 7), "one process makes conversions to fp8 for several architectures")
BF16_AND_FNUZ = Feature(
    (3, 8), "bfloat16 to fp8 of the fnuz kind, and back, on hardware without it"
)
AWAITED_WRITEBACKS = Feature((3, 8), "atomics that release wait for `buffer_wbl2` before them")
SCALAR_CAS_WAITS = Feature((3, 7), "a scalar compare-and-swap assembles for gfx1250")
CONVERGENT_WMMA = Feature(
    (3, 8), "products of WMMA stay in front of the branches of masked stores that take them"
)
FNUZ_FP4 = Feature((3, 7), "fp4 to bfloat16 on gfx942; before, an abort")

# -- memory -------------------------------------------------------------------------------------

VOLATILE_LOADS = Feature((3, 9), "loads that are volatile")
TENSOR_CAS = Feature((3, 7), "compare-and-swap of tensors")
BUFFER_XCHG = Feature((3, 9), "buffer_atomic_xchg")
BUFFER_SIGNED_EXTREMA = Feature((3, 8), "buffer_atomic_max and _min of signed integers and floats")
BUFFER_COPY_OTHER = Feature(
    (3, 8), "copies from buffers into LDS write `other` where the mask is off"
)
ALL_WAVES_COPY = Feature(
    (3, 8), "waves for which a copy into LDS is masked off issue it, too, as waits count it"
)
UNALIGNED_COPIES = Feature(
    (3, 7), "copies into swizzled LDS are refused where rows are not aligned; before, they overlap"
)
SHARED_TO_GLOBAL = Feature((3, 7), "asynchronous copies from LDS to global memory")
REPACKED_FP4 = Feature((3, 9), "loads from LDS that repack fp4 along K")
EFFICIENT_PADDING = Feature((3, 8), "a padded layout of shared memory for an operand of MFMA")
REGISTER_SLICE = Feature((3, 8), "the part of a tensor, by picking registers")

# -- control ------------------------------------------------------------------------------------

CLUSTER_HALVES = Feature((3, 7), "the two halves of the cluster's barrier")
WARP_PIPELINE = Feature((3, 7), "stages of a pipeline of warps")
SCHED_BARRIER = Feature((3, 9), "barriers of LLVM's scheduler")

# -- TDM ----------------------------------------------------------------------------------------

TDM_MOVED = Feature((3, 8), "descriptors move, and copies take no offsets of their own")
TDM_HINTS = Feature((3, 8), "copies of TDM with hints for warps and caches")
TDM_STORE_BARRIER = Feature((3, 7), "stores of TDM tell a barrier")
TDM_STORE_GAPS = Feature((3, 7), "stores of TDM from buffers with gaps between the rows")
TDM_PRED_INT32 = Feature((3, 7), "loads of TDM take a predicate of int32, no int1")
TDM_FUSED = Feature((3, 9), "several loads of TDM in one instruction")
TDM_ROWS = Feature((3, 7), "gathers and scatters of TDM")
TDM_ROW_GAPS = Feature((3, 8), "gathers and scatters of buffers with gaps")
TDM_ROWS_CLUSTERED = Feature((3, 8), "gathers of TDM in a cluster")
TDM_PREFETCH = Feature((3, 7), "prefetches of TDM")

# -- matrix units -------------------------------------------------------------------------------

CD_REGCLASS = Feature((3, 9), "a wish for the registers of MFMA's accumulator")
WMMA_INT8 = Feature((3, 7), "WMMA of int8 on gfx1250")
WMMA_BASES = Feature((3, 7), "AMDWMMALayout has bases of warps and registers, before counts")
WMMA_MIXED_BASES = Feature((3, 8), "these bases in any order")
WMMA_32X16 = Feature((3, 8), "the WMMA instruction of 32 rows")
WMMA_SMALL_TILES = Feature((3, 8), "accumulators smaller than a WMMA instruction")
WMMA_K_REPEATED = Feature(
    (3, 8), "WMMA: K is repeated after the warps' tiles, and alike in all blocks"
)
PARTITIONED = Feature((3, 8), "PartitionedSharedLayout")
PARTITIONED_WHOLE = Feature((3, 9), "partitioned operands are not cut into slices by default")
SCALED_UPCAST = Feature((3, 8), "scaled_upcast")
SCALED_UPCAST_LAYOUT = Feature((3, 9), "the layout of scaled_upcast's scales")
SCALES_ARE_FLOATS = Feature((3, 8), "scales of scaled_upcast as bfloat16", last=(3, 8))
SCALED_DOWNCAST = Feature((3, 9), "scaled_downcast")
SCALES_OF_16 = Feature((3, 8), "scaled WMMA of blocks of 16, and with float8 scales")
SCALES_OF_TILES = Feature((3, 7), "scales for more than two tiles of a warp")
SCALES_SPLIT = Feature((3, 8), "the blocks of a cluster split the scales, as the accumulator")
SCALES_SPLIT_ROWS = Feature((3, 9), "they split the rows of the scales only")
