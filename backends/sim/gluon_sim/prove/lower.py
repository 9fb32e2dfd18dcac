"""From a recorded program to the code of its tasks."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from gluon_core.contract.reference import wants_machine
from gluon_sim.memory.shared import SharedView
from gluon_sim.prove.code import (
    Branch,
    Code,
    Effect,
    Enter,
    Flat,
    Fork,
    Join,
    Jump,
    Leave,
    Loop,
    Move,
    Pure,
    Spec,
    Test,
    Used,
)
from gluon_sim.prove.effects import Effects, Env, Lowered
from gluon_sim.prove.events import Noter
from gluon_sim.prove.numbering import Numbering
from gluon_sim.prove.smt import Arithmetic
from gluon_sim.prove.steps import Awaited, Fetched, Ring
from gluon_sim.prove.symbols import increment, linear, symbolic, whole
from gluon_sim.prove.values import CannotSay, Term, term
from gluon_sim.record.arith import ELEMENTWISE
from gluon_sim.record.ir import Block, Function, Location, Op, Region, Value
from gluon_sim.record.program import Program
from gluon_sim.record.types import (
    DescriptorType,
    MemDescType,
    PointerType,
    ScalarType,
    TensorType,
)
from gluon_sim.run.lookup import Models
from gluon_sim.run.ops import OPS
from gluon_sim.run.regions import REGIONS

__all__ = ["Lowered", "lower"]

_IGNORED = frozenset(
    "barrier assume print breakpoint assert local_dealloc cluster_barrier cluster_sync poison "
    "tiles_begun tiles_fetched tiles_awaited".split()
)
_CASTS = frozenset("int_cast bitcast splat unsplat convert_layout".split())
_VIEWS = frozenset(
    "memdesc_index memdesc_subslice memdesc_trans memdesc_reshape memdesc_reinterpret".split()
)
_EFFECTS = frozenset(
    "local_alloc local_load local_store deferred_store deferred_commit deferred_wait deferred_read "
    "deferred_read_wait deferred_fence".split()
)
_WHOLE = {"local_gather": "read", "local_scatter": "write"}
_REFUSED = {
    "atomic_poll": "it waits for other programs",
    "local_atomic_scatter_rmw": "atomics on shared memory are not followed",
    "inline_asm": "inline assembly is not followed",
}


class _Lowering(Effects):
    def __init__(
        self, program: Program, models: Models, target: Any, num_warps: int, values: Sequence[Any],
        arithmetic: Optional[Arithmetic],
    ):  # fmt: skip
        self.arithmetic = arithmetic
        self.program = program
        self.models = models
        self.target = target
        self.values = values
        super().__init__(target, num_warps)
        self.context: tuple[Any, ...] = ()
        self.all_loops: list[tuple[int, Loop]] = []
        self.branches: list[tuple[int, Branch]] = []
        self.task = 0
        self.depth = 0
        self.parallel = False
        self.flat: dict[int, tuple[Loop, int, int]] = {}  # as `flats` says
        self.rings: dict[int, list[Ring]] = {}  # of pipelines, by task
        self.of_buffer: dict[int, tuple[int, Ring]] = {}
        self.alias: dict[int, Term] = {}  # counters, and what follows from them, as terms

    # ---- functions and blocks ------------------------------------------------------------------

    def function(self, function: Function, args: list[Spec]) -> list[Spec]:
        around = self.context
        self.depth += 1
        if self.depth > 60:
            raise CannotSay("calls are nested too deep", function.loc)
        env: Env = {}
        blocks = function.body.blocks
        for value, arg in zip(blocks[0].arguments, args):
            env[id(value)] = arg
        if len(blocks) == 1:
            end = self.block(blocks[0], env)
            assert end is not None
            found = self.specs(env, end.args[0])
        else:
            found = self.graph(blocks, env)
        self.depth -= 1
        self.context = around
        return found

    def graph(self, blocks: Sequence[Block], env: Env) -> list[Spec]:
        """Blocks joined by branches that lead forward, as early returns make them."""
        labels: dict[int, int] = {}
        fixes: list[tuple[Any, Block]] = []
        ends: list[Jump] = []
        results: Optional[list[int]] = None
        for block in blocks[1:]:
            for value in block.arguments:
                env[id(value)] = Spec(var=self.var())
        for block in blocks:
            labels[id(block)] = self.here
            end = self.block(block, env)
            assert end is not None
            if end.name == "ret":
                values = self.specs(env, end.args[0])
                if results is None:
                    results = [self.var() for _ in values]
                self.emit(Move(end.loc, list(results), values))
                ends.append(Jump(end.loc))
                self.emit(ends[-1])
            elif end.name == "branch":
                self.arrive(end.args[0], self.specs(env, end.args[1]), env, end.loc)
                jump = Jump(end.loc)
                fixes.append((jump, end.args[0]))
                self.emit(jump)
            else:
                condition = self.spec(env, end.args[0])
                branch = Branch(end.loc, condition, context=self.context)
                self.branches.append((self.task, branch))
                fixes.append((branch, end.args[2]))
                self.emit(branch)
                jump = Jump(end.loc)
                fixes.append((jump, end.args[1]))
                self.emit(jump)
                # what comes now is done by some only; nobody elsewhere is taken to do it in step
                self.context = (*self.context, ("return", self.task, id(branch)))
        for step, block in fixes:
            step.target = labels[id(block)]
        for step in ends:
            step.target = self.here
        return [Spec(var=v) for v in results or ()]

    def arrive(self, block: Block, values: list[Spec], env: Env, loc: Location) -> None:
        outs = [env[id(v)].var for v in block.arguments]
        if outs:
            self.emit(Move(loc, [o for o in outs if o is not None], values))

    def block(self, block: Block, env: Env) -> Optional[Op]:
        for op in block.ops:
            end = self.op(op, env)
            if end:
                return op
        return None

    def op(self, op: Op, env: Env) -> bool:
        """One op; true for the end of a block."""
        name = op.name
        if name in (
            "ret",
            "branch",
            "cond_branch",
            "yield_op",
            "condition_op",
            "warp_yield",
            "warp_return",
        ):
            return True
        if name == "constant":
            env[id(op.results[0])] = self.constant(op)
        elif name in ("if", "for", "while", "call", "warp_specialize"):
            getattr(self, "do_" + name)(op, env)
        elif name in _REFUSED:
            raise CannotSay(f"`{name}`: {_REFUSED[name]}", op.loc)
        elif name in _VIEWS:
            self.view(op, env)
        elif name == "get_program_id":
            env[id(op.results[0])] = Spec(value=term("program", op.args[0]))
        elif name == "get_num_programs":
            env[id(op.results[0])] = Spec(value=term("programs", op.args[0]))
        elif self.scalar(op):
            self.pure(op, env)
        elif name in _IGNORED:
            if name.startswith("tiles_"):
                self.tiles(op, env)
            for result in op.results:
                env[id(result)] = self.constant(op) if name == "poison" else Spec()
        else:
            model = None if name in REGIONS or name in ELEMENTWISE else self.models(name)
            if name in _EFFECTS:
                self.effect(op, env, OPS[name])
            elif name in _WHOLE:
                self.effect(op, env, whole(_WHOLE[name]))
            elif name not in OPS and model is not None and wants_machine(model):
                self.effect(op, env, model)
            else:
                self.data(op, env)
        return False

    @staticmethod
    def scalar(op: Op) -> bool:
        if op.name not in ELEMENTWISE and op.name not in _CASTS:
            return False
        if len(op.results) != 1:
            return False
        types = [op.results[0].type, *(v.type for v in op.operands())]
        return all(isinstance(t, ScalarType) and not t.is_float for t in types)

    # ---- data ----------------------------------------------------------------------------------

    def data(self, op: Op, env: Env) -> None:
        """An op on what is not followed; registers in flight must have landed."""
        if "store" in op.name or "atomic" in op.name:
            self.out.stores[op] = None
        used = []
        for value in op.operands():
            if isinstance(value.type, MemDescType):
                raise CannotSay(f"`{op.name}` of a buffer is not followed", op.loc)
            found = self.spec(env, value)
            if found.var is not None and isinstance(value.type, TensorType):
                used.append(found.var)
        if used:
            self.emit(Used(op.loc, used, op))
        names = self.numbering.of(op, [self.named(env, v) for v in op.operands()])
        for at, result in enumerate(op.results):
            env[id(result)] = self.opaque(result, op, None if names is None else names[at])

    def named(self, env: Env, value: Value) -> Optional[Any]:
        """What an operand is called, if it has a name."""
        found = self.spec(env, value)
        if found.var is not None:
            return self.alias.get(found.var)
        return found.value if isinstance(found.value, (int, Term)) else found.name

    def pure(self, op: Op, env: Env) -> None:
        args = self.specs(env, list(op.operands()))
        type = (
            op.results[0].type
            if op.name in _CASTS or op.name == "select"
            else next(op.operands()).type
        )
        assert isinstance(type, ScalarType)
        name = op.name
        if name == "int_cast":
            source: Any = next(op.operands()).type
            if not op.args[2] and 1 < source.bits < type.bits:
                name = "zero_extend"
            elif op.args[2] and source.bits == 1 < type.bits:
                raise CannotSay("a truth value is sign-extended", op.loc)
        if all(a.var is None for a in args):
            env[id(op.results[0])] = Spec(value=symbolic(name, [a.value for a in args], type.bits))
            return
        known = [self.alias.get(a.var) if a.var is not None else a.value for a in args]
        also: Optional[Any] = None
        if all(isinstance(k, (int, Term)) for k in known):
            also = symbolic(name, known, type.bits)
            terms = any(a.var is None and isinstance(a.value, Term) for a in args)
            if terms and not op.name.startswith("icmp"):
                env[id(op.results[0])] = Spec(value=also)  # no number will come of it
                return
        out = self.var()
        if isinstance(also, Term):
            self.alias[out] = also
        self.emit(
            Pure(op.loc, name, args, type.bits, out, also if isinstance(also, Term) else None)
        )
        env[id(op.results[0])] = Spec(var=out)

    def tiles(self, op: Op, env: Env) -> None:
        """Steps of a pipeline: of one that a task has for itself (`steps`)."""
        view = self.spec(env, op.args[0]).value
        buffer = self.places.buffer(view.buffer) if isinstance(view, SharedView) else -1
        mine = self.rings.setdefault(self.task, [])
        if op.name == "tiles_begun":
            if isinstance(view, SharedView) and not self.loops and buffer not in self.of_buffer:
                ring = Ring(view.shape[0], self.var(), self.var())
                self.of_buffer[buffer] = self.task, ring
                mine.append(ring)
                self.emit(Move(op.loc, [ring.last, ring.fetches], [Spec(), Spec()]))
            return
        self.out.pipelines[op] = None
        owner, known = self.of_buffer.get(buffer, (None, None))
        if known is None or owner != self.task:
            self.out.doubts["a ring is not one task's alone", op.loc.line] = None
            return
        step = self.spec(env, op.args[1])
        if op.name == "tiles_awaited":
            self.emit(Awaited(op.loc, known, step, int(op.args[2])))
            return
        pred = Spec(value=1) if op.args[2] is None else self.spec(env, op.args[2])
        self.emit(Fetched(op.loc, known, step, pred, mine))

    # ---- control ---------------------------------------------------------------------------------

    def do_call(self, op: Op, env: Env) -> None:
        function = op.args[0]
        if function.noinline:
            raise CannotSay("a function that stays one (`noinline`) is not followed", op.loc)
        results = self.function(function, self.specs(env, op.args[1]))
        for result, found in zip(op.results, results):
            env[id(result)] = found

    def do_if(self, op: Op, env: Env) -> None:
        condition = self.spec(env, op.args[0])
        blocks = [region.blocks[0] if region.blocks else None for region in op.regions]
        if condition.var is None and isinstance(condition.value, int):
            taken = blocks[0] if condition.value else blocks[1]
            if taken is not None:
                end = self.block(taken, env)
                if end is not None and op.results:
                    for result, found in zip(op.results, self.specs(env, end.args[0])):
                        env[id(result)] = found
            return
        outs = [self.var() for _ in op.results]
        branch = Branch(op.loc, condition, context=self.context)
        self.branches.append((self.task, branch))
        self.emit(branch)
        around = self.context
        jump = Jump(op.loc)
        for first, block in ((True, blocks[0]), (False, blocks[1])):
            self.context = (*around, ("if", place_of(condition), first))
            if block is not None:
                end = self.block(block, env)
                if end is not None and outs:
                    self.emit(Move(op.loc, list(outs), self.specs(env, end.args[0])))
            if first:
                self.emit(jump)
                branch.target = self.here
        jump.target = branch.end = self.here
        self.context = around
        for result, out in zip(op.results, outs):
            env[id(result)] = Spec(var=out)
            if isinstance(result.type, TensorType):
                self.code.data.add(out)

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

    def do_warp_specialize(self, op: Op, env: Env) -> None:
        if self.parallel or self.task or self.loops:
            raise CannotSay(
                "partitions within a loop or within partitions are not followed", op.loc
            )
        self.parallel = True
        holder = op.regions[1].blocks[0].ops[0]
        operands = list(op.args[0]) or list(holder.args[0])
        given = self.specs(env, operands)
        warps = list(op.args[1])
        fork = Fork(op.loc, [], [])
        main = self.code, self.context, self.noter
        regions: list[Region] = holder.regions
        for i, region in enumerate(regions):
            block = region.blocks[0]
            self.code = Code(f"partition {i + 1} of the kernel")
            self.out.tasks.append(self.code)
            self.task = len(self.out.tasks) - 1
            self.noter = Noter(
                self.places,
                self.target,
                int(warps[i]) if i < len(warps) else main[2].num_warps,
                self.out.stores,
            )
            self.context = ()
            inner = {k: s for k, s in env.items() if s.var is None}
            pairs = []
            for value, passed in zip(block.arguments, given):
                if passed.var is None:
                    inner[id(value)] = passed
                else:
                    var = self.var()
                    inner[id(value)] = Spec(var=var)
                    pairs.append((var, passed))
            self.block(block, inner)
            fork.tasks.append(self.task)
            fork.passed.append(pairs)
        self.code, self.context, self.noter = main
        self.task = 0
        self.emit(fork)
        end = self.block(op.regions[0].blocks[0], env)
        values = self.specs(env, end.args[0]) if end is not None and op.results else []
        for result, found in zip(op.results, values):
            env[id(result)] = found
        self.emit(Join(op.loc, list(fork.tasks)))

    # ---- the whole -------------------------------------------------------------------------------

    def run(self) -> Lowered:
        kernel = self.program.kernel
        args = []
        for i, value in enumerate(kernel.body.blocks[0].arguments):
            type = value.type
            if isinstance(type, DescriptorType):
                args.append(Spec(value=self.values[i]))
            elif isinstance(type, ScalarType) and not type.is_float:
                args.append(Spec(value=term("arg", i)))
            else:
                args.append(Spec(name=term("memory", i) if isinstance(type, PointerType) else None))
        self.function(kernel, args)
        self.roots()
        self.floors()
        for code in self.out.tasks:
            code.finish()
        self.memory()
        return self.out

    def roots(self) -> None:
        """Number the unknowns that bound loops. Partitions share one where it is the same for all of
        them: it does not change, or each meets it once in the same loops and choices."""
        self._unite()
        sites: dict[Term, list[tuple[int, Loop]]] = {}
        for task, loop in self.all_loops:
            if loop.core is not None:
                sites.setdefault(loop.core, []).append((task, loop))
        for core, found in sites.items():
            tasks = [task for task, _ in found]
            alike = len(set(tasks)) == len(tasks) and len({loop.context for _, loop in found}) == 1
            if core.fixed or alike:
                number = self._root(core)
                for _, loop in found:
                    loop.root = number
            else:
                for _, loop in found:
                    loop.root = self._root(core)
        chosen: dict[Any, list[tuple[int, Branch]]] = {}
        for task, branch in self.branches:
            if isinstance(branch.condition.value, Term):
                chosen.setdefault(branch.condition.value, []).append((task, branch))
        for number, (condition, there) in enumerate(chosen.items()):
            tasks = [task for task, _ in there]
            alike = len(set(tasks)) == len(tasks)
            alike = alike and len({branch.context for _, branch in there}) == 1
            if not condition.fixed and alike and len(tasks) > 1:
                for _, branch in there:
                    branch.choice = number

    def memory(self) -> None:
        """Note which loads it depends on how often loops run and what is done."""
        todo: list[Any] = list(self.out.roots)
        for code in self.out.tasks:
            for step in code.steps:
                if isinstance(step, Branch) and not step.free:
                    todo.append(step.condition.value)
                elif isinstance(step, Pure):
                    todo += [step.known, *(arg.value for arg in step.args)]
                elif isinstance(step, Effect):
                    todo += [step.args[i].value for i in step.relevant]
        while todo:
            one = todo.pop()
            if isinstance(one, Term):
                self.out.memory |= self.numbering.lines.get(one, frozenset())
                todo += one.args

    def floors(self) -> None:
        """Loops that have a round whenever they are begun, by what holds there of the loops and the
        conditions around them."""
        if self.arithmetic is None:
            return
        for number, core in enumerate(self.out.roots):
            loops = [loop for _, loop in self.all_loops if loop.root == number]
            if not core.fixed and all(self._runs(core, loop.context) for loop in loops):
                self.out.floors[number] = 1

    def _runs(self, core: Term, context: tuple[Any, ...]) -> bool:
        """Whether a bound is above 0 in a context."""
        assert self.arithmetic is not None
        held = []
        for kind, place, *rest in context:
            if kind == "if" and isinstance(place, tuple):
                place = self.alias.get(place[1])
            if kind == "if" and isinstance(place, Term):
                held.append((place, int(rest[0])))
        bounds: list[tuple[Term, int, Optional[int]]] = [(core, -1 << 31, 0)]
        for one in inductions([core, *(place for place, _ in held)]):
            counted, low = one.args[0], one.args[1:2]
            first = low[0] if low and isinstance(low[0], int) else 0
            bounds.append((one, first, None))
            over = [loop.offset for _, loop in self.all_loops if loop.core == counted]
            if over:
                held.append((term("icmpSLT", one, term("add", counted, max(over))), 1))
        return not self.arithmetic.feasible(bounds, held)

    def _unite(self) -> None:
        """Bounds that are equal for all arguments get one name."""
        cores: list[Term] = []
        if self.arithmetic is None:
            return
        for _, loop in self.all_loops:
            if loop.core is None or not loop.core.fixed:
                continue
            same = loop.core if loop.core in cores else None
            for other in cores if same is None else ():
                if self.arithmetic.equal(loop.core, other):
                    same = other
                    break
            if same is None:
                cores.append(loop.core)
            else:
                loop.core = same

    def _root(self, core: Term) -> int:
        self.out.roots.append(core)
        return len(self.out.roots) - 1


def inductions(terms: Sequence[Any]) -> list[Term]:
    """The counters that terms are made of."""
    found: dict[Term, None] = {}
    todo = list(terms)
    while todo:
        one = todo.pop()
        if isinstance(one, Term):
            if one.name == "induction":
                found[one] = None
            todo += one.args
    return list(found)


def place_of(spec: Spec) -> Any:
    """What makes it the same in two partitions: what is known of it, else nothing."""
    return spec.value if spec.var is None else ("variable", spec.var)


def lower(
    program: Program, models: Models, target: Any, num_warps: int, values: Sequence[Any],
    arithmetic: Optional[Arithmetic] = None,
) -> Lowered:  # fmt: skip
    """The code of a kernel's tasks.

    Args:
        values: of the kernel's arguments, of which descriptors count.
        arithmetic: tells of bounds that are written differently whether they are equal.

    Raises:
        CannotSay: it holds what is not followed.
    """
    made = _Lowering(program, models, target, num_warps, values, arithmetic)
    found = made.run()
    written = made.numbering.clash
    if written:
        made = _Lowering(program, models, target, num_warps, values, arithmetic)
        made.numbering = Numbering(written)
        found = made.run()
    return found
