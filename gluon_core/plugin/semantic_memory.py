"""The semantic layer's part for memory: views of memory on the chip, global memory."""

from __future__ import annotations

from typing import Any, Optional, Protocol, Sequence, TypeVar

from gluon_core._triton import dtype, tensor
from gluon_core.layouts.base import DistributedLayout, SharedLayout
from gluon_core.plugin.builder import Enum, Value
from gluon_core.plugin.typing import (
    BufferLayout,
    Const,
    Dtype,
    Operand,
    RegisterLayout,
    Scalar,
    Shape,
)

__all__ = ["Global", "Memory", "MemoryType", "OnChip"]

V = TypeVar("V")
M = TypeVar("M", bound="Memory")
Argument = Optional[Const[str]]


class MemoryType(Protocol):
    """Type of a view of on-chip memory."""

    element_ty: dtype
    shape: list[int]
    layout: Any
    alloc_shape: list[int]


class Memory(Protocol):
    """A view of on-chip memory, such as a `shared_memory_descriptor`."""

    handle: Value

    @property
    def type(self) -> MemoryType: ...
    @property
    def dtype(self) -> dtype: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def rank(self) -> int: ...
    @property
    def numel(self) -> int: ...
    @property
    def layout(self) -> Any: ...


class OnChip(Protocol):
    """Shared memory, barriers there, and views of any memory on the chip."""

    def allocate_shared(
        self,
        element_ty: Dtype,
        shape: Shape,
        layout: BufferLayout,
        value: Optional[tensor] = None,
    ) -> Any:
        """Allocate a `shared_memory_descriptor`, with `value` in it. See `gl.allocate_shared_memory`."""

    def shared_load(self, mem: Memory, layout: Optional[RegisterLayout]) -> tensor:
        """Load a buffer; see `shared_memory_descriptor.load`."""

    def shared_store(self, mem: Memory, value: tensor) -> None:
        """Store to a buffer; see `shared_memory_descriptor.store`."""

    def shared_dealloc(self, mem: Memory) -> None:
        """End the life of a buffer."""

    def memdesc_index(self, mem: M, index: Scalar[int], remedy: Optional[str] = None) -> M:
        """Return one of several buffers, in shared memory or other.

        Args:
            remedy: for a view of one buffer.

        Raises:
            ShapeError: the view has no dimension that counts buffers, or is of parts of them, or the
                index is known and leaves it.
            DtypeError: the index is not an integer of up to 32 bits.
        """

    def memdesc_slice(self, mem: M, start: Const[int], length: Const[int], dim: Const[int]) -> M:
        """Return a part of a buffer; see `shared_memory_descriptor.slice`."""

    def memdesc_permute(self, mem: M, order: list[int]) -> M:
        """Return a view with its dimensions in another order."""

    def memdesc_reshape(self, mem: M, shape: list[int]) -> M:
        """Return a view with another shape."""

    def memdesc_reinterpret(self, mem: M, dtype: Any, shape: list[int], layout: Any) -> M:
        """Return a view of the same bytes as other elements."""

    def shared_gather(self, mem: Memory, indices: tensor, axis: Const[int]) -> tensor: ...
    def shared_scatter(
        self, mem: Memory, values: tensor, indices: tensor, axis: Const[int]
    ) -> None: ...
    def shared_atomic_scatter(
        self,
        op: str,
        mem: Memory,
        values: tensor,
        indices: tensor,
        axis: Const[int],
        mask: Optional[Operand],
    ) -> tensor: ...

    def shared_memory(self, value: V, argument: str) -> V:
        """Return `value` if it is a view of shared memory that can be used; else DtypeError or ShapeError."""

    def require_unbatched(self, mem: Memory) -> None:
        """Raise LayoutError where the first dimension of a buffer counts copies."""

    def check_barrier(self, value: V, argument: str, remedy: str, seen: Optional[int] = None) -> V:
        """Return `value` if it is a barrier in shared memory.

        Args:
            remedy: how such a barrier is allocated.
            seen: barriers of a cluster that its shape counts; those of its layout by default.

        Raises:
            DtypeError: no shared memory, or not of 64-bit integers.
            LayoutError: not the layout of a barrier.
            ShapeError: not one barrier per block.
        """

    def check_stored(self, memory: MemoryType, value: object, first: bool = False) -> None:
        """Raise ShapeError or DtypeError unless `value` is a tensor that fits a buffer's type.

        Args:
            first: the value initializes an allocation; integers may be of the other sign.
        """

    def check_view_size(
        self, have: int, want: int, unit: str, memory: Optional[Memory] = None
    ) -> None:
        """Raise ShapeError for another view of memory that the installed compiler refuses.

        Args:
            have: size of the view that there is, which `memory` may give.
            want: that of the one to be made of it.
            unit: of these sizes, in the plural.
        """

    def check_copied(
        self, memory: Memory, source: tensor, element: dtype, argument: str, bits: bool = False
    ) -> None:
        """Raise unless a buffer has the dtype and shape of the elements that `source` points to.

        Args:
            bits: a dtype of the same width does, too.

        Raises:
            DtypeError, ShapeError: it has not.
        """

    def consecutive_elements(
        self, layout: DistributedLayout, shared: SharedLayout, shape: Sequence[int]
    ) -> Optional[int]:
        """Return how many consecutive registers of each thread go to consecutive addresses of `shared`;
        None where a layout has no linear form."""

    # -- for who records the kernel ---------------------------------------------------------------

    def call_buffer(self, mem: Memory, name: str, remedy: str) -> None:
        """Name memory that a building block allocates, with the remedy where a barrier there never
        completes, or has too many arrivals."""

    def deferred_store(
        self, mem: Memory, value: tensor, ptr: Any, offsets: Any, mask: Optional[Operand]
    ) -> None:
        """Store a value loaded from `ptr` + `offsets`: a copy that counts as done after a wait."""

    def deferred_commit(self) -> None:
        """Close the group of those stores."""

    def deferred_wait(self, pending: int) -> None:
        """Wait until at most `pending` groups of them are left."""

    def deferred_read(self, buffers: Sequence[Memory], is_async: bool, alone: bool) -> None:
        """Note that a product reads these, at once or on its own."""

    def deferred_read_wait(self, pending: int) -> None:
        """Wait until at most `pending` of those are left."""

    def deferred_fence(self) -> None:
        """Make stores of threads to shared memory visible to those."""

    def told_of_tiles(
        self, what: str, ring: Memory, step: Optional[Scalar[int]] = None, *rest: Any
    ) -> None:
        """Note that tiles of a pipeline have `begun`, are `fetched` or `awaited`."""

    def told_of_place(self, place: Sequence[tensor], pred: Optional[tensor] = None) -> None:
        """Note where the next tile begins."""


class Global(Protocol):
    """Global memory."""

    def check_pointer(self, pointer: object, argument: str = "pointer") -> tensor:
        """Return `pointer` if it is one, or a tensor of pointers; DtypeError for anything else."""

    def check_mask(
        self, pointer: tensor, mask: Optional[Operand], argument: str = "mask"
    ) -> Optional[tensor]:
        """Return the mask of an access as booleans that may accompany `pointer`."""

    def masked(
        self,
        source: tensor,
        element: dtype,
        mask: Optional[Operand],
        other: Optional[Operand] = None,
        what: str = "pointer",
        other_alone: bool = False,
    ) -> tuple[Optional[tensor], Optional[tensor]]:
        """Return the mask of an access and the values where it is false, with the shape and layout of
        `source`.

        Args:
            source: tensor of the pointers or offsets that are accessed.
            element: dtype that `other` is cast to.
            what: the name of `source` in errors.
            other_alone: `other` may come without a mask, which changes nothing.

        Raises:
            DtypeError: the mask is not boolean.
            ShapeError: mask or other do not fit.
            ArgumentError: `other` without a mask.
        """

    def like(self, source: tensor, value: tensor, argument: str, what: str) -> tensor:
        """Return `value` with the shape and layout of `source`; `what` is its name in errors."""

    def cache_operands(
        self, cache: Argument, eviction: Argument = None, policy: Any = None, store: bool = False
    ) -> tuple[Any, ...]:
        """Return the hints of an asynchronous copy as its builder takes them.

        Raises:
            ArgumentError: no such hint, or the two strings and the policy that replaces them.
        """

    def cache_modifier(
        self, name: Argument, store: bool = False, argument: str = "cache_modifier"
    ) -> Enum:
        """Return the builder's enum of a cache modifier of loads or stores; ArgumentError if none."""

    def memory_order(self, sem: Argument, scope: Argument) -> tuple[Enum, Enum]:
        """Return the builder's enums of the order and the scope of an atomic op; ArgumentError if none."""

    def load_global(
        self,
        pointer: Operand,
        mask: Optional[Operand] = None,
        other: Optional[Operand] = None,
        cache_modifier: Argument = None,
        eviction_policy: Argument = None,
        volatile: Const[bool] = False,
        cache_policy: Any = None,
    ) -> tensor:
        """See `gl.load`."""

    def store_global(
        self,
        pointer: Operand,
        value: Operand,
        mask: Optional[Operand] = None,
        cache_modifier: Argument = None,
        eviction_policy: Argument = None,
        cache_policy: Any = None,
    ) -> Any:
        """See `gl.store`."""
