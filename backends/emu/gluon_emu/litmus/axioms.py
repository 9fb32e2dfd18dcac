"""The axioms of PTX's memory consistency model (PTX ISA, chapter "Memory Consistency Model").

A combination of runs fixes program order; a choice of the write that each read returns, and an order of
the `fence.sc`, make a candidate. Names of relations and axioms are those of the chapter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Iterator, Mapping, Optional, Sequence

from gluon_emu.litmus.form import Test
from gluon_emu.litmus.relations import Relation, closed, cyclic, members
from gluon_emu.litmus.threads import Event, Run

__all__ = ["Candidate", "Combination"]

_ACQUIRES = ("acquire", "acq_rel", "sc")
_RELEASES = ("release", "acq_rel", "sc")


@dataclass
class Combination:
    """One run of each thread.

    Args:
        events: those of the initial values first, then of each run.
        stuck: a barrier counts threads that never arrive.
    """

    test: Test
    runs: Sequence[Run]
    events: list[Event] = field(default_factory=list)
    stuck: bool = False

    def __post_init__(self) -> None:
        for location, value in self.test.initial.items():
            self.events.append(
                Event(-1, "memory", "initial value", location, location, write=value)
            )
        self.initial = len(self.events)
        self.starts = []
        for run in self.runs:
            self.starts.append(len(self.events))
            self.events += run.events
        count = len(self.events)
        self.size = count
        everything = (1 << count) - (1 << self.initial)
        program = [everything if n < self.initial else 0 for n in range(count)]
        self.issued: list[tuple[int, int]] = []
        self.sequence = [0] * count
        for start, run in zip(self.starts, self.runs):
            for one, other in run.order:
                program[start + one] |= 1 << start + other
            for last, group in run.issued:
                if last >= 0:
                    self.issued.append((start + last, sum(1 << start + g for g in group)))
            later = 0
            for number in reversed(run.program):
                self.sequence[start + number] = later
                later |= 1 << start + number
        self.program = program
        self.barriers: list[tuple[int, int]] = list(self._barriers())

    # -- facts that do not depend on the values ----------------------------------------------------

    @cached_property
    def strong(self) -> Relation:
        """Morally strong pairs, of memory operations and fences."""
        result = [0] * self.size
        for one in range(self.initial, self.size):
            for other in range(self.initial, self.size):
                if one != other and self._morally_strong(one, other):
                    result[one] |= 1 << other
        return result

    def _morally_strong(self, one: int, other: int) -> bool:
        a, b = self.events[one], self.events[other]
        kinds = ("memory", "fence")
        if a.kind not in kinds or b.kind not in kinds:
            return False
        both = a.kind == b.kind == "memory"
        if both and a.location != b.location:
            return False
        if a.proxy != b.proxy or both and a.proxy == "generic" and a.address != b.address:
            return False
        if self.sequence[one] >> other & 1 or self.sequence[other] >> one & 1:
            return True
        if not (a.strong and b.strong):
            return False
        first, second = self.test.threads[a.thread], self.test.threads[b.thread]
        return first.shares(second, a.scope) and first.shares(second, b.scope)

    @cached_property
    def releases(self) -> list[tuple[int, int]]:
        """Release patterns: (first operation, the strong write)."""
        return [
            (first, write)
            for write, event in enumerate(self.events)
            if event.kind == "memory"
            and event.thread >= 0
            and event.strong
            and event.write is not None
            for first, op in enumerate(self.events)
            if op.sem in _RELEASES
            and (
                first == write
                or self.sequence[first] >> write & 1
                and (op.kind == "fence" or op.write is not None and op.location == event.location)
            )
        ]

    @cached_property
    def acquires(self) -> list[tuple[int, int]]:
        """Acquire patterns: (the strong read, last operation); a reduction's read makes none."""
        return [
            (read, last)
            for read, event in enumerate(self.events)
            if event.kind == "memory" and event.strong and event.read is not None and not event.reduction
            for last, op in enumerate(self.events)
            if op.sem in _ACQUIRES
            and (
                last == read
                or self.sequence[read] >> last & 1
                and (
                    op.kind == "fence"
                    or op.read is not None and not op.reduction and op.location == event.location
                )
            )
        ]  # fmt: skip

    @cached_property
    def conflicts(self) -> list[tuple[int, int]]:
        """Pairs of accesses to the same bytes of which one writes."""
        return [
            (one, other)
            for one in range(self.initial, self.size)
            for other in range(one + 1, self.size)
            if self.events[one].location
            and self.events[one].location == self.events[other].location
            and not (self.events[one].write is None and self.events[other].write is None)
        ]

    @cached_property
    def writes(self) -> dict[str, list[int]]:
        result: dict[str, list[int]] = {location: [] for location in self.test.initial}
        for number, event in enumerate(self.events):
            if event.write is not None:
                result[event.location].append(number)
        return result

    @cached_property
    def reads(self) -> list[int]:
        return [n for n, event in enumerate(self.events) if event.read is not None]

    @cached_property
    def fences(self) -> list[tuple[int, int]]:
        """Pairs of morally strong fence.sc of different threads."""
        own = [n for n, e in enumerate(self.events) if e.kind == "fence" and e.sem == "sc"]
        return [
            (one, other)
            for place, one in enumerate(own)
            for other in own[place + 1 :]
            if self.events[one].thread != self.events[other].thread
            and self.strong[one] >> other & 1
        ]

    def _barriers(self) -> Iterator[tuple[int, int]]:
        """Yield (operation, wait) of the same use of a barrier."""
        arrivals: dict[tuple[object, ...], dict[int, list[int]]] = {}
        waits: dict[tuple[object, ...], dict[int, list[int]]] = {}
        counts: dict[tuple[object, ...], set[int]] = {}
        for number, event in enumerate(self.events):
            if event.barrier is None:
                continue
            level, name, count, _ = event.barrier
            place = self.test.threads[event.thread].place[0 if level == "cta" else 1]
            sides = arrivals if event.kind == "arrive" else waits
            sides.setdefault((place, name), {}).setdefault(event.thread, []).append(number)
            if count is not None:
                counts.setdefault((place, name), set()).add(count)
        for key in arrivals.keys() | waits.keys():
            came, gone = arrivals.get(key, {}), waits.get(key, {})
            rounds = max(map(len, came.values()), default=0)
            for turn in range(rounds):
                ops = [own[turn] for own in came.values() if turn < len(own)]
                if key in counts and counts[key] != {32 * len(ops)}:
                    self.stuck = True
                for arrival in ops:
                    yield from self._joined(
                        arrival, [own[turn] for own in gone.values() if turn < len(own)]
                    )
            if any(len(own) > rounds for own in gone.values()):
                self.stuck = True

    def _joined(self, arrival: int, waits: list[int]) -> Iterator[tuple[int, int]]:
        event = self.events[arrival]
        assert event.barrier is not None
        firsts = [arrival]
        if event.barrier[3]:  # a relaxed arrival orders nothing but what a fence before it releases
            firsts = [
                n
                for n, e in enumerate(self.events)
                if e.kind == "fence"
                and e.sem in _RELEASES
                and e.scope != "cta"
                and self.sequence[n] >> arrival & 1
            ]
        for first in firsts:
            for wait in waits:
                if self.events[wait].thread != event.thread:
                    yield first, wait

    # -- candidates --------------------------------------------------------------------------------

    def sources(self) -> Optional[list[list[int]]]:
        """Return the writes that each read may return; None where one has none."""
        result = []
        for read in self.reads:
            event = self.events[read]
            fit = [
                w
                for w in self.writes[event.location]
                if w != read
                and self.events[w].write == event.read
                and not self.sequence[read] >> w & 1
            ]
            if not fit:
                return None
            result.append(fit)
        return result

    def fence_orders(self) -> Iterator[Relation]:
        """Yield the Fence-SC orders."""
        yield from _oriented([0] * self.size, self.fences)

    def out_of_thin_air(self, source: Mapping[int, int]) -> bool:
        """Return True if values depend on themselves; a write depends on the reads before it in its run."""
        size = self.size
        flow = [0] * (2 * size)  # reads first, then writes
        for start, run in zip(self.starts, self.runs):
            for number, event in enumerate(run.events, start):
                for need in event.needs:
                    if event.read is not None:
                        flow[start + need] |= 1 << number
                    if event.write is not None:
                        flow[start + need] |= 1 << size + number
                if event.read is not None and event.write is not None and event.keeps:
                    flow[number] |= 1 << size + number
        for read, write in source.items():
            flow[size + write] |= 1 << read
        return cyclic(closed(flow))


class Candidate:
    """A combination with the writes that its reads return, and an order of its fence.sc."""

    def __init__(self, combination: Combination, source: Mapping[int, int], fences: Relation):
        self.on, self.source = combination, source
        self.observation = self._observation()
        self.base = self._base(fences)
        self.consistent = not cyclic(self.base)
        if self.consistent:
            self.cause = self._causality()

    def _observation(self) -> Relation:
        direct = [0] * self.on.size
        for read, write in self.source.items():
            if self.on.strong[write] >> read & 1:
                direct[write] |= 1 << read
        return closed(direct)  # onwards only through operations that read and write

    def _base(self, fences: Relation) -> Relation:
        """Return base causality order, without asynchronous operations after their issue."""
        on = self.on
        relation = [a | b for a, b in zip(on.program, fences)]
        for one, other in on.barriers:
            relation[one] |= 1 << other
        for first, write in on.releases:
            for read, last in on.acquires:
                if (
                    self.observation[write] >> read & 1
                    and on.strong[first] >> last & 1
                    and on.events[first].thread != on.events[last].thread
                    or self._completes(first, write, read, last)
                ):
                    relation[first] |= 1 << last
        return closed(relation)

    def _completes(self, first: int, write: int, read: int, last: int) -> bool:
        """Return True if an asynchronous operation of a thread signals the thread itself."""
        on = self.on
        return (
            first == write
            and on.events[first].thread == on.events[last].thread
            and not on.sequence[first]
            and not any(bits >> first & 1 for bits in on.sequence[on.initial :])
            and bool(self.observation[write] >> read & 1)
            and bool(on.strong[first] >> last & 1)
        )

    def _causality(self) -> Relation:
        on = self.on
        base = list(self.base)
        for last, group in on.issued:
            for number, bits in enumerate(self.base):
                if number == last or bits >> last & 1:
                    base[number] |= group
        self.proxies = [(n, e.proxy) for n, e in enumerate(on.events) if e.kind == "proxy"]
        preserved = [0] * on.size
        for numbers in self._by_location():
            for one in numbers:
                for other in numbers:
                    if base[one] >> other & 1 and self._preserved(base, one, other):
                        preserved[one] |= 1 << other
        cause = list(preserved)
        for write, bits in enumerate(self.observation):
            for read in members(bits):
                cause[write] |= preserved[read]
        return cause

    def _by_location(self) -> list[list[int]]:
        groups: dict[str, list[int]] = {}
        for number, event in enumerate(self.on.events):
            if event.kind == "memory":
                groups.setdefault(event.location, []).append(number)
        return list(groups.values())

    def _preserved(self, base: Relation, one: int, other: int) -> bool:
        """Return True if base causality order between accesses of the same bytes survives their proxies."""
        a, b = self.on.events[one], self.on.events[other]
        if a.thread < 0:
            return True
        if a.proxy == b.proxy == "generic":
            return a.address == b.address or self._fenced(base, one, other, ["alias"])
        threads = self.on.test.threads
        if a.proxy == b.proxy and threads[a.thread].shares(threads[b.thread], "cta"):
            return True
        return self._fenced(base, one, other, [p for p in (a.proxy, b.proxy) if p != "generic"])

    def _fenced(self, base: Relation, one: int, other: int, kinds: list[str]) -> bool:
        """Return True if fences of these kinds are on a path, one after the other."""
        reached = [
            n
            for n, kind in self.proxies
            if kind == kinds[0] and base[one] >> n & 1 and base[n] >> other & 1
        ]
        if len(kinds) == 1:
            return bool(reached)
        return any(self._fenced(base, n, other, kinds[1:]) for n in reached)

    # -- the axioms --------------------------------------------------------------------------------

    def coherences(self) -> Iterator[Relation]:
        """Yield each coherence order with which all axioms hold."""
        on, open_ = self.on, []
        relation = [0] * on.size
        for writes in on.writes.values():
            for one in writes:
                for other in writes:
                    if one == other:
                        continue
                    if one < on.initial or self.cause[one] >> other & 1:  # axiom Coherence
                        relation[one] |= 1 << other
                    elif one < other and on.strong[one] >> other & 1:
                        open_.append((one, other))
        relation = closed(relation)
        if cyclic(relation) or any(
            self.cause[read] >> write & 1 for read, write in self.source.items()
        ):
            return
        for coherence in _oriented(relation, open_):
            if self._agrees(coherence):
                yield coherence

    def _agrees(self, coherence: Relation) -> bool:
        on = self.on
        strong = on.strong
        communication = [bits & strong[n] for n, bits in enumerate(coherence)]
        for read, source in self.source.items():
            event = on.events[read]
            for write in on.writes[event.location]:
                if write == read or not coherence[source] >> write & 1:
                    continue
                if self.cause[write] >> read & 1:  # axiom Causality
                    return False
                if (
                    event.write is not None
                    and strong[read] >> write & 1
                    and coherence[write] >> read & 1
                ):
                    return False  # axiom Atomicity
            later = coherence[source] & ~(1 << read)
            communication[read] |= later & strong[read]
            if strong[source] >> read & 1:
                communication[source] |= 1 << read
        # axiom SC per location
        local = [
            bits & strong[n] if on.events[n].kind == "memory" else 0
            for n, bits in enumerate(on.sequence)
        ]
        return not cyclic(closed([a | b for a, b in zip(communication, local)]))

    def races(self) -> Iterator[tuple[int, int]]:
        """Yield conflicting accesses that neither causality order nor moral strength relates."""
        for one, other in self.on.conflicts:
            if not (
                self.on.strong[one] >> other & 1
                or self.cause[one] >> other & 1
                or self.cause[other] >> one & 1
            ):
                yield one, other


def _oriented(relation: Relation, pairs: Sequence[tuple[int, int]]) -> Iterator[Relation]:
    """Yield the closed, acyclic relations that extend a closed one and relate each pair."""
    for place, (one, other) in enumerate(pairs):
        if relation[one] >> other & 1 or relation[other] >> one & 1:
            continue
        for first, second in ((one, other), (other, one)):
            extended = list(relation)
            extended[first] |= 1 << second
            yield from _oriented(closed(extended), pairs[place + 1 :])
        return
    yield relation
