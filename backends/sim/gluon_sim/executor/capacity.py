"""Checks that a kernel fits into the memories of its target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Optional, Union

from gluon_core.plugin.targets import Target
from gluon_sim.errors import CapacityError
from gluon_sim.memory.shared import SharedView
from gluon_sim.memory.tensor_memory import columns_in_use
from gluon_sim.settings import current
from gluon_sim.tracing.ir import Function, Op, Region
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.types import MemDescType, Type

if TYPE_CHECKING:
    from gluon_core.layouts import Layout

__all__ = ["capacity_checked", "excess", "largest_buffer", "shared_peak"]


def capacity_checked(options: Any) -> bool:
    """Return whether a kernel with these options must fit into the memories of its target."""
    own = getattr(options, "simulation", None) or {}
    return bool(own.get("capacity", current().capacity))


def excess(program: Program, shared: int, target: Target) -> Optional[CapacityError]:
    """Return the error of a kernel that needs more shared or tensor memory than its target has.

    Args:
        shared: bytes of shared memory in use at once.
    """
    limits = target.limits
    columns, largest = columns_in_use(program)
    if columns > limits.tensor_memory_columns:
        assert largest is not None
        return CapacityError(
            f"{program.kernel.name} needs too much tensor memory",
            expected=f"at most {limits.tensor_memory_columns} columns on {target}",
            got=f"{columns} columns in use at once",
            remedy="Use smaller accumulators, or fewer of them.",
            report="capacity.tensor",
            span=span_of(largest.loc),
        )
    if shared <= limits.shared_memory:
        return None
    return CapacityError(
        f"{program.kernel.name} needs too much shared memory",
        expected=f"at most {limits.shared_memory} bytes on {target}",
        got=f"{shared} bytes in use at once",
        remedy="Use smaller tiles or fewer stages.",
        report="capacity.shared",
        span=span_of(largest_buffer(program).loc),
    )


def block_bytes(type: Type) -> int:
    """Bytes that a buffer takes in each block of a cluster."""
    assert isinstance(type, MemDescType)
    layout: Layout = type.layout
    rank = layout._rank_or_none() or len(type.shape)
    one = type.shape[len(type.shape) - min(rank, len(type.shape)) :]
    if any(extent & (extent - 1) for extent in one):  # of one block: see `offsets_of`
        return SharedView.bytes_needed(type)
    return SharedView.bytes_needed(type) // layout.to_linear(one).in_size("block")


def largest_buffer(program: Program) -> Union[Op, Function]:
    """Return the op that allocates most shared memory at once; the kernel itself where none does."""
    allocs = [op for op in program.walk_ops() if op.name == "local_alloc"]
    if not allocs:
        return program.kernel
    return max(allocs, key=lambda op: block_bytes(op.results[0].type))


def shared_peak(program: Program) -> int:
    """Return a lower bound of the bytes of shared memory in use at one time.

    A buffer is in use from where it is allocated to the last op that names it or a view of it.
    Additions of a compiler (gaps, room for conversions) are not counted.
    """
    known: dict[str, int] = {}

    def of(function: Function) -> int:
        if function.name in known:
            return known[function.name]
        known[function.name] = 0
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        size: dict[int, int] = {}
        root: dict[int, int] = {}
        extra: dict[int, int] = {}
        for position, op in enumerate(_walk(function.body)):
            sources = [root[id(v)] for v in op.operands() if id(v) in root]
            for source in sources:
                last[source] = position
            if op.name == "local_alloc":
                key = id(op.results[0])
                root[key], first[key], last[key] = key, position, position
                size[key] = block_bytes(op.results[0].type)
            elif sources and op.name.startswith("memdesc_"):
                root[id(op.results[0])] = sources[0]
            elif op.name == "call":
                extra[position] = of(op.args[0])
        points = {*first.values(), *extra}
        live = (
            sum(size[k] for k in size if first[k] <= position <= last[k]) + extra.get(position, 0)
            for position in points
        )
        known[function.name] = max(live, default=0)
        return known[function.name]

    return of(program.kernel)


def _walk(region: Region) -> Iterator[Op]:
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from _walk(inner)
