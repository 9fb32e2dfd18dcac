"""From a recorded program to the code of its tasks."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from gluon_prove.code import (
    Branch,
    Code,
    Effect,
    Fork,
    Guess,
    Join,
    Jump,
    Move,
    Pure,
    Spec,
    Used,
)
from gluon_prove.continued import parts_of
from gluon_prove.effects import Env, Lowered
from gluon_prove.events import Noter
from gluon_prove.loops import Loops, place_of
from gluon_prove.numbering import Numbering
from gluon_prove.smt import Arithmetic
from gluon_prove.steps import Awaited, Fetched, Ring
from gluon_prove.symbols import CASTS, PROGRAM, is_scalar, symbolic, whole
from gluon_prove.values import CannotSay, Term, term
from gluon_sim.executor.assembly import is_data
from gluon_sim.executor.compile import CompiledProgram
from gluon_sim.executor.lookup import wants_machine
from gluon_sim.executor.ops import OPS
from gluon_sim.executor.regions import REGIONS
from gluon_sim.memory.shared import SharedView
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.ir import TERMINATORS, Block, Function, Location, Op, Region, Value
from gluon_sim.tracing.types import (
    DescriptorType,
    MemDescType,
    PointerType,
    ScalarType,
    TensorType,
)

__all__ = ["Lowered", "lower"]

_IGNORED = frozenset(
    "barrier assume print breakpoint assert local_dealloc cluster_barrier cluster_sync poison "
    "tiles_begun tiles_fetched tiles_awaited tile_placed scope".split()
)
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
    "inline_asm": "inline assembly is not followed where it is not pure, or more than arithmetic",
}


_UNITS = 3  # the multiprocessors of the device, positive as the programs along the axes are


def _counts_units(op: Op) -> bool:
    """Return True for assembly that reads the number of multiprocessors."""
    return str(op.args[0]).strip() == "mov.u32 $0, %nsmid;" and not any(True for _ in op.operands())


class _Lowering(Loops):
    def __init__(
        self, compiled: CompiledProgram, target: Any, num_warps: int, values: Sequence[Any],
        arithmetic: Optional[Arithmetic],
    ):  # fmt: skip
        super().__init__(target, num_warps, arithmetic)
        self.program = compiled.program
        self.models = compiled.models
        self.target = target
        self.values = values
        self.depth = 0
        self.parallel = False
        self.rings: dict[int, list[Ring]] = {}  # of pipelines, by task
        self.of_buffer: dict[int, tuple[int, Ring]] = {}

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
            specs = self.specs(env, end.args[0])
        else:
            specs = self.graph(blocks, env)
        self.depth -= 1
        self.context = around
        return specs

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
                # some programs only run the following ops; no other task is assumed to run them in step
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
        """Lower one op; return true for the end of a block."""
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
        elif name == "inline_asm" and _counts_units(op):
            env[id(op.results[0])] = Spec(value=term("programs", _UNITS))
        elif name == "inline_asm" and (
            is_data(op, self.models.assembler, self.target) or self.models.is_idle(op.args[0])
        ):
            self.data(op, env)
        elif name in _REFUSED:
            raise CannotSay(f"`{name}`: {_REFUSED[name]}", op.loc)
        elif name in _VIEWS:
            self.view(op, env)
        elif name in PROGRAM:
            env[id(op.results[0])] = Spec(value=term(PROGRAM[name], op.args[0]))
        elif is_scalar(op):
            self.pure(op, env)
        elif name in _IGNORED:
            self.ignored(op, env)
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

    def acts(self, op: Op) -> bool:
        name = op.name
        if name == "call":
            return bool(op.args[0].noinline)
        if name == "inline_asm":
            pure = is_data(op, self.models.assembler, self.target) or _counts_units(op)
            return not (pure or self.models.is_idle(op.args[0]))
        if name in ("if", "for", "while", "constant", *TERMINATORS) or name in PROGRAM:
            return False
        if is_scalar(op) or name in ELEMENTWISE or name in REGIONS:
            return False
        if name in _VIEWS | _EFFECTS | _WHOLE.keys() | _REFUSED.keys():
            return True
        if name.startswith(("tiles_", "warp_")) or "store" in name or "atomic" in name:
            return True
        model = self.models(name)
        return name not in OPS and model is not None and wants_machine(model)

    def ignored(self, op: Op, env: Env) -> None:
        """Lower an op that synchronizes nothing; some state facts."""
        if op.name.startswith("tiles_"):
            self.tiles(op, env)
        elif op.name == "assume":
            self.assume(op, env)
        for result in op.results:
            env[id(result)] = self.constant(op) if op.name == "poison" else Spec()

    # ---- data ----------------------------------------------------------------------------------

    def data(self, op: Op, env: Env) -> None:
        """Lower an op on data; registers in flight must have landed."""
        if "store" in op.name or "atomic" in op.name:
            self.out.stores[op] = None
        used = []
        for value in op.operands():
            if isinstance(value.type, MemDescType):
                raise CannotSay(f"`{op.name}` of a buffer is not followed", op.loc)
            spec = self.spec(env, value)
            if spec.var is not None and isinstance(value.type, TensorType):
                used.append(spec.var)
        if used:
            self.emit(Used(op.loc, used, op))
        names = self.numbering.of(op, [self.named(env, v) for v in op.operands()])
        for index, result in enumerate(op.results):
            env[id(result)] = self.opaque(result, op, None if names is None else names[index])

    def named(self, env: Env, value: Value) -> Optional[Any]:
        """Return the name of an operand, if it has one."""
        spec = self.spec(env, value)
        if spec.var is not None:
            return self.alias.get(spec.var)
        return spec.value if isinstance(spec.value, (int, Term)) else spec.name

    def pure(self, op: Op, env: Env) -> None:
        """Lower an op that only computes: to a term where no operand is a variable, else to a step.

        A variable in `alias` equals a number or a term in every state. So does a result computed
        from such operands alone.
        """
        operands = self.specs(env, list(op.operands()))
        result, name, bits = id(op.results[0]), op.name, _width(op)
        if name == "int_cast":
            source: Any = next(op.operands()).type
            if not op.args[2] and 1 < source.bits < bits:
                name = "zero_extend"
            elif op.args[2] and source.bits == 1 < bits:
                raise CannotSay("a truth value is sign-extended", op.loc)
        if all(operand.var is None for operand in operands):
            env[result] = Spec(value=symbolic(name, [one.value for one in operands], bits))
            return
        equal = [self.alias.get(one.var) if one.var is not None else one.value for one in operands]
        term: Optional[Any] = None
        if all(isinstance(one, (int, Term)) for one in equal):
            term = symbolic(name, equal, bits)
            terms = any(one.var is None and isinstance(one.value, Term) for one in operands)
            if terms and not name.startswith("icmp"):
                env[result] = Spec(value=term)  # no state gives it a number
                return
        alias = term if isinstance(term, Term) else None
        variable = self.var()
        if alias is not None:
            self.alias[variable] = alias
        self.emit(Pure(op.loc, name, operands, bits, variable, alias))
        env[result] = Spec(var=variable)

    def assume(self, op: Op, env: Env) -> None:
        """Rely on a condition on arguments that every program states before anything else decides."""
        condition = self.spec(env, op.args[0]).value
        always = not (self.task or self.loops or self.context)
        if self.arithmetic is None or not always or not isinstance(condition, Term):
            return
        if condition.fixed:
            self.arithmetic.assume(condition)
            self.out.assumed[op.loc.line] = None

    def tiles(self, op: Op, env: Env) -> None:
        """Run steps of a pipeline: of one that a task has for itself (`steps`)."""
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
        for result, spec in zip(op.results, results):
            env[id(result)] = spec

    def do_if(self, op: Op, env: Env) -> None:
        condition = self.spec(env, op.args[0])
        blocks = [region.blocks[0] if region.blocks else None for region in op.regions]
        if condition.var is None and isinstance(condition.value, int):
            taken = blocks[0] if condition.value else blocks[1]
            if taken is not None:
                end = self.block(taken, env)
                if end is not None and op.results:
                    for result, spec in zip(op.results, self.specs(env, end.args[0])):
                        env[id(result)] = spec
            return
        outs = [self.var() for _ in op.results]
        branch = Branch(op.loc, condition, context=self.context)
        self.branches.append((self.task, branch))
        self.emit(branch)
        around = self.context
        jump = Jump(op.loc)
        ways: list[list[Spec]] = []
        for first, block in ((True, blocks[0]), (False, blocks[1])):
            self.context = (*around, ("if", place_of(condition), first))
            if block is not None:
                end = self.block(block, env)
                if end is not None and outs:
                    ways.append(self.specs(env, end.args[0]))
                    self.emit(Move(op.loc, list(outs), ways[-1]))
            if first:
                self.emit(jump)
                branch.target = self.here
        jump.target = branch.end = self.here
        self.context = around
        for place, (result, out) in enumerate(zip(op.results, outs)):
            chosen = _chosen(condition, [way[place] for way in ways])
            env[id(result)] = Spec(var=out) if chosen is None else Spec(value=chosen)
            if isinstance(result.type, TensorType):
                self.code.data.add(out)

    def do_warp_specialize(self, op: Op, env: Env) -> None:
        if self.parallel or self.task or self.loops:
            raise CannotSay(
                "partitions within a loop or within partitions are not followed", op.loc
            )
        self.parallel = True
        holder = op.regions[1].blocks[0].ops[0]
        operands = list(op.args[0]) or list(holder.args[0])
        operand_specs = self.specs(env, operands)
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
            self.context = main[1]
            inner = {k: s for k, s in env.items() if s.var is None}
            pairs = []
            for value, passed in zip(block.arguments, operand_specs):
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
        for result, spec in zip(op.results, values):
            env[id(result)] = spec
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

    def memory(self) -> None:
        """Record the loads on which trip counts and branches depend."""
        todo: list[Any] = list(self.out.roots)
        for code in self.out.tasks:
            for step in code.steps:
                if isinstance(step, Branch) and not step.free:
                    todo.append(step.condition.value)
                elif isinstance(step, Guess):
                    todo.append(step.known)
                    self.out.guessed[step.loc.line] = None
                elif isinstance(step, Pure):
                    todo += [step.known, *(arg.value for arg in step.args)]
                elif isinstance(step, Effect):
                    todo += [step.args[i].value for i in step.relevant]
        seen: set[Term] = set()
        while todo:
            one = todo.pop()
            if isinstance(one, Term) and one not in seen:
                seen.add(one)
                self.out.memory |= self.numbering.lines.get(one, frozenset())
                todo += one.args


def _chosen(condition: Spec, ways: Sequence[Spec]) -> Optional[Term]:
    """Return the result of a choice as a term, where it is one whatever is chosen; else None."""
    values = [spec.value for spec in (condition, *ways)]
    terms = [value for value in values if isinstance(value, Term)]
    if len(ways) != 2 or condition.var is not None or any(way.var is not None for way in ways):
        return None
    if not all(isinstance(value, (int, Term)) for value in values) or len(terms) < 2:
        return None
    return Term("select", tuple(values)) if all(one.fixed for one in terms) else None


def _width(op: Op) -> int:
    """Return the bits in which an op computes: those of its operands, or of the result of a cast."""
    casts = op.name in CASTS or op.name == "select"
    type = op.results[0].type if casts else next(op.operands()).type
    assert isinstance(type, ScalarType)
    return type.bits


def lower(
    compiled: CompiledProgram, target: Any, num_warps: int, values: Sequence[Any],
    arithmetic: Optional[Arithmetic] = None,
) -> Lowered:  # fmt: skip
    """Return the code of a kernel's tasks.

    Args:
        values: of the kernel's arguments, of which descriptors count.
        arithmetic: tells of bounds that are written differently whether they are equal.

    Raises:
        CannotSay: it contains an op that is not followed.
    """
    lowering = _Lowering(compiled, target, num_warps, values, arithmetic)
    lowered = lowering.run()
    written, same = lowering.numbering.clash, lowering.counted_alike()
    parts = {} if arithmetic is None else parts_of(lowering.counted_loops, arithmetic)
    if written or same or parts:
        lowering = _Lowering(compiled, target, num_warps, values, arithmetic)
        lowering.numbering, lowering.same, lowering.parts = Numbering(written), same, parts
        lowered = lowering.run()
        if lowering.stopped:
            raise CannotSay("a loop that continues another one is not found again")
    return lowered
