"""Blocks of a cluster that meet in each other's shared memory.

The blocks of a cluster run in step here, as one program; on a GPU each goes its own way. A block learns the actions of another one by a barrier of the cluster, or by a barrier in shared memory at
which the one arrived (or its work landed) and for which the other waited. Agents of a program
are ordered elsewhere (`races`), so here a block is one: its knowledge of another is a time.

Only certain races are reported: every op that may let blocks wait for each other counts as a barrier of
the cluster. Programs of one batch do the same; those that do not run one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Iterator, Optional, Protocol, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_sim.sanitizer.agents import Task
from gluon_sim.sanitizer.observed import Buffer, View
from gluon_sim.sanitizer.threads import passive
from gluon_sim.tracing.ir import Op

__all__ = [
    "BlockShadow",
    "Blocks",
    "Meeting",
    "SharedByBlocks",
    "ViewByBlocks",
    "copies_of",
    "leaders",
    "stays_within",
]

# Ops that certainly do not let blocks wait for each other, besides those where no threads do.
_WITHIN = (
    "local_", "memdesc_", "mbarrier", "async_", "fence", "tcgen05", "tmem", "tensor_memory",
    "warpgroup", "barrier", "cluster", "warp_specialize", "return", "ret", "yield",
)  # fmt: skip
# Those of them that may order one block after another.
_ACROSS = ("mbarrier", "cluster", "barrier_cluster", "warp_specialize")
# Ops that move their tensor: each block moves its part.
_MOVES = frozenset({"local_load", "local_store", "local_alloc"})


def stays_within(op: Op) -> bool:
    """Return True if an op in which threads wait for each other certainly lets no block wait for another."""
    return op.name.startswith(_WITHIN) and not op.name.startswith(_ACROSS)


@dataclass(frozen=True)
class Meeting:
    """Two accesses by different blocks without order.

    Attributes:
        byte: of the buffer.
        block, other: who comes now, and who came before.
        op, kind, task: the earlier access.
    """

    byte: int
    block: int
    other: int
    op: Op
    kind: str
    task: str


class Blocks:
    """The clocks of the blocks of the clusters of one batch.

    Attributes:
        count: blocks of a cluster.
        seen: by block, up to which time it knows each other block.
    """

    def __init__(self, count: int):
        self.count = count
        self.now = 1
        self.seen = np.zeros((count, count), np.int64)
        self.accesses: dict[int, tuple[Op, str, str]] = {}  # by time: op, kind, task
        self.far: dict[tuple[int, int], tuple[int, Op, str]] = {}  # the last access to another's
        self._released = np.zeros(count, np.int64)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def current(self) -> np.ndarray:
        """Return the clock of each block, itself included."""
        clocks = np.array(self.seen)
        np.fill_diagonal(clocks, self.now)
        return clocks

    def release(self) -> None:
        """Record that all blocks arrive at the barrier of the cluster."""
        self._released = np.maximum(self._released, self.current().max(axis=0))
        self.tick()

    def acquire(self) -> None:
        """Record that all have passed it."""
        np.maximum(self.seen, self._released, out=self.seen)

    def after(self, op: Op) -> None:
        """Record an executed op, in which the blocks may have waited for each other."""
        if not (op.name.startswith(_WITHIN) or passive(op)):
            self.release()
            self.acquire()

    def publish(self, task: Task, leads: np.ndarray, everywhere: bool) -> np.ndarray:
        """Return the clocks that an arrival by `task` publishes at the barriers of the blocks, (blocks, blocks).

        Args:
            leads: for each block, the one whose barrier it uses.
            everywhere: whether each block arrives at the barriers of the others, too.
        """
        flight = task.agent.flight if task.agent is not None else None
        known = self.current()
        if flight is not None and flight.blocks is not None:
            known = flight.blocks.copy()
            np.fill_diagonal(known, self.now)
            if flight.leads is not None:
                known = known[flight.leads]
            everywhere |= flight.only_signals or (flight.remote and flight.leads is None)
        self.tick()
        if everywhere:
            known = np.broadcast_to(known.max(axis=0), known.shape)
        published = np.zeros_like(known)
        np.maximum.at(published, leads, known)
        return published

    def learn(self, published: np.ndarray, leads: np.ndarray) -> None:
        """Let the blocks wait that have the barrier in their own memory; the others pass by."""
        mine = leads == np.arange(self.count)
        self.seen[mine] = np.maximum(self.seen[mine], published[mine])

    def ends(self) -> Optional[tuple[int, int, Op, str]]:
        """(block, other, op, kind): a block that may have ended while another is in its memory."""
        for (block, other), (time, op, kind) in self.far.items():
            if self.seen[block, other] < time:
                return block, other, op, kind
        return None


@lru_cache(maxsize=256)
def _held(layout: Any, dims: tuple[int, ...]) -> Optional[tuple[np.ndarray, int]]:
    """Return (the first block that holds each element, the bits of further ones); None if unknown."""
    try:
        linear = layout.to_linear(dims)
    except (AttributeError, GluonError):
        return None
    sizes = linear.in_dims
    if sizes.get("block", 1) == 1:
        return None
    grid = np.meshgrid(*(np.arange(n) for n in sizes.values()), indexing="ij")
    coords = linear.apply_arrays(**dict(zip(sizes, grid)))
    block = grid[list(sizes).index("block")]
    first = np.full(dims, sizes["block"], np.int64)
    np.minimum.at(first, tuple(coords[f"dim{d}"] for d in range(len(dims))), block)
    copies = sum(1 << i for i, basis in enumerate(linear.bases["block"]) if not any(basis))
    return first.ravel(), copies


def copies_of(layout: Any, dims: tuple[int, ...]) -> Optional[int]:
    """Return the bits of a block's index along which a buffer is held several times; None if not known."""
    held = _held(layout, dims)
    return None if held is None else held[1]


def _bits(mask: int) -> list[int]:
    """Return all numbers that have only bits of a mask."""
    return [n for n in range(mask + 1) if not n & ~mask]


def leaders(layout: Any, count: int) -> np.ndarray:
    """For each block, the one whose barrier it uses, by the barrier's layout."""
    bases = getattr(layout, "cga_layout", None) or []
    copies = sum(1 << i for i, basis in enumerate(bases) if not any(basis))
    chosen: np.ndarray = np.arange(count) & ~copies
    return chosen


# For the elements `places` (None for all), in the copy of that number: by which blocks.
Part = tuple[int, Optional[np.ndarray], np.ndarray]


@lru_cache(maxsize=256)
def _parts(
    memory: Any, dims: tuple[int, ...], tensor: Any, how: str, writes: bool
) -> Optional[tuple[int, Sequence[Part]]]:
    """(bits of the copies, parts) of an access to a view.

    Args:
        tensor: the layout of the tensor that `how` "moves".
        how: "own" where each block accesses its own memory, "leads" where the first block of those
            that hold the same does it for all.
    """
    held = _held(memory, dims)
    if held is None:
        return None
    first, copies = held
    spread = _bits(copies)
    if how == "own":
        return copies, [(c, None, first | more) for c, more in enumerate(spread)]
    if how == "leads":
        return copies, [(c, None, first) for c in range(len(spread))]
    mine = _held(tensor, dims)
    if mine is None:
        return None
    holders = [mine[0] | more for more in _bits(mine[1])]
    near = [by & ~copies == first for by in holders]
    parts: list[Part] = []
    for by, own in zip(holders, near):
        for c, here in enumerate(spread):
            places = np.flatnonzero(own & (by & copies == here))
            parts.append((c, places, by[places]))
        # Elements in no holder's own memory are written by the first of them; reading is everybody's.
        far = ~np.any(near, axis=0) & (by == mine[0]) if writes else ~own
        places = np.flatnonzero(far)
        parts.append((0, places, by[places]))
    parts = [part for part in parts if part[2].size]
    return copies, parts


class BlockShadow:
    """The last accesses to one shared buffer, in elements of `grain` bytes, by copy."""

    def __init__(self, blocks: Blocks, size: int, grain: int, copies: int):
        self.blocks = blocks
        self.grain = grain
        self.copies = copies
        many = len(_bits(copies))
        self.wrote = np.zeros((many, size // grain), np.int32)
        self.by = np.zeros((many, size // grain), np.int8)
        self.read = np.zeros((many, blocks.count, size // grain), np.int32)

    def _refine(self, grain: int) -> None:
        ratio = self.grain // grain
        self.wrote = np.repeat(self.wrote, ratio, axis=-1)
        self.by = np.repeat(self.by, ratio, axis=-1)
        self.read = np.repeat(self.read, ratio, axis=-1)
        self.grain = grain

    def touch(self, task: Task, kind: str, view: View) -> Optional[Meeting]:
        """Record an access to all elements of a view; return a conflicting access, or None."""
        blocks = self.blocks
        size = view.dtype.itemsize
        flight = task.agent.flight if task.agent is not None else None
        dims = tuple(view.type.shape)
        parts = _parts(view.type.layout, dims, *_how(task, view, dims), kind != "read")
        if parts is None or parts[0] != self.copies:
            return None
        if size < self.grain:
            self._refine(size)
        elements = view.elements() + int(view.base[0]) // size
        known = blocks.seen if flight is None or flight.blocks is None else flight.blocks
        if flight is not None and flight.remote and _how(task, view, dims)[1] == "leads":
            flight.leads = np.arange(blocks.count) & ~self.copies
        now = blocks.tick()
        blocks.accesses[now] = (task.op, kind, task.name)
        met = None
        for copy, places, by in parts[1]:
            index = elements if places is None else elements[places]
            if size > self.grain:
                ratio = size // self.grain
                index = (index[:, None] * ratio + np.arange(ratio)).reshape(-1)
                by = np.repeat(by, ratio)
            met = met or self._meets(kind, copy, index, by, known)
            self._note(kind, copy, index, by, now)
            self._far(task, view, kind, copy, places, by, now, size)
        return met

    def _meets(
        self, kind: str, copy: int, index: np.ndarray, by: np.ndarray, known: np.ndarray
    ) -> Optional[Meeting]:
        wrote, writer = self.wrote[copy, index], self.by[copy, index]
        for other, times in self._earlier(kind, copy, index, wrote, writer):
            bad = (times > 0) & (other != by) & (known[by, other] < times)
            if bad.any():
                first = int(np.argmax(bad))
                then = int(times[first])
                one = int(np.broadcast_to(other, by.shape)[first])
                op, access, task = self.blocks.accesses[then]
                return Meeting(
                    int(index[first]) * self.grain, int(by[first]), one, op, access, task
                )
        return None

    def _earlier(
        self, kind: str, copy: int, index: np.ndarray, wrote: np.ndarray, writer: np.ndarray
    ) -> Iterator[tuple[Any, np.ndarray]]:
        yield writer, wrote
        if kind != "read":
            for block in range(self.blocks.count):
                yield block, self.read[copy, block, index]

    def _note(self, kind: str, copy: int, index: np.ndarray, by: np.ndarray, now: int) -> None:
        if kind == "read":
            self.read[copy, by, index] = now
        else:
            self.wrote[copy, index] = now
            self.by[copy, index] = by

    def _far(
        self, task: Task, view: View, kind: str, copy: int, places: Optional[np.ndarray],
        by: np.ndarray, now: int, size: int,
    ) -> None:  # fmt: skip
        """Remember accesses to the memory of other blocks."""
        held = _held(view.type.layout, tuple(view.type.shape))
        assert held is not None
        whose = held[0] if places is None else held[0][places]
        whose = whose | _bits(self.copies)[copy]
        if len(by) != len(whose):
            by = by[:: len(by) // len(whose)]
        apart = whose != by
        for block, other in set(zip(whose[apart].tolist(), by[apart].tolist())):
            self.blocks.far[block, other] = now, task.op, kind


class SharedByBlocks(Buffer, Protocol):
    """A buffer in which the blocks of a cluster may meet."""

    blocks: Optional[BlockShadow]


class ViewByBlocks(View, Protocol):
    """A view of such a buffer."""

    @property
    def buffer(self) -> SharedByBlocks: ...


def _how(task: Task, view: View, dims: tuple[int, ...]) -> tuple[Any, str]:
    """Return (the layout of the tensor, the kind of access) of an op that accesses a view."""
    flight = task.agent.flight if task.agent is not None else None
    if flight is None and task.op.name not in _MOVES:
        return None, "own"
    if flight is not None and not flight.remote:
        return None, "own"
    values = [*task.op.operands(), *task.op.results]
    for value in values:
        tensor = getattr(value.type, "layout", None)
        if getattr(value.type, "space", None) is None and tensor is not None:
            if tuple(getattr(value.type, "dims", ())) == dims:
                return tensor, "moves"
    return None, "own" if flight is None else "leads"
