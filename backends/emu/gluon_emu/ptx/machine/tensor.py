"""Tensor memory of sm_100: its columns, and the work on it that is under way (PTX ISA 9.7.16).

Each block has 128 lanes of 512 columns, cells of 32 bits. Products and copies of a block happen in the order of
their issue, each at a moment that the schedule chooses (see `Agents`); a commit arrives behind all of them. Loads and stores
of a warp happen at the latest when it waits for them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.errors import AccessError, EmulatorError
from gluon_emu.ptx.machine.agents import Task
from gluon_emu.ptx.machine.group import LANES, Group

__all__ = ["CELLS", "COLUMNS", "ROWS", "TensorMemory"]

ROWS, COLUMNS = 128, 512
CELLS = ROWS * COLUMNS
_LEAST = 32  # columns of an allocation
_UNSET = np.full((1, 1), 0xFFFFFFFF, np.uint32)
Put = Callable[[Any, np.ndarray], None]


@dataclass
class _Load:
    """A load whose registers some threads do not have yet.

    Args:
        rows: the warps.
        cells: (warps, 32, n), of the memory of all blocks.
        finish: `f(cells)` gives the registers (warps, 32, registers) from their cells.
        puts: they write the registers.
        names: the registers.
        left: (warps, 32), the threads that do not have them.
        values: the registers; None before memory was read.
    """

    rows: np.ndarray
    cells: np.ndarray
    finish: Callable[[np.ndarray], np.ndarray]
    puts: tuple[Put, ...]
    names: tuple[str, ...]
    left: np.ndarray
    values: Optional[np.ndarray] = None


@dataclass
class _Store:
    """A store that its warps have not waited for: the warps, and the values of cells (warps, 32, n)."""

    rows: np.ndarray
    cells: np.ndarray
    values: np.ndarray


class TensorMemory:
    """The tensor memory of the resident blocks.

    Attributes:
        loading: registers that `tcgen05.ld` has not written -> the loads. An instruction that uses such a register makes
            the load happen first, as the assembler's scoreboards do.
        used: (blocks, columns), whether a column is allocated.
    """

    def __init__(self, machine: Any, settings: Any):
        self.machine = machine
        self.eager = settings.schedule == "eager"
        self.random = (
            np.random.default_rng(settings.seed + 2) if settings.schedule == "random" else None
        )
        blocks = machine.blocks
        self.used: np.ndarray = np.zeros((blocks, COLUMNS), bool)
        self.allocated: list[dict[int, int]] = [{} for _ in range(blocks)]  # first column -> number
        self.reserved: list[deque[tuple[int, int]]] = [deque() for _ in range(blocks)]
        self.addressed: set[int] = set()  # bytes of shared memory with the address of columns
        self.closed = np.zeros(blocks, bool)
        self.waiting: list[Group] = []
        self.loads: list[_Load] = []
        self.stores: list[_Store] = []
        self.loading: dict[str, list[_Load]] = {}
        self.queues: dict[int, deque[tuple[Task, Callable[[], None]]]] = {}
        self._cells: Optional[np.ndarray] = None

    @property
    def cells(self) -> np.ndarray:
        """Return all cells, by block, lane and column."""
        if self._cells is None:
            self._cells = np.full(self.machine.blocks * CELLS, 0xFFFFFFFF, np.uint32)
        return self._cells

    # -- allocation --

    def allocate(self, block: int, count: int, paired: bool) -> Optional[int]:
        """Return the first column of an allocation; None while too few columns are free.

        Args:
            paired: both blocks of a pair get the same columns.

        Raises:
            EmulatorError: a number of columns that cannot be allocated, or a block that gave up its right to.
        """
        if count < _LEAST or count > COLUMNS or count & (count - 1):
            raise EmulatorError(
                f"an allocation of {count} columns: a power of two from 32 to 512 is possible"
            )
        if self.closed[block]:
            raise EmulatorError("an allocation after `tcgen05.relinquish_alloc_permit`")
        blocks = self.pair(block) if paired else [block]
        if paired and self.reserved[block] and self.reserved[block][0][1] == count:
            start = self.reserved[block].popleft()[0]
        else:
            taken = np.asarray(self.used[blocks].any(0))
            starts = [s for s in range(0, COLUMNS, count) if not taken[s : s + count].any()]
            if not starts:
                return None
            start = starts[0] if self.random is None else int(self.random.choice(starts))
            for one in blocks:
                self.used[one, start : start + count] = True
                if one != block:
                    self.reserved[one].append((start, count))
        self.allocated[block][start] = count
        return start

    def free(self, block: int, start: int, count: int) -> None:
        """Free an allocation, and let those go on who wait for columns.

        Raises:
            EmulatorError: there is no such allocation.
        """
        if self.allocated[block].get(start) != count:
            have = ", ".join(f"{n} from {s:#x} on" for s, n in self.allocated[block].items())
            raise EmulatorError(
                f"a deallocation of {count} columns from {start:#x} on; allocated are {have or 'none'}"
            )
        del self.allocated[block][start]
        self.used[block, start : start + count] = False
        self.machine.changes += 1
        waiting, self.waiting = self.waiting, []
        self.machine.wake(*waiting)

    def await_columns(self, group: Group) -> Any:
        self.waiting.append(group)
        return self.machine.park(group)

    def holds(self, group: Group) -> bool:
        return any(one is group for one in self.waiting)

    def why(self, group: Group) -> str:
        if not self.holds(group):
            return ""
        block = int(group.block[0])
        free = COLUMNS - int(self.used[block].sum())
        return f": {free} of {COLUMNS} columns of tensor memory are free"

    def pair(self, block: int) -> list[int]:
        """Return the two blocks of a pair, the even one first.

        Raises:
            EmulatorError: the cluster has no pairs.
        """
        if self.machine.cluster_size % 2:
            raise EmulatorError(
                f"`.cta_group::2` in a cluster of {self.machine.cluster_size}: pairs need an even number of blocks"
            )
        return [block & ~1, block | 1]

    def check(self, block: int, first: int, count: int, words: str) -> None:
        """See that columns are allocated.

        Raises:
            AccessError: they are not.
        """
        if (
            first < 0
            or first + count > COLUMNS
            or not self.used[block, first : first + count].all()
        ):
            raise AccessError(
                f"{words} columns {first:#x} to {first + count:#x} of tensor memory, which are not all allocated"
            )

    # -- loads and stores of warps --

    def places(
        self, group: Group, address: np.ndarray, lanes: np.ndarray, columns: np.ndarray, verb: str
    ) -> np.ndarray:
        """Return the cells (warps, 32, n) of an access.

        Args:
            lanes, columns: (32, n), from the address on.

        Raises:
            AccessError: lanes of another warp, or columns that nobody allocated.
        """
        machine = self.machine
        full = group.full(address)
        start = full[:, 0]
        lane, column = start >> 16 & 0xFFFF, start & 0xFFFF
        quarter = group.rows % machine.warps % 4 * 32
        low, high = lane + int(lanes.min()), lane + int(lanes.max())
        wrong = (low < quarter) | (high >= quarter + 32)
        last = column + int(columns.max())
        outside = last >= COLUMNS
        used = self.used[
            group.block[:, None], np.minimum(column[:, None] + np.unique(columns), COLUMNS - 1)
        ]
        here = group.lanes().any(1)
        for bad, words in (
            ((full != start[:, None]).any(1), "threads of a warp have different addresses"),
            (wrong, "a warp reaches only the 32 lanes that its number modulo 4 gives"),
            (outside | ~used.all(1), "columns that are not all allocated"),
        ):
            bad = bad & here
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                error = AccessError(
                    f"a {verb} at {int(start[row]):#010x} of tensor memory: {words}"
                )
                error.place = (row, 0)  # type: ignore[attr-defined]
                raise error
        base = (group.block * CELLS + lane * COLUMNS + column)[:, None, None]
        return np.asarray(base + (lanes * COLUMNS + columns))

    def _now(self) -> bool:
        return self.eager or self.random is not None and bool(self.random.integers(2))

    def load(
        self,
        group: Group,
        cells: np.ndarray,
        finish: Callable[[np.ndarray], np.ndarray],
        puts: tuple[Put, ...],
        names: tuple[str, ...],
    ) -> None:
        """Start a load, which happens at the latest when the warp waits, or uses a register."""
        lanes = group.lanes()
        here = lanes.any(1)
        load = _Load(group.rows[here], cells[here], finish, puts, names, lanes[here])
        if self._now():
            load.values = finish(self.cells[load.cells])
        for put in puts:
            put(group, _UNSET)
        self.loads.append(load)
        for name in names:
            self.loading.setdefault(name, []).append(load)

    def store(self, group: Group, cells: np.ndarray, values: np.ndarray) -> None:
        """Start a store, which happens at the latest when the warp waits."""
        here = group.lanes().any(1)
        store = _Store(group.rows[here], cells[here], values[here])
        if self._now():
            self._store(store)
        else:
            self.stores.append(store)

    def _store(self, store: _Store) -> None:
        self.cells[store.cells] = store.values
        self.machine.changes += 1

    def wait_stores(self, group: Group) -> None:
        """Finish the stores of the warps of a group."""
        here = self._warps(group)
        left = []
        for store in self.stores:
            mine = here[store.rows]
            if mine.any():
                self._store(_Store(store.rows[mine], store.cells[mine], store.values[mine]))
            if not mine.all():
                left.append(_Store(store.rows[~mine], store.cells[~mine], store.values[~mine]))
        self.stores = left

    def _warps(self, group: Group) -> np.ndarray:
        here = np.zeros(self.machine.block_of.size, bool)
        here[group.rows[group.lanes().any(1)]] = True
        return here

    def wait_loads(self, group: Group) -> None:
        """Finish the loads of the warps of a group."""
        self._finish(group, self.loads)

    def touched(self, group: Group, names: frozenset[str]) -> None:
        """Finish the loads into registers that an instruction is about to use."""
        loads = {
            id(load): load for name in names & self.loading.keys() for load in self.loading[name]
        }
        self._finish(group, list(loads.values()))

    def _finish(self, group: Group, loads: list[_Load]) -> None:
        every, before, over = group.everything(), group.mask, False
        for load in loads:
            common = np.isin(load.rows, group.rows)
            if not common.any():
                continue
            position = np.searchsorted(group.rows, load.rows[common])
            mask = np.zeros(every.shape, bool)
            mask[position] = load.left[common] & every[position]
            if not mask.any():
                continue
            if load.values is None:
                load.values = load.finish(self.cells[load.cells])
            group.mask = None if mask.all() else mask
            registers = np.zeros((*every.shape, len(load.puts)), np.uint32)
            registers[position] = load.values[common]
            for number, put in enumerate(load.puts):
                put(group, np.ascontiguousarray(registers[..., number]))
            load.left[common] &= ~mask[position]
            over = over or not load.left.any()
        group.mask = before
        if over:
            self.loads = [load for load in self.loads if load.left.any()]
            self.loading = {}
            for load in self.loads:
                for name in load.names:
                    self.loading.setdefault(name, []).append(load)

    # -- work of the tensor core --

    def start(self, group: Group, lane: tuple[int, int], work: Callable[[], None]) -> None:
        """Start work that happens after all earlier work that this block has issued.

        Args:
            lane: the warp among those of the group, and the lane that issues it.
        """
        machine = self.machine
        bound, block = machine.steps[group.pc], int(group.block[lane[0]])
        queue = self.queues.setdefault(block, deque())

        def guarded() -> None:
            try:
                work()
            except EmulatorError as error:
                if error.instruction is not None:
                    raise
                raise machine.report(type(error), error.message, bound, group, lane) from None

        def until() -> None:
            while queue:
                one, do = queue.popleft()
                one.done = True
                do()
                if one is task:
                    return

        thread = np.array([int(group.rows[lane[0]]) * LANES + lane[1]])
        task = Task("tcgen05", until, thread, group.pc)
        queue.append((task, guarded))
        machine.agents.start(task)

    def ended(self) -> None:
        """See that the blocks freed their columns.

        Raises:
            EmulatorError: one did not.
        """
        for block, allocated in enumerate(self.allocated):
            if allocated:
                numbers = tuple(int(i) for i in self.machine.block_ids[block])
                start, count = next(iter(allocated.items()))
                raise EmulatorError(
                    f"block {numbers} ends without deallocating {count} columns of tensor memory from {start:#x} on",
                    remedy="Execute `tcgen05.dealloc` before the block ends.",
                )
