"""What a kernel asks of a portable op: the values a lowering's predicate and code receive."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Mapping, Optional, Union

from gluon_core.plugin.targets import Target

__all__ = [
    "AsyncCopyRequest",
    "FURTHER",
    "LoadRequest",
    "MmaLayouts",
    "MmaRequest",
    "OPS",
    "Request",
    "StoreRequest",
    "TAKES",
    "TileRequest",
    "TileStoreRequest",
    "WalkRequest",
]

# Portable op -> the companions that every lowering of it must name in `extras`:
#   commit(*, _semantic)             closes the group of copies issued so far
#   wait(outstanding, *, _semantic)  until at most `outstanding` groups are in flight
#   layouts(request)                 the `MmaLayouts` this lowering wants, at compile time
#   layout(request)                  the shared layout this lowering wants of a tile, at compile time
#   begin(stages, tiles, *, _semantic)   the values (barriers) that a pipeline carries along; `tiles` are
#                                copied in each step
#   fetch(fetch, *, _semantic)   starts the copies of one step, a `gluon_core.portable.tiles.Fetch`
#   arrived(state, slot, phase, pending, *, _semantic)   waits for the copies of one step
#   end(state, stages, *, _semantic)   no copies will follow
#   first(state, values, facts, count, *, _semantic) -> values   of a role's first turn of a walk
#   next(state, values, facts, count, *, _semantic) -> values    of the turn after one
# The values of a turn begin with its tile, an int32 scalar. What implements `tile_walk` gets the
# `WalkFacts` of `gluon_core.portable.walks` and returns the values that all roles share.
#
# Of `mma`, a lowering whose unit reads shared memory on its own names these, too, and then gets
# operands in shared memory; where they are missing, operands are loaded before and accumulators are
# tensors. `parts` are the values that stand for an accumulator.
#   accumulator(layouts, start, *, _semantic) -> parts   zeros where `start` is None
#   mma_wait(parts, pending, deps, *, _semantic) -> parts
#   read(parts, *, _semantic) -> tensor             waits for all; the accumulator is used up
#   fence(*, _semantic)                             makes stores to shared memory known to the unit
#
# Of `tile_store`, one that stores through buffers of its own, while the kernel goes on, names these;
# `gl.portable.writer` asks for it with a request without a value.
#   open(tile, parts, *, _semantic) -> state        `parts` tiles side by side are stored at once
#   put(request, state, epilogue, *, _semantic)     `epilogue` is a `tile_epilogue` or None
#   close(state, *, _semantic)                      waits until the buffers are free
OPS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "load": frozenset(),
        "store": frozenset(),
        "async_copy": frozenset({"commit", "wait"}),
        "mma": frozenset({"layouts"}),
        "tile_copy": frozenset({"layout", "begin", "fetch", "arrived", "end"}),
        "tile_store": frozenset(),
        "tile_walk": frozenset({"first", "next"}),
    }
)
# Portable op -> the companions that a lowering may name besides; an accumulator comes with a wait and a read.
FURTHER: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "mma": frozenset({"accumulator", "mma_wait", "read", "fence"}),
        "tile_store": frozenset({"open", "put", "close"}),
    }
)

# What the code of a lowering is called with -> positional arguments, and keywords.
_SEMANTIC = ("_semantic",)
TAKES: Mapping[str, tuple[int, tuple[str, ...]]] = MappingProxyType(
    {
        "implement": (1, _SEMANTIC),
        "accepts": (1, ()),
        "commit": (0, _SEMANTIC),
        "wait": (1, _SEMANTIC),
        "layouts": (1, ()),
        "layout": (1, ()),
        "begin": (2, _SEMANTIC),
        "fetch": (1, _SEMANTIC),
        "arrived": (4, _SEMANTIC),
        "end": (2, _SEMANTIC),
        "first": (4, _SEMANTIC),
        "next": (4, _SEMANTIC),
        "accumulator": (2, _SEMANTIC),
        "mma_wait": (3, _SEMANTIC),
        "read": (1, _SEMANTIC),
        "fence": (0, _SEMANTIC),
        "open": (2, _SEMANTIC),
        "put": (3, _SEMANTIC),
        "close": (1, _SEMANTIC),
    }
)


@dataclass(frozen=True)
class Request:
    """Base of all requests.

    Args:
        target: what the kernel is compiled for.
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
    """

    base: Any
    shape: Any
    strides: Any
    dtype: Any
    block_shape: tuple[int, ...]
    layout: Any = None
    multiples: tuple[int, ...] = ()
    alignment: int = 1

    def descriptor_operands(self, layout: Any) -> tuple[Any, ...]:
        """Return base, shape, strides, shape of the box and layout, as ops that make descriptors take them.

        Args:
            layout: of a tile, where the request leaves the choice.
        """
        lists = (list(self.shape), list(self.strides), list(self.block_shape))
        return (self.base, *lists, self.layout or layout)


@dataclass(frozen=True)
class TileStoreRequest(Request):
    """A tensor in registers into a tile of global memory, what is outside left out.

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
class WalkRequest(Request):
    """A walk over tiles, in which programs may take over others.

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
