"""The origins of pointers and buffers: kernel arguments and allocations, by static analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Iterator, NamedTuple, Optional

from gluon_sim.tracing.ir import Block, Op, Region, Value
from gluon_sim.tracing.program import Origin, Program
from gluon_sim.tracing.types import DescriptorType, MemDescType, PointerType
from gluon_sim.tracing.uses import is_used

__all__ = [
    "ANYWHERE",
    "Traffic",
    "origins",
    "pointed_at",
    "positions_in",
    "traffic",
    "unanswered",
    "unawaited",
    "users_of",
    "written_arguments",
]

ANYWHERE = "anywhere"
_READS = frozenset("load masked_load atomic_load atomic_poll".split())
_KEEPS = frozenset(
    "addptr splat broadcast expand_dims reshape trans convert_layout select bitcast cat join split "
    "unsplat ptr_to_int call yield_op condition_op ret branch cond_branch warp_yield warp_return "
    "for while if warp_specialize warp_specialize_partitions print assert "
    "make_tensor_descriptor".split()
)


_POSITIONAL = frozenset(("for", "if", "warp_specialize"))


def _matters(value: Value) -> bool:
    type = value.type
    if isinstance(type, (MemDescType, DescriptorType, PointerType)):
        return True
    return isinstance(getattr(type, "element", type), PointerType)


def _inner(region: Region) -> Iterator[tuple[Block, Op]]:
    for block in region.blocks:
        for op in block.ops:
            yield block, op


def origins(program: Program) -> dict[int, set[Origin]]:
    """By id of a value: argument positions of the kernel, `local_alloc` ops, or `ANYWHERE`.

    Does not follow the order of ops: the result holds the origins on any path.
    """
    known = program.findings.origins
    if known is not None:
        return known
    by_value: dict[int, set[Origin]] = {}

    def of(value: Value) -> set[Origin]:
        return by_value.get(id(value.resolve()), set())

    changed = True

    def add(value: Value, more: set[Origin]) -> None:
        nonlocal changed
        if not more or not _matters(value):
            return
        buffer = isinstance(value.type, MemDescType)
        more = {m for m in more if isinstance(m, Op) == buffer}
        have = by_value.setdefault(id(value.resolve()), set())
        if not more <= have:
            have |= more
            changed = True

    for i, argument in enumerate(program.kernel.arguments):
        add(argument, {i})

    def link(op: Op) -> None:
        """Map the values that enter and leave regions, by position."""
        ends: list[Optional[Op]] = []
        if op.name == "warp_specialize":
            (holder,) = (inner for _, inner in _inner(op.regions[1]))
            inputs = list(op.args[0]) or list(holder.args[0])
            targets = [r.blocks[0].arguments for r in holder.regions]
            ends = [op.regions[0].blocks[0].get_terminator()]
        else:
            inputs = list(op.args[3]) if op.name == "for" else []
            targets = [r.blocks[0].arguments[1:] for r in op.regions] if inputs else []
            ends = [block.get_terminator() for r in op.regions for block in r.blocks]
        for arguments in targets:
            for argument, value in zip(arguments, inputs):
                add(argument, of(value))
        for value, result in zip(inputs if op.name == "for" else (), op.results):
            add(result, of(value))
        for end in ends:
            if end is None or not end.args:
                continue
            for i, value in enumerate(end.operands()):
                if i < len(op.results):
                    add(op.results[i], of(value))
                if op.name == "for":
                    add(targets[0][i], of(value))

    def visit(op: Op) -> None:
        union: set[Origin] = set()
        for value in op.operands():
            union |= of(value)
        if op.name == "local_alloc":
            union = {op}
        elif op.name in ("int_to_ptr", *_READS):
            union = {ANYWHERE}
        elif op.name == "call":
            for argument, value in zip(op.args[0].arguments, op.args[1]):
                add(argument, of(value))
        elif op.name == "branch":
            target, values = op.args[0], op.args[1] if len(op.args) > 1 else ()
            for argument, value in zip(target.arguments, values):
                add(argument, of(value))
        elif op.name in _POSITIONAL:
            link(op)
            return
        elif op.name == "warp_specialize_partitions":
            return
        elif op.regions:
            for region in op.regions:
                for block in region.blocks:
                    end = block.get_terminator()
                    for value in end.operands() if end is not None else ():
                        union |= of(value)
            for region in op.regions:
                for block in region.blocks:
                    for argument in block.arguments:
                        add(argument, union)
        for result in op.results:
            add(result, union)

    while changed:
        changed = False
        for op in program.walk_ops():
            visit(op)
    program.findings.origins = by_value
    return by_value


def written_arguments(program: Program) -> set[Origin]:
    """Positions of the kernel's arguments through which it may write; `ANYWHERE` among them for all."""
    known = program.findings.written
    if known is not None:
        return known
    by_value = origins(program)
    out: set[Origin] = set()
    for op in program.walk_ops():
        name = op.name
        if name in _KEEPS or name in _READS or "load" in name or name.endswith("to_local"):
            continue
        if name.endswith(("_gather", "_prefetch")):
            continue
        if _by_numbers(op):
            out.add(ANYWHERE)
        for value in op.operands():
            if not isinstance(value.type, MemDescType) and _matters(value):
                out |= by_value.get(id(value), {ANYWHERE})
    program.findings.written = out
    return out


def _by_numbers(op: Op) -> bool:
    """May an op take integers for addresses?"""
    return bool(op.attrs.get("reaches_memory")) and any(
        not _matters(value) and getattr(value.type.element, "bits", 0) == 64
        for value in op.operands()
    )


def positions_in(sources: Iterable[Origin]) -> set[int]:
    """Return the arguments of the kernel among origins."""
    return {origin for origin in sources if isinstance(origin, int)}


def pointed_at(program: Program, op: Op) -> Optional[set[int]]:
    """Return the kernel's arguments that the pointers of an op come from; None where that is unknown."""
    by_value = origins(program)
    out: set[Origin] = {ANYWHERE} if _by_numbers(op) else set()
    for value in op.operands():
        value = value.resolve()
        if _matters(value) and not isinstance(value.type, MemDescType):
            out |= by_value.get(id(value), {ANYWHERE})
    return None if not out or ANYWHERE in out else positions_in(out)


@dataclass(frozen=True)
class Traffic:
    """The arguments of a kernel through which it reaches global memory, by position.

    Attributes:
        written: through which it may write; None where an address may come from anywhere.
        loaded, stored: through which plain loads read, and plain stores and atomics of one thread write; empty where an
            address of one may come from anywhere.
        atomic: whether it has atomics.
    """

    written: Optional[frozenset[int]]
    loaded: frozenset[int]
    stored: frozenset[int]
    atomic: bool


class Reached(NamedTuple):
    """The allocations of a launch that its kernel reaches through its arguments, by id.

    Args:
        written: those that it writes; None where these may be all.
        met: those that it both loads from and stores to: its threads may meet there.
    """

    written: Optional[set[int]]
    met: set[int]


def traffic(program: Program) -> Traffic:
    """Return the arguments through which a program reaches global memory."""
    known = origins(program)
    plain: dict[str, set[Origin]] = {"load": set(), "store": set()}
    atomic = False
    for op in program.walk_ops():
        atomic |= "atomic" in op.name or bool(op.attrs.get("atomic"))
        kind = "store" if unanswered(op) else op.name.removeprefix("masked_")
        if kind in plain:
            pointer = next(iter(op.operands())).resolve()
            plain[kind].update(known.get(id(pointer), {ANYWHERE}))
    if ANYWHERE in plain["load"] or ANYWHERE in plain["store"]:
        plain = {"load": set(), "store": set()}
    written = written_arguments(program)
    return Traffic(
        None if ANYWHERE in written else frozenset(positions_in(written)),
        frozenset(positions_in(plain["load"])),
        frozenset(positions_in(plain["store"])),
        atomic,
    )


def unanswered(op: Op) -> bool:
    """Return True for an atomic on a scalar whose result nothing reads: one thread executes it, and no thread waits for it."""
    if op.name != "atomic_rmw" or is_used(op):
        return False
    return not getattr(next(iter(op.operands())).type, "dims", ())


def unawaited(program: Program) -> list[tuple[Op, list[Op]]]:
    """Allocations of barriers at which somebody arrives and for which nobody waits."""
    barriers = []
    for alloc in program.walk_ops():
        if alloc.name == "local_alloc":
            users = users_of(program, alloc)
            arrives = [op for op in users if "arrive" in op.name or "commit" in op.name]
            inits = any(op.name.endswith("barrier_init") for op in users)
            if inits and arrives and not any("wait" in op.name for op in users):
                barriers.append((alloc, arrives))
    return barriers


def users_of(program: Program, alloc: Op) -> list[Op]:
    """Ops that may use a shared buffer, views of it left out."""
    known = program.findings.buffer_users
    if known is None:
        known = program.findings.buffer_users = {}
        by_value = origins(program)
        for op in program.walk_ops():
            if op.regions or op.name.startswith("memdesc_") or op.name in _KEEPS:
                continue
            sources = {origin for v in op.operands() for origin in by_value.get(id(v), ())}
            for origin in sources:
                if isinstance(origin, Op):
                    known.setdefault(origin, []).append(op)
    return known.get(alloc, [])
