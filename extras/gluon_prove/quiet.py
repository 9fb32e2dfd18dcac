"""Loops that only compute: nothing that is followed happens within them."""

from __future__ import annotations

from typing import Iterator

from gluon_sim.tracing.ir import Function, Op, Value

__all__ = ["operands_within", "ops_within"]


def ops_within(op: Op) -> Iterator[Op]:
    """Yield the ops of an op's regions, and those of the functions that they call."""
    regions = list(op.regions)
    if op.name == "call" and isinstance(op.args[0], Function):
        regions.append(op.args[0].body)
    for region in regions:
        for block in region.blocks:
            for inner in block.ops:
                yield inner
                yield from ops_within(inner)


def operands_within(op: Op) -> Iterator[Value]:
    """Yield the operands of an op and of those within it."""
    yield from op.operands()
    for inner in ops_within(op):
        yield from inner.operands()
