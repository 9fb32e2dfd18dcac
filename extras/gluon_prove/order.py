"""The happens-before order of barrier phases: it decides whether the order of tasks' steps can matter.

Steps of tasks and work that lands meet at barriers alone. Where every arrival at a barrier knows that
its last phase is over, every wait that the phase before that one is, and every phase ends knowing of
the waits for the last one, then no two steps that could change places have to do with each other: all
schedules of a run are equivalent (Mazurkiewicz traces), and a fair one has the behaviour of all. So the search follows one, and checks this at each step of it; where the check fails, it follows all of them (`search`).

The argument, by induction over the steps of another schedule: its next step is that of the same task in
the schedule that was walked, for a task does the same as long as it passes the same waits. An arrival
cannot come in another phase, since it knows that the phase before is over and each phase takes the
arrivals it was made for. A wait passes at the same phase: it knows of the end of all but the last one,
and the next one does not end before the wait.

With arguments for which nobody ever waits at a barrier, and nothing but single arrivals come to it, their
order there is nobody's business: no arrival is one too many, and none tells anybody of anything.
"""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple, Optional

__all__ = ["Depends", "Known", "Phases"]


class Depends(Exception):
    """The order of steps matters: all schedules are to be walked.

    Attributes:
        facts: the facts about the arguments with which it does.
    """

    facts: Any = None


class Known(NamedTuple):
    """Something that happened at a barrier, and the tasks that know of it.

    Args:
        kind: "last" (its last phase ended, or it was initialized), "before" (the phase before that one
            did), "wait" (a task passed a wait in this phase), "arrival", or "made".
        by: the task that passed the wait, or arrived.
        known: tasks, barriers and flights, as bits.
    """

    slot: int
    kind: str
    by: int
    known: int


class Phases:
    """The events at barriers, for the state of one program.

    Args:
        of: the barriers that are watched; None for all.
    """

    __slots__ = ("all", "of")

    def __init__(self, all: tuple[Known, ...] = (), of: Optional[frozenset[int]] = None):
        self.all = all
        self.of = of

    def only(self, all: Iterable[Known]) -> "Phases":
        """Return the same barriers with other events."""
        return Phases(tuple(all), self.of)

    def _apart(self, slot: int) -> bool:
        return self.of is not None and slot not in self.of

    def learn(self, to: int, source: int) -> "Phases":
        """Join the knowledge of the bits `source` to the bits `to`."""
        return self.only(
            [
                Known(k.slot, k.kind, k.by, k.known | to)
                if k.known & source and to & ~k.known
                else k
                for k in self.all
            ]
        )

    def forget(self, bits: int) -> "Phases":
        return self.only(
            [
                Known(k.slot, k.kind, k.by, k.known & ~bits) if k.known & bits else k
                for k in self.all
            ]
        )

    def reset(self, slot: int, bit: int, kept: bool) -> "Phases":
        """Forget the phases of a barrier that is initialized or invalidated; `kept` remembers the event."""
        if self._apart(slot):
            return self
        rest = tuple(k for k in self.all if k.slot != slot)
        also = [Known(slot, "made", 0, 1 << bit)] if kept else []
        return self.only((*rest, *also, Known(slot, "last", 0, 1 << bit)))

    def asked(self, slot: int, question: str, bit: int) -> None:
        """Somebody does something at a barrier.

        Raises:
            Depends: it could be done before an event that it must follow.
        """
        for known in self.all:
            if known.slot == slot and known.kind == question and not known.known >> bit & 1:
                raise Depends

    def settled(self, slot: int, bit: int) -> None:
        """Somebody makes a barrier anew, makes it invalid, or changes the count of its phase.

        Raises:
            Depends: it could be done before something that was done there.
        """
        for known in self.all:
            if known.slot == slot and not known.known >> bit & 1:
                raise Depends

    def did(self, slot: int, question: str, bit: int) -> "Phases":
        """Record that a task passed a wait, or arrived."""
        if self._apart(slot):
            return self
        new = Known(slot, question, bit, 1 << bit)
        return self.only((*(k for k in self.all if k[:3] != new[:3]), new))

    def ended(self, slot: int, coming: int, over: int) -> "Phases":
        """End a phase.

        Args:
            coming: the bit of who arrived in it.
            over: the bit of its end.

        Raises:
            Depends: it could end before a wait for the last one is passed.
        """
        if self._apart(slot):
            return self
        kept = []
        for known in self.all:
            if known.slot != slot:
                kept.append(known)
            elif known.kind == "wait" and not known.known & coming:
                raise Depends
            elif known.kind == "last":
                kept.append(known._replace(kind="before"))
        return self.only((*kept, Known(slot, "last", 0, over)))
