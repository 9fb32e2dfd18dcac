"""Scalars that compilers know while they remove dead code: constants, and arithmetic on them."""

from __future__ import annotations

import operator
from typing import Any, Callable, Optional

from gluon_sim.tracing.ir import Block, Function, Op, Region, Value
from gluon_sim.tracing.types import TensorType

__all__ = ["Folder"]

_DEEP = 16  # the most nested operations to follow
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "icmpEQ": operator.eq,
    "icmpNE": operator.ne,
    "icmpSGE": operator.ge,
    "icmpSGT": operator.gt,
    "icmpSLE": operator.le,
    "icmpSLT": operator.lt,
}
_OF_EQUALS = {"sub": 0, "xor": 0, "icmpEQ": 1, "icmpNE": 0, "icmpSGE": 1, "icmpSGT": 0}
_OF_EQUALS |= {"icmpSLE": 1, "icmpSLT": 0}


class Folder:
    """The constants of one program.

    Args:
        ops: all ops of the program.
    """

    def __init__(self, ops: list[Op]):
        self._known: dict[int, Optional[int]] = {}  # the number, by id of the value
        self._arguments: dict[int, list[list[Any]]] = {}  # of each call, by id of the function
        for op in ops:
            if op.name == "call":
                self._arguments.setdefault(id(op.args[0]), []).append(list(op.args[1]))

    def constant(self, value: Any, depth: int = 0) -> Optional[int]:
        """Return the number that a scalar holds; None where it is not known."""
        if not isinstance(value, Value) or depth >= _DEEP:
            return None
        if id(value) not in self._known:
            self._known[id(value)] = self._computed(self.source(value, depth), depth)
        return self._known[id(value)]

    def _computed(self, value: Value, depth: int) -> Optional[int]:
        if isinstance(value.type, TensorType):
            return None
        op = value.owner
        if isinstance(op, Block):
            return self._parameter(value, op, depth + 1)
        if op.name == "constant":
            return int(op.args[0]) if isinstance(op.args[0], (bool, int)) else None
        compute = _ARITHMETIC.get(op.name)
        if compute is None or len(op.args) < 2:
            return None
        one, other = (self.constant(operand, depth + 1) for operand in op.args[:2])
        if op.name in ("mul", "and") and 0 in (one, other):
            return 0
        if one is None or other is None:
            same = self.source(op.args[0], depth) is self.source(op.args[1], depth)
            return _OF_EQUALS.get(op.name) if same else None
        return int(compute(one, other))

    def _parameter(self, value: Value, block: Block, depth: int) -> Optional[int]:
        owner = block.region.owner if block.region is not None else None
        if not isinstance(owner, Function) or owner.public or owner.body.blocks[0] is not block:
            return None
        calls = self._arguments.get(id(owner), [])
        constants = {self.constant(call[value.index], depth) for call in calls}
        return constants.pop() if len(constants) == 1 else None

    def source(self, value: Value, depth: int = 0) -> Value:
        """Return the scalar behind casts and behind selections by a constant."""
        value = self.selected(value, depth)
        while isinstance(value.owner, Op) and value.owner.name == "int_cast":
            value = self.selected(value.owner.args[0], depth)
        return value

    def selected(self, value: Value, depth: int = 0) -> Value:
        """Return the result of a selection by a constant; any other value as it is."""
        value = value.resolve()
        while isinstance(value.owner, Op) and value.owner.name == "select":
            condition = self.constant(value.owner.args[0], depth + 1)
            if condition is None:
                break
            value = value.owner.args[1 if condition else 2].resolve()
        return value

    def unreached(self, op: Op) -> list[Region]:
        """Return the regions of a branch or a loop that never run."""
        if op.name == "if":
            condition = self.constant(op.args[0])
            return [] if condition is None else [op.regions[1 if condition else 0]]
        if op.name == "for":
            low, high = (self.constant(bound) for bound in op.args[:2])
            same = self.source(op.args[0]) is self.source(op.args[1])
            never = low is not None and high is not None and low >= high
            return [op.regions[0]] if same or never else []
        if op.name == "while":
            end = op.regions[0].blocks[0].get_terminator()
            condition = self.constant(end.args[0]) if end is not None else None
            return [op.regions[1]] if condition == 0 else []
        return []

    def blocks(self, region: Region) -> list[Block]:
        """Return the blocks of a region that can run."""
        if len(region.blocks) < 2:
            return region.blocks
        reached = [region.blocks[0]]
        for block in reached:
            end = block.get_terminator()
            targets = [a for a in (end.args if end is not None else ()) if isinstance(a, Block)]
            if end is not None and end.name == "cond_branch":
                condition = self.constant(end.args[0])
                if condition is not None:
                    targets = [targets[0 if condition else 1]]
            reached += [
                target for target in targets if all(target is not other for other in reached)
            ]
        return [block for block in region.blocks if any(block is other for other in reached)]
