"""Ops and buffers in the words of the kernel: its variables, its expressions, its lines."""

from __future__ import annotations

from typing import Optional

from gluon_sim.tracing.calls import spelled
from gluon_sim.tracing.ir import Location, Op, Value
from gluon_sim.tracing.origins import origins
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.types import DescriptorType, MemDescType

__all__ = [
    "BufferName",
    "between",
    "buffer_name",
    "called",
    "described_at",
    "expression",
    "line_of",
    "threads_barrier",
    "variable",
]

_LONGEST = 60  # the most characters of an expression to show


class BufferName(str):
    """The name of a buffer, for reports.

    Attributes:
        alloc: the op that allocates it.
    """

    alloc: Optional[Op] = None

    def at(self, byte: int) -> str:
        """Return the words for a byte of the buffer."""
        return f"byte {byte} of {self}"


def buffer_name(alloc: Op, memory: str = "buffer") -> BufferName:
    """Return the name of a buffer: its variable, or its line where it has none.

    A building block may name itself by the attribute `called` of the allocation.
    """
    block = alloc.attrs.get("called")
    variable = alloc.results[0].name if alloc.results else None
    kind = block[0] if block is not None else f"the {memory}"
    known = block is None and variable is not None
    name = BufferName(f"`{variable}`" if known else f"{kind} of line {alloc.loc.line}")
    name.alloc = alloc
    return name


def expression(program: Program, op: Op, alloc: Optional[Op]) -> str:
    """Return the expression by which an op gets to a part of a buffer; "" where it is no part, or unknown."""
    known = origins(program) if alloc is not None else {}
    for value in op.operands():
        if isinstance(value.type, MemDescType) and alloc in known.get(id(value), ()):
            return _view(value)
    return ""


def variable(program: Program, op: Op, alloc: Optional[Op]) -> str:
    """Return the expression by which an op names a buffer or a part of it; "" where it is unknown."""
    part = expression(program, op, alloc)
    if part or alloc is None:
        return part
    return alloc.results[0].name or "" if alloc.results else ""


def _view(value: Value) -> str:
    owner = value.owner
    if not isinstance(owner, Op) or not owner.name.startswith("memdesc_") or owner.site is None:
        return ""
    source = owner.site.source
    return source if len(source) <= _LONGEST else f"{source[: _LONGEST - 3]}..."


def called(op: Op, default: str) -> str:
    """Return the function that the kernel calls for an op, or else `default`."""
    return default if op.site is None else op.site.function


def described_at(op: Op) -> Optional[Location]:
    """Return the place where a kernel makes the descriptor that an op uses; None without one."""
    values = [value for value in op.operands() if isinstance(value.type, DescriptorType)]
    owners = [value.owner for value in values if isinstance(value.owner, Op)]
    return owners[0].loc if owners and owners[0].name.startswith("make_") else None


def line_of(op: Op, other: Optional[Op] = None) -> str:
    """Return the line of an op, with its file where another op is in a different one."""
    line = f"line {op.loc.line}"
    if other is None or op.loc.file == other.loc.file:
        return line
    return f"{line} of {op.loc.file.replace(chr(92), '/').rpartition('/')[2]}"


def between(first: Op, second: Op) -> str:
    """Return the words for the place after one op and before another."""
    if first.loc.file == second.loc.file and first.loc.line < second.loc.line:
        return f"between line {first.loc.line} and line {second.loc.line}"
    return f"after {line_of(first, second)} and before {line_of(second, first)}"


def threads_barrier(op: Op, cluster: bool = False) -> str:
    """Return the call of the barrier of all threads, as the file of an op can write it."""
    return spelled([f"gl.barrier({'cluster=True' if cluster else ''})"], op.site)
