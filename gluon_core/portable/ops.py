"""`gl.portable`: ops whose best form differs by hardware, with one source for all of it.

Addresses are a scalar pointer plus a tensor of offsets in elements. int32 offsets promise to be
non-negative and to stay within 2 GiB of the pointer, which lets hardware with buffer addressing
use it; int64 offsets promise nothing.

Each op picks, when the kernel is traced, the lowering of the highest priority that the target has
and whose predicate accepts the operands; `gluon explain` shows which, and why not the others.

A matrix multiplication that runs everywhere asks for its layouts instead of writing them:

    layouts: gl.constexpr = gl.portable.mma_layouts(BM, BN, BK, gl.float16, gl.float16)
    a_smem = gl.allocate_shared_memory(gl.float16, [BM, BK], layouts.a_shared)
    ...
    gl.portable.async_copy(a_smem, a_ptr, a_offsets, mask)
    gl.portable.commit()
    gl.portable.wait(0)
    acc = gl.portable.mma(a_smem.load(layouts.a), b_smem.load(layouts.b), acc)

That is for operands in registers. Units such as `wgmma` and `tcgen05` read shared memory on their
own, and are as fast as they can be when TMA fills it: see `tile_ops` for the same on whole tiles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Sequence, Union

from gluon_core import _triton
from gluon_core._triton import constexpr, tensor, tl, unwrap
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.typing import Const, Dtype, Operand, Shape, Values
from gluon_core.portable.common import around, check_address, lower, optional_tensor
from gluon_core.portable.epilogues import epilogue, writer
from gluon_core.portable.mma_ops import accumulator, fence, mma, mma_layouts, mma_wait, read
from gluon_core.portable.requests import AsyncCopyRequest, LoadRequest, StoreRequest
from gluon_core.portable.row_sums import cluster_softmax
from gluon_core.portable.selection import available, code
from gluon_core.portable.signals import (
    counter_add,
    counter_wait,
    peer,
    rank_barrier,
    signal,
    wait_signal,
)
from gluon_core.portable.stream_k import split_k_reduce, stream_k_tiles
from gluon_core.portable.tile_ops import (
    descriptor,
    load_tile,
    pipeline,
    store_tile,
    tile_descriptor,
)
from gluon_core.portable.tile_orders import swizzled_tiles
from gluon_core.portable.tile_schedulers import static_tile_scheduler, tile_scheduler
from gluon_core.portable.tiles import blocked_layout as _blocked
from gluon_core.semantic.base import shape_of
from gluon_core.semantic.operands import compile_time_int
from gluon_core.values import shared_memory_descriptor, unwrap_shape

__all__ = [
    "accumulator",
    "async_copy",
    "blocked_layout",
    "cluster_softmax",
    "commit",
    "counter_add",
    "counter_wait",
    "descriptor",
    "epilogue",
    "fence",
    "load",
    "mma",
    "mma_layouts",
    "mma_wait",
    "peer",
    "pipeline",
    "rank_barrier",
    "read",
    "signal",
    "split_k_reduce",
    "static_tile_scheduler",
    "store",
    "stream_k_tiles",
    "swizzled_tiles",
    "tile_scheduler",
    "wait",
    "wait_signal",
    "writer",
]


# -- memory --------------------------------------------------------------------------------------


@builtin(name="gl.portable.load")
def load(
    ptr: Union[tensor, tile_descriptor],
    offsets: Union[tensor, Values],
    mask: Optional[Operand] = None,
    other: Optional[Operand] = None,
    cache_modifier: Const[str] = "",
) -> tensor:
    """Read `ptr + offsets` from global memory, or a tile.

    Args:
        ptr: scalar pointer, or a result of `descriptor`.
        offsets: integer tensor in elements; its shape and layout are the result's. For a descriptor,
            where the tile begins: an integer scalar per dimension, from 0 on; the result has
            the layout of `blocked_layout`, and is zero where the tile leaves the tensor.
        mask: bool tensor; where False nothing is read.
        other: scalar or tensor for where `mask` is False, 0 by default.
        cache_modifier: "", ".ca", ".cg", ".cs" or ".cv".

    Raises:
        DtypeError: `ptr` is no scalar pointer, or `offsets` are not integers.
    """
    if isinstance(ptr, tile_descriptor):
        if unwrap(mask) is not None or unwrap(other) is not None:
            raise ArgumentError("a single tile needs none", argument="mask", got=str(mask))
        return load_tile(ptr, offsets)
    semantic = semantic_layer()
    check_address(semantic, ptr, offsets)
    where, filling = optional_tensor(semantic, mask), optional_tensor(semantic, other)
    if filling is not None and where is None:
        raise ArgumentError("needs a mask", argument="other", remedy="Pass mask=, or drop other.")
    cache = unwrap(cache_modifier) or ""
    return lower("load", LoadRequest(*around(semantic), ptr, offsets, where, filling, cache))


@builtin(name="gl.portable.store")
def store(
    ptr: Union[tensor, tile_descriptor],
    offsets: Union[tensor, Values],
    value: Operand,
    mask: Optional[Operand] = None,
    cache_modifier: Const[str] = "",
) -> None:
    """Write `value` to `ptr + offsets` in global memory, or to a tile.

    Args:
        ptr: scalar pointer, or a result of `descriptor`. offsets: integer tensor in elements; of a
        descriptor, where the tile begins: an integer
            scalar per dimension, from 0 on.
        value: tensor of `offsets`' shape and layout, or a scalar; converted to the element type.
            To a descriptor, a tensor of any layout, of a tile's shape or that of several side by
            side; narrow tiles take less shared memory on their way.
        mask: bool tensor; where False nothing is written.
        cache_modifier: "", ".wb", ".cg", ".cs" or ".wt".

    Raises:
        DtypeError: `ptr` is no scalar pointer, or `offsets` are not integers.
    """
    if isinstance(ptr, tile_descriptor):
        if unwrap(mask) is not None:
            raise ArgumentError("a single tile needs none", argument="mask", got=str(mask))
        return store_tile(ptr, offsets, value)
    semantic = semantic_layer()
    check_address(semantic, ptr, offsets)
    data, where = optional_tensor(semantic, value), optional_tensor(semantic, mask)
    cache = unwrap(cache_modifier) or ""
    lower("store", StoreRequest(*around(semantic), ptr, offsets, data, where, cache))


@builtin(name="gl.portable.async_copy")
def async_copy(
    dest: shared_memory_descriptor,
    ptr: tensor,
    offsets: tensor,
    mask: Optional[Operand] = None,
    cache_modifier: Const[str] = "",
) -> None:
    """Copy `ptr + offsets` from global into shared memory, in the background where possible.

    `dest` may be read after the copy's group was closed with `commit` and waited for with `wait`.

    Args:
        dest: shared memory descriptor of `offsets`' shape and `ptr`'s element type.
        ptr: scalar pointer.
        offsets: integer tensor in elements; its layout says which thread copies which elements.
        mask: bool tensor; where False `dest` gets 0.
        cache_modifier: "", ".ca" or ".cg".

    Raises:
        DtypeError: the element types of `dest` and `ptr` differ.
        ShapeError: the shapes of `dest` and `offsets` differ.
    """
    semantic = semantic_layer()
    check_address(semantic, ptr, offsets)
    if not isinstance(dest, shared_memory_descriptor):
        raise ArgumentError(
            "not shared memory",
            argument="dest",
            expected="a shared_memory_descriptor",
            got=str(getattr(dest, "type", type(dest).__name__)),
        )
    if dest.dtype != ptr.dtype.element_ty:
        raise DtypeError(
            "dest and ptr have different element types",
            argument="dest",
            expected=ptr.dtype.element_ty,
            got=dest.dtype,
        )
    if list(dest.shape) != shape_of(offsets):
        raise ShapeError(
            "dest and offsets have different shapes",
            argument="dest",
            expected=shape_of(offsets),
            got=list(dest.shape),
        )
    where = optional_tensor(semantic, mask)
    cache = unwrap(cache_modifier) or ""
    lower("async_copy", AsyncCopyRequest(*around(semantic), dest, ptr, offsets, where, cache))


@builtin(name="gl.portable.commit")
def commit() -> None:
    """Close the group of the copies issued since the last `commit`."""
    for lowering in _copy_lowerings():
        code(lowering, "commit")(_semantic=semantic_layer())


@builtin(name="gl.portable.wait")
def wait(num_outstanding: Const[int] = 0) -> None:
    """Wait until at most `num_outstanding` of the most recent groups are still being copied.

    Args:
        num_outstanding: compile-time integer, 0 waits for all.

    Raises:
        ArgumentError: not a compile-time integer >= 0.
    """
    count = compile_time_int(num_outstanding, "num_outstanding", 0)
    for lowering in _copy_lowerings():
        code(lowering, "wait")(count, _semantic=semantic_layer())


# Which way a copy took depends on its operands, and a loop may mix them; the ops that close or await a
# group depend on the target alone. An empty group costs one instruction and keeps the counts of
# all ways equal, so that `wait(n)` means the same whichever lowering the copies took.
def _copy_lowerings() -> tuple[Lowering, ...]:
    return available("async_copy", semantic_layer().target, _triton.VERSION)


# -- layouts -------------------------------------------------------------------------------------


@builtin(name="gl.portable.blocked_layout")
def blocked_layout(
    shape: Shape,
    dtype: Dtype,
    order: Optional[Shape] = None,
    num_warps: Optional[Const[int]] = None,
) -> constexpr:
    """Return a layout for moving a tile between global memory and registers or shared memory:
    neighbouring threads of the target's warp touch neighbouring vectors of 16 bytes.

    Args:
        shape: of the tile.
        dtype: of its elements.
        order: dimensions, fastest first; the last is the fastest by default.
        num_warps: warps that share the tile, those of the kernel by default.

    The blocks of a cluster split the slowest dimension that is long enough, and hold the same where
    none is left.
    """
    dims = unwrap_shape(shape)
    wanted = unwrap(order)
    fastest_first = (
        list(reversed(range(len(dims)))) if wanted is None else unwrap_shape(wanted, "order")
    )
    if sorted(fastest_first) != list(range(len(dims))):
        raise LayoutError("not an order of the dimensions", argument="order", got=fastest_first)
    bits = unwrap(dtype).primitive_bitwidth
    semantic = semantic_layer()
    warps = unwrap(num_warps) or semantic.num_warps
    own, cga = _split_over_blocks(dims, fastest_first, semantic.num_ctas)
    layout = _blocked(own, bits, warps, semantic.target.warp_size, fastest_first)
    return tl.constexpr(replace(layout, cga_layout=cga))


def _split_over_blocks(
    shape: Sequence[int], fastest_first: Sequence[int], num_ctas: int
) -> tuple[list[int], list[list[int]]]:
    """Return the shape that one block of a cluster holds, and a basis for each bit of its index."""
    own, cga = list(shape), []
    while num_ctas > 1:
        basis = [0] * len(own)
        dim = next((d for d in reversed(fastest_first) if own[d] > 1), None)
        if dim is not None:
            basis[dim] = shape[dim] // own[dim]
            own[dim] //= 2
        cga.append(basis)
        num_ctas //= 2
    return own, cga
