"""Rotations of rings: states that differ by where all tasks are on a ring represent each other.

Take a state, and let each task be one slot further on a ring, and all that barriers and accesses say one slot
further, too. All that follows is the same, one slot further, as long as the code treats all slots alike. This is
checked for each instruction: its effect at the next position is its effect at this one, one slot further. Those
that fail, as those that begin at slot 0, mark the states from which a task can come to them: these are not rotated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any, Iterable, Optional

from gluon_core.errors import GluonError
from gluon_prove.code import Branch, Effect, Instruction, Move, Pure, View
from gluon_prove.effects import Lowered
from gluon_prove.events import Access, Barrier, ImpliedFence, Issue
from gluon_prove.positions import Position, Positions
from gluon_prove.values import CannotSay
from gluon_sim.memory.shared import SharedView

__all__ = ["Ring", "Rings"]


@dataclass(eq=False)
class Ring:
    """Slots that positions walk over.

    Attributes:
        slots, places: barriers and places of a slot, each with that of the next one.
        flips: by barrier, 1 where a wait one slot further is for the other parity.
        still: slots, places and parities that an instruction leaves as they are.
        apart: (task, instruction) of those that do not treat all slots alike.
        agrees: False where two instructions differ about the next slot.
    """

    positions: list[Position]
    slots: dict[int, int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    flips: dict[int, int] = field(default_factory=dict)
    still: set[tuple[str, int]] = field(default_factory=set)
    apart: set[tuple[int, int]] = field(default_factory=set)
    agrees: bool = True

    @property
    def count(self) -> int:
        return max(position.count for position in self.positions)

    def follows(self, name: str, one: int, other: int) -> None:
        """Note that a barrier, a place or a parity ("slots", "places", "flips") becomes another one."""
        if other == (0 if name == "flips" else one):
            self.still.add((name, one))
        else:
            self.agrees &= getattr(self, name).setdefault(one, other) == other

    def join(self, other: Ring) -> None:
        """Take in a ring that has the same slots."""
        self.positions += other.positions
        self.apart |= other.apart
        self.still |= other.still
        self.agrees &= other.agrees
        for name in ("slots", "places", "flips"):
            for one, next_ in getattr(other, name).items():
                self.follows(name, one, next_)

    def unite(self, one: Any, other: Any) -> bool:
        """Note that an event is another one, one slot further; return whether it can be."""
        if type(one) is not type(other):
            return False
        if isinstance(one, tuple):
            return len(one) == len(other) and all(map(self.unite, one, other))
        if isinstance(one, Barrier):
            self.follows("slots", one.slot, other.slot)
            parities = one.action == "wait" and {one.amount, other.amount} <= {0, 1}
            if parities:
                self.follows("flips", one.slot, one.amount ^ other.amount)
            return one.action == other.action and (parities or one.amount == other.amount)
        if isinstance(one, Access):
            self.follows("places", one.place, other.place)
            return (one.kind, one.late) == (other.kind, other.late)
        if isinstance(one, Issue):
            kinds = [(e.queue, e.after, e.proxied, e.reads, e.fills) for e in (one, other)]
            parts = self.unite(one.accesses, other.accesses), self.unite(one.signals, other.signals)
            return kinds[0] == kinds[1] and all(parts)
        if isinstance(one, ImpliedFence):
            for place, next_ in zip(one.places, other.places):
                self.follows("places", place, next_)
            same = len(one.places) == len(other.places)
            return same and (one.known, one.writes) == (other.known, other.writes)
        return bool(one == other)

    def stays(self, event: Any) -> bool:
        """Return whether an event is the same one slot further."""
        if isinstance(event, tuple):
            return all(map(self.stays, event))
        if isinstance(event, Barrier):
            moves = self.slots.get(event.slot, event.slot) != event.slot
            return not moves and not (event.action == "wait" and self.flips.get(event.slot))
        if isinstance(event, Access):
            return self.places.get(event.place, event.place) == event.place
        if isinstance(event, Issue):
            return self.stays(event.accesses) and self.stays(event.signals)
        if isinstance(event, ImpliedFence):
            return all(self.places.get(place, place) == place for place in event.places)
        return True


class Rings:
    """The rings of a program whose states are rotated.

    Attributes:
        all: the rings.
        positions: the positions on them.
        acts: by task and instruction, the buffers that an effect acts on; None for any.
        implied: whether an op may have a fence of its own.
    """

    def __init__(self, lowered: Lowered):
        self.lowered, self.codes = lowered, lowered.tasks
        self.positions = Positions(self.codes, lowered.same)
        self._of = {id(p): Ring([p]) for p in self.positions.of.values()}
        self.acts: dict[tuple[int, int], Optional[frozenset[int]]] = {}
        self.implied = False
        self._placed: set[int] = set()  # places of all effects
        self._others: list[tuple[int, int, Any, Optional[frozenset[int]]]] = []
        for task, code in enumerate(self.codes):
            for index, step in enumerate(code.steps):
                self._step(task, index, step)
        self._share()
        self.implied |= any(buffers is None for buffers in self.acts.values())
        self.all = [ring for ring in dict.fromkeys(self._of.values()) if self._is_whole(ring)]
        self._rest()
        self.reached = [self._reaching(ring) for ring in self.all]

    def of(self, position: Position) -> Ring:
        return self._of[id(position)]

    def far(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return, by barrier and by place of a ring, the bits (`World`) of all but the barriers of other rings."""
        bits = []
        for ring in self.all:
            slots = {*ring.slots, *ring.flips}
            bits.append(sum(3 << len(self.codes) + 2 * slot for slot in slots))
        slots_, places = {}, {}
        for ring, mine in zip(self.all, bits):
            kept = ~(sum(bits) - mine)
            slots_.update(dict.fromkeys({*ring.slots, *ring.flips}, kept))
            places.update(dict.fromkeys(ring.places, kept))
        return slots_, places

    # ---- instructions ---------------------------------------------------------------------------

    def _step(self, task: int, index: int, step: Instruction) -> None:
        if isinstance(step, Move):
            self._move(task, index, step)
        elif isinstance(step, Effect):
            self._effect(task, index, step)
        elif isinstance(step, (Pure, View)):
            if self.positions.table_of(step.out) is None:
                self._refuse(task, index, step.uses())
        elif not (isinstance(step, Branch) and step.free):
            self._refuse(task, index, (*step.uses(), *step.defines()))

    def _refuse(self, task: int, index: int, vars: Iterable[int]) -> None:
        """Note that an instruction treats the slots in these variables in its own way."""
        for var in vars:
            table = self.positions.table_of(var)
            if table is not None:
                self.of(table[0]).apart.add((task, index))

    def _move(self, task: int, index: int, step: Move) -> None:
        sources = dict(zip(step.outs, step.args))
        live = self.codes[task].live[index + 1]
        self._refuse(
            task,
            index,
            [
                a.var
                for out, a in sources.items()
                if a.var is not None and out not in self.positions.of
            ],
        )
        for position in {id(p): p for out in sources if (p := self.positions.of.get(out))}.values():
            tables = {
                var: self.positions.table(sources[var]) for var in position.vars if var in sources
            }
            source = {id(t[0]): t[0] for t in tables.values() if isinstance(t, tuple)}
            stale = (self.positions.table_of(var) for var in live - {*position.vars} - {*sources})
            if any(table is not None and table[0] is position for table in stale):
                self.of(position).agrees = False
            for one in source.values():
                self._join(position, one)
            missing = any(var in live and var not in sources for var in position.vars)
            whole = all(isinstance(table, tuple) for table in tables.values())
            if missing or not whole or len(source) != 1 or not self._advances(position, tables):
                self.of(position).apart.add((task, index))

    @staticmethod
    def _advances(position: Position, tables: dict[int, Any]) -> bool:
        """Return whether a source that is one slot further makes a position that is, too."""
        index, parity = (
            None if var is None else tables.get(var) for var in (position.index, position.parity)
        )
        source, count = next(iter(tables.values()))[0], position.slots
        if (
            source.slots != count
            or parity is not None
            and index is None
            and position.index is not None
        ):
            return False
        for number in range(source.count):
            after, wraps = (number + 1) % source.count, 1
            if index is not None:
                value, then = index[1][number], index[1][after]
                if not 0 <= value < count or then != (value + 1) % count:
                    return False
                wraps = int(value == count - 1)
            if parity is not None:
                value, then = parity[1][number], parity[1][after]
                if value not in (0, 1) or then != value ^ wraps:
                    return False
        return True

    def _effect(self, task: int, index: int, step: Effect) -> None:
        specs = [step.args[i] for i in step.relevant]
        tables = [self.positions.table(spec) for spec in specs]
        known = {var for spec in specs if (var := spec.var) is not None}
        self._refuse(task, index, (var for var in step.uses() if var not in known))
        mine = {id(t[0]): t[0] for t in tables if isinstance(t, tuple)}
        ways = [
            [t] if t is not None else [0, 1] if i in step.choices else []
            for i, t in zip(step.relevant, tables)
        ]
        if not all(ways):
            self._refuse(task, index, known)
            self.acts[task, index] = self._buffers(step)
            self._others.append((task, index, (), self.acts[task, index]))
            return
        self.acts[task, index] = frozenset(() if step.buffer is None else (step.buffer,))
        for way in product(*ways):
            self._way(task, index, step, way, list(mine.values()))

    def _way(
        self, task: int, index: int, step: Effect, way: tuple[Any, ...], positions: list[Position]
    ) -> None:
        """Compare the effects at all numbers of the positions that it depends on."""
        effects = {}
        for numbers in product(*(range(position.count) for position in positions)):
            of = {id(position): n for position, n in zip(positions, numbers)}
            try:
                values = [t[1][of[id(t[0])]] if isinstance(t, tuple) else t for t in way]
                effects[numbers] = step.run(tuple(values))
            except (CannotSay, GluonError):
                for position in positions:
                    self.of(position).apart.add((task, index))
                self.acts[task, index] = None
                self._others.append((task, index, (), None))
                return
        for numbers, (events, results) in effects.items():
            acts = self.acts[task, index]
            self.acts[task, index] = None if acts is None else acts | self._acted(events)
            passed = [step.args[r] for r in results if isinstance(r, int)]
            makes = any(isinstance(r, SharedView) for r in results)
            makes |= any(isinstance(self.positions.table(spec), tuple) for spec in passed)
            alike = not makes
            for place, position in enumerate(positions):
                further = list(numbers)
                further[place] = (numbers[place] + 1) % position.count
                alike &= self.of(position).unite(events, effects[tuple(further)][0])
            if not alike:
                for position in positions:
                    self.of(position).apart.add((task, index))
            if not alike or not positions:
                self._others.append((task, index, events, frozenset()))

    def _acted(self, events: Any) -> frozenset[int]:
        """Return the buffers of events, and note their places."""
        places = self.lowered.places
        if isinstance(events, tuple):
            return frozenset().union(*map(self._acted, events))
        if isinstance(events, Barrier):
            return frozenset([places.slots[events.slot][0]])
        if isinstance(events, Access):
            self._placed.add(events.place)
            return frozenset([places.all[events.place].buffer])
        if isinstance(events, Issue):
            return self._acted(events.accesses) | self._acted(events.signals)
        if isinstance(events, ImpliedFence):
            self._placed.update(events.places)
            self.implied = True
            return frozenset(places.all[place].buffer for place in events.places)
        return frozenset()

    def _buffers(self, step: Effect) -> Optional[frozenset[int]]:
        """Return the buffers that views among an effect's operands are of; None for any."""
        buffers = set() if step.buffer is None else {step.buffer}
        todo = [spec for i, spec in enumerate(step.args) if spec.var is None or i in step.relevant]
        while todo:
            spec = todo.pop()
            if isinstance(spec.value, SharedView):
                buffers.add(self.lowered.places.buffer(spec.value.buffer))
            if spec.var is None:
                continue
            for of, _ in self.positions.definitions.get(spec.var, [(None, None)]):
                if isinstance(of, View):
                    todo.append(of.args[0])
                elif not isinstance(of, Pure):
                    return None
        return frozenset(buffers)

    # ---- rings ----------------------------------------------------------------------------------

    def _join(self, one: Position, other: Position) -> None:
        first, second = self.of(one), self.of(other)
        if first is not second:
            first.join(second)
            for position in second.positions:
                self._of[id(position)] = first

    def _share(self) -> None:
        """Join rings with slots in one buffer."""
        owners: dict[int, Position] = {}
        for ring in list(dict.fromkeys(self._of.values())):
            for buffer in self._moved(ring):
                self._join(owners.setdefault(buffer, ring.positions[0]), ring.positions[0])

    def _moved(self, ring: Ring) -> set[int]:
        """Return the buffers that a rotation changes something of."""
        places = self.lowered.places
        slots = {places.slots[slot][0] for slot in (*ring.slots, *ring.flips)}
        return slots | {places.all[place].buffer for place in ring.places}

    def _is_whole(self, ring: Ring) -> bool:
        """Return whether the next slots are a rotation, under which all that places have in common stays."""
        places = self.lowered.places
        if not ring.agrees or ring.count < 2 or len({p.slots for p in ring.positions}) != 1:
            return False
        moved = [
            (name, one) for name in ("slots", "places", "flips") for one in getattr(ring, name)
        ]
        if ring.still & {*moved}:
            return False
        for of in (ring.slots, ring.places):
            if of.keys() != {*of.values()}:
                return False
        if any(places.slots[a][0] != places.slots[b][0] for a, b in ring.slots.items()):
            return False
        of_place = ring.places
        buffers = {places.all[place].buffer for place in of_place}
        near = [place for place in self._placed if places.all[place].buffer in buffers]
        for a in near:
            for b in near:
                to = of_place.get(a, a), of_place.get(b, b)
                if places.meet(a, b) != places.meet(*to) or places.covers(a, b) != places.covers(
                    *to
                ):
                    return False
        return all(
            places.all[a].buffer == places.all[b].buffer and not places.holds_barrier(a)
            for a, b in of_place.items()
        )

    def _rest(self) -> None:
        """Note instructions without a position of a ring that act on one of its slots."""
        for ring in self.all:
            mine = self._moved(ring)
            for task, index, events, buffers in self._others:
                step = self.codes[task].steps[index]
                again = isinstance(step, Effect) and step.buffer in mine
                if again or buffers is None or buffers & mine or not ring.stays(events):
                    ring.apart.add((task, index))

    def _reaching(self, ring: Ring) -> list[list[bool]]:
        """Return, by task and instruction, whether one that is apart can come from there on."""
        return [
            code.leads_to([(task, index) in ring.apart for index in range(len(code.steps))])
            for task, code in enumerate(self.codes)
        ]
