"""The instructions that the tasks of a program are walked by: straight lines and jumps.

Values that depend on nothing but constants, arguments and program ids are computed when the code is generated; the other instructions move numbers, views and work in flight between variables, and let ops take effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Collection, Iterable, Iterator, Optional, Sequence

from gluon_prove.values import Term
from gluon_sim.tracing.ir import Location, Op

__all__ = [
    "Branch", "Code", "Effect", "Enter", "Flat", "Fork", "Guess", "Instruction", "Join", "Jump", "Leave", "Loop", "Move", "Pure",
    "Spec", "Test", "Used", "View", "definitions_of",
]  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """An operand, in one of three forms.

    Args:
        var: a variable, which each state gives a value.
        value: the same in every state: a number, a term of the arguments, a buffer.
        name: of an operand that is not followed, see `numbering`.
    """

    var: Optional[int] = None
    value: Any = None
    name: Optional[Term] = None


@dataclass
class Instruction:
    loc: Location

    def uses(self) -> Iterator[int]:
        return iter(())

    def defines(self) -> Iterator[int]:
        return iter(())


def _vars(specs: Any) -> Iterator[int]:
    for spec in specs:
        if isinstance(spec, Spec) and spec.var is not None:
            yield spec.var
        elif isinstance(spec, list):
            yield from _vars(spec)


@dataclass
class Pure(Instruction):
    """`out = name(args)` of scalars with so many bits; as a term, where it is no number."""

    name: str
    args: list[Spec]
    bits: int
    out: int
    known: Optional[Term] = None

    def uses(self) -> Iterator[int]:
        return _vars(self.args)

    def defines(self) -> Iterator[int]:
        yield self.out


@dataclass
class Guess(Instruction):
    """`out` is a term modulo `modulus`: any number below that, chosen once."""

    known: Term
    modulus: int
    out: int

    def defines(self) -> Iterator[int]:
        yield self.out


@dataclass
class View(Instruction):
    """A part of a buffer at an index that is only known when it is walked."""

    op: Op
    args: list[Any]
    out: int
    make: Callable[..., Any]

    def uses(self) -> Iterator[int]:
        return _vars(self.args)

    def defines(self) -> Iterator[int]:
        yield self.out


@dataclass
class Effect(Instruction):
    """An op whose model has events.

    Args:
        args: its operands, values flattened; other arguments stand in `build`.
        relevant: the positions of operands that its events depend on.
        tokens: the positions of registers that work in flight may fill.
        choices: the positions of those that are true or false.
        outs: a variable for each result, or None.
        run: the events and results for values of the relevant operands.
    """

    op: Op
    args: list[Spec]
    relevant: list[int]
    tokens: list[int]
    choices: frozenset[int]
    outs: list[Optional[int]]
    run: Callable[[tuple[Any, ...]], tuple[tuple[Any, ...], list[Any]]]
    buffer: Optional[int] = None  # that it allocates anew

    def uses(self) -> Iterator[int]:
        return _vars(self.args[i] for i in (*self.relevant, *self.tokens))

    def defines(self) -> Iterator[int]:
        return (out for out in self.outs if out is not None)


@dataclass
class Used(Instruction):
    """Registers are read, which work in flight may yet fill."""

    args: list[int]
    op: Op

    def uses(self) -> Iterator[int]:
        return iter(self.args)


@dataclass
class Move(Instruction):
    """All at once."""

    outs: list[int]
    args: list[Spec]

    def uses(self) -> Iterator[int]:
        return _vars(self.args)

    def defines(self) -> Iterator[int]:
        return iter(self.outs)


@dataclass
class Jump(Instruction):
    target: int = -1


@dataclass
class Branch(Instruction):
    """A jump to `target` where the condition does not hold.

    Args:
        choice: the number by which all partitions take the same way where the condition is unknown;
            None where each partition chooses alone.
        end: where both ways meet again, while code is made; None where that is not known.
        free: nothing that is followed depends on it: each goes both ways.
        means: a loop and a number: the condition holds where the number is below the loop's core.
        rounds: it begins a round of a loop that may have any number of them.
    """

    condition: Spec
    target: int = -1
    context: tuple[Any, ...] = ()
    choice: Optional[int] = None
    end: Optional[int] = None
    free: bool = False
    means: Optional[tuple[Loop, int]] = None
    rounds: bool = False

    def uses(self) -> Iterator[int]:
        return iter(()) if self.free else _vars([self.condition])


@dataclass
class Loop:
    """A counted loop.

    Args:
        counter: its variable.
        step: of the counter; None where it is only known when the loop is entered.
        bound: the end of the counter: a known part, which is a term or an int, plus a number.
        core, offset: the bound as an unknown and a number; core None where it is known or a variable.
        linear: carried variables that each round adds a constant to.
        context: the loops and choices around it.
        root: the number of the core.
        low: where the counter begins, if that is a number.
        guarded: a condition around the loop skips it, only where it has no round.
    """

    loc: Location
    counter: int
    step: Spec
    bound: Spec
    core: Optional[Term]
    offset: int
    linear: dict[int, int] = field(default_factory=dict)
    context: tuple[Any, ...] = ()
    root: Optional[int] = None
    low: Optional[int] = None
    guarded: bool = False

    @property
    def place(self) -> tuple[Any, ...]:
        """Return the loops and choices that decide how often the loop is begun, or skipped without a round."""
        return self.context[:-1] if self.guarded else self.context


@dataclass(frozen=True)
class Flat:
    """A count of the rounds of a loop that each round of another one begins anew, with the same bounds.

    Args:
        lows: where the counters of both begin.
    """

    outer: Loop
    inner: Loop
    lows: tuple[int, int]


@dataclass
class Enter(Instruction):
    loop: Loop
    low: Spec

    def uses(self) -> Iterator[int]:
        yield from _vars([self.low, self.loop.step, self.loop.bound])
        yield from self.loop.linear

    def defines(self) -> Iterator[int]:
        yield self.loop.counter


@dataclass
class Test(Instruction):
    """Into the loop, or to `target`."""

    loop: Loop
    target: int = -1

    def uses(self) -> Iterator[int]:
        yield self.loop.counter
        yield from _vars([self.loop.bound, self.loop.step])


@dataclass
class Leave(Instruction):
    loop: Loop
    live: list[int] = field(default_factory=list)


@dataclass
class Fork(Instruction):
    """Partitions start; operands of each as (its variable, ours)."""

    tasks: list[int]
    passed: list[list[tuple[int, Spec]]]

    def uses(self) -> Iterator[int]:
        for pairs in self.passed:
            yield from _vars([spec for _, spec in pairs])


@dataclass
class Join(Instruction):
    tasks: list[int] = field(default_factory=list)


@dataclass
class Code:
    """The code of one task.

    Attributes:
        active: at each instruction, the loops it is inside of.
        live: at each instruction, the variables that are read from there on.
        data: variables of data, which is followed only as the target of work in flight.
    """

    name: str
    steps: list[Instruction] = field(default_factory=list)
    live: list[frozenset[int]] = field(default_factory=list)
    active: list[tuple[Loop, ...]] = field(default_factory=list)
    data: set[int] = field(default_factory=set)

    def finish(self) -> None:
        """Drop unused instructions, and compute live ranges."""
        self._choices()
        self._drop()
        for step in self.steps:
            if isinstance(step, Enter):
                step.loop.linear = {v: c for v, c in step.loop.linear.items() if v in self._ever}
        self._shorten()
        self._live()

    def without(self, places: Collection[int]) -> Code:
        """Return the code without the instructions at some places, and without all that only they need."""
        steps = [
            Jump(step.loc, i + 1) if i in places else replace(step) if isinstance(step, (Branch, Jump, Move, Test)) else step
            for i, step in enumerate(self.steps)
        ]  # fmt: skip
        code = Code(self.name, steps, active=self.active, data=self.data)
        changed = True
        while changed:
            code._choices()
            code._drop()
            changed = False
            for index, step in enumerate(code.steps):
                if isinstance(step, Enter) and code._is_empty(step.loop):
                    code.steps[index] = Jump(step.loc, code._after(step.loop))
                    changed = True
        code._drop()
        code._shorten()
        code._live()
        return code

    def _after(self, loop: Loop) -> int:
        """Return the instruction behind a loop."""
        return next(
            i + 1 for i, s in enumerate(self.steps) if isinstance(s, Leave) and s.loop is loop
        )

    def _is_empty(self, loop: Loop) -> bool:
        """Return whether nothing comes of a loop's rounds."""
        inside = [s for s, loops in zip(self.steps, self.active) if loop in loops]
        kinds = (Guess, Pure, View, Move, Jump, Test, Enter, Leave)
        after = self._after(loop)
        live = self.live[after]
        return all(isinstance(s, kinds) and not live & {*s.defines()} for s in inside)

    def _drop(self) -> None:
        """Drop unused instructions, and compute live ranges."""
        needed = self._needed()
        for i, step in enumerate(self.steps):
            if isinstance(step, (Guess, Pure, View)) and step.out not in needed:
                self.steps[i] = Jump(step.loc, i + 1)
            elif isinstance(step, Move):
                kept = [k for k, out in enumerate(step.outs) if out in needed]
                step.outs = [step.outs[k] for k in kept]
                step.args = [step.args[k] for k in kept]
        while True:
            self._live()
            idle = [
                i
                for i, step in enumerate(self.steps)
                if isinstance(step, (Guess, Pure, View))
                and (i + 1 == len(self.steps) or step.out not in self.live[i + 1])
            ]
            moved = False
            for i, step in enumerate(self.steps):
                if isinstance(step, Move):
                    after = self.live[i + 1] if i + 1 < len(self.steps) else frozenset()
                    kept = [k for k, out in enumerate(step.outs) if out in after]
                    if len(kept) < len(step.outs):
                        step.outs = [step.outs[k] for k in kept]
                        step.args = [step.args[k] for k in kept]
                        moved = True
            for i in idle:
                self.steps[i] = Jump(self.steps[i].loc, i + 1)
            if not idle and not moved:
                break

    def _needed(self) -> set[int]:
        """Return the variables that anything but further values of themselves comes of."""
        sources: dict[int, list[int]] = {}
        todo: list[int] = []
        for step in self.steps:
            if isinstance(step, Move):
                for out, arg in zip(step.outs, step.args):
                    sources.setdefault(out, []).extend(_vars([arg]))
            elif isinstance(step, (Guess, Pure, View)):
                sources.setdefault(step.out, []).extend(step.uses())
            elif isinstance(step, Enter):
                todo += _vars([step.low, step.loop.step, step.loop.bound])
            else:
                todo += step.uses()
        needed: set[int] = set()
        while todo:
            var = todo.pop()
            if var not in needed:
                needed.add(var)
                todo += sources.get(var, ())
        return needed

    def _choices(self) -> None:
        """Leave out choices that nothing comes of, and free those of which only data does."""
        idle = [index for index, step in enumerate(self.steps) if self._idle(index, step)]
        ways = {index: range(index + 1, self.steps[index].end or 0) for index in idle}  # type: ignore[attr-defined]
        around: dict[int, list[int]] = {}
        for index, inside in ways.items():
            for place in inside:
                around.setdefault(place, []).append(index)
        needed: set[int] = set()
        todo = [
            v
            for index, step in enumerate(self.steps)
            if not isinstance(step, (Guess, Pure, View, Move, Enter)) and index not in ways
            for v in step.uses()
        ]
        todo += [
            v
            for s in self.steps
            if isinstance(s, Enter)
            for v in _vars([s.low, s.loop.step, s.loop.bound])
        ]
        definitions: dict[int, list[tuple[int, list[int]]]] = {}
        for index, step in enumerate(self.steps):
            if isinstance(step, Move):
                for out, arg in zip(step.outs, step.args):
                    definitions.setdefault(out, []).append((index, list(_vars([arg]))))
            elif isinstance(step, (Guess, Pure, View)):
                definitions.setdefault(step.out, []).append((index, list(step.uses())))
        kept: set[int] = set()
        while todo:
            var = todo.pop()
            if var in needed:
                continue
            needed.add(var)
            for index, uses in definitions.get(var, ()):
                todo += uses
                if var in self.data:
                    continue
                for branch in around.get(index, ()):
                    if branch not in kept:
                        kept.add(branch)
                        todo += self.steps[branch].uses()
        for index, inside in ways.items():
            step = self.steps[index]
            assert isinstance(step, Branch)
            steps = [self.steps[i] for i in inside]
            if index in kept:
                continue
            if any(isinstance(s, Used) or set(s.defines()) & needed for s in steps):
                step.free = True
            else:
                self.steps[index] = Jump(step.loc, step.end or 0)

    def _idle(self, index: int, step: Instruction) -> bool:
        """Return whether both ways of a branch handle data only, as far as they are followed."""
        if not isinstance(step, Branch) or step.end is None:
            return False
        inside = self.steps[index + 1 : step.end]
        return all(
            isinstance(s, (Guess, Pure, View, Move, Jump, Used))
            or isinstance(s, Branch)
            and s.end is not None
            for s in inside
        )

    def _shorten(self) -> None:
        """Leave out jumps to the next instruction."""
        places, count = [], 0
        for index, step in enumerate(self.steps):
            places.append(count)
            count += not (isinstance(step, Jump) and step.target == index + 1)
        places.append(count)
        kept = [i for i in range(len(self.steps)) if places[i] != places[i + 1]]
        self.steps = [self.steps[i] for i in kept]
        self.active = [self.active[i] for i in kept]
        for step in self.steps:
            if isinstance(step, (Jump, Branch, Test)):
                step.target = places[step.target]
            if isinstance(step, Branch) and step.end is not None:
                step.end = places[step.end]

    def next(self, index: int) -> list[int]:
        """Return the instructions that may follow one."""
        step = self.steps[index]
        if isinstance(step, Jump):
            return [step.target]
        more = [step.target] if isinstance(step, (Branch, Test)) else []
        return [index + 1, *more]

    def leads_to(self, places: Sequence[bool]) -> list[bool]:
        """Return for each instruction, and the end, whether one of some instructions comes from there on."""
        leads = [*places, False]
        changed = True
        while changed:
            changed = False
            for index in range(len(places) - 1, -1, -1):
                if not leads[index] and any(leads[after] for after in self.next(index)):
                    leads[index] = changed = True
        return leads

    def _live(self) -> None:
        count = len(self.steps)
        live: list[frozenset[int]] = [frozenset()] * (count + 1)
        self._ever = {v for s in self.steps if not isinstance(s, Enter) for v in s.uses()}
        changed = True
        while changed:
            changed = False
            for index in range(count - 1, -1, -1):
                step = self.steps[index]
                out: frozenset[int] = frozenset().union(*(live[n] for n in self.next(index)))
                uses = set(step.uses())
                if isinstance(step, Enter):
                    uses -= set(step.loop.linear) - out
                alive = (out - set(step.defines())) | uses
                if alive != live[index]:
                    live[index], changed = alive, True
        self.live = live[:count] + [frozenset()]


def definitions_of(codes: Iterable[Code]) -> dict[int, list[tuple[Instruction, Optional[Spec]]]]:
    """Return number of a variable -> the instructions that define it, each with what a `Move` gives it, None of others."""
    definitions: dict[int, list[tuple[Instruction, Optional[Spec]]]] = {}
    for step in (step for code in codes for step in code.steps):
        if isinstance(step, Move):
            for out, arg in zip(step.outs, step.args):
                definitions.setdefault(out, []).append((step, arg))
        else:
            for out in step.defines():
                definitions.setdefault(out, []).append((step, None))
    return definitions
