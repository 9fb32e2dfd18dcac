"""Vector clocks of warps: the accesses that happen before an instruction.

A clock has a column for each warp of a cluster, and for each agent of the cluster that works asynchronously. A warp counts
epochs: each release ends one. An entry says up to which epoch all lanes are known (`whole`), and some lanes beyond
that (`some`, `lanes`): a lane may signal alone. Where entries of several lanes meet, the later epoch counts for all of them,
so a race may be missed, and none is made up.

Few warps know something of other clusters. They share it, as objects that never change.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

__all__ = ["CAUSAL", "PROXIED", "Clock", "Far"]

CAUSAL, PROXIED = 0, 1  # planes: everything that happened before; what a proxy fence covers of it

# Another cluster -> its columns of `whole`, `some` and `lanes`, (planes, columns) each.
Entry = tuple[np.ndarray, np.ndarray, np.ndarray]
Far = Mapping[int, Entry]
Rows = Union[Sequence[int], np.ndarray]


class Clock:
    """Clocks of several observers of one cluster each, arrays (planes, observers, columns).

    Attributes:
        whole: the epoch up to which all lanes are known.
        some: a later epoch, up to which `lanes` are known.
        far: of each observer, what it knows of other clusters; None for nothing.
    """

    __slots__ = ("far", "lanes", "some", "whole")

    def __init__(
        self, whole: np.ndarray, some: np.ndarray, lanes: np.ndarray, far: list[Optional[Far]]
    ):
        self.whole, self.some, self.lanes, self.far = whole, some, lanes, far

    @classmethod
    def empty(cls, rows: int, columns: int) -> "Clock":
        shape = (2, rows, columns)
        whole, some = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        return cls(whole, some, np.zeros(shape, np.uint32), [None] * rows)

    def of(self, rows: Rows) -> "Clock":
        """Return the clocks of some observers, copied."""
        far = [self.far[row] for row in rows]
        return Clock(self.whole[:, rows], self.some[:, rows], self.lanes[:, rows], far)

    def put(self, rows: Rows, other: "Clock") -> None:
        self.whole[:, rows], self.some[:, rows] = other.whole, other.some
        self.lanes[:, rows] = other.lanes
        for row, far in zip(rows, other.far if len(other.far) > 1 else other.far * len(rows)):
            self.far[row] = far

    def repeat(self, count: int) -> "Clock":
        """Return the one clock, several times."""
        whole, some, lanes = (np.repeat(a, count, 1) for a in (self.whole, self.some, self.lanes))
        return Clock(whole, some, lanes, self.far * count)

    def wider(self, columns: int) -> "Clock":
        """Return the same with more columns."""
        more = ((0, 0), (0, 0), (0, columns - self.whole.shape[2]))
        whole, some, lanes = (np.pad(a, more) for a in (self.whole, self.some, self.lanes))
        return Clock(whole, some, lanes, self.far)

    def joined(self, other: "Clock") -> "Clock":
        """Return the clocks that know what both know."""
        near: Entry = _joined(
            (self.whole, self.some, self.lanes), (other.whole, other.some, other.lanes)
        )
        count = near[0].shape[1]
        mine = self.far if len(self.far) == count else self.far * count
        theirs = other.far if len(other.far) == count else other.far * count
        return Clock(near[0], near[1], near[2], [_met(a, b) for a, b in zip(mine, theirs)])

    def together(self, starts: np.ndarray) -> "Clock":
        """Return one clock for each run of observers that begins at `starts`."""
        whole = np.maximum.reduceat(self.whole, starts, 1)
        some = np.maximum.reduceat(self.some, starts, 1)
        ends = np.r_[starts[1:], self.whole.shape[1]]
        later = self.some > np.repeat(whole, ends - starts, 1)
        lanes = np.bitwise_or.reduceat(np.where(later, self.lanes, np.uint32(0)), starts, 1)
        far = []
        for start, end in zip(starts, ends):
            one = None
            for other in self.far[start:end]:
                one = _met(one, other)
            far.append(one)
        return Clock(whole, some, lanes, far)

    def elsewhere(self, own: int, cluster: int) -> "Clock":
        """Return the one clock of cluster `own` as an observer of another cluster has it."""
        if own == cluster:
            return self
        near = self.whole[:, 0], self.some[:, 0], self.lanes[:, 0]
        far = dict(self.far[0] or {})
        known = far.pop(cluster, None)
        far[own] = near
        if known is None:
            empty = Clock.empty(1, self.whole.shape[2])
            empty.far = [far]
            return empty
        whole, some, lanes = (_fitting(a, self.whole.shape[2])[:, None] for a in known)
        return Clock(whole, some, lanes, [far])


def _joined(a: Any, b: Any) -> Any:
    whole, some = np.maximum(a[0], b[0]), np.maximum(a[1], b[1])
    mine = np.where(a[1] > whole, a[2], np.uint32(0))
    return whole, some, mine | np.where(b[1] > whole, b[2], np.uint32(0))


def _fitting(array: np.ndarray, columns: int) -> np.ndarray:
    missing = columns - array.shape[-1]
    return np.pad(array, ((0, 0), (0, missing))) if missing > 0 else array


_MOST_KNOWN = 1 << 14
_known: dict[
    tuple[int, int], tuple[Far, Far, Far]
] = {}  # of `_met`, with the objects that the ids are of


def _met(a: Optional[Far], b: Optional[Far]) -> Optional[Far]:
    """Return what two observers know of other clusters together: one of the objects, where it knows it all."""
    if a is b or b is None:
        return a
    if a is None:
        return b
    before = _known.get((id(a), id(b)))
    if before is not None:
        return before[2]
    every, of_a, of_b = dict(b), True, True
    for cluster, entry in a.items():
        known = b.get(cluster)
        if known is None:
            every[cluster], of_b = entry, False
        elif known is not entry:
            every[cluster] = both = _both(entry, known)
            of_a, of_b = of_a and both is entry, of_b and both is known
    met: Far = b if of_b else a if of_a and len(every) == len(a) else every
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[id(a), id(b)] = a, b, met
    return met


def _both(a: Entry, b: Entry) -> Entry:
    columns = max(a[0].shape[1], b[0].shape[1])
    joined: Entry = _joined(*([_fitting(x, columns) for x in one] for one in (a, b)))
    for one in (b, a):
        if all(x.shape == y.shape and (x == y).all() for x, y in zip(one, joined)):
            return one
    return joined
