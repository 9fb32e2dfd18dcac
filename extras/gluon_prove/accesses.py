"""Accesses to shared memory during model checking, and who they are ordered before.

An access is remembered until a later one takes its place, with the set of those that it is ordered
before: partitions, work in flight, and barriers, in the two planes of `sanitizer.agents`.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from gluon_prove.events import Access, ImpliedFence, Places
from gluon_prove.order import Phases
from gluon_prove.reasons import Found
from gluon_prove.values import CannotSay
from gluon_sim.tracing.ir import Location

__all__ = ["BEFORE", "Accesses", "Seen", "Slot"]

BEFORE = -1  # who made an access before the partitions started
_MOST_SLOTS = 256


class Seen(NamedTuple):
    """The last access of a kind to a place.

    Args:
        by: the task that made it or issued it.
        proxied: whether through another proxy.
        late: see `Access`.
        known, fenced: who it is ordered before, and whose asynchronous work, as bits.
    """

    place: int
    kind: str
    by: int
    proxied: bool
    line: int
    late: bool
    known: int
    fenced: int


class Slot(NamedTuple):
    """A barrier: the arrivals it was made for (0: not), what its phase lacks, and the parity of that phase."""

    wanted: int
    pending: int
    bytes: int
    phase: int


class Accesses:
    """The part of a world that knows accesses.

    Attributes: see `World`.
    """

    places: Places
    tasks: int
    strict: bool
    slots: list[Slot]
    seen: list[Seen]
    phases: Optional[Phases]
    watched: Optional[frozenset[int]]
    owners: Optional[dict[int, set[int]]]

    # ---- bits: tasks, then two for each barrier, then flights -------------------------------------

    def _coming(self, slot: int) -> int:
        return 1 << (self.tasks + 2 * slot)

    def _over(self, slot: int) -> int:
        return 1 << (self.tasks + 2 * slot + 1)

    @property
    def _first_flight(self) -> int:
        return self.tasks + 2 * _MOST_SLOTS

    def _learn(self, to: int, source: int) -> None:
        """Join the knowledge of the bits `source` to the bits `to`."""
        if self.phases is not None:
            self.phases = self.phases.learn(to, source)
        if self.seen:
            self.seen = [
                s
                if not (s.known & source or s.fenced & source)
                else Seen(
                    *s[:6],
                    s.known | (to if s.known & source else 0),
                    s.fenced | (to if s.fenced & source else 0),
                )
                for s in self.seen
            ]

    def _forget_bit(self, bits: int) -> None:
        keep = ~bits
        if self.phases is not None:
            self.phases = self.phases.forget(bits)
        self.seen = [
            Seen(*s[:6], s.known & keep, s.fenced & keep) if (s.known | s.fenced) & bits else s
            for s in self.seen
        ]

    # ---- accesses ---------------------------------------------------------------------------------

    def _touch(
        self, access: Access, task: int, bit: int, proxied: bool, loc: Location, issuer: str
    ) -> None:
        place, kind, meet = access.place, access.kind, self.places.meet
        apart = self.places.all[place].proxied
        if kind == "write" and self.places.holds_barrier(place):
            if any(s.wanted for s in self.slots):
                raise CannotSay("data overwrites a barrier", loc)
        if not self._follows(access, task):
            return
        kept = []
        for s in self.seen:
            if not meet(place, s.place):
                kept.append(s)
                continue
            knows = s.known & bit
            if kind == "write" or s.kind == "write":
                needs_fence = proxied and not s.proxied and apart
                if needs_fence and s.kind == "read" and not (self.strict or s.late):
                    needs_fence = False
                if not (s.fenced if needs_fence else s.known) & bit:
                    lacks = ""
                    if needs_fence and knows:
                        lacks = " (a fence between the proxies is missing)"
                        if s.late and not self.strict:
                            lacks = " (nothing uses the value before the arrival, which does not wait for a load)"
                    raise Found(
                        "race.shared",
                        f"the {kind} of {issuer} has no order with the {s.kind} of line {s.line}{lacks}",
                        loc,
                    )
            same = s.kind == "read" and s.proxied == proxied and s.late <= access.late
            takes = knows and (kind == "write" or same)
            if takes and self.places.covers(place, s.place):
                continue
            kept.append(s)
        kept.append(Seen(place, kind, task, proxied, loc.line, access.late, bit, 0))
        self.seen = list(dict.fromkeys(kept))

    def _follows(self, access: Access, task: int) -> bool:
        """Return True if an access of a task, or of its work, is to a buffer that is watched."""
        buffer = self.places.all[access.place].buffer
        if self.owners is not None:
            self.owners.setdefault(buffer, set()).add(task)
        return self.watched is None or buffer in self.watched

    def allocate(self, buffer: int) -> None:
        """Record that an op allocates its buffer again."""
        of = self.places.all
        self.seen = [s for s in self.seen if of[s.place].buffer != buffer]
        for number, (owner, _) in enumerate(self.places.slots):
            if owner == buffer and number < len(self.slots) and self.slots[number].wanted:
                raise Found("barrier.reused", "memory of a barrier in use is used again", None)

    # ---- fences -----------------------------------------------------------------------------------

    def _fence(self, me: int) -> None:
        self.seen = [
            s._replace(fenced=s.fenced | me) if s.known & me and not s.proxied else s
            for s in self.seen
        ]

    def fences(self, s: Seen) -> bool:
        """Return whether a later access may need a fence behind one."""
        late = s.kind == "write" or self.strict or s.late
        return not s.proxied and late and self.places.all[s.place].proxied

    def _implied(self, event: ImpliedFence, task: int, me: int) -> None:
        for s in self.seen:
            if s.proxied or s.fenced & me or s.kind == "read" and not event.writes:
                continue
            mine = s.by == task and "own" in event.known
            mine = (
                mine
                or s.by == BEFORE
                and ("before" in event.known or not task and "own" in event.known)
            )
            mine = (
                mine or not task and s.by > 0 and "partitions" in event.known and bool(s.known & me)
            )
            if mine and any(self.places.meet(p, s.place) for p in event.places):
                self._fence(me)
                return
