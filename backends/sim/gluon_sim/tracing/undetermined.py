"""Tensors whose layout the compiler would look for in vain.

`gl.set_auto_layout`, and where a tensor without a layout meets one that has it, determine an AutoLayout; compilers carry that on along operands and results. A tensor that no such place reaches does not compile. Here an op is taken to carry it between all its tensors: too few are found rather than too many.
"""

from __future__ import annotations

from typing import Iterator, Optional, Sequence

from gluon_core.layouts import AutoLayout
from gluon_sim.tracing.ir import TERMINATORS, Op, Value
from gluon_sim.tracing.live import HANDS_ON, links, live_ops, terminators
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.types import TensorType

__all__ = ["undetermined"]


def undetermined(program: Program) -> Optional[Op]:
    """Return the first live op whose result has an AutoLayout that nothing determines."""
    if not any(_is_auto(value) for op in program.walk_ops() for value in op.results):
        return None
    ops = live_ops(program)
    groups = _Groups()
    determined: list[Value] = []
    for op in ops:
        for alike in _alike(op):
            tensors = [value for value in alike if _is_auto(value)]
            for other in tensors:
                groups.join(tensors[0], other)
            if tensors and op.attrs.get("determines"):
                determined.append(tensors[0])
    known = {groups.find(id(value)) for value in determined}
    for op in ops:
        if op.name not in HANDS_ON:  # ops inside are reported; some results may be dead
            if any(_is_auto(v) and groups.find(id(v)) not in known for v in op.results):
                return op
    return None


def _is_auto(value: Value) -> bool:
    return isinstance(value.type, TensorType) and isinstance(value.type.layout, AutoLayout)


def _alike(op: Op) -> Iterator[Sequence[Value]]:
    """Yield groups of values between which an op carries layouts."""
    if op.name == "histogram":
        yield from ([value] for value in op.operands())  # the bins have another layout
        yield op.results
    elif op.name == "branch":
        yield from zip(list(op.operands()), op.args[0].arguments)
    elif op.name in HANDS_ON:
        yield from ([value, source.resolve()] for value, source in links(op))
    elif op.name not in TERMINATORS:
        ends = (end for region in op.regions for end in terminators(region))
        yield [*op.operands(), *op.results, *(v for end in ends for v in end.operands())]


class _Groups:
    """Values that have one layout, by id."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}

    def find(self, group: int) -> int:
        self.parent.setdefault(group, group)
        while self.parent[group] != group:
            self.parent[group] = group = self.parent[self.parent[group]]
        return group

    def join(self, one: Value, other: Value) -> None:
        self.parent[self.find(id(one))] = self.find(id(other))
