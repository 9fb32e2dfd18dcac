"""The features of each Triton release, by name: the only place of the core that distinguishes releases.

A plugin has a table of its own, `features.py`, made of the same `Feature`. Code imports a line of a
table and asks `gluon_core.plugin.ops.has(LINE)` or `require(LINE, op)` about the Triton that is
loaded, `gluon_core.layouts.dialect.follows(LINE)` about the one whose conventions layouts follow. A
name that no table has is an ImportError. This module imports no triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Union

OLDEST = (3, 6)
NEWEST = (3, 9)


def dotted(version: Sequence[int]) -> str:
    """Return a version as people write it: `3.8`."""
    return ".".join(map(str, version))


@dataclass(frozen=True)
class Feature:
    """Something that some Triton releases have.

    Args:
        since: the first release (major, minor) that has it.
        title: a few words on it.
        last: the last one, where later ones have it no more.
    """

    since: tuple[int, int]
    title: str
    last: Optional[tuple[int, int]] = None

    def held_by(self, version: tuple[int, int]) -> bool:
        """Return True if Triton `version`, (major, minor), has it."""
        return self.since <= version and (self.last is None or version <= self.last)

    @property
    def releases(self) -> str:
        """`Triton >= 3.8`, or `Triton 3.7 to 3.8`."""
        if self.last is None:
            return f"Triton >= {dotted(self.since)}"
        return f"Triton {dotted(self.since)} to {dotted(self.last)}"

    def refusal(self, op: str, installed: Union[str, Sequence[int]]) -> str:
        """Return the sentence that says that `op` needs it, where Triton is of release `installed`."""
        release = installed if isinstance(installed, str) else dotted(installed)
        return f"{op} needs {self.releases}, found {release}"


# -- arithmetic ---------------------------------------------------------------------------------

NARROW_DIVISION = Feature((3, 9), "division of 8-bit floats")

# -- memory -------------------------------------------------------------------------------------

CACHE_POLICY = Feature((3, 9), "loads, stores and copies take one cache policy, not two strings")
OTHER_WITHOUT_MASK = Feature(
    (3, 6), "loads through buffers and copies to LDS take `other` without a mask", (3, 7)
)
ATOMIC_LOADS = Feature((3, 9), "atomic loads, stores and polls")
ATOMIC_BARRIERS = Feature(
    (3, 9), "the threads wait for each other before a release and after an acquire"
)
SHARED_GATHER = Feature((3, 7), "gather and scatter on shared memory")
SLICED_COPIES = Feature((3, 9), "slices along the dimensions that count buffers")
HOLES_SLICED = Feature((3, 8), "slices of a buffer with unused places; before, an abort")
UNEVEN_BUFFERS = Feature((3, 6), "buffers whose first extent is no power of two", (3, 8))
UNEVEN_VIEWS = Feature(
    (3, 6), "other views of a buffer whose first extent is no power of two; later, an abort", (3, 7)
)
LARGER_VIEWS = Feature((3, 6), "views may reach beyond their memory; later, an error", (3, 7))
SMALLER_VIEWS_REFUSED = Feature((3, 8), "views have the size of their memory", (3, 8))
VIEWS_CHECKED = Feature((3, 8), "views have the padding of their memory, and stay within slices")
BLOCKS_SLICED = Feature((3, 8), "slices of buffers that the blocks of a cluster share")
PARTITIONS_VIEWED = Feature((3, 8), "other views of buffers in partitions", (3, 8))
BLOCKS_CUT = Feature((3, 9), "slices across the blocks of a cluster")
SHARED_ATOMICS = Feature((3, 8), "atomic scatter on shared memory")
ALLOC_SHAPE_JOINED = Feature((3, 7), "an allocation's shape is joined by _ in mangled names")

# -- arithmetic ---------------------------------------------------------------------------------

FDIV_PROMOTES = Feature((3, 9), "the division of floats brings its operands to one dtype itself")
FDIV_APPROX = Feature((3, 9), "approximate division")
FPSAN = Feature((3, 9), "the floating-point sanitizer's embedding")

# -- control ------------------------------------------------------------------------------------

AGGREGATE_CONSTRUCTORS = Feature((3, 8), "aggregates without a constructor take their fields")
VARIADIC = Feature((3, 8), "a parameter `*name`, which is a tuple")
CLUSTER_BARRIER = Feature((3, 7), "a barrier for all threads of a cluster")
CLUSTER_BARRIER_OP = Feature((3, 8), "that barrier as an operation of its own")
CLUSTER_ENDS = Feature((3, 9), "the blocks of a cluster wait for each other before the kernel ends")
MADE_BARRIERS_FENCED = Feature((3, 9), "a fence between a barrier's making and copies to its bytes")
INLINE_ASM = Feature((3, 9), "inline assembly that every thread runs on scalars")
WORKERS_WITHOUT_REGISTERS = Feature((3, 7), "warp_specialize without worker_num_regs")
FEW_REGISTERS = Feature((3, 9), "partitions that ask for fewer registers than a thread can have")
PARTITION_CAPTURES = Feature((3, 7), "warp_specialize passes its captures to its partitions")
COLUMNS = Feature((3, 8), "an op's location is its expression's, with the column in the file")

# -- layouts ------------------------------------------------------------------------------------

SPLIT_BEFORE_LAYOUT = Feature((3, 8), "gl.split of a tensor whose layout is still to be found")
DROPS_REGISTER_COPIES = Feature((3, 9), "registers beyond a small tensor are dropped, no copies")
DROPS_CARRIED = Feature(
    (3, 8),
    "results of control flow that nothing needs, and code that never runs, go before layouts come",
)
SQUEEZES_TO_SLICES = Feature((3, 9), "reshapes by a dimension of size 1 go through SliceLayout")
PADDED_BY_TILE = Feature((3, 7), "blocks of padded buffers are counted in tiles, and may be copies")
INTERLEAVED_BUFFERS = Feature((3, 7), "blocks of a buffer may interleave; before, an abort")
INTERLEAVED_SPLITS = Feature((3, 7), "blocks of a split tensor may interleave; before, an abort")
INTERLEAVED_SLICES = Feature((3, 8), "blocks of a slice may interleave; before, an abort")
REGISTERS_BY_BITS = Feature(
    (3, 6), "registers of a linear layout may move along several bits; later, an abort", (3, 7)
)
ONLY_PERMUTED_BASES = Feature(
    (3, 7), "bases of a linear layout are independent but for zeros; else an abort", (3, 7)
)
MIXED_WARPS = Feature((3, 8), "warps of a linear layout may move along several dimensions at once")
CLUSTERED_JOINS = Feature(
    (3, 8), "joins of tensors that a cluster's blocks share; before, an abort"
)
CLUSTERED_CONVERSIONS = Feature((3, 8), "conversions that move data between a cluster's blocks")
CLUSTERED_REDUCTIONS = Feature((3, 8), "reductions over dimensions that a cluster's blocks share")
CLUSTERED_SCANS = Feature((3, 9), "scans of tensors that a cluster's blocks share")
CLUSTERED_HISTOGRAMS = Feature((3, 9), "histograms of tensors that a cluster's blocks share")
KERNELS_THAT_RETURN = Feature((3, 7), "kernels that return a value")
STRICT_UNPACKING = Feature((3, 9), "more values than names are refused")
CLUSTERED_REDUCTIONS = Feature((3, 8), "reductions across a cluster's blocks")
CLUSTERED_JOINS = Feature((3, 8), "slices along a clustered layout's last dimension join")
