"""Loops as instructions."""

from __future__ import annotations

from typing import Any, Optional

from gluon_sim.prove.bounds import Bounds
from gluon_sim.prove.code import Branch, Enter, Flat, Jump, Leave, Loop, Move, Pure, Spec, Test
from gluon_sim.prove.effects import Env
from gluon_sim.prove.smt import Arithmetic
from gluon_sim.prove.symbols import increment, linear
from gluon_sim.prove.values import CannotSay, Term, term
from gluon_sim.record.ir import Block, Op
from gluon_sim.record.types import ScalarType

__all__ = ["Loops", "place_of"]


class Loops(Bounds):
    """The part of making code that knows loops.

    Attributes:
        context: the loops and choices around what comes now.
        task: whose it is.
        flat: what loops carry to count the rounds of those within them, as `flats` says.
    """

    def __init__(self, target: Any, num_warps: int, arithmetic: Optional[Arithmetic]):
        super().__init__(target, num_warps, arithmetic)
        self.context: tuple[Any, ...] = ()
        self.task = 0
        self.flat: dict[int, tuple[Loop, int, int]] = {}

    def block(self, block: Block, env: Env) -> Optional[Op]:
        """Its ops; the one that ends it."""
        raise NotImplementedError

    def do_for(self, op: Op, env: Env) -> None:
        low, high, step = (self.spec(env, v) for v in op.args[:3])
        body = op.regions[0].blocks[0]
        init = self.specs(env, op.args[3])
        yielded = body.ops[-1].args[0] if body.ops and body.ops[-1].name == "yield_op" else []
        induction, carried = body.arguments[0], body.arguments[1:]
        vars: list[Optional[int]] = []
        for value, first, last in zip(carried, init, yielded):
            same = last.resolve() is value.resolve()
            var = None if same else self.var()
            vars.append(var)
            env[id(value)] = first if var is None else Spec(var=var)
        moved = [(v, s) for v, s in zip(vars, init) if v is not None]
        self.emit(Move(op.loc, [v for v, _ in moved], [s for _, s in moved]))
        counter = self.var()
        known = [s.var is not None or isinstance(s.value, int) for s in (low, high, step)]
        core: Optional[Term] = None
        offset = 0
        if known[0] and known[2] and not known[1] and step.var is None:
            core, offset = linear(high.value)
            env[id(induction)] = Spec(var=counter)
            if isinstance(low.value, int):
                self.alias[counter] = term(
                    "induction", core, low.value, step.value, *self.context[:1]
                )
        elif all(known):
            env[id(induction)] = Spec(var=counter)
        else:
            if any(s.var is not None for s in (low, high, step)):
                raise CannotSay("the bounds of this loop cannot be followed", op.loc)
            core = term("trips", low.value, high.value, step.value)
            env[id(induction)] = Spec(value=term("induction", core, *self.context[:1]))
            low, step, high = Spec(value=0), Spec(value=1), Spec(value=core)
        loop = Loop(op.loc, counter, step, high, core, offset, context=self.context)
        for value, var, last in zip(carried, vars, yielded):
            if var is not None:
                by = increment(value, last)
                if by is not None:
                    loop.linear[var] = by
                if by == 1 and id(value) in self.flat and loop.core is not None:
                    self.counted(self.flat[id(value)], loop, low, var)
        if yielded:
            self.flats(op, loop, low, init)
        self.all_loops.append((self.task, loop))
        self.emit(Enter(op.loc, loop, low))
        around = self.context
        bounds = tuple(place_of(s) for s in (low, high, step))
        self.context = (*around, ("for", *bounds))
        self.loops.append(loop)
        test = Test(op.loc, loop)
        head = self.emit(test)
        end = self.block(body, env)
        ends = self.specs(env, end.args[0]) if end is not None and yielded else []
        next_ = self.var()
        step_of = step if step.value is not None or step.var is not None else Spec(value=1)
        bits = induction.type.bits if isinstance(induction.type, ScalarType) else 32
        self.emit(Pure(op.loc, "add", [Spec(var=counter), step_of], bits, next_))
        outs, args = [counter], [Spec(var=next_)]
        for var, last_spec in zip(vars, ends):
            if var is not None:
                outs.append(var)
                args.append(last_spec)
        self.emit(Move(op.loc, outs, args))
        self.emit(Jump(op.loc, head))
        test.target = self.here
        self.loops.pop()
        self.emit(Leave(op.loc, loop))
        self.context = around
        for result, value in zip(op.results, carried):
            env[id(result)] = env[id(value)]

    def flats(self, op: Op, loop: Loop, low: Spec, init: list[Spec]) -> None:
        """Note what a loop carries only to have loops within it count on: their variable, this loop,
        where its counter begins, and where the count does."""
        body = op.regions[0].blocks[0]
        if loop.core is None or not loop.core.fixed or not isinstance(low.value, int):
            return
        for value, first, last in zip(body.arguments[1:], init, body.ops[-1].args[0]):
            inner, place = last.resolve().owner, last.resolve().index
            if not isinstance(inner, Op) or inner.name != "for" or inner.block is not body:
                continue
            if isinstance(first.value, int) and inner.args[3][place].resolve() is value.resolve():
                counting = inner.regions[0].blocks[0].arguments[1 + place]
                self.flat[id(counting)] = loop, low.value, first.value

    def counted(self, around: tuple[Loop, int, int], loop: Loop, low: Spec, var: int) -> None:
        """Name what a loop within another one counts on."""
        outer, first, begin = around
        if loop.core is None or not loop.core.fixed or not isinstance(low.value, int):
            return
        count = term("flat", len(self.out.flats))
        self.out.flats.append(Flat(outer, loop, (first, low.value)))
        self.alias[var] = term("add", count, begin) if begin else count

    def do_while(self, op: Op, env: Env) -> None:
        before, after = (region.blocks[0] for region in op.regions)
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
            raise CannotSay("how often this loop runs depends on what is not followed", op.loc)
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
        branch.target = self.here
        self.context = around
        for result, var in zip(op.results, inside):
            env[id(result)] = Spec(var=var)


def place_of(spec: Spec) -> Any:
    """What makes it the same in two partitions: what is known of it, else nothing."""
    return spec.value if spec.var is None else ("variable", spec.var)
