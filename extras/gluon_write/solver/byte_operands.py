"""Operands of 8 bits: units that read shared memory take them along the depth of a product alone."""

from __future__ import annotations

from gluon_write.solver.unknowns import Graph
from gluon_write.tracing.sketch import Place

__all__ = ["lines_of"]


def lines_of(graph: Graph) -> dict[Place, int]:
    """Return the dimension whose neighbours are neighbours in memory, of each load of a matrix of bytes that has one."""
    known: dict[Place, set[int]] = {}
    for one in graph.unknowns:
        for access in one.accesses:
            if "load" in access.name and access.bits == 8 and access.place is not None:
                along = [dim for dim, stride in enumerate(access.strides) if stride == 1]
                known.setdefault(access.place, set()).add(along[0] if len(along) == 1 else -1)
    return {place: dims.pop() for place, dims in known.items() if len(dims) == 1}
