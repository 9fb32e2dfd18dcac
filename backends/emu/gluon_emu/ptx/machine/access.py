"""Memory as threads see it: spaces, addresses, and accesses, all in one place.

A generic address is one of global memory, or is in the window of shared or of local memory. An address
of shared memory has the block's rank in its cluster from bit 24 on, so that of a peer is one like any.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.errors import AccessError
from gluon_emu.memory import GlobalMemory
from gluon_emu.ptx.machine.code import SHARED_START
from gluon_emu.ptx.machine.group import LANES, Group
from gluon_emu.ptx.machine.observe import Order
from gluon_emu.ptx.numbers import uint

__all__ = ["LOCAL_WINDOW", "SHARED_WINDOW", "Memory"]

SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 1 << 57
_RANK = 24  # bits of a block's own window
_UINT = {size: uint(8 * size) for size in (1, 2, 4, 8, 16)}
_LOCAL_MOST = 512 << 10  # bytes of a thread, CUDA's limit
_LOCAL_ALL = 4 << 30
_FILL = 0xFF  # of shared and local memory; NaN as a float


class Memory:
    """The memory of the resident blocks.

    Attributes:
        stride: bytes from one block's shared memory to that of the next.
        shared: the bytes of the shared memory of all blocks.
        atoms: the same as pairs of words, the 16 bytes that swizzles keep together.
    """

    def __init__(self, machine: Any, arrays: GlobalMemory, local_bytes: int):
        self.machine, self.arrays = machine, arrays
        code, launch = machine.code, machine.launch
        dynamic = max(
            (s.address for s in code.symbols.values() if s.space == "shared" and not s.size),
            default=SHARED_START + code.static_shared,
        )
        self.shared_bytes = dynamic + launch.shared
        self.stride = -(-self.shared_bytes // 1024) * 1024
        self.shared = np.full(machine.blocks * self.stride, _FILL, np.uint8)
        self.atoms = self.shared.view(np.uint64).reshape(-1, 2)
        self.local_bytes = -(-local_bytes // 16) * 16
        self.local = np.full(machine.block_of.size * LANES * self.local_bytes, _FILL, np.uint8)
        self.cluster_first = (
            np.arange(machine.blocks) // machine.cluster_size * machine.cluster_size
        )
        self._views: dict[tuple[str, int], np.ndarray] = {}

    def view(self, space: str, size: int) -> np.ndarray:
        """Return a space as elements of so many bytes."""
        known = self._views.get((space, size))
        if known is None:
            raw = {"global": self.arrays.bytes, "shared": self.shared, "local": self.local}[space]
            known = raw[: raw.size // size * size].view(_UINT[size])
            self._views[space, size] = known
        return known

    def reserve_local(self, size: int) -> None:
        """Let each thread have at least `size` bytes of local memory.

        Raises:
            AccessError: no thread can have as many.
        """
        if size <= self.local_bytes:
            return
        threads = self.machine.block_of.size * LANES
        wider = -(-max(size, 2 * self.local_bytes) // 16) * 16
        if size > _LOCAL_MOST or threads * wider > _LOCAL_ALL:
            raise AccessError(
                f"a stack of {size} bytes of local memory in each of {threads} threads"
            )
        local = np.full((threads, wider), _FILL, np.uint8)
        local[:, : self.local_bytes] = self.local.reshape(threads, self.local_bytes)
        self.local, self.local_bytes = local.ravel(), wider
        self._views = {key: view for key, view in self._views.items() if key[0] != "local"}

    # -- addresses --

    def places(
        self, group: Group, space: str, address: np.ndarray, size: int, write: bool
    ) -> list[tuple[str, np.ndarray, Optional[np.ndarray]]]:
        """Return (space, bytes from its start, threads) of an access, None for all that execute.

        Args:
            address: int64 (warps or 1, 32 or 1).
            size: bytes of each access, whose addresses have to be multiples.

        Raises:
            AccessError: an address is misaligned, or outside of the memory.
        """
        mask = group.mask
        wrong = (address & (size - 1)) != 0
        if wrong.any():
            self._refuse(
                group, wrong, address, f"the address is no multiple of {size}", size, write, space
            )
        if space == "generic":
            window = address >> 56
            if not window.any():
                return [("global", self._global(group, address, size, write, mask), mask)]
            every = group.lanes()
            window = group.full(window)
            address = group.full(address)
            places = []
            for number, kind in ((0, "global"), (1, "shared"), (2, "local")):
                chosen = every & (window == number)
                if chosen.any():
                    some = None if chosen.all() else chosen
                    low = address & ((1 << 56) - 1)
                    places.append((kind, self._in(group, kind, low, size, write, some), some))
            rest = every & (window > 2)
            if rest.any():
                self._refuse(
                    group, rest, address, "there is no memory", size, write, "generic", strict=True
                )
            return places
        if space == "param":
            address = address + self.machine.launch.parameters
        if space in ("global", "const", "param"):
            return [("global", self._global(group, address, size, write, mask), mask)]
        return [(space, self._in(group, space, address, size, write, mask), mask)]

    def _in(self, group: Group, space: str, address: Any, size: int, write: bool, mask: Any) -> Any:
        if space == "global":
            return self._global(group, address, size, write, mask)
        if space == "local":
            return self._local(group, address, size, write, mask)
        return self._shared(group, address, size, write, mask)

    def _global(self, group: Group, signed: Any, size: int, write: bool, mask: Any) -> np.ndarray:
        arrays = self.arrays
        address = signed.view(np.uint64) if signed.dtype == np.int64 else signed.astype(np.uint64)
        if mask is not None:
            address = arrays.safe(address, mask)
        every = (
            np.ones(address.shape, bool) if mask is None else np.broadcast_to(mask, address.shape)
        )
        wrong = arrays.bad(address, size, every, write)
        if wrong is not None:
            self._refuse(group, wrong, address, "", size, write, "global", strict=True)
        return np.asarray(address - np.uint64(arrays.low)).view(np.int64)

    def _shared(self, group: Group, address: Any, size: int, write: bool, mask: Any) -> np.ndarray:
        offset = address & ((1 << _RANK) - 1)
        rank = address >> _RANK
        wrong = (offset < SHARED_START) | (offset + size > self.shared_bytes)
        wrong = wrong | (rank < 0) | (rank >= self.machine.cluster_size)
        if wrong.any():
            if mask is not None:
                wrong = wrong & mask
            if wrong.any():
                self._refuse(group, wrong, address, "", size, write, "shared", strict=True)
            offset = np.where(mask, offset, SHARED_START)
            rank = np.where(mask, rank, 0)
        block = self.cluster_first[group.block][:, None] + rank
        return np.asarray(block * self.stride + offset)

    def _local(self, group: Group, address: Any, size: int, write: bool, mask: Any) -> np.ndarray:
        wrong = (address < 0) | (address + size > self.local_bytes)
        if wrong.any():
            if mask is not None:
                wrong = wrong & mask
            if wrong.any():
                self._refuse(group, wrong, address, "", size, write, "local", strict=True)
            address = np.where(mask, address, 0)
        thread = group.rows[:, None] * LANES + np.arange(LANES)
        return np.asarray(thread * self.local_bytes + address)

    def _refuse(
        self, group: Group, wrong: Any, addresses: Any, words: str, size: int, write: bool, space: str,
        strict: bool = False,
    ) -> None:  # fmt: skip
        """Raise for the first thread that executes a wrong access."""
        chosen = group.full(wrong) & group.lanes()
        if not chosen.any():
            return
        row, lane = (int(i) for i in np.argwhere(chosen)[0])
        address = int(group.full(addresses)[row, lane])
        verb = "store to" if write else "load from"
        if not words:
            words = self._describe(space, address, size)
        error = AccessError(f"a {verb} {size} bytes at {address & (1 << 64) - 1:#x}: {words}")
        error.place = (row, lane)  # type: ignore[attr-defined]
        raise error

    def _describe(self, space: str, address: int, size: int) -> str:
        if space == "global":
            return self.arrays.nearest(address, size)
        if space == "local":
            return f"outside of the thread's {self.local_bytes} bytes of local memory"
        offset, rank = address & (1 << _RANK) - 1, address >> _RANK
        if not 0 <= rank < self.machine.cluster_size:
            return f"shared memory of block {rank} of a cluster of {self.machine.cluster_size}"
        if offset < SHARED_START:
            return "before the block's shared memory"
        return (
            f"{offset + size - self.shared_bytes} bytes past the end of shared memory, which has "
            f"{self.shared_bytes - SHARED_START} bytes from {SHARED_START:#x} on"
        )

    # -- accesses --

    def load(
        self, group: Group, space: str, address: np.ndarray, size: int, count: int = 1,
        order: Optional[Order] = None,
    ) -> list[np.ndarray]:  # fmt: skip
        """Return `count` elements of `size` bytes from each address, as unsigned integers."""
        places = self.places(group, space, address, size * count, False)
        if self.machine.observer is not None:
            self.machine.observer.access("load", group, places, size * count, order)
        if len(places) == 1:
            kind, offset, _ = places[0]
            view = self.view(kind, size)
            index = offset >> _LOG[size]
            return [view[index + i] if i else view[index] for i in range(count)]
        results = [np.zeros((group.rows.size, LANES), _UINT[size]) for _ in range(count)]
        for kind, offset, mask in places:
            view, index = self.view(kind, size), group.full(offset >> _LOG[size])
            for i, result in enumerate(results):
                result[mask] = view[index[mask] + i]
        return results

    def store(
        self, group: Group, space: str, address: np.ndarray, size: int, values: list[np.ndarray],
        order: Optional[Order] = None,
    ) -> None:  # fmt: skip
        """Store elements of `size` bytes from each address on; of several to one the last stays."""
        places = self.places(group, space, address, size * len(values), True)
        self.machine.changes += 1
        if self.machine.observer is not None:
            self.machine.observer.access("store", group, places, size * len(values), order)
        for kind, offset, mask in places:
            view, index = self.view(kind, size), offset >> _LOG[size]
            if mask is None:
                for i, value in enumerate(values):
                    if value.shape[0] > index.shape[0] or value.shape[1] > index.shape[1]:
                        index = group.full(index)
                        value = group.full(value)
                    view[index + i] = value
                continue
            mask = group.full(mask)
            index = group.full(index)[mask]
            for i, value in enumerate(values):
                view[index + i] = group.full(value)[mask]

    def update(
        self,
        group: Group,
        space: str,
        address: np.ndarray,
        size: int,
        fn: Callable[[np.ndarray, list[np.ndarray]], np.ndarray],
        values: list[np.ndarray],
        at_once: Optional[
            Callable[[np.ndarray, np.ndarray, list[np.ndarray]], Optional[np.ndarray]]
        ] = None,
        order: Optional[Order] = None,
    ) -> np.ndarray:
        """Apply `new = fn(old, values)` to elements, one thread after the other; return the old ones.

        Args:
            at_once: `f(view, index, values)` does all at once, and returns None where it cannot.
        """
        places = self.places(group, space, address, size, True)
        if self.machine.observer is not None:
            self.machine.observer.access("atomic", group, places, size, order)
        old = np.zeros((group.rows.size, LANES), _UINT[size])
        for kind, offset, mask in places:
            view = self.view(kind, size)
            lanes = group.lanes() if mask is None else group.full(mask)
            index = group.full(offset >> _LOG[size])[lanes]
            chosen = [group.full(v)[lanes] for v in values]
            before = at_once(view, index, chosen) if at_once is not None else None
            if before is None:
                before = _in_turn(view, index, fn, chosen)
            old[lanes] = before
            self.machine.changes += bool((view[index] != before).any())
        return old


def _in_turn(view: np.ndarray, index: np.ndarray, fn: Any, values: list[np.ndarray]) -> np.ndarray:
    """Update elements of which several threads may want the same: first the first thread of each."""
    old = np.zeros(index.shape, view.dtype)
    left = np.arange(index.size)
    while left.size:
        _, first = np.unique(index[left], return_index=True)
        now = left[first]
        before = view[index[now]]
        old[now] = before
        view[index[now]] = fn(before, [v[now] for v in values])
        keep = np.ones(left.size, bool)
        keep[first] = False
        left = left[keep]
    return old


_LOG = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}
