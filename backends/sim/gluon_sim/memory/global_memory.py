"""Global memory: the storage of the arguments, addressed by byte, checked on every access.

Pointers are int64 addresses: the real ones of the arguments' storage, so that a kernel's operations on them (differences, alignment, casts) give the values of a GPU.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Callable, Iterable, Optional, Sequence

import numpy as np

from gluon_core.plugin.reference import Descriptor
from gluon_core.simulation.host_memory import Storage
from gluon_core.simulation.unwritten import marks_within
from gluon_sim.errors import (
    MisalignedError,
    OutOfBoundsError,
    SimulatorError,
    UninitialisedError,
    related,
)
from gluon_sim.memory.atomics import apply_atomic
from gluon_sim.memory.guided import Guided
from gluon_sim.sanitizer.agents import Task
from gluon_sim.sanitizer.overflow import Wrapped, settle
from gluon_sim.sanitizer.tracking import Tracking
from gluon_sim.settings import Settings
from gluon_sim.tracing.origins import Reached, Traffic, pointed_at
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.words import called, described_at

__all__ = ["Allocation", "Contents", "GlobalMemory", "Home"]


class Allocation:
    """One argument's storage.

    Args:
        name: of the argument.
        data: its bytes, a flat uint8 array that shares memory with the argument.
        writable: whether a kernel may store to it.
        owner: the rank whose memory it is, where other ranks reach it, too.
    """

    def __init__(
        self, name: str, data: np.ndarray, writable: bool = True, owner: Optional[int] = None
    ):
        self.name = name
        self.data = data
        self.base = data.ctypes.data if data.size else 0
        self.end = self.base + data.nbytes
        self.writable = writable
        self.owner = owner
        self.lasting = owner is not None  # whether concurrent launches share it
        self.missing: Optional[np.ndarray] = None  # of each byte, whether it was never written
        self._views: dict[np.dtype, np.ndarray] = {}

    def view(self, dtype: np.dtype) -> np.ndarray:
        view = self._views.get(dtype)
        if view is None:
            size = dtype.itemsize
            view = self.data[: self.data.nbytes // size * size].view(dtype)
            self._views[dtype] = view
        return view

    def mark(self) -> None:
        """Know again which bytes nobody has written, by the marks on arrays in it."""
        self.missing = None
        for mark in marks_within(self.base, self.end):
            if self.missing is None:
                self.missing = np.zeros(self.data.nbytes, np.uint8)
            first = mark.base - self.base
            there = self.missing[max(first, 0) : first + mark.missing.size]
            there |= mark.missing[max(-first, 0) :][: there.size]

    def unmark(self) -> None:
        """Update the marks of written bytes."""
        if self.missing is None:
            return
        for mark in marks_within(self.base, self.end):
            first = mark.base - self.base
            there = self.missing[max(first, 0) : first + mark.missing.size]
            mark.missing[max(-first, 0) :][: there.size] &= there

    def unwritten(self, index: np.ndarray, size: int) -> Optional[np.ndarray]:
        """Which elements of `size` bytes were never written; None for none of them."""
        if self.missing is None or size not in (1, 2, 4, 8):
            return None
        missing = self.missing[: self.missing.size // size * size].view(f"u{size}")[index] != 0
        return missing if missing.any() else None

    def written(self, index: np.ndarray, size: int) -> None:
        if self.missing is not None and size in (1, 2, 4, 8):
            self.missing[: self.missing.size // size * size].view(f"u{size}")[index] = 0


@dataclass(frozen=True)
class Home:
    """The bytes that a pointer which came from one argument may reach: from `low` up to `high`."""

    name: str
    low: int
    high: int


# The part of an access in one allocation: all of it (None), or the elements of a mask.
Part = tuple[Allocation, Optional[np.ndarray]]

# Each allocation's bytes, and which of them were never written.
Contents = list[tuple[np.ndarray, Optional[np.ndarray]]]


class GlobalMemory:
    """All allocations of one launch.

    Args:
        changes: a count of changes that the memories of several ranks share.
        known: maps the storage of an argument to that of other launches.
    """

    def __init__(
        self,
        changes: Optional[list[int]] = None,
        known: Optional[Callable[[Allocation], Allocation]] = None,
    ) -> None:
        self._known = known
        self._all: list[Allocation] = []
        self._bases: list[int] = []
        self._changes = [0] if changes is None else changes
        # Set when the program makes pointers other than by adding elements to arguments.
        self.check_alignment = False
        self.settings = Settings()
        self.warned: set[tuple[Any, ...]] = set()  # warnings of this launch
        # By argument of the kernel; None where unknown.
        self.homes: Sequence[Optional[Home]] = ()
        self._reach: dict[int, Optional[list[Home]]] = {}  # by op
        self._one: dict[int, tuple[int, int, list[Part]]] = {}  # by op: all of the only argument
        self.tracking: Optional[Tracking] = None
        self.several = False  # threads at work here
        self.guided: Optional[Guided] = None

    @property
    def version(self) -> int:
        """Counts changes; a loop that waits for memory sleeps until it moves."""
        return self._changes[0]

    @version.setter
    def version(self, value: int) -> None:
        self._changes[0] = value

    def add(self, allocation: Allocation) -> None:
        if not allocation.data.size:
            return
        if self._known is not None:
            allocation = self._known(allocation)
        # Two arguments may share storage: the larger one represents both.
        for i, other in enumerate(self._all):
            if allocation.base < other.end and other.base < allocation.end:
                if allocation.data.nbytes > other.data.nbytes:
                    self._all[i] = allocation
                self._sort()
                return
        self._all.append(allocation)
        self._sort()

    def hold(
        self, storages: Iterable[tuple[str, Storage]], homes: Sequence[Optional[Home]]
    ) -> None:
        """Add the storage of the arguments of a launch, and the bytes that each may reach."""
        for name, storage in storages:
            self.add(Allocation(name, storage.data, storage.writable))
        self.homes = homes

    def name_shared(self) -> None:
        """Call memory that several ranks reach by the arguments through which this launch does."""
        for home in self.homes:
            there = None if home is None else self.find(home.low)
            if home is not None and there is not None and there.owner is not None:
                there.name = f"{home.name.partition('[')[0]} of rank {there.owner}"

    def _sort(self) -> None:
        self._all.sort(key=lambda a: a.base)
        self._bases = [a.base for a in self._all]

    def find(self, address: int) -> Optional[Allocation]:
        index = bisect.bisect_right(self._bases, address) - 1
        if index >= 0 and address < self._all[index].end:
            return self._all[index]
        return None

    @property
    def nbytes(self) -> int:
        """Return the bytes of all allocations."""
        return sum(allocation.data.nbytes for allocation in self._all)

    def behind(self, arguments: Sequence[Any], positions: Iterable[int]) -> list[Allocation]:
        """Return the allocations into which arguments, pointers or descriptors, point."""
        values = (arguments[position] for position in positions)
        bases = (value.base if isinstance(value, Descriptor) else value for value in values)
        there = (self.find(int(base.flat[0])) for base in bases)
        return [allocation for allocation in there if allocation is not None]

    def reached(self, arguments: Sequence[Any], traffic: Traffic) -> Reached:
        """Return the allocations that a kernel reaches through its arguments."""
        loaded, stored = (
            set(map(id, self.behind(arguments, positions)))
            for positions in (traffic.loaded, traffic.stored)
        )
        if traffic.written is None:
            return Reached(None, loaded & stored)
        return Reached(set(map(id, self.behind(arguments, traffic.written))), loaded & stored)

    def _homes(self, task: Task) -> Optional[list[Home]]:
        """Return the allocations that the op of a task may reach by the arguments that its pointers come from."""
        op = task.op
        if id(op) not in self._reach:
            positions = pointed_at(task.machine.program.program, op)
            known = None if positions is None else [self.homes[i] for i in sorted(positions)]
            homes = [home for home in known or () if home is not None]
            self._reach[id(op)] = homes if known and len(homes) == len(known) else None
        return self._reach[id(op)]

    # ---- access ---------------------------------------------------------------------------

    def _parts(
        self, task: Task, access: str, addresses: np.ndarray, size: int, mask: Optional[np.ndarray]
    ) -> list[Part]:
        """[(allocation, selection or None)] that together hold every element; None means all of them."""
        live = addresses if mask is None else addresses[mask]
        if live.size == 0:
            return []
        low, high = int(live.min()), int(live.max())
        bad_alignment = (low | high) & (size - 1)
        if not bad_alignment and self.check_alignment and size > 1:
            bad_alignment = bool((live & (size - 1)).any())
        if bad_alignment and self.settings.alignment:
            self._misaligned(task, access, addresses, size, mask)
        known = self._one.get(id(task.op))  # nearly always
        if known is not None and known[0] <= low and high + size <= known[1]:
            return known[2]
        single = self.find(low)
        homes = self._homes(task) if self.settings.bounds and self.homes else None
        if single is not None and high + size <= single.end:
            if homes is None or any(h.low <= low and high + size <= h.high for h in homes):
                if homes is not None and len(homes) == 1:
                    self._one[id(task.op)] = homes[0].low, homes[0].high, [(single, None)]
                return [(single, None)]
        parts: list[Part] = []
        covered = np.zeros(addresses.shape, bool) if mask is None else ~mask
        within = np.ones((), bool)
        if homes is not None:
            within = np.zeros(addresses.shape, bool)
            for home in homes:
                within |= (addresses >= home.low) & (addresses + size <= home.high)
        for allocation in self._all:
            inside = (addresses >= allocation.base) & (addresses + size <= allocation.end)
            inside &= within & ~covered
            if inside.any():
                parts.append((allocation, inside))
                covered |= inside
        if not covered.all() and self.settings.bounds:
            self._out_of_bounds(task, access, addresses, size, ~covered, homes)
        return parts

    def load(
        self,
        task: Task,
        access: str,
        addresses: np.ndarray,
        dtype: np.dtype,
        mask: Optional[np.ndarray],
        other: Optional[np.ndarray],
    ) -> np.ndarray:
        """Elements at `addresses`; where `mask` is false, `other` (zero if None)."""
        size = dtype.itemsize
        shift = size.bit_length() - 1
        if isinstance(addresses, Wrapped):
            addresses = settle(task, access, addresses, mask)
        if mask is not None:
            addresses, mask = np.broadcast_arrays(addresses, mask)
            if mask.all():
                mask = None
        parts = self._parts(task, access, addresses, size, mask)
        if mask is None and len(parts) == 1 and parts[0][1] is None:
            index = addresses - parts[0][0].base
            index >>= shift
            if self.tracking is not None:
                self.tracking.touched(
                    task, access, "read", parts[0][0], index, None, addresses.shape, size
                )
            if parts[0][0].missing is not None:
                self._initialised(task, access, parts[0][0], index, size, None)
            return parts[0][0].view(dtype).take(index, mode="clip")
        if other is None:
            out = np.zeros(addresses.shape, dtype)
        else:
            shape = np.broadcast_shapes(addresses.shape, other.shape)
            out = np.array(np.broadcast_to(other, shape), dtype)
            addresses = np.broadcast_to(addresses, shape)
            mask = np.broadcast_to(mask, shape) if mask is not None else None
        for allocation, inside in parts:
            live = inside if inside is not None else mask
            assert live is not None  # all of one allocation is taken above
            live = np.broadcast_to(live, out.shape)
            index = (addresses[live] - allocation.base) >> shift
            if self.tracking is not None:
                self.tracking.touched(
                    task, access, "read", allocation, index, live, addresses.shape, size
                )
            if allocation.missing is not None:
                self._initialised(task, access, allocation, index, size, live)
            out[live] = allocation.view(dtype)[index]
        return out

    def store(
        self,
        task: Task,
        access: str,
        addresses: np.ndarray,
        values: np.ndarray,
        mask: Optional[np.ndarray],
    ) -> None:
        """Elements to `addresses` where `mask`; of two to one address the later in order stays."""
        dtype = values.dtype
        size = dtype.itemsize
        shift = size.bit_length() - 1
        if isinstance(addresses, Wrapped):
            addresses = settle(task, access, addresses, mask)
        shape = np.broadcast_shapes(
            addresses.shape, values.shape, mask.shape if mask is not None else ()
        )
        addresses = np.broadcast_to(addresses, shape)
        values = np.broadcast_to(values, shape)
        if mask is not None:
            mask = np.broadcast_to(mask, shape)
            if mask.all():
                mask = None
        for allocation, inside in self._parts(task, access, addresses, size, mask):
            if self._keeps(task, access, allocation):
                continue
            live = inside if inside is not None else mask
            # In C order, so that of equal addresses the later program's is written last.
            chosen = addresses if live is None else addresses[live]
            index = np.subtract(chosen, allocation.base, order="C")
            index >>= shift
            allocation.written(index, size)
            first = run_of(index)
            if self.tracking is not None:
                self.tracking.touched(
                    task, access, "write", allocation, index, live, shape, size, first
                )
            written = values if live is None else values[live]
            if first is None:
                allocation.view(dtype)[index] = written
            else:
                allocation.view(dtype)[first : first + index.size] = written.reshape(-1)
        self.version += 1

    def atomic(
        self,
        task: Task,
        access: str,
        addresses: np.ndarray,
        mask: Optional[np.ndarray],
        dtype: np.dtype,
        update: Callable[..., np.ndarray],
        operands: tuple[np.ndarray, ...],
        in_place: Optional[np.ufunc] = None,
    ) -> np.ndarray:
        """old = *address; *address = update(old, *operands), one element after the other.

        Elements go in order: lower programs first. Gives the old values; zero where masked off.
        """
        if self.several:
            raise SimulatorError(f"{access} wants programs in their order")
        if isinstance(addresses, Wrapped):
            addresses = settle(task, access, addresses, mask)
        shape = np.broadcast_shapes(
            addresses.shape, *(o.shape for o in operands), mask.shape if mask is not None else ()
        )
        addresses = np.broadcast_to(addresses, shape)
        mask = np.broadcast_to(mask, shape) if mask is not None else None
        operands = tuple(np.broadcast_to(o, shape) for o in operands)
        out = np.zeros(shape, dtype)
        shift = dtype.itemsize.bit_length() - 1
        for allocation, inside in self._parts(task, access, addresses, dtype.itemsize, mask):
            if self._keeps(task, access, allocation):
                continue
            live = inside if inside is not None else mask
            if live is None:
                live = np.ones(shape, bool)
            index = (addresses[live] - allocation.base) >> shift
            if self.tracking is not None:
                size = dtype.itemsize
                self.tracking.touched(task, access, "update", allocation, index, live, shape, size)
            if allocation.missing is not None:
                self._initialised(task, access, allocation, index, dtype.itemsize, live)
            old, changed = apply_atomic(
                allocation.view(dtype), index, update, tuple(o[live] for o in operands), in_place
            )
            if old is not None:
                out[live] = old
            if changed:
                self.version += 1
        return out

    def contents(self) -> Contents:
        """Return a copy of all bytes, and of which of them were never written."""
        missing = (None if a.missing is None else a.missing.copy() for a in self._all)
        return [(a.data.copy(), there) for a, there in zip(self._all, missing)]

    def restore(self, contents: Contents) -> None:
        for allocation, (data, missing) in zip(self._all, contents):
            if allocation.writable:
                allocation.data[...] = data
            allocation.missing = None if missing is None else missing.copy()

    def changed(self, contents: Contents) -> list[str]:
        """Return the names of the allocations that hold something else."""
        return [a.name for a, (data, _) in zip(self._all, contents) if (a.data != data).any()]

    def digest(self) -> bytes:
        """Return a hash of all bytes."""
        hasher = blake2b()
        for allocation in self._all:
            hasher.update(allocation.data.data)
        return hasher.digest()

    def mark(self) -> None:
        """Begin a run, or begin it again."""
        for allocation in self._all:
            if not allocation.lasting:
                allocation.mark()

    def unmark(self) -> None:
        """End a run."""
        for allocation in self._all:
            allocation.unmark()

    # ---- mistakes --------------------------------------------------------------------

    def _keeps(self, task: Task, access: str, allocation: Allocation) -> bool:
        """Is this one that cannot be written to? Then, with the check off, it keeps its content."""
        if not allocation.writable and self.settings.bounds:
            raise OutOfBoundsError(
                f"{called(task.op, access)} writes to a read-only array",
                report="bounds.readonly",
                argument=allocation.name,
                remedy="Pass a writable array.",
            )
        return not allocation.writable

    def _where(
        self, task: Task, bad: np.ndarray
    ) -> tuple[tuple[np.intp, ...], tuple[int, int, int], tuple[int, ...]]:
        first = np.unravel_index(int(np.argmax(bad)), bad.shape)
        return first, task.program_id(int(first[0])), tuple(int(i) for i in first[1:])

    def _initialised(
        self, task: Task, access: str, allocation: Allocation, index: np.ndarray, size: int,
        live: Optional[np.ndarray],
    ) -> None:  # fmt: skip
        missing = allocation.unwritten(index, size) if self.settings.uninitialised else None
        if missing is None:
            return
        bad = missing
        if live is not None:
            bad = np.zeros(live.shape, bool)
            bad[live] = missing.reshape(-1)
        _, program, element = self._where(task, bad)
        count = int(np.count_nonzero(missing))
        more = f" ({count} elements were not)" if count > 1 else ""
        raise UninitialisedError(
            f"`{called(task.op, access)}` of `{allocation.name}`: element {element} of program {program} was never "
            f"written{more}",
            report="uninitialised.global",
            remedy="Write it first, by a kernel, or do not mark the array as uninitialised.",
            program=program,
            element=element,
        )

    def _misaligned(
        self, task: Task, access: str, addresses: np.ndarray, size: int, mask: Optional[np.ndarray]
    ) -> None:
        bad = (addresses & (size - 1)) != 0
        if mask is not None:
            bad = bad & mask
        first, program, element = self._where(task, bad)
        raise MisalignedError(
            f"{called(task.op, access)} at an address that is no multiple of the element's {size} bytes",
            report="alignment.address",
            got=f"address {int(addresses[first]):#x} in element {element} of program {program}",
            program=program,
            element=element,
        )

    def _out_of_bounds(
        self, task: Task, access: str, addresses: np.ndarray, size: int, bad: np.ndarray,
        homes: Optional[list[Home]],
    ) -> None:  # fmt: skip
        first, program, element = self._where(task, bad)
        address = int(addresses[first])
        count = int(np.count_nonzero(bad))
        text = "there are no arrays among the arguments"
        whose = "every argument's storage" if homes is None else "its argument's storage"
        name = None
        near = homes or [Home(a.name, a.base, a.end) for a in self._all]
        if near:
            home = min(near, key=lambda h: max(h.low - address, address + size - h.high))
            name = home.name
            if address < home.low:
                text = f"{home.low - address} bytes before the start of `{name}`"
            else:
                text = f"byte {address - home.low} of `{name}`, which has {home.high - home.low}"
        more = f" ({count} elements are outside)" if count > 1 else ""
        described = described_at(task.op)
        shape = "" if described is None else "give the descriptor the shape of the array, "
        error = OutOfBoundsError(
            f"{called(task.op, access)} outside {whose}: element {element} of program {program} is {text}{more}",
            report="bounds.global",
            argument=name,
            remedy=f"Mask the access, {shape}or pass a larger array.",
            program=program,
            element=element,
        )
        error.related = related(span_of(task.op.loc), span_of(described))
        raise error


def run_of(index: np.ndarray) -> Optional[int]:
    """Return the first of indices that follow each other without gaps, or None where they do not."""
    count = index.size
    if count < 64:
        return None
    flat = index.reshape(-1)
    first = int(flat[0])
    if int(flat[-1]) - first != count - 1 or not (flat[1:] - flat[:-1] == 1).all():
        return None
    return first
