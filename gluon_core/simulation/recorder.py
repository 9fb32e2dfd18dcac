"""Builders that record a program instead of making MLIR, and the calls of a kernel that they note."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Protocol, Sequence

from gluon_core.errors import SourceSpan
from gluon_core.plugin.builder import Attribute, Builder, Value

__all__ = ["CallSite", "Recorder"]


@dataclass(frozen=True, eq=False)
class CallSite:
    """One call of a kernel's source.

    Args:
        function: the called expression, such as "tma.async_load" or "bufs.index(i).load".
        source: the whole call.
        public: the public name of the op, "" for other functions.
        scope: the globals of the function that makes the call.
    """

    function: str
    source: str
    span: Optional[SourceSpan]
    public: str = ""
    scope: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Recorder(Builder, Protocol):
    """A builder that makes no MLIR may have these methods besides; the core asks for each by name."""

    def get_layout(self, layout: Any) -> Attribute:
        """Return a layout of ours as this builder keeps it, instead of all `get_x_layout`."""

    def hint(self, values: Sequence[int]) -> Attribute:
        """Return a promise about each dimension of a value, for `Value.set_attr`; else an MLIR attribute."""

    def bind_name(self, name: str, values: Sequence[Any]) -> None:
        """Note that the kernel assigned these values, or one constant, to a variable; each part of a tuple
        or an aggregate comes by itself, under the expression for it."""

    def enter_call(self, site: Optional[CallSite]) -> Optional[CallSite]:
        """Ascribe the next ops to this call of the kernel; return the call before, which is entered
        again behind it."""

    def call_buffer(self, value: Value, name: str, remedy: str) -> None:
        """Name the shared memory that a building block allocated, such as the barriers of a ring, with
        the remedy where a wait there never ends or too many arrive."""

    def mark_scope(self, name: str, begins: bool, line: int) -> None:
        """Mark the begin or the end of a span of the kernel, which began in this line."""

    def create_breakpoint(self) -> None:
        """Add `breakpoint()` of a kernel; without this method that is an error."""

    # Portable copies and products that a target executes at once are asynchronous by their contract. A
    # recorder that has the methods below can hold kernels to it.

    def deferred_store(
        self, dest: Value, value: Value, pointer: Value, mask: Optional[Value]
    ) -> None:
        """Store to shared memory a value loaded from `pointer`: a portable copy, done only after its group
        was closed and waited for. Without this method, `create_local_store`."""

    def deferred_commit(self) -> None:
        """Close the group of those stores."""

    def deferred_wait(self, pending: int) -> None:
        """Wait until at most `pending` groups of them are left."""

    def deferred_read(self, buffers: Sequence[Value], is_async: bool, alone: bool) -> None:
        """Note that a portable product reads buffers, by the contract through the async proxy (after a
        `deferred_fence`), and with `is_async` until a `deferred_read_wait`. `alone` says that the
        target's unit does so, too: then the next op reads them."""

    def deferred_read_wait(self, pending: int) -> None:
        """Wait until at most `pending` of those are left."""

    def deferred_fence(self) -> None:
        """Make stores of threads to shared memory visible to those."""

    def tiles_begun(self, ring: Value) -> None:
        """Begin a pipeline of tiles; `ring` is the first of its buffers, and has a stage per entry."""

    def tiles_fetched(self, ring: Value, step: Value, pred: Optional[Value]) -> None:
        """Note that the tiles of a step (int32) are fetched next; none where `pred` is false."""

    def tiles_awaited(self, ring: Value, step: Value, pending: int) -> None:
        """Note that the kernel waits for them next, while `pending` later steps may be in flight."""

    def tile_placed(self, place: Sequence[Value], pred: Optional[Value]) -> None:
        """Note that the next copy or store is of a tile whose first element is at `place`, an int32 for each
        dimension; by the contract none is negative, except where `pred` is false."""
