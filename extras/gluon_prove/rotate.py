"""A state's key with all rings rotated so that a task comes to slot 0."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Optional

from gluon_prove.accesses import Slot
from gluon_prove.acts import Acts
from gluon_prove.code import Effect
from gluon_prove.effects import Lowered
from gluon_prove.events import Barrier
from gluon_prove.positions import Position
from gluon_prove.rotations import Rings

__all__ = ["Rotate"]


@dataclass(frozen=True)
class _Held:
    """The variables of a position at an instruction.

    Args:
        ring: the number of its ring.
        live: by place among the live variables, the values at each number of the position.
        ready: by place among the operands that are ready, the same.
    """

    ring: int
    position: Position
    live: tuple[tuple[int, tuple[Any, ...]], ...]
    ready: tuple[tuple[int, tuple[Any, ...]], ...]


@dataclass
class _Turn:
    """A rotation of all rings.

    Attributes:
        slots: by barrier, where it goes, and 1 where its parity changes.
        places: by place, where it goes.
    """

    slots: dict[int, tuple[int, int]]
    places: dict[int, int]
    bits: dict[int, int] = field(default_factory=dict)


class Rotate:
    """Rotates the keys of states.

    Args:
        lowered: the program.
    """

    def __init__(self, lowered: Lowered):
        self.codes = lowered.tasks
        self.rings = Rings(lowered)
        self.acts = Acts(lowered.tasks, self.rings.acts)
        self._first = len(lowered.tasks)  # the bit of the first barrier
        self._held: dict[tuple[int, int], list[_Held]] = {}
        self._turns: dict[tuple[int, ...], _Turn] = {}

    def __call__(self, key: Any) -> Any:
        """Return the key that a state (`Equal.frozen`) shares with its rotations."""
        (slots, seen, flights, phases), tasks, *rest = key
        free = [
            all(
                not reached[number][position if alive or position else 0]
                for number, (position, alive, _, _) in enumerate(tasks)
            )
            for reached in self.rings.reached
        ]
        if not any(free):
            return key
        held, by = self._numbers(tasks, free)
        changed: list[dict[int, Any]] = [{} for _ in tasks]
        ready: list[dict[int, Any]] = [{} for _ in tasks]
        for task, one, numbers in held:
            more = by[one.ring] or 0
            if not free[one.ring] or not more:
                continue
            then = [(n + more) % one.position.count for n in numbers]
            for of, places in ((changed, one.live), (ready, one.ready)):
                for place, values in places:
                    if any(values[n] != values[then[0]] for n in then[1:]):
                        free[one.ring] = False
                    of[task][place] = (one.ring, values[then[0]])
        steps = tuple((more or 0) if one else 0 for one, more in zip(free, by))
        if not any(steps):
            return key

        def placed(values: Any, changes: dict[int, Any]) -> Any:
            moved = [
                changes[place][1] if place in changes and steps[changes[place][0]] else value
                for place, value in enumerate(values)
            ]
            return tuple(moved)

        new_tasks = []
        for (position, alive, operands, env), live, now in zip(tasks, changed, ready):
            if live:
                values = placed([value for _, value in env], live)
                env = tuple((var, value) for (var, _), value in zip(env, values))
            if operands is not None and now:
                operands = placed(operands, now)
            new_tasks.append((position, alive, operands, env))
        world = self._world(self._turn(steps), slots, seen, flights, phases)
        return (world, tuple(new_tasks), *rest)

    def _numbers(
        self, tasks: Any, free: list[bool]
    ) -> tuple[list[tuple[int, _Held, tuple[int, ...]]], list[Optional[int]]]:
        """Return the numbers that each position may have, and how far to rotate each ring.

        Args:
            free: by ring, whether it may be rotated; takes those that may not, as a position has no number.
        """
        rings = self.rings.all
        held: list[tuple[int, _Held, tuple[int, ...]]] = []
        by: list[Optional[int]] = [None if one else 0 for one in free]
        for task, (position, alive, _, env) in enumerate(tasks):
            for one in self._at(task, position) if alive else ():
                if not free[one.ring]:
                    continue
                numbers = tuple(
                    n
                    for n in range(one.position.count)
                    if all(env[place][1] == values[n] for place, values in one.live)
                )
                if not numbers:
                    free[one.ring], by[one.ring] = False, 0
                held.append((task, one, numbers))
                ring = rings[one.ring]
                if by[one.ring] is None and len(numbers) == 1 and one.position.count == ring.count:
                    by[one.ring] = -numbers[0] % ring.count
        return held, by

    def _at(self, task: int, index: int) -> list[_Held]:
        """Return the positions that a task holds at an instruction."""
        known = self._held.get((task, index))
        if known is not None:
            return known
        code, rings = self.codes[task], self.rings
        live: dict[int, list[tuple[int, tuple[Any, ...]]]] = {}
        ready: dict[int, list[tuple[int, tuple[Any, ...]]]] = {}
        positions: dict[int, Position] = {}
        for place, var in enumerate(sorted(code.live[index])):
            table = rings.positions.table_of(var)
            if table is not None:
                positions[id(table[0])] = table[0]
                live.setdefault(id(table[0]), []).append((place, table[1]))
        step = code.steps[index] if index < len(code.steps) else None
        if isinstance(step, Effect):
            for place, i in enumerate(step.relevant):
                table = rings.positions.table(step.args[i])
                if isinstance(table, tuple):
                    positions[id(table[0])] = table[0]
                    ready.setdefault(id(table[0]), []).append((place, table[1]))
        held = []
        for key, position in positions.items():
            ring = rings.of(position)
            if ring in rings.all:
                parts = tuple(live.get(key, ())), tuple(ready.get(key, ()))
                held.append(_Held(rings.all.index(ring), position, *parts))
        self._held[task, index] = held
        return held

    def _turn(self, steps: tuple[int, ...]) -> _Turn:
        turn = self._turns.get(steps)
        if turn is None:
            slots: dict[int, tuple[int, int]] = {}
            places: dict[int, int] = {}
            for ring, more in zip(self.rings.all, steps):
                for first in {*ring.slots, *ring.flips}:
                    slot, flip = first, 0
                    for _ in range(more):
                        flip ^= ring.flips.get(slot, 0)
                        slot = ring.slots.get(slot, slot)
                    slots[first] = slot, flip
                for first in ring.places:
                    place = first
                    for _ in range(more):
                        place = ring.places[place]
                    places[first] = place
            turn = self._turns[steps] = _Turn(slots, places)
        return turn

    def _world(self, turn: _Turn, slots: Any, seen: Any, flights: Any, phases: Any) -> Any:
        places = turn.places
        there = list(slots)
        there += [Slot(0, 0, 0, 0)] * (max(turn.slots, default=-1) + 1 - len(there))
        for slot, (to, flip) in turn.slots.items():
            one = slots[slot] if slot < len(slots) else Slot(0, 0, 0, 0)
            there[to] = one._replace(phase=one.phase ^ flip) if flip and one.wanted else one
        moved = [
            s._replace(
                place=places.get(s.place, s.place),
                known=self._bits(turn, s.known),
                fenced=self._bits(turn, s.fenced),
            )
            for s in seen
        ]
        signalled = [
            f._replace(signals=tuple(self._signal(turn, signal) for signal in f.signals))
            for f in flights
        ]
        known = [
            k._replace(slot=turn.slots.get(k.slot, (k.slot,))[0], known=self._bits(turn, k.known))
            for k in phases
        ]
        return tuple(there), tuple(sorted(moved)), tuple(signalled), tuple(sorted(known))

    @staticmethod
    def _signal(turn: _Turn, signal: Barrier) -> Barrier:
        to = turn.slots.get(signal.slot)
        return signal if to is None else replace(signal, slot=to[0])

    def _bits(self, turn: _Turn, bits: int) -> int:
        """Return who knows of something (`World`), with barriers where they go."""
        known = turn.bits.get(bits)
        if known is None:
            known = bits
            for slot in turn.slots:
                known &= ~(3 << self._first + 2 * slot)
            for slot, (to, _) in turn.slots.items():
                known |= (bits >> self._first + 2 * slot & 3) << self._first + 2 * to
            turn.bits[bits] = known
        return known
