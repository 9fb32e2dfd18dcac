"""Positions on rings of slots: the variables that hold a slot and its parity, and what follows from them.

A task walks over a ring with a slot `i` and a parity `p`, which each step takes on to `(i + 1, p)`, or to
`(0, 1 - p)` behind the last slot. Both are a number modulo twice the slots. `positions_of` finds these
variables in the code of all tasks; a `Position` says of every variable that is computed from them which
value it has at each of these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence

from gluon_prove.code import Code, Effect, Instruction, Move, Pure, Spec, View, definitions_of
from gluon_prove.values import CannotSay, apply
from gluon_sim.errors import SimulatorError
from gluon_sim.memory.shared import SharedView

__all__ = ["Position", "Positions"]

_MOST = 64  # slots


@dataclass(eq=False)
class Position:
    """A slot and a parity that a task walks with.

    Args:
        slots: of the ring.
        index: the variable of the slot; None for a ring of one.
        parity: the variable of the parity; None where there is none.
    """

    slots: int
    index: Optional[int] = None
    parity: Optional[int] = None

    @property
    def count(self) -> int:
        """Return how many values it has."""
        return self.slots * (1 if self.parity is None else 2)

    def at(self, number: int, var: int) -> int:
        """Return the value of the slot or of the parity at a number."""
        return number % self.slots if var == self.index else number // self.slots % 2

    @property
    def vars(self) -> list[int]:
        return [var for var in (self.index, self.parity) if var is not None]


Table = tuple[Position, tuple[Any, ...]]


class Positions:
    """The positions in the code of tasks.

    Args:
        same: returns one object for all equal views.

    Attributes:
        of: by variable of a slot or a parity, its position.
    """

    def __init__(self, codes: Sequence[Code], same: Any):
        self.same = same
        self.definitions = definitions_of(codes)
        self.moved = {
            var
            for var, several in self.definitions.items()
            if all(arg is not None for _, arg in several)
        }
        self._tables: dict[int, Optional[Table]] = {}
        self.of: dict[int, Position] = {}
        steps = [step for code in codes for step in code.steps]
        slots = self._slots(steps)
        self._pair(slots, self._parities(slots, steps))

    # ---- the variables ---------------------------------------------------------------------------

    def roots(self, var: int) -> frozenset[int]:
        """Return the variables that loops and choices carry, from which a variable is computed."""
        roots: set[int] = set()
        seen: set[int] = set()
        todo = [var]
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            if one in self.moved:
                roots.add(one)
                continue
            for step, _ in self.definitions.get(one, ()):
                todo += step.uses() if isinstance(step, (Pure, View)) else ()
        return frozenset(roots)

    def _slots(self, steps: Sequence[Instruction]) -> dict[int, int]:
        """Return the variables of slots, with how many there are."""
        slots: dict[int, int] = {}
        todo: list[tuple[frozenset[int], int]] = []
        for step in steps:
            if isinstance(step, View) and step.op.name == "memdesc_index":
                buffer, index = step.args[0].value, step.args[1].var
                if isinstance(buffer, SharedView) and index is not None:
                    todo.append((self.roots(index), buffer.shape[0]))
        unlike: set[int] = set()
        while todo:
            roots, count = todo.pop()
            if len(roots) != 1 or count > _MOST:
                continue
            (var,) = roots
            if var in slots:
                unlike |= {var} if slots[var] != count else set()
                continue
            slots[var] = count
            todo += [(self.roots(source), count) for source in self._sources(var)]
        return {var: count for var, count in slots.items() if var not in unlike}

    def _sources(self, var: int) -> Iterator[int]:
        for _, arg in self.definitions[var]:
            if arg is not None and arg.var is not None:
                yield arg.var

    def _parities(
        self, slots: dict[int, int], steps: Sequence[Instruction]
    ) -> dict[int, Optional[int]]:
        """Return the variables of parities, with that of the slot; None for a ring of one."""
        parities: dict[int, Optional[int]] = {}
        unlike: set[int] = set()
        todo: list[tuple[int, Optional[int]]] = []
        for step in steps:
            if not isinstance(step, Effect):
                continue
            vars = [step.args[i].var for i in step.relevant if i not in step.choices]
            if len(vars) > 2:
                continue
            roots: set[int] = set()
            roots = roots.union(*(self.roots(var) for var in vars if var is not None))
            places = [var for var in roots if var in slots]
            for var in roots - {*places}:
                todo.append((var, places[0] if places else None))
            if len(places) > 1 or len(roots) > 1 + len(places):
                unlike |= roots
        while todo:
            var, index_ = todo.pop()
            if var in parities:
                unlike |= {var} if parities[var] != index_ else set()
                continue
            parities[var] = index_
            for step, arg in self.definitions[var]:
                if arg is None or arg.var is None:
                    continue
                assert isinstance(step, Move)
                sources: frozenset[int] = frozenset()
                if index_ is not None and index_ in step.outs:
                    place = step.args[step.outs.index(index_)].var
                    sources = self.roots(place) if place is not None else sources
                index = next(iter(sources & slots.keys()), None)
                more = self.roots(arg.var) - slots.keys()
                todo += [(one, index) for one in more if index_ is None or index is not None]
        return {var: index for var, index in parities.items() if var not in unlike}

    def _pair(self, slots: dict[int, int], parities: dict[int, Optional[int]]) -> None:
        of_slot: dict[int, list[int]] = {}
        for parity, index in parities.items():
            if index is None:
                self.of[parity] = Position(1, None, parity)
            else:
                of_slot.setdefault(index, []).append(parity)
        for index, count in slots.items():
            paired = of_slot.get(index, [])
            if len(paired) < 2:
                position = Position(count, index, *paired)
                self.of.update(dict.fromkeys(position.vars, position))

    # ---- what is computed from them ---------------------------------------------------------------

    def table(self, spec: Spec) -> Any:
        """Return an operand: a `Table` of its values at each number of a position; else its value, where all
        states have the same; None where neither is known."""
        if spec.var is None:
            return spec.value if isinstance(spec.value, (int, SharedView)) else None
        return self.table_of(spec.var)

    def table_of(self, var: int) -> Optional[Table]:
        if var not in self._tables:
            self._tables[var] = None  # until it is known
            self._tables[var] = self._computed(var)
        return self._tables[var]

    def _computed(self, var: int) -> Optional[Table]:
        position = self.of.get(var)
        if position is not None:
            return position, tuple(position.at(n, var) for n in range(position.count))
        several = self.definitions.get(var, [])
        step = several[0][0] if len(several) == 1 else None
        if not isinstance(step, (Pure, View)):
            return None
        args = [self.table(arg) for arg in step.args]
        tables = [arg for arg in args if isinstance(arg, tuple)]
        if any(arg is None for arg in args) or len({id(position) for position, _ in tables}) != 1:
            return None
        position = tables[0][0]
        values = []
        for number in range(position.count):
            now = [arg[1][number] if isinstance(arg, tuple) else arg for arg in args]
            try:
                if isinstance(step, View):
                    values.append(self.same(step.make(*now)))
                else:
                    values.append(apply(step.name, now, step.bits, lambda root: False))
            except (CannotSay, SimulatorError):
                return None
        return position, tuple(values)
