"""Pass kernels the memory that all ranks reach: a named tuple of pointers."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Multicast", "Symmetric"]


class _Fields(NamedTuple):
    peers: tuple[Any, ...]
    signals: tuple[Any, ...]
    rank: int


class Symmetric(_Fields):
    """A tensor of which every rank of a group has its own copy, that all of them reach.

    Kernels take it as an argument: `x.peers[r]` is the pointer to rank `r`'s copy, `x.signals[r]` to
    the signal pad of rank `r` (int32, zero at rest), `x.rank` this rank, `len(x.peers)` their number.
    The addresses are parameters of the launch, so a kernel loads no table of pointers.

    Attributes:
        peers: the tensors by rank, that of this rank included, as this rank reaches them.
        signals: the pads by rank: int32 tensors of one size.
        rank: of who holds this.
    """

    @property
    def local(self) -> Any:
        """Return this rank's own tensor."""
        return self.peers[self.rank]

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return len(self.peers)

    @property
    def channels(self) -> int:
        """Return the number of programs of a launch that can have signals of their own: one from each rank."""
        return len(self.signals[0]) // self.world


class Multicast(NamedTuple):
    """All copies of a symmetric tensor, for instructions that access them at once.

    Attributes:
        address: the one address of all of them; ordinary accesses must not use it.
        peers: the tensors by rank.
    """

    address: Any
    peers: tuple[Any, ...]
