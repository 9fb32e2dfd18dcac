"""The request of each portable op: the operands that a lowering's predicate and code receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Union

from gluon_core.layouts import AutoLayout, SwizzledSharedLayout
from gluon_core.plugin.targets import Target
from gluon_core.portable import tiles

__all__ = [
    "AsyncCopyRequest",
    "LoadRequest",
    "MmaLayouts",
    "MmaRequest",
    "Request",
    "StoreRequest",
    "TileRequest",
    "TileSchedulerRequest",
    "TileStoreRequest",
]


@dataclass(frozen=True)
class Request:
    """Base of all requests.

    Args:
        target: target of the compilation.
        num_warps: warps of the block or of the current partition.
        triton: (major, minor) of the installed Triton.
    """

    target: Target
    num_warps: int
    triton: tuple[int, int]


@dataclass(frozen=True)
class LoadRequest(Request):
    """Elements of global memory at `ptr + offsets`.

    Args:
        ptr: scalar pointer.
        offsets: integer tensor, in elements; its shape and layout are the result's.
        mask: bool tensor or None; where False nothing is read and the result is `other`.
        other: scalar or tensor; None gives 0 where masked off.
        cache_modifier: one of "", ".ca", ".cg", ".cv", as for `gl.load`.
    """

    ptr: Any
    offsets: Any
    mask: Any = None
    other: Any = None
    cache_modifier: str = ""


@dataclass(frozen=True)
class StoreRequest(Request):
    """`value` to global memory at `ptr + offsets`.

    Args:
        ptr: scalar pointer.
        offsets: integer tensor, in elements.
        value: tensor of the same shape and layout.
        mask: bool tensor or None; where False nothing is written.
        cache_modifier: one of "", ".wb", ".cg", ".cs", ".wt", as for `gl.store`.
    """

    ptr: Any
    offsets: Any
    value: Any
    mask: Any = None
    cache_modifier: str = ""


@dataclass(frozen=True)
class AsyncCopyRequest(Request):
    """Global memory at `ptr + offsets` into shared memory, in the background where possible.

    Args:
        dest: shared memory descriptor.
        ptr: scalar pointer.
        offsets: integer tensor, in elements, of `dest`'s shape.
        mask: bool tensor or None; where False `dest` gets 0.
        cache_modifier: as for `gl.load`.
    """

    dest: Any
    ptr: Any
    offsets: Any
    mask: Any = None
    cache_modifier: str = ""

    @property
    def contiguous(self) -> int:
        """Consecutive elements of `dest` that one thread can surely copy at once."""
        own, shape = self.offsets.type.layout, list(self.dest.shape)
        return 1 if isinstance(own, AutoLayout) else tiles.contiguous(own, self.dest.layout, shape)


@dataclass(frozen=True)
class MmaRequest(Request):
    """`acc + a @ b`, a `(m, k)`, b `(k, n)`, acc `(m, n)`.

    The operands and their layouts are None when only `mma_layouts` is asked. With
    `input_precision` "ieee" float32 operands must not be rounded; "tf32" allows it. With `shared`
    the operands lie in shared memory, b with k contiguous if `b_transposed`; units that read it on
    their own get them so, with `acc` the parts of an accumulator, all others get tensors. With
    `is_async` such a unit need not be waited for.
    """

    m: int
    n: int
    k: int
    a_dtype: Any
    b_dtype: Any
    acc_dtype: Any
    input_precision: str = "ieee"
    a: Any = None
    b: Any = None
    acc: Any = None
    a_layout: Any = None
    b_layout: Any = None
    acc_layout: Any = None
    shared: bool = False
    b_transposed: bool = False
    is_async: bool = False

    def split_warps(self, rows: int, columns: int) -> list[int]:
        """Return the warps along M and N, where instructions have tiles of `(rows, columns)`."""
        return tiles.split_warps(self.m, self.n, self.num_warps, rows, columns)

    @staticmethod
    def swizzled(row: int, bits: int, vector_bytes: int = 16) -> SwizzledSharedLayout:
        """Return a layout of shared memory in whose rows of `row` elements equal columns fall into
        different banks."""
        return tiles.row_swizzle(row, bits, vector_bytes)


@dataclass(frozen=True)
class TileRequest(Request):
    """A tensor in global memory that is copied in tiles.

    Args:
        base: scalar pointer.
        shape: of the tensor, int32 scalars.
        strides: in elements, int64 scalars, or ints where they are constants; the last is 1.
        dtype: of the elements.
        block_shape: of a tile.
        layout: of a tile in shared memory, None for the lowering's choice.
        multiples: the powers of two, at most 16, that the strides but the last are known to be
            multiples of, in elements.
        alignment: the same of the base, in bytes.
        host: a descriptor of the same tensor that the launch made, or None.
        single: how many of the first dimensions are those of the tensor alone: 1 in `block_shape`, none of a buffer.
    """

    base: Any
    shape: Any
    strides: Any
    dtype: Any
    block_shape: tuple[int, ...]
    layout: Any = None
    multiples: tuple[int, ...] = ()
    alignment: int = 1
    host: Any = None
    single: int = 0

    def made_by_launch(self, kind: type[Any], layout: Any) -> bool:
        """Return True if the launch made a descriptor of this kind, of the same tiles.

        Args:
            kind: class of the descriptors. layout: of a tile, where the request leaves the choice.
        """
        host = self.host
        if type(host) is not kind:
            return False
        tile = tuple(int(size) for size in host.block_shape)
        wanted = (self.dtype, self.block_shape, self.layout or layout)
        return (host.dtype, tile, host.layout) == wanted

    def descriptor_operands(self, layout: Any) -> tuple[Any, ...]:
        """Return base, shape, strides, shape of the box and layout, as ops that make descriptors take them.

        Args:
            layout: of a tile, where the request leaves the choice.
        """
        lists = (list(self.shape), list(self.strides), list(self.block_shape))
        return (self.base, *lists, self.layout or layout)


@dataclass(frozen=True)
class TileStoreRequest(Request):
    """Request a store of a tensor in registers to a tile of global memory, inside the tensor only.

    Args:
        tile: a `tile_descriptor`.
        coordinates: of the first element, int32 scalars.
        value: tensor of the tile's shape, or several times as long in the last dimension.
        layout: of `value`; both are None where buffers for values to come are asked for.
    """

    tile: Any
    coordinates: Any
    value: Any
    layout: Any

    def splits(self) -> Union[bool, str]:
        """Return True if the value falls into tiles without moving a register, else the reason."""
        if self.narrowest == self.tile.block_shape[-1]:
            return True
        return "a thread does not hold elements of each tile"

    @property
    def narrowest(self) -> int:
        """Columns of the narrowest parts, not narrower than a tile, of which each thread holds some."""
        shape = [int(size) for size in self.value.shape]
        held = [list(basis) for basis in self.layout.to_linear(shape).bases["register"]]
        width = shape[-1]
        while width > self.tile.block_shape[-1]:
            if [*[0] * (len(shape) - 1), width // 2] not in held:
                break
            width //= 2
        return width


@dataclass(frozen=True)
class TileSchedulerRequest(Request):
    """A tile scheduler, in which programs may take over others.

    Args:
        num_ctas: blocks of the cluster that a program is.
    """

    num_ctas: int = 1


@dataclass(frozen=True)
class MmaLayouts:
    """The layouts that a lowering of `mma` wants.

    Args:
        accumulator: of the `(m, n)` accumulator and result.
        a: of operand A, `(m, k)`, in registers; None where a unit reads shared memory only.
        b: of operand B, `(k, n)`, in registers; likewise.
        a_shared: for a shared memory buffer that holds A with k contiguous.
        b_shared: for a shared memory buffer that holds B with n contiguous; with `b_transposed`
            for one of shape `(n, k)` with k contiguous.
        lowering: the name of the lowering that asked for them.
        shape: `(m, n)` of the accumulator.
        acc_dtype: of the accumulator.
        in_shared: the layouts for operands in shared memory, where these are for either place.
    """

    accumulator: Any
    a: Any
    b: Any
    a_shared: Any
    b_shared: Any
    lowering: str = ""
    shape: tuple[int, ...] = ()
    acc_dtype: Any = None
    in_shared: Optional[MmaLayouts] = None
