"""Loops as instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_prove.bounds import Bounds, Range
from gluon_prove.code import (
    Branch,
    Enter,
    Flat,
    Jump,
    Leave,
    Loop,
    Move,
    Pure,
    Spec,
    Test,
    Used,
    definitions_of,
)
from gluon_prove.continued import Counted, Part
from gluon_prove.effects import Env
from gluon_prove.quiet import operands_within, ops_within
from gluon_prove.smt import Arithmetic
from gluon_prove.symbols import PROGRAM, increment, is_scalar, linear, symbolic
from gluon_prove.values import CannotSay, Term, term
from gluon_sim.tracing.ir import Block, Op, Value
from gluon_sim.tracing.types import ScalarType, TensorType

__all__ = ["Loops", "place_of"]


@dataclass
class _Carried:
    """A value that a loop carries from round to round.

    Args:
        names: its names there; in the body, the last.
        first: its value before.
        last: its value after a round.
    """

    names: list[Value]
    first: Spec
    last: Value


class Loops(Bounds):
    """The part of making code that knows loops.

    Attributes:
        context: the loops and choices around the current op.
        task: whose it is.
        flat: values that loops carry to count the rounds of those within them, as `flats` says.
        counted_loops: those whose bounds are terms, in the order of the code.
        parts: by task and rounds, loops that are a part of another one's range.
        stopped: by rounds, a loop of this task whose second part is to come.
    """

    def __init__(self, target: Any, num_warps: int, arithmetic: Optional[Arithmetic]):
        super().__init__(target, num_warps, arithmetic)
        self.context: tuple[Any, ...] = ()
        self.task = 0
        self.flat: dict[int, tuple[Loop, int, int]] = {}
        self.counted_loops: list[Counted] = []
        self.parts: dict[tuple[int, Term], Part] = {}
        self.stopped: dict[Term, Loop] = {}

    def block(self, block: Block, env: Env) -> Optional[Op]:
        """Return its ops and the one that ends it."""
        raise NotImplementedError

    def do_for(self, op: Op, env: Env) -> None:
        low, high, step = (self.spec(env, v) for v in op.args[:3])
        body = op.regions[0].blocks[0]
        init = self.specs(env, op.args[3])
        yielded = body.ops[-1].args[0] if body.ops and body.ops[-1].name == "yield_op" else []
        carried = [
            _Carried([value], first, last)
            for value, first, last in zip(body.arguments[1:], init, yielded)
        ]
        self.rounds(op, env, [body.arguments[0]], (low, high, step), carried, body)
        for result, one in zip(op.results, carried):
            env[id(result)] = env[id(one.names[0])]

    def rounds(
        self, op: Op, env: Env, induction: list[Value], bounds: tuple[Spec, Spec, Spec],
        carried: list[_Carried], body: Block,
    ) -> Loop:  # fmt: skip
        """Return a loop that counts.

        Args:
            induction: the name of its count.
            bounds: its start, its end, and its step.
        """
        vars: list[Optional[int]] = []
        for one in carried:
            var = None if one.last.resolve() is one.names[-1].resolve() else self.var()
            vars.append(var)
            for name in one.names:
                env[id(name)] = one.first if var is None else Spec(var=var)
        moved = [(v, one.first) for v, one in zip(vars, carried) if v is not None]
        self.emit(Move(op.loc, [v for v, _ in moved], [s for _, s in moved]))
        outer = dict(self.residues.inductions)
        part = self._part(bounds)
        loop, low, scaled = self.counter(op, env, induction, bounds, part)
        for one, var in zip(carried, vars) if part is None else ():
            if var is not None:
                value = one.names[-1]
                by = increment(value, one.last)
                if by is not None:
                    loop.linear[var] = by
                if by == 1 and id(value) in self.flat and loop.core is not None:
                    self.counted(self.flat[id(value)], loop, low, var)
        if part is None:
            self.flats(body, loop, low, carried)
        if part is None or part.first:
            self.all_loops.append((self.task, loop))
            self.emit(Enter(op.loc, loop, low))
            self.loops.append(loop)
        around = self.context
        places = tuple(place_of(s) for s in (low, loop.bound, loop.step))
        self.context = (*around, ("for", *places))
        exits: list[Any] = [Test(op.loc, loop)]
        head = self.emit(exits[0])
        if part is not None and part.first:
            exits.append(Branch(op.loc, Spec(), context=self.context))  # it may stop anywhere
            self.emit(exits[1])
        if scaled is not None:
            rounds, counts = self.var(), env[id(induction[0])].var
            assert counts is not None
            each, begin = Spec(value=scaled.step), Spec(value=scaled.low)
            self.emit(Pure(op.loc, "mul", [Spec(var=loop.counter), each], 64, rounds))
            self.emit(Pure(op.loc, "add", [Spec(var=rounds), begin], 64, counts))
        self.block(body, env)
        ends = [self.spec(env, one.last) for one in carried]
        next_ = self.var()
        type = induction[0].type
        bits = type.bits if isinstance(type, ScalarType) else 32
        self.emit(Pure(op.loc, "add", [Spec(var=loop.counter), loop.step], bits, next_))
        outs, args = [loop.counter], [Spec(var=next_)]
        for var, last in zip(vars, ends):
            if var is not None:
                outs.append(var)
                args.append(last)
        self.emit(Move(op.loc, outs, args))
        self.emit(Jump(op.loc, head))
        for exit in exits:
            exit.target = self.here
        if part is None or not part.first:
            self.loops.pop()
            self.emit(Leave(op.loc, loop))
        self.context, self.residues.inductions = around, outer
        return loop

    def _part(self, bounds: tuple[Spec, Spec, Spec]) -> Optional[Part]:
        """Return the range that a loop is a part of; None where it is none."""
        if any(spec.var is not None for spec in bounds):
            return None
        rounds = term("trips", *(spec.value for spec in bounds))
        part = self.parts.get((self.task, rounds))
        return part if part is None or part.first or part.whole in self.stopped else None

    def counter(
        self, op: Op, env: Env, induction: list[Value], bounds: tuple[Spec, Spec, Spec],
        part: Optional[Part] = None,
    ) -> tuple[Loop, Spec, Optional[Range]]:  # fmt: skip
        """Return a loop with a counter, and its start; where it counts rounds, also the range that converts them.

        Args:
            part: of a range that it has a part of: the second part continues the loop of the first one.
        """
        low, high, step = bounds
        counter = self.var()
        counts = Spec(var=counter)
        condition, start, skipped = self._start(low, step) if part is None else (None, low, [])
        if isinstance(start.value, int):
            low = start
        known = [s.var is not None or isinstance(s.value, int) for s in (low, high, step)]
        core: Optional[Term] = None
        scaled: Optional[Range] = None
        offset = 0
        if known[0] and known[2] and not known[1] and step.var is None:
            core, offset = linear(high.value)
            if isinstance(low.value, int):
                one = Range(core, offset, low.value, step.value)
                self.ranges.setdefault(one, set()).add(self.task)
                name = term("induction", core, low.value, step.value, *self.context[:1])
                bound = self.same.get(one)
                if bound is not None and one != Range(bound, 0, 0, 1):
                    counts = Spec(var=self.var())
                    core, offset = bound, 0
                    low, step, high = Spec(value=0), Spec(value=1), Spec(value=core)
                    scaled = one
                self.alias[counts.var or counter] = name
        elif part is None and isinstance(step.value, int) and self._unnamed(low, high):
            core = self.unknown()  # any number of rounds
            if not isinstance(low.value, int):
                counts = Spec(value=self.unknown())
                low, step = Spec(value=0), Spec(value=1)
            high = Spec(value=core)
        elif not all(known):
            if any(s.var is not None for s in bounds):
                raise CannotSay("the bounds of this loop cannot be followed", op.loc)
            self.counted_loops.append(
                Counted(self.task, self.context, low.value, high.value, step.value)
            )
            stopped = None
            if part is None:
                low, core = start, term("trips", start.value, high.value, step.value)
            else:
                low, core = Spec(value=part.low), part.whole
                stopped = None if part.first else self.stopped.pop(core)
            counter = counter if stopped is None else stopped.counter
            name = term("induction", core, *self.context[:1])
            counts = Spec(value=name)
            inductions = self.residues.inductions
            parts = (counter, low.value, step.value)
            inductions[name] = None if name in inductions else parts  # two loops may have a name
            low, step, high = Spec(value=0), Spec(value=1), Spec(value=core)
            if stopped is not None:
                for value in induction:
                    env[id(value)] = counts
                return stopped, low, None
        for value in induction:
            env[id(value)] = counts
        loop = Loop(op.loc, counter, step, high, core, offset, context=self.context)
        starts = [low.value + number * step.value for number in skipped] or [low.value]
        loop.low = min(starts) if isinstance(starts[0], int) else None
        low = self._chosen(op, condition, starts) if skipped else low
        if part is not None:
            self.stopped[part.whole] = loop
        return loop, low, scaled

    def _sources(self, *specs: Spec) -> list[Spec]:
        """Return the operands without variables that some operands are computed from, as far as there is code."""
        definitions = definitions_of([self.code])
        sources, todo, seen = [], list(specs), set[int]()
        while todo:
            spec = todo.pop()
            if spec.var is None:
                sources.append(spec)
            elif spec.var not in seen:
                seen.add(spec.var)
                for step, arg in definitions.get(spec.var, ()):
                    todo += (
                        [arg] if arg is not None else step.args if isinstance(step, Pure) else []
                    )
        return sources

    def _unnamed(self, *bounds: Spec) -> bool:
        """Return True if a bound is a variable that terms flow into: no state gives it a number."""
        moved = [spec for spec in bounds if spec.var is not None]
        return bool(moved) and any(isinstance(s.value, Term) for s in self._sources(*moved))

    def _counts_to_an_end(self, condition: Spec) -> bool:
        """Return True if a `while` ends by numbers of the program and of its arguments, and waits for no memory."""
        values = [spec.value for spec in self._sources(condition)]
        if not all(isinstance(value, (int, Term)) for value in values):
            return False
        terms = [value for value in values if isinstance(value, Term)]
        return bool(terms) and not any(map(_is_data, terms))

    @staticmethod
    def _start(low: Spec, step: Spec) -> tuple[Any, Spec, list[int]]:
        """Return the condition that chooses where a loop begins, its start without rounds that it skips, and how many it skips either way."""
        by, value = step.value, low.value
        if not isinstance(value, Term) or not isinstance(by, int) or by <= 0:
            return None, low, []
        condition, *ways = value.args if value.name == "select" else (None, value)
        if isinstance(condition, Term) and not condition.fixed:
            return None, low, []  # tasks may choose apart
        parts = [linear(way) if isinstance(way, Term) else (None, way) for way in ways]
        (core, first), (other, second) = parts[0], parts[-1]
        least = min(first, second) if core is None else 0
        rounds = [divmod(more - least, by) for _, more in parts]
        if core != other or any(left or number < 0 for number, left in rounds):
            return None, low, []
        start = Spec(value=least if core is None else core)
        return condition, start, [number for number, _ in rounds]

    def _chosen(self, op: Op, condition: Any, ways: Sequence[int]) -> Spec:
        """Return the first of two numbers where a condition holds, else the second; or the only one."""
        if len(ways) == 1:
            return Spec(value=ways[0])
        chosen, jump = Spec(var=self.var()), Jump(op.loc)
        assert chosen.var is not None
        branch = Branch(op.loc, Spec(value=condition), context=self.context)
        self.branches.append((self.task, branch))
        self.emit(branch)
        self.emit(Move(op.loc, [chosen.var], [Spec(value=ways[0])]))
        self.emit(jump)
        branch.target = self.here
        self.emit(Move(op.loc, [chosen.var], [Spec(value=ways[1])]))
        jump.target = branch.end = self.here
        return chosen

    def flats(self, body: Block, loop: Loop, low: Spec, carried: list[_Carried]) -> None:
        """Record the carried values that only serve inner loops, which continue a count over all rounds of this one.

        Each record holds the variable, this loop, the first value of its counter, and the first value of the count.
        """
        if loop.core is None or not loop.core.fixed or not isinstance(low.value, int):
            return
        for one in carried:
            value, last = one.names[-1], one.last.resolve()
            inner, place = last.owner, last.index
            if not isinstance(inner, Op) or inner.name != "for" or inner.block is not body:
                continue
            begin = one.first.value
            if isinstance(begin, int) and inner.args[3][place].resolve() is value.resolve():
                counting = inner.regions[0].blocks[0].arguments[1 + place]
                self.flat[id(counting)] = loop, low.value, begin

    def counted(self, around: tuple[Loop, int, int], loop: Loop, low: Spec, var: int) -> None:
        """Name the value from which a loop within another one continues to count."""
        outer, first, begin = around
        if loop.core is None or not loop.core.fixed or not isinstance(low.value, int):
            return
        count = term("flat", len(self.out.flats))
        self.out.flats.append(Flat(outer, loop, (first, low.value)))
        self.alias[var] = term("add", count, begin) if begin else count

    def do_while(self, op: Op, env: Env) -> None:
        before, after = (region.blocks[0] for region in op.regions)
        counts = self.counts(before, after, env)
        if counts is not None and self.spec(env, op.args[0][counts[0]]).var is None:
            return self.counting(op, env, *counts)
        if self.computes(op, env):
            return self.computed(op, env)
        vars = [self.var() for _ in before.arguments]
        self.emit(Move(op.loc, list(vars), self.specs(env, op.args[0])))
        for value, var in zip(before.arguments, vars):
            env[id(value)] = Spec(var=var)
        around, self.context = self.context, (*self.context, ("while", self.task, id(op)))
        head = self.here
        end = self.block(before, env)
        assert end is not None
        condition, passed = self.spec(env, end.args[0]), self.specs(env, end.args[1])
        if condition.var is None and not isinstance(condition.value, int):
            raise CannotSay(
                "the trip count of this loop depends on a value that is not followed", op.loc
            )
        inside = [self.var() for _ in passed]
        self.emit(Move(op.loc, list(inside), passed))
        branch = Branch(op.loc, condition, context=("while",))
        self.emit(branch)
        for value, var in zip(after.arguments, inside):
            env[id(value)] = Spec(var=var)
        last = self.block(after, env)
        assert last is not None
        self.emit(Move(op.loc, list(vars), self.specs(env, last.args[0]) if vars else []))
        self.emit(Jump(op.loc, head))
        if self._counts_to_an_end(condition):
            branch.rounds = True
            self.out.ends[op.loc.line] = None
        branch.target = self.here
        self.context = around
        for result, var in zip(op.results, inside):
            env[id(result)] = Spec(var=var)
        return None

    # ---- loops that only compute ------------------------------------------------------------------

    def acts(self, op: Op) -> bool:
        """Return whether more comes of an op than a value."""
        raise NotImplementedError

    def named(self, env: Env, value: Value) -> Optional[Any]:
        """Return the name of an operand, if it has one."""
        raise NotImplementedError

    def computes(self, op: Op, env: Env) -> bool:
        """Return whether a loop does nothing but compute values, of those that no state gives a number."""
        kinds = ScalarType, TensorType
        if not all(isinstance(result.type, kinds) for result in op.results):
            return False
        if any(self.acts(inner) for inner in ops_within(op)):
            return False
        specs = [env[id(v)] for v in operands_within(op) if id(v) in env]
        return any(spec.var is None and not isinstance(spec.value, int) for spec in specs)

    def computed(self, op: Op, env: Env) -> None:
        """Lower a loop that only computes, and is taken to end: to its results, which other tasks may compute alike."""
        data = [v for v in operands_within(op) if id(v) in env and isinstance(v.type, TensorType)]
        used = list({var for v in data if (var := env[id(v)].var) is not None})
        if used:
            self.emit(Used(op.loc, used, op))
        names = self.numbering.loop(op, lambda value: self.named(env, value))
        for index, result in enumerate(op.results):
            env[id(result)] = self.opaque(result, op, None if names is None else names[index])
        self.out.ends[op.loc.line] = None

    # ---- loops that count though they do not say so -------------------------------------------

    def counts(self, before: Block, after: Block, env: Env) -> Optional[tuple[int, Spec, Spec]]:
        """Return the value by which a `while` counts, its end, and its step: where they do not change, and the condition tests nothing else."""
        *asked, end = before.ops
        places = [value.resolve() for value in before.arguments]
        if any(op.name not in ("constant", "assert") and not is_scalar(op) for op in asked):
            return None
        if [value.resolve() for value in end.args[1]] != places:
            return None
        test = end.args[0].resolve().owner
        if not isinstance(test, Op) or test.name not in ("icmpSLT", "icmpSGT"):
            return None
        sides = [value.resolve() for value in test.args[:2]]
        counted, limit = sides if test.name == "icmpSLT" else sides[::-1]
        if counted not in places:
            return None
        position = places.index(counted)
        more = after.ops[-1].args[0][position].resolve().owner
        if not isinstance(more, Op) or more.name != "add":
            return None
        terms = [value.resolve() for value in more.args[:2]]
        mine = after.arguments[position].resolve()
        if (terms[0] is mine) == (terms[1] is mine):
            return None
        high = self.settled(env, limit)
        step = self.settled(env, terms[1] if terms[0] is mine else terms[0])
        if high is None or step is None or not self._above_zero(step):
            return None
        return position, Spec(value=high), Spec(value=step)

    def counting(self, op: Op, env: Env, position: int, high: Spec, step: Spec) -> None:
        """Return a `while` as a counted loop."""
        before, after = (region.blocks[0] for region in op.regions)
        carried, counts = [], [before.arguments[position], after.arguments[position]]
        init, yielded = self.specs(env, op.args[0]), after.ops[-1].args[0]
        for i, first in enumerate(init):
            if i != position:
                names = [before.arguments[i], after.arguments[i]]
                carried.append(_Carried(names, first, yielded[i]))
        loop = self.rounds(op, env, counts, (init[position], high, step), carried, after)
        for result, value in zip(op.results, before.arguments):
            env[id(result)] = env[id(value)]
        if env[id(op.results[position])].var != loop.counter:
            env[id(op.results[position])] = Spec(value=self.unknown())  # where the count ends

    def settled(self, env: Env, value: Value) -> Optional[Any]:
        """Return the value of a scalar in all rounds of a loop that is not begun; None where it may change."""
        value = value.resolve()
        known, owner = env.get(id(value)), value.owner
        if known is not None:
            return known.value if isinstance(known.value, (int, Term)) else None
        if not isinstance(owner, Op):
            return None
        if owner.name == "constant":
            return self.constant(owner).value
        if owner.name in PROGRAM:
            return term(PROGRAM[owner.name], owner.args[0])
        if not is_scalar(owner) or owner.name not in ("add", "sub", "mul"):
            return None
        args = [self.settled(env, arg) for arg in owner.args[:2]]
        assert isinstance(value.type, ScalarType)
        return None if None in args else symbolic(owner.name, args, value.type.bits)

    def _above_zero(self, step: Any) -> bool:
        if isinstance(step, int):
            return step > 0
        return self.arithmetic is not None and not self.arithmetic.feasible(
            [(step, -1 << 31, 0)], []
        )


def _is_data(value: Term) -> bool:
    """Return True if a term depends on memory, or on an op that is not followed."""
    if value.name in ("unknown", "data", "memory"):
        return True
    return any(_is_data(arg) for arg in value.args if isinstance(arg, Term))


def place_of(spec: Spec) -> Any:
    """Return the key of a value that two partitions share: its known value, else its variable."""
    return spec.value if spec.var is None else ("variable", spec.var)
