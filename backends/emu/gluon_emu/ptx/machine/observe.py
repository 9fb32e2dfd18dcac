"""The events of a machine, for those who watch it: a search for races, or a model of time.

`Machine.observer` gets them in the order of execution, each with the group that executes the current instruction
(`group.lanes()` are its threads). All methods do nothing here; a watcher overrides those that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

import numpy as np

__all__ = ["BLOCK", "CLUSTER", "DEVICE", "Observer", "Order", "Places"]

# (space, bytes from its start, threads or None for all that execute) of an access.
Places = Sequence[tuple[str, np.ndarray, Optional[np.ndarray]]]

BLOCK, CLUSTER, DEVICE = 1, 2, 3  # scopes, each with the ones below


@dataclass(frozen=True)
class Order:
    """The semantics of a strong access or of a fence.

    Args:
        scope: BLOCK, CLUSTER or DEVICE, which stands for .gpu and .sys.
        acquires, releases: whether it does so at that scope.
    """

    scope: int
    acquires: bool = False
    releases: bool = False


class Observer:
    """Watch a machine."""

    def access(
        self, kind: str, group: Any, places: Places, size: int, order: Optional[Order] = None
    ) -> None:
        """See an access of `size` bytes for each thread.

        Args:
            kind: "load", "store", "atomic", or of an mbarrier "mbarrier" and "mbarrier.init".
            order: of a strong access; None for a weak one.
        """

    def copied(self, group: Any, task: Any, into: np.ndarray, lanes: np.ndarray, size: int) -> None:
        """See `cp.async`: `size` bytes from each byte `into` of shared memory on, for the threads `lanes`."""

    def bulk(
        self, group: Any, lane: tuple[int, int], reads: Places, writes: Places, size: int,
        barriers: Sequence[int], reduces: bool = False,
    ) -> None:  # fmt: skip
        """See a bulk copy that a thread starts.

        Args:
            lane: the warp among those of the group, and the lane.
            reads, writes: units of `size` bytes.
            barriers: for each of `writes`, the byte of the mbarrier that gets its bytes; none for a copy of
                a bulk group.
            reduces: whether it combines with the present contents.
        """

    def product(self, group: Any, places: Sequence[np.ndarray], size: int) -> None:
        """See `wgmma.mma_async`: matrices of (warpgroups, ...) elements of `size` bytes of shared memory."""

    def products(self, group: Any, sums: Sequence[str], factors: Sequence[str]) -> None:
        """See the registers of `wgmma.mma_async`: its sums, and a factor that is in registers."""

    def registers(self, group: Any, bound: Any) -> None:
        """See an instruction that uses registers in `Machine.flying`."""

    def consumed(self, group: Any, bound: Any) -> None:
        """See an instruction that reads registers in `Machine.fetched`."""

    def groups(self, group: Any, kind: str, newest: Optional[int], reads: bool = False) -> None:
        """See a commit (`newest` is None) or a wait for all groups but the newest ones.

        Args:
            kind: "cp", "bulk" or "wgmma".
            reads: the wait is for the reads alone.
        """

    def drained(self, task: Any, threads: np.ndarray) -> None:
        """See that threads waited for their part of a `cp.async`."""

    def fence(self, group: Any, order: Optional[Order], proxy: str = "") -> None:
        """See a fence: of memory accesses, between the generic proxy and `proxy`, or "mbarrier_init"."""

    def warps(self, group: Any, members: Optional[np.ndarray]) -> None:
        """See `bar.warp.sync` of all threads that are named."""

    def arrive(self, group: Any, key: Any) -> None:
        """See arrivals at a barrier of blocks or of the cluster."""

    def relaxed(self, group: Any, key: Any) -> None:
        """See relaxed arrivals, which order nothing but mbarriers that `fence.mbarrier_init` released."""

    def complete(self, key: Any, blocks: Optional[np.ndarray] = None) -> None:
        """See that a barrier is complete in some blocks, or a phase of an mbarrier."""

    def passed(self, group: Any, key: Any) -> None:
        """See that threads go on behind a barrier."""

    def signal(self, group: Any, places: np.ndarray, releases: bool) -> None:
        """See arrivals at mbarriers, by their bytes (warps, 32)."""

    def observed(self, group: Any, places: np.ndarray, done: np.ndarray, acquires: bool) -> None:
        """See that threads `done` find a phase of mbarriers complete."""

    def noted(self, group: Any, place: int, threads: np.ndarray) -> None:
        """See `cp.async.mbarrier.arrive`: an mbarrier gets the copies of threads so far."""

    def tensor_accessed(self, group: Any, cells: np.ndarray, writes: bool) -> None:
        """See that warps start `tcgen05.ld` or `tcgen05.st` of cells (warps, 32, registers) of tensor memory."""

    def tensor_waited(self, group: Any, loads: bool) -> None:
        """See that warps waited for their loads, or for their stores."""

    def tensor_work(
        self, group: Any, lane: tuple[int, int], shared: Sequence[tuple[int, np.ndarray, int]],
        reads: Sequence[np.ndarray], writes: Sequence[np.ndarray],
    ) -> None:  # fmt: skip
        """See that a thread issues a product, or a copy to tensor memory.

        Args:
            shared: (block, first bytes, size) of the elements of shared memory that it reads.
            reads, writes: cells of tensor memory.
        """

    def tensor_committed(self, group: Any, lane: tuple[int, int], places: Sequence[int]) -> Any:
        """See `tcgen05.commit` to the mbarriers at `places`; return what `tensor_done` gets."""

    def tensor_done(self, place: int, number: Any) -> None:
        """See that the work of a commit is over, before its arrival at the mbarrier at `place`."""

    def left(self, group: Any, lanes: np.ndarray) -> None:
        """See threads exit."""

    def ended(self) -> None:
        """See the end of all threads, before the copies that are left."""
