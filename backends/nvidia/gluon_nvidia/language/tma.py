"""The tensor memory accelerator: asynchronous copies of boxes of a tensor (sm_90).

One op moves a whole box between global memory, which a descriptor describes, and shared memory.
Loads announce their bytes at a barrier; `store_wait` waits for stores and reductions. A store sees the
threads' writes to shared memory only after `fence_async_shared`.
"""

from __future__ import annotations

from typing import Any, Optional, Protocol, Sequence

from gluon_core import errors, features
from gluon_core.layouts import BlockedLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.features import (
    GATHER_MULTICAST,
    IM2COL,
    MULTICAST_IF_SHARED,
    PARTS_BY_LOW_BITS,
    STORE_WAIT_WRITTEN,
    TMA_MULTICAST,
)
from gluon_nvidia.language.cache import CacheHint
from gluon_nvidia.language.descriptor import (
    make_tensor_descriptor,
    tensor_descriptor,
    tensor_descriptor_im2col,
    tensor_descriptor_im2col_type,
    tensor_descriptor_type,
)
from gluon_nvidia.language.mbarrier import check_mbarrier
from gluon_nvidia.language.tma_operands import (
    box_buffer,
    box_start,
    cache_policy_operands,
    coordinates,
    first_column,
    im2col_offsets,
    require_descriptor,
    rows_of,
    scattered_buffer,
    source_buffer,
)

__all__ = [
    "async_atomic_add",
    "async_atomic_and",
    "async_atomic_max",
    "async_atomic_min",
    "async_atomic_or",
    "async_atomic_xor",
    "async_copy_global_to_shared",
    "async_copy_global_to_shared_im2col",
    "async_copy_shared_to_global",
    "async_gather",
    "async_load",
    "async_load_im2col",
    "async_scatter",
    "async_store",
    "make_tensor_descriptor",
    "store_wait",
    "tensor_descriptor",
    "tensor_descriptor_im2col",
    "tensor_descriptor_im2col_type",
    "tensor_descriptor_type",
]

_REQUIRES = ("nvidia.tma",)
_ROWS = ("nvidia.tma", "nvidia.tma_gather_scatter")
_HOPPER = "gl.nvidia.hopper.tma."
_BLACKWELL = "gl.nvidia.blackwell.tma."

# Reduction -> element types, and the same as the errors say it (PTX 9.7.9.27.2).
_ADDED = ("int32", "uint32", "uint64", "fp16", "bf16", "fp32")
_COMPARED = ("int32", "uint32", "int64", "uint64", "fp16", "bf16")
_BITS = ("int32", "uint32", "int64", "uint64")
_REDUCED = {
    "add": _ADDED, "min": _COMPARED, "max": _COMPARED, "and": _BITS, "or": _BITS, "xor": _BITS,
}  # fmt: skip


# -- loads ------------------------------------------------------------------------------------------


@builtin(requires=_REQUIRES, name=_HOPPER + "async_load", instead="gl.portable.async_copy")
def async_load(
    tensor_desc: tensor_descriptor,
    coord: Sequence[Scalar[int]],
    barrier: shared_memory_descriptor,
    result: shared_memory_descriptor,
    pred: Scalar[bool] = True,
    multicast: Const[bool] = False,
    cache_policy: Optional[CacheHint] = None,
) -> None:
    """Start copying a box of a tensor from global to shared memory.

    Elements outside the tensor come as the descriptor's padding, zero or NaN. When all have come,
    `barrier` counts `tensor_desc.nbytes_per_cta` bytes: announce them with `mbarrier.expect`
    before, and read `result` after `mbarrier.wait`.

    Args:
        tensor_desc: a tensor_descriptor.
        coord: of the box's first element in the tensor, an int32 scalar for each dimension;
            negative ones and those beyond the end are outside. The last one must be at a multiple
            of 16 bytes, inside the tensor or not: anything else is an illegal instruction, as seen
            on sm_90; the PTX ISA does not say it.
        barrier: the barrier to tell.
        result: shared memory of the box's shape, dtype and layout.
        pred: int1 scalar; where false, nothing happens.
        multicast: one block of the cluster loads the boxes of several: those along whose dimension
            `cga_layout` repeats the box. Triton 3.7.
        cache_policy: a CachePolicy with `l2` alone, or `gl.CachePolicy` with an eviction policy;
            Triton 3.9.

    Raises:
        DtypeError: no descriptor, other elements in `result`, or coordinates that are not int32.
        ShapeError: not one coordinate for each dimension, or another box in `result`.
        LayoutError: `result` has another layout than the descriptor.
        ArgumentError: the last coordinate is a constant that is no multiple of 16 bytes; the
            simulator reports those that it learns when the kernel runs. `multicast` is no
            compile-time boolean, or `cache_policy` says more than L2's.
        CapabilityError: `multicast` or `cache_policy` with an older Triton, or `multicast` on a
            target that lacks it.

    ISA: PTX 9.7.9.27.1, cp.async.bulk.tensor.
    """
    _load(
        semantic_layer(), "async_load", tensor_desc, coord, None, barrier, result, pred, multicast,
        cache_policy,
    )  # fmt: skip


async_copy_global_to_shared = async_load  # the older name


@builtin(requires=_REQUIRES, since=IM2COL, name=_HOPPER + "async_load_im2col")
def async_load_im2col(
    tensor_desc: tensor_descriptor_im2col,
    coord: Sequence[Scalar[int]],
    offsets: Sequence[Scalar[int]],
    barrier: shared_memory_descriptor,
    result: shared_memory_descriptor,
    pred: Scalar[bool] = True,
    multicast: Const[bool] = False,
    cache_policy: Optional[CacheHint] = None,
) -> None:
    """Start copying pixels of a tensor [N, spatial dimensions, C] to a matrix [pixels, channels].

    The pixels are those that follow each other in the bounding box that the descriptor gives
    (`pixel_box_lower_corner` and `pixel_box_upper_corner`), row by row and image by image, from the
    one at `coord` on; each is taken `offsets` further along the spatial dimensions, as a
    convolution takes the taps of its filter. Triton 3.8.

    Args:
        tensor_desc: a tensor_descriptor_im2col.
        coord: of the first pixel and channel, an int32 scalar for each dimension of the tensor.
        offsets: of the tap, one int16 scalar for each spatial dimension.
        barrier, result, pred, multicast, cache_policy: as for `async_load`.

    Raises:
        as `async_load`.

    ISA: PTX 9.7.9.27.1, cp.async.bulk.tensor, .im2col; 5.5.4, im2col mode.
    """
    _load(
        semantic_layer(), "async_load_im2col", tensor_desc, coord, offsets, barrier, result, pred,
        multicast, cache_policy,
    )  # fmt: skip


async_copy_global_to_shared_im2col = async_load_im2col  # the older name


def _load(
    semantic: SemanticLayer,
    name: str,
    desc: tensor_descriptor,
    coord: Sequence[Scalar[int]],
    offsets: Optional[Sequence[Scalar[int]]],
    barrier: shared_memory_descriptor,
    result: shared_memory_descriptor,
    pred: Scalar[bool],
    multicast: Const[bool],
    cache_policy: Optional[CacheHint],
) -> None:
    im2col = name.endswith("im2col")
    desc = require_descriptor(semantic, desc, im2col)
    barrier = check_mbarrier(barrier, "barrier")
    result = box_buffer(desc, result, "result")
    if im2col:
        coord = coordinates(semantic, coord, len(desc.shape))
    else:
        coord = _own(semantic, desc, box_start(semantic, desc, coord))
    pred = semantic.predicate(pred)
    builder = semantic.builder
    operands = [desc.handle, coord, barrier.handle, result.handle, pred.handle]
    shared = _multicast(semantic, _HOPPER + name, multicast, result, TMA_MULTICAST)
    if semantic.has(TMA_MULTICAST):
        operands.append(shared)
    if semantic.has(IM2COL):
        operands.append(im2col_offsets(semantic, offsets, len(desc.shape)) if im2col else None)
    operands += cache_policy_operands(builder, cache_policy, _HOPPER + name)
    builder.create_async_tma_copy_global_to_local(*operands)


def _own(semantic: SemanticLayer, desc: tensor_descriptor, coord: Any) -> Any:
    """Return coordinates that give a block of a cluster its own part of the box; simulators find it by the layout."""
    builder = semantic.builder
    if semantic.num_ctas == 1 or not semantic.has(PARTS_BY_LOW_BITS):
        return coord
    if not hasattr(type(builder), "own_coordinates"):
        return coord
    return builder.own_coordinates(coord, desc.layout.cga_layout, desc.block_type.shape)


def _multicast(
    semantic: SemanticLayer,
    public: str,
    wanted: Const[bool],
    result: shared_memory_descriptor,
    since: features.Feature,
) -> bool:
    """Return True to load once for several blocks: where asked for, and where blocks share the box."""
    if not semantic.compile_time_bool(wanted, "multicast"):
        return False
    semantic.require(since, f"{public}(multicast=True)")
    semantic.check_capabilities(f"{public}(multicast=True)", ("nvidia.tma_multicast",))
    return not semantic.has(MULTICAST_IF_SHARED) or any(
        not any(b) for b in result.layout.cga_layout
    )


@builtin(requires=_ROWS, name=_BLACKWELL + "async_gather")
def async_gather(
    tensor_desc: tensor_descriptor,
    x_offsets: tl.tensor,
    y_offset: Scalar[int],
    barrier: shared_memory_descriptor,
    result: shared_memory_descriptor,
    pred: Scalar[bool] = True,
    multicast: Const[bool] = False,
    cache_policy: Optional[CacheHint] = None,
) -> None:
    """Start copying chosen rows of a matrix to shared memory (sm_100).

    `result[i, j] = matrix[x_offsets[i], y_offset + j]`, zero (or NaN) outside the matrix. `barrier`
    counts the bytes of `result`.

    Args:
        tensor_desc: a tensor_descriptor of a matrix, with a box of one row: [1, columns].
        x_offsets: int32 tensor of the rows, at least 8. Each thread must hold 4 consecutive ones,
            as with `SliceLayout(0, BlockedLayout([1, 4], [32, 1], [1, num_warps], [1, 0]))`.
        y_offset: the first column, an int32 scalar, at a multiple of 16 bytes as for `async_load`.
        barrier: the barrier to tell.
        result: shared memory [rows, columns] of the descriptor's dtype and layout.
        pred: int1 scalar; where false, nothing happens.
        multicast: as for `async_load`; Triton 3.8.
        cache_policy: as for `async_load`; Triton 3.9.

    Raises:
        DtypeError: no descriptor, other elements in `result`, or indices that are not int32.
        ShapeError: a box of several rows, or another number of rows or columns in `result`.
        LayoutError: `result` has another layout than the descriptor, or a thread holds fewer
            consecutive rows.
        ArgumentError: as for `async_load`.
        CapabilityError: `multicast` or `cache_policy` with an older Triton.

    ISA: PTX 9.7.9.27.1, cp.async.bulk.tensor, .tile::gather4; 5.5.3.2.
    """
    semantic = semantic_layer()
    public = _BLACKWELL + "async_gather"
    desc = require_descriptor(semantic, tensor_desc, False)
    barrier = check_mbarrier(barrier, "barrier")
    rows = rows_of(semantic, desc, x_offsets)
    result = scattered_buffer(desc, rows, result, "result")
    pred = semantic.predicate(pred)
    column = first_column(semantic, desc, y_offset)
    builder = semantic.builder
    operands = [desc.handle, rows.handle, column, barrier.handle, result.handle, pred.handle]
    shared = _multicast(semantic, public, multicast, result, GATHER_MULTICAST)
    if semantic.has(GATHER_MULTICAST):
        operands.append(shared)
    operands += cache_policy_operands(builder, cache_policy, public)
    builder.create_async_tma_gather(*operands)


# -- stores -----------------------------------------------------------------------------------------


@builtin(requires=_REQUIRES, name=_HOPPER + "async_store")
def async_store(
    tensor_desc: tensor_descriptor,
    coord: Sequence[Scalar[int]],
    src: shared_memory_descriptor,
    cache_policy: Optional[CacheHint] = None,
) -> None:
    """Start copying a box from shared memory to a tensor in global memory.

    Elements behind the end of the tensor are dropped. Each store is a group of its own for `store_wait`;
    `src` must not be written before it has been read. The store sees the threads' writes to `src` after
    `fence_async_shared` and a barrier.

    Args:
        tensor_desc: a tensor_descriptor.
        coord: of the box's first element in the tensor, an int32 scalar for each dimension; the
            last at a multiple of 16 bytes, as for `async_load`. None may be negative: a store that
            begins before the tensor is an illegal instruction, as seen on sm_90 for 1 to 3
            dimensions; the PTX ISA does not say it. A constant is warned of (`KernelWarning`), the
            simulator reports the others.
        src: shared memory of the box's shape, dtype and layout.
        cache_policy: as for `async_load`; Triton 3.9.

    Raises:
        DtypeError: no descriptor, other elements in `src`, or coordinates that are not int32.
        ShapeError: not one coordinate for each dimension, or another box in `src`.
        LayoutError: `src` has another layout than the descriptor.
        ArgumentError: as for `async_load`.
        CapabilityError: `cache_policy` with an older Triton.

    ISA: PTX 9.7.9.27.1, cp.async.bulk.tensor.
    """
    semantic = semantic_layer()
    desc = require_descriptor(semantic, tensor_desc, False)
    src = source_buffer(desc, src)
    coord = _own(semantic, desc, box_start(semantic, desc, coord, written=True))
    builder = semantic.builder
    policy = cache_policy_operands(builder, cache_policy, _HOPPER + "async_store")
    builder.create_async_tma_copy_local_to_global(desc.handle, coord, src.handle, *policy)


async_copy_shared_to_global = async_store  # the older name


@builtin(requires=_ROWS, name=_BLACKWELL + "async_scatter")
def async_scatter(
    tensor_desc: tensor_descriptor,
    x_offsets: tl.tensor,
    y_offset: Scalar[int],
    src: shared_memory_descriptor,
    cache_policy: Optional[CacheHint] = None,
) -> None:
    """Start copying shared memory to chosen rows of a matrix (sm_100).

    `matrix[x_offsets[i], y_offset + j] = src[i, j]`; elements past the end of the matrix are dropped,
    and either of two rows with one index may remain. Waited for like `async_store`.

    Args:
        tensor_desc: a tensor_descriptor of a matrix, with a box of one row: [1, columns].
        x_offsets: int32 tensor of the rows, as for `async_gather`, but not negative, as for
            `async_store`; a row past the end skips the write.
        y_offset: the first column, an int32 scalar, at a multiple of 16 bytes as for `async_load`,
            not negative.
        src: shared memory [rows, columns] of the descriptor's dtype and layout.
        cache_policy: as for `async_load`; Triton 3.9.

    Raises:
        as `async_gather`.

    ISA: PTX 9.7.9.27.1, cp.async.bulk.tensor, .tile::scatter4; 5.5.3.3.
    """
    semantic = semantic_layer()
    desc = require_descriptor(semantic, tensor_desc, False)
    rows = rows_of(semantic, desc, x_offsets)
    src = scattered_buffer(desc, rows, src, "src")
    column = first_column(semantic, desc, y_offset, written=True)
    policy = cache_policy_operands(semantic.builder, cache_policy, _BLACKWELL + "async_scatter")
    semantic.builder.create_async_tma_scatter(desc.handle, rows.handle, column, src.handle, *policy)


class _Reduction(Protocol):
    def __call__(
        self,
        tensor_desc: tensor_descriptor,
        coord: Sequence[Scalar[int]],
        src: shared_memory_descriptor,
    ) -> None:
        """Start combining a box in shared memory and one of a tensor, into the latter."""


def _reduction(kind: str, combining: str) -> _Reduction:
    """Return the op `async_atomic_KIND`, documented."""

    def op(
        tensor_desc: tensor_descriptor,
        coord: Sequence[Scalar[int]],
        src: shared_memory_descriptor,
    ) -> None:
        _reduce(semantic_layer(), kind, tensor_desc, coord, src)

    allowed = _REDUCED[kind]
    op.__doc__ = f"""Start {combining} a box in shared memory and one of a tensor, into the latter.

    Each element changes atomically; those behind the end of the tensor are dropped. Waited for, and
    fenced, like `async_store`.

    Args:
        tensor_desc: a tensor_descriptor of {", ".join(allowed[:-1])} or {allowed[-1]}.
        coord: of the box's first element in the tensor, an int32 scalar for each dimension; the
            last at a multiple of 16 bytes, as for `async_load`, and none negative, as for
            `async_store`.
        src: shared memory of the box's shape, dtype and layout.

    Raises:
        DtypeError: no descriptor, elements that TMA does not {kind}, other elements in `src`, or
            coordinates that are not int32.
        ShapeError: not one coordinate for each dimension, or another box in `src`.
        LayoutError: `src` has another layout than the descriptor.
        ArgumentError: as for `async_load`.

    ISA: PTX 9.7.9.27.2, cp.reduce.async.bulk.tensor.
    """
    return builtin(requires=_REQUIRES, name=f"{_HOPPER}async_atomic_{kind}")(op)


def _reduce(
    semantic: SemanticLayer,
    kind: str,
    desc: tensor_descriptor,
    coord: Sequence[Scalar[int]],
    src: shared_memory_descriptor,
) -> None:
    desc = require_descriptor(semantic, desc, False)
    allowed = _REDUCED[kind]
    if desc.dtype.name not in allowed:
        raise errors.DtypeError(
            f"TMA cannot {kind} such elements (PTX 9.7.9.27.2)",
            argument="tensor_desc",
            expected=", ".join(allowed),
            got=desc.dtype,
        )
    src = source_buffer(desc, src)
    start = box_start(semantic, desc, coord, written=True)
    semantic.builder.create_async_tma_reduce(
        semantic.enum("DESCRIPTOR_REDUCE_KIND", kind.upper()), desc.handle, start, src.handle
    )


async_atomic_add = _reduction("add", "adding")
async_atomic_min = _reduction("min", "taking the minimum of")
async_atomic_max = _reduction("max", "taking the maximum of")
async_atomic_and = _reduction("and", "taking the bitwise and of")
async_atomic_or = _reduction("or", "taking the bitwise or of")
async_atomic_xor = _reduction("xor", "taking the bitwise xor of")


@builtin(requires=_REQUIRES, name=_HOPPER + "store_wait")
def store_wait(pendings: Const[int], read_only: Const[bool] = True) -> None:
    """Wait until at most `pendings` of the latest stores and reductions are under way.

    Args:
        pendings: compile-time integer; 0 waits for all.
        read_only: wait only until their sources have been read, so that shared memory may be
            written again. With False, until they have written global memory.

    Raises:
        ArgumentError: `pendings` is no compile-time integer >= 0, or `read_only` no compile-time
            boolean.

    ISA: PTX 9.7.9.25.4.2, cp.async.bulk.wait_group.
    """
    semantic = semantic_layer()
    count = semantic.compile_time_int(pendings, "pendings", 0)
    reads = semantic.compile_time_bool(read_only, "read_only")
    if not reads and not semantic.has(STORE_WAIT_WRITTEN):
        _wait_written(semantic, count)
        return
    more = (reads,) if semantic.has(STORE_WAIT_WRITTEN) else ()
    semantic.builder.create_async_tma_store_wait(count, *more)


def _wait_written(semantic: SemanticLayer, count: int) -> None:
    """Emit the wait as assembly, which every thread runs on one element, where Triton has no op for it."""
    warps, lanes = semantic.num_warps, semantic.target.warp_size
    layout = BlockedLayout([1], [lanes], [warps], [0])
    threads = semantic.arange(0, warps * lanes, layout)
    semantic.builder.create_inline_asm(
        f"cp.async.bulk.wait_group {count}; mov.b32 $0, $1;", "=r,r",
        [threads.handle], [threads.type.to_ir(semantic.builder)], False, 1,
    )  # fmt: skip
