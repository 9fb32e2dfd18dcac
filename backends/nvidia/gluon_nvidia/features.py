"""Name the features of each Triton release for NVIDIA's hardware; see `gluon_core.features`."""

from __future__ import annotations

from gluon_core import features

# -- architectures ------------------------------------------------------------------------------

TURING_CASTS = features.Feature((3, 6), "conversions to bf16 and fp8e5 for sm_75", last=(3, 8))
SM_107 = features.Feature((3, 9), "code for sm_107")
SM_110 = features.Feature((3, 7), "code for sm_110")

# -- barriers and clusters ----------------------------------------------------------------------

CLUSTER_WIDE_BARRIERS = features.Feature(
    (3, 7), "a barrier's memory has the barriers of all blocks"
)
ARRIVE_MULTICAST = features.Feature((3, 8), "arrivals at the barriers of several blocks")
ARRIVE_MASK_FIRST = features.Feature((3, 8), "those blocks stand before the predicate", last=(3, 8))
PAIRS_ARRIVE = features.Feature((3, 8), "a barrier of a pair counts the arrivals of both blocks")
PAIRS_WRITTEN = features.Feature(
    (3, 6), "rings by multicast that the stage of PTX writes", last=(3, 6)
)
PARTS_BY_LOW_BITS = features.Feature(
    (3, 6), "TMA finds a block's part of a box by the lowest bits of its rank", last=(3, 6)
)
FROM_CTA = features.Feature((3, 9), "arrivals and expected bytes of one block of the cluster alone")
CLUSTER_HALVES = features.Feature((3, 7), "the two halves of the cluster's barrier", last=(3, 8))
INIT_FENCE = features.Feature((3, 7), "the fence after a barrier's initialization", last=(3, 8))
ASYNC_SHARED_STORE = features.Feature((3, 8), "st.async of a tensor")
SHARED_STORE_WAITS = features.Feature(
    (3, 9), "the compiler lets blocks wait for the barriers of st.async"
)
CLC = features.Feature((3, 8), "cluster launch control")

# -- products -----------------------------------------------------------------------------------

DESCRIPTORS_MERGED = features.Feature(
    (3, 6), "ptxas computes descriptors of wgmma in front of the first loop alone", last=(3, 7)
)

# -- TMA ----------------------------------------------------------------------------------------

OPEN_ROWS = features.Feature(
    (3, 6), "rows of gathers and scatters whose layout is found later", last=(3, 7)
)
IM2COL = features.Feature((3, 8), "descriptors and copies in im2col mode")
TMA_MULTICAST = features.Feature((3, 7), "loads for several blocks at once")
MULTICAST_IF_SHARED = features.Feature(
    (3, 8), "a multicast is asked for only where blocks share the box"
)
MULTICAST_WAITS = features.Feature(
    (3, 8), "the compiler lets blocks wait for the barriers of a multicast"
)
GATHER_MULTICAST = features.Feature((3, 8), "gathers for several blocks at once")
STORE_WAIT_WRITTEN = features.Feature((3, 8), "store_wait until global memory is written")
DESCRIPTOR_ROWS_CHECKED = features.Feature(
    (3, 7), "a host descriptor's row must fit when it is made"
)

# -- fences between the proxies -----------------------------------------------------------------
# Where the compiler itself puts fence.proxy.async, for accesses of a partition's threads that come
# before an asynchronous access to the same memory. Across partitions that run side by side no
# release does; between a partition's own accesses and its asynchronous writes every release does.
# Read off the PTX by tests/compile/test_proxy_fences.py.

FENCES_READS = features.Feature(
    (3, 7), "a fence between a partition's writes and its asynchronous reads"
)
FENCES_BEFORE_PARTITIONS = features.Feature(
    (3, 7), "those of the program before its partitions count, too"
)
FENCES_AFTER_PARTITIONS = features.Feature((3, 9), "so do those of partitions that are over")
FENCES_CALLS = features.Feature(
    (3, 9), "so do those across the bounds of functions that are not inlined"
)

# -- arithmetic ---------------------------------------------------------------------------------

PACKED = features.Feature((3, 8), "packed arithmetic of two and four numbers")
PACKED_NUMBERS = features.Feature(
    (3, 9), "a number next to packed operands has their dtype at once"
)

# -- tcgen05 and tensor memory ------------------------------------------------------------------

MMA_MULTICAST = features.Feature((3, 7), "tcgen05.mma of operands that came by a multicast")
MMA_INT8 = features.Feature((3, 8), "tcgen05.mma of int8")
MMA_NARROW_PLAIN = features.Feature(
    (3, 8), "operands without a swizzle, narrower than one instruction"
)
COPIES_VERIFIED = features.Feature(
    (3, 7), "copies are compared with their descriptor; before, a buffer of the same messages does"
)
MMA_SHORT_ROWS = features.Feature(
    (3, 6), "operands without a swizzle have rows of 16 bytes", (3, 7)
)
SCALED_MMA_CLUSTERS = features.Feature(
    (3, 8), "scaled tcgen05.mma of pairs, and of multicast operands"
)
COMMIT_OPERANDS = features.Feature(
    (3, 7), "tcgen05.commit with a predicate, and for multicast operands"
)
COMMIT_ANY_OPERANDS = features.Feature(
    (3, 9), "tcgen05.commit for more than two multicast operands"
)
COMMIT_TO_EACH_BLOCK = features.Feature(
    (3, 8), "a commit arrives at a barrier of each block, of pairs, too"
)
TMEM_CLUSTERS = features.Feature(
    (3, 8), "layouts of tensor memory have a cga_layout, before a split"
)
TMEM_PADDED_FP4 = features.Feature((3, 8), "layouts of tensor memory with padded fp4")
TMEM_PAIRS_OF_64 = features.Feature((3, 8), "pairs of 64 rows with several blocks of tensor memory")
TMEM_LD_RED = features.Feature((3, 7), "tcgen05.ld with a reduction")
TMEM_ROW_SLICES = features.Feature((3, 9), "slices of tensor memory along its rows")
TMEM_VIEWS_CHECKED = features.Feature((3, 9), "views of tensor memory have no more rows than it")
TMEM_NARROW_SLICES = features.Feature((3, 8), "a slice may be narrower than its layout's block")
TMEM_ALIGNED_SLICES = features.Feature(
    (3, 8), "a slice starts at a multiple of its length", last=(3, 8)
)
TMEM_SLICE_BLOCKS = features.Feature(
    (3, 9), "a slice keeps its allocation's blocks, some as copies"
)
TMEM_LONE_ELEMENTS = features.Feature(
    (3, 9), "one element to a row of tensor memory, whatever the stride"
)
TMEM_LINEAR_MANGLED = features.Feature(
    (3, 9), "linear layouts of tensor memory are mangled by bases"
)

# -- layouts ------------------------------------------------------------------------------------

OPERAND_ROWS = features.Feature(
    (3, 8), "dot operands have the rows of their layout's instr_shape; before, 16"
)
NVMMA_RANK_MANGLED = features.Feature((3, 9), "NVMMASharedLayout has its rank in mangled names")
