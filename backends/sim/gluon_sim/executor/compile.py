"""Translation of a recorded program to the steps of the machine: slots, constants, lifetimes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_sim.errors import BarrierError, CapacityError, SimulatorError
from gluon_sim.executor.capacity import excess, shared_peak
from gluon_sim.executor.models import Models
from gluon_sim.memory.shared import SharedView
from gluon_sim.memory.tensor_memory import bytes_needed, is_allocation
from gluon_sim.sanitizer.addresses import hints_of, promised
from gluon_sim.sanitizer.overflow import guard, guarded
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import TERMINATORS, Block, Function, Op, Region, Value
from gluon_sim.tracing.origins import Traffic, traffic
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.types import DescriptorType, MemDescType, TensorType

__all__ = ["CompiledBlock", "CompiledFunction", "CompiledProgram", "Step", "compile_program"]


@dataclass
class Step:
    """One op, ready to run.

    `plan` mirrors the op's arguments with values replaced by `Slot`s. `reads` has the slots in it, and
    those that the steps in `blocks` read.
    """

    op: Op
    run: Callable[..., Any]
    control: bool
    plan: tuple[Any, ...]
    named: dict[str, Any]
    outs: tuple[int, ...]
    kills: tuple[int, ...] = ()
    blocks: tuple[tuple[CompiledBlock, ...], ...] = ()
    simple: bool = False
    closed: bool = False  # a loop whose rounds depend on its carried values alone
    reads: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        inner = [step.reads for region in self.blocks for block in region for step in block.steps]
        self.reads = frozenset(_slots([*self.plan, *self.named.values()])).union(*inner)


class Slot(int):
    """The place of a value in a frame."""


@dataclass
class CompiledBlock:
    arguments: tuple[int, ...]
    steps: list[Step]
    order: int = 0


@dataclass
class CompiledFunction:
    name: str
    function: Function
    blocks: list[CompiledBlock] = field(default_factory=list)
    size: int = 0
    constants: dict[int, Any] = field(default_factory=dict)
    start: list[Any] = field(default_factory=list)


@dataclass
class CompiledProgram:
    kernel: CompiledFunction
    functions: dict[str, CompiledFunction]
    program: Program
    widest: int
    shared: int
    spins: bool
    specialized: bool
    one_by_one: bool
    pointer_casts: bool
    models: Models
    asynchronous: bool = False  # it starts work that goes on by itself
    claims: bool = False  # its programs take over others that have not started
    breakpoints: bool = False  # it calls `breakpoint()`
    unused_barriers: Sequence[BarrierError] = ()  # a report of each

    @cached_property
    def traffic(self) -> Traffic:
        """Return the arguments through which the kernel reaches global memory."""
        return traffic(self.program)

    @cached_property
    def fits(self) -> bool:
        """True if the target has as much memory as the kernel needs."""
        return self._excess() is None

    def refuse_excess(self) -> None:
        """Raise CapacityError where the kernel needs more memory than the target has."""
        error = self._excess()
        if error is not None:
            raise error

    def _excess(self) -> Optional[CapacityError]:
        target = self.models.target
        return None if target is None else excess(self.program, self.shared_bytes, target)

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that the kernel allocates in each block."""
        return shared_peak(self.program)

    @cached_property
    def worker_warps(self) -> int:
        """Warps of partitions, in whole groups of four as the compiler has them."""
        ops = [op for op in self.program.walk_ops() if op.name == "warp_specialize"]
        return max((-(-sum(op.args[1]) // 4) * 4 for op in ops), default=0)


def constant_array(op: Op) -> np.ndarray:
    """Return a constant as an array with a leading axis of 1 and singleton dims."""
    type = op.results[0].type
    rank = len(type.dims)
    dtype = numpy_dtype(type)
    value = op.args[0] if op.name == "constant" else 0
    if isinstance(value, np.ndarray):
        return value.reshape(1, *value.shape)
    if dtype.kind == "i":
        bits = dtype.itemsize * 8
        value = int(value) & ((1 << bits) - 1)
        value = value - (1 << bits) if value >> (bits - 1) else value
    elif dtype.kind == "b":
        value = bool(value)
    out = np.zeros((1,) * (rank + 1), dtype)
    out[...] = value
    out.setflags(write=False)
    return out


_CONSTANTS = ("constant", "poison")


# op -> (handler, is control flow, takes plain arrays only)
Find = Callable[[Op], "tuple[Callable[..., Any], bool, bool]"]


class _Compiler:
    def __init__(self, program: Program, find: Find):
        self.program = program
        self.find = find
        self.functions: dict[str, CompiledFunction] = {}
        self.dead = _dead_ops(program)
        self.guarded = guarded(program)

    def function(self, function: Function) -> CompiledFunction:
        done = self.functions.get(function.name)
        if done is not None:
            return done
        out = CompiledFunction(function.name, function)
        self.functions[function.name] = out
        function.finalize()
        self.current = out
        self.seen_blocks: dict[int, CompiledBlock] = {}
        out.blocks = self.region(function.body)
        out.start = [None] * out.size
        for slot, value in out.constants.items():
            out.start[slot] = value
        return out

    def slot(self, value: Value) -> Slot:
        value = value.resolve()
        if value.slot < 0 or self._owner.get(id(value)) is not self.current:
            owner = value.owner
            if isinstance(owner, Op) and owner.name in _CONSTANTS:
                # Constants may stand outside any block; they need no step of their own.
                value.slot = self._new(value)
                self.current.constants[value.slot] = (
                    constant_array(owner) if _has_array(value) else None
                )
            else:
                value.slot = self._new(value)
        return Slot(value.slot)

    def _new(self, value: Value) -> int:
        self._owner[id(value)] = self.current
        self.current.size += 1
        return self.current.size - 1

    _owner: dict[int, CompiledFunction]

    def region(self, region: Region) -> list[CompiledBlock]:
        compiled = []
        for order, block in enumerate(region.blocks):
            target = self.seen_blocks.setdefault(id(block), CompiledBlock((), []))
            target.order = order
            target.arguments = tuple(self.slot(a) for a in block.arguments)
            compiled.append(target)
        used_by = []
        for block, target in zip(region.blocks, compiled):
            uses = self.block(block, target)
            used_by.append(uses)
        for i, target in enumerate(compiled):
            elsewhere = set().union(*(u for j, u in enumerate(used_by) if j != i))
            self._lifetimes(target, elsewhere)
        return compiled

    def block(self, block: Block, target: CompiledBlock) -> set[int]:
        uses: set[int] = set()
        for op in block.ops:
            if id(op) in self.dead:
                continue
            if op.name in _CONSTANTS:
                for r in op.results:
                    self.slot(r)
                continue
            run, control, simple = self.find(op)
            if id(op) in self.guarded:
                run, simple = guard(op, run), False
            if not control and hints_of(op):
                run, simple = promised(op, run, simple), False
            plan = tuple(self.argument(a) for a in op.args)
            named = {k: self.argument(v) for k, v in op.kwargs.items()}
            outs = tuple(self.slot(r) for r in op.results)
            blocks = tuple(tuple(self.region(r)) for r in op.regions)
            step = Step(op, run, control, plan, named, outs, blocks=blocks)
            step.closed = _is_closed(op)
            step.simple = simple and not named and all(isinstance(p, Slot) for p in plan)
            target.steps.append(step)
            uses |= step.reads
        return uses

    def argument(self, arg: Any) -> Any:
        if isinstance(arg, Value):
            return self.slot(arg)
        if isinstance(arg, (list, tuple)):
            return [self.argument(a) for a in arg]
        if isinstance(arg, Block):
            return self.seen_blocks.setdefault(id(arg), CompiledBlock((), []))
        return arg

    def _lifetimes(self, block: CompiledBlock, elsewhere: set[int]) -> None:
        constants = self.current.constants
        own = set(block.arguments)
        for step in block.steps:
            own.update(step.outs)
        own -= elsewhere
        own -= constants.keys()
        seen: set[int] = set()
        for step in reversed(block.steps):
            last = ((step.reads | set(step.outs)) & own) - seen
            seen |= last
            step.kills = tuple(last)


def _slots(arguments: list[Any]) -> Iterator[int]:
    for argument in arguments:
        if isinstance(argument, Slot):
            yield int(argument)
        elif isinstance(argument, list):
            yield from _slots(argument)


def _has_array(value: Value) -> bool:
    try:
        numpy_dtype(value.type)
        return True
    except SimulatorError:
        return False


_PURE = frozenset(
    "bitcast int_cast fp_to_fp fp_ext fp_trunc fp_to_si fp_to_ui si_to_fp ui_to_fp int_to_ptr "
    "ptr_to_int broadcast splat expand_dims reshape trans convert_layout make_range addptr cat join "
    "split get_program_id get_num_programs unsplat constant poison".split()
)


def _dead_ops(program: Program) -> set[int]:
    """Ids of ops whose results nobody reads and that do nothing else."""
    uses: dict[int, int] = {}
    ops = list(program.walk_ops())
    for op in ops:
        for value in op.operands():
            uses[id(value)] = uses.get(id(value), 0) + 1
    dead: set[int] = set()
    for op in reversed(ops):
        if op.name not in ELEMENTWISE and op.name not in _PURE:
            continue
        if any(uses.get(id(r)) for r in op.results) or not op.results:
            continue
        dead.add(id(op))
        # Operands come earlier in the same walk, so one pass backwards finds whole chains.
        for value in op.operands():
            uses[id(value)] -= 1
    return dead


_MEMORY = ("atomic_rmw", "atomic_cas", "atomic_load", "atomic_poll", "load", "masked_load")
_VARYING = (
    "get_program_id", "load", "masked_load", "atomic_rmw", "atomic_cas", "atomic_load", "atomic_poll",
    "local_load",
)  # fmt: skip


_WITHOUT_READS = frozenset(
    [
        *ELEMENTWISE,
        *_PURE,
        *_CONSTANTS,
        *TERMINATORS,
        "store",
        "masked_store",
        "call",
        "if",
        "for",
        "while",
    ]
)


def _has_op(region: Region, wanted: Callable[[Op], bool], seen: frozenset[str]) -> bool:
    """Return whether `region`, a nested region or a callee has such an op."""
    for block in region.blocks:
        for op in block.ops:
            if wanted(op) or any(_has_op(inner, wanted, seen) for inner in op.regions):
                return True
            if op.name == "call" and op.args[0].name not in seen:
                if _has_op(op.args[0].body, wanted, seen | {op.args[0].name}):
                    return True
    return False


def _is_closed(op: Op) -> bool:
    """Return whether an op is a loop whose rounds depend on its carried values alone, not on memory."""

    def reads(inner: Op) -> bool:
        return inner.name not in _WITHOUT_READS or bool(inner.attrs.get("reaches_memory"))

    return op.name == "while" and not any(_has_op(r, reads, frozenset()) for r in op.regions)


def _spins(program: Program) -> bool:
    """Return whether a loop without a fixed count reads memory that others may change."""

    def touches(op: Op) -> bool:
        return op.name in _MEMORY or bool(op.attrs.get("reaches_memory"))

    for op in program.walk_ops():
        if op.name == "atomic_poll":
            return True
        if op.name == "while" and any(_has_op(r, touches, frozenset()) for r in op.regions):
            return True
    return False


def _varying_control(program: Program) -> bool:
    """May an `if` or a loop bound differ between programs? Only arguments and constants are safe."""
    return any(op.name in _VARYING or op.attrs.get("effects") for op in program.walk_ops()) and any(
        op.name in ("if", "while", "cond_branch", "for") and not _plain(op)
        for op in program.walk_ops()
    )


def _picks_buffers(program: Program) -> bool:
    """May programs of one batch end up with views that no common table describes?"""
    for op in program.walk_ops():
        if op.regions and any(isinstance(r.type, MemDescType) for r in op.results):
            return True
        if op.name == "memdesc_index":
            type = next(op.operands()).type
            assert isinstance(type, MemDescType)
            if type.layout._rank_or_none() == len(type.shape):
                return True
    return False


def _plain(op: Op) -> bool:
    values = list(op.operands())[:3] if op.name == "for" else list(op.operands())[:1]
    if op.name == "while":
        return False

    def fixed(value: Value, depth: int = 0) -> bool:
        owner = value.resolve().owner
        if not isinstance(owner, Op):
            # Arguments of a function are the same for all programs; those of loops are not.
            region = getattr(owner, "region", None)
            function = getattr(region, "owner", None)
            return isinstance(function, Function) and function.public
        if owner.name in _CONSTANTS:
            return True
        if (
            owner.name in _VARYING
            or owner.attrs.get("effects")
            or owner.regions
            or owner.name == "call"
            or depth > 40
        ):
            return False
        return all(fixed(v, depth + 1) for v in owner.operands())

    return all(fixed(v) for v in values)


def compile_program(program: Program, find: Find, models: Models) -> CompiledProgram:
    """Resolve everything that does not change between launches.

    Args:
        find: op -> (handler, is control flow, takes plain arrays only).
        models: that its handlers are of.
    """
    compiler = _Compiler(program, find)
    compiler._owner = {}
    for function in program.functions.values():
        compiler.function(function)
    widest, shared = 1, 0
    specialized = pointer_casts = False
    for op in program.walk_ops():
        for result in op.results:
            type = result.type
            if isinstance(type, TensorType):
                widest = max(widest, int(np.prod(type.shape)))
        if any(isinstance(value.type, DescriptorType) for value in op.operands()):
            for value in op.operands():
                if isinstance(value.type, MemDescType):
                    widest = max(widest, int(np.prod(value.type.shape)))
        if op.name == "local_alloc":
            try:
                shared += SharedView.bytes_needed(op.results[0].type)
            except Exception as error:
                raise SimulatorError(
                    f"cannot lay out a shared buffer: {error}", span=span_of(op.loc)
                ) from error
        if is_allocation(op):
            shared += bytes_needed(op.results[0].type)
        specialized |= op.name == "warp_specialize"
        pointer_casts |= bool(op.attrs.get("reaches_memory"))
        pointer_casts |= op.name == "int_to_ptr" or (
            op.name == "bitcast" and "*" in str(op.results[0].type.element)
        )
    kernel = compiler.functions[program.kernel.name]
    return CompiledProgram(
        kernel,
        compiler.functions,
        program,
        widest,
        shared,
        _spins(program),
        specialized,
        specialized and _varying_control(program) or _picks_buffers(program),
        pointer_casts,
        models,
    )
