"""Tensors whose layout the compiler would look for in vain.

`gl.set_auto_layout`, and where a tensor without a layout meets one that has it, say what an AutoLayout
stands for; compilers carry that on along operands and results. What no such place reaches does not
compile. Here an op is taken to carry it between all its tensors: too few are found rather than too many.
"""

from __future__ import annotations

from typing import Iterator, Optional

from gluon_core.layouts import AutoLayout
from gluon_sim.record.ir import TERMINATORS, Op, Value
from gluon_sim.record.program import Program
from gluon_sim.record.types import TensorType

__all__ = ["undetermined"]


def undetermined(program: Program) -> Optional[Op]:
    """The first op whose result has an AutoLayout that nothing determines, and which matters."""
    ops = list(program.walk_ops())
    groups = _Groups()
    determined: list[Value] = []
    for op in ops:
        tensors = [v for v in _touched(op) if _is_auto(v)]
        for alone in tensors if op.name == "histogram" else ():
            groups.find(id(alone))  # what it takes says nothing of what it makes
        for other in tensors if op.name != "histogram" else ():
            groups.join(tensors[0], other)
        if tensors and op.attrs.get("determines"):
            determined.append(tensors[0])
    if not groups.parent:
        return None
    known = {groups.find(id(value)) for value in determined}
    for op in ops:
        for value in op.results:
            if _is_auto(value) and groups.find(id(value)) not in known:
                if _matters(program, ops, value):
                    return op
    return None


def _is_auto(value: Value) -> bool:
    return isinstance(value.type, TensorType) and isinstance(value.type.layout, AutoLayout)


def _touched(op: Op) -> Iterator[Value]:
    """What an op takes and makes, also within its regions and in a function that it calls."""
    yield from op.operands()
    yield from op.results
    regions = list(op.regions)
    if op.name == "call":
        regions.append(op.args[0].body)
    for region in regions:
        for block in region.blocks:
            yield from block.arguments
            for inner in block.ops:
                if inner.name in TERMINATORS:
                    yield from inner.operands()


def _matters(program: Program, ops: list[Op], value: Value) -> bool:
    """Whether a value goes into an op that does something; compilers forget the others."""
    users: dict[int, list[Op]] = {}
    for op in ops:
        for taken in op.operands():
            users.setdefault(id(taken), []).append(op)
    left, seen = [value], {id(value)}
    while left:
        for user in users.get(id(left.pop()), ()):
            if user.name in TERMINATORS:
                continue
            if not user.results or "atomic" in user.name:
                return True
            new = [result for result in user.results if id(result) not in seen]
            seen |= {id(result) for result in new}
            left += new
    return False


class _Groups:
    """Values that have one layout, by id."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}

    def find(self, at: int) -> int:
        self.parent.setdefault(at, at)
        while self.parent[at] != at:
            self.parent[at] = at = self.parent[self.parent[at]]
        return at

    def join(self, one: Value, other: Value) -> None:
        self.parent[self.find(id(one))] = self.find(id(other))
