"""Weigh the work of every program of a launch, from the scalars that steer it alone.

Programs of a grid may have loops of different lengths. Their bounds are mostly integers made of the program's number and of
arguments, which are computed here for all programs at once; tensors, memory and asynchronous work are only counted. Where a bound comes
from memory or another program, nothing is known.
"""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from gluon_sim.tracing.ir import TERMINATORS, Block, Function, Op, Region, Value
from gluon_sim.tracing.program import Program

__all__ = ["weighed"]

_MOST = 50_000  # blocks that are passed
_PROGRAMS = 1 << 18  # whose work is weighed
_DEPTH = 64  # of a product: as many of its FLOPs count as one element

Array = np.ndarray


class _Unknown(Exception):
    """The control flow depends on more than scalars."""


def _divided(a: Array, b: Array) -> Array:
    b = np.where(b == 0, 1, b)
    return np.asarray(np.sign(a) * np.sign(b) * (abs(a) // abs(b)))


_SCALARS: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "sdiv": _divided, "udiv": _divided,
    "srem": lambda a, b: a - _divided(a, b) * b, "urem": lambda a, b: a - _divided(a, b) * b,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift,
    "ashr": np.right_shift, "lshr": np.right_shift, "minsi": np.minimum, "maxsi": np.maximum, "minui": np.minimum,
    "maxui": np.maximum, "iabs": np.abs, "select": np.where,
    "icmpEQ": np.equal, "icmpNE": np.not_equal, "icmpSLT": np.less, "icmpSLE": np.less_equal, "icmpSGT": np.greater,
    "icmpSGE": np.greater_equal, "icmpULT": np.less, "icmpULE": np.less_equal, "icmpUGT": np.greater,
    "icmpUGE": np.greater_equal,
}  # fmt: skip
_CONTROL = frozenset(
    "if for while call branch cond_branch warp_specialize warp_specialize_partitions".split()
)


def weighed(program: Program, values: Sequence[Any], grid: tuple[int, int, int]) -> Optional[Array]:
    """Return the weight of each program, in the order of the grid; None where it is not known.

    Args:
        values: of the kernel's arguments.
    """
    total = prod(grid)
    if total > _PROGRAMS:
        return None
    (entry,) = (function for function in program.functions.values() if function.public)
    walk = _Walk(grid)
    for argument, value in zip(entry.body.blocks[0].arguments, values):
        if isinstance(value, np.ndarray) and value.dtype.kind in "biu" and value.size == 1:
            walk.known[id(argument)] = value.reshape(()).astype(np.int64)
    try:
        walk.region(entry.body, np.ones(total, bool))
    except _Unknown:
        return None
    return walk.weight


class _Walk:
    """The passage of all programs through a kernel.

    Attributes:
        known: scalars by id of their value, for all programs together or an entry for each.
        weight: of each program so far.
    """

    def __init__(self, grid: tuple[int, int, int]):
        self.grid = grid
        number = np.arange(prod(grid))
        rest = number // grid[0]
        self.place = (number % grid[0], rest % grid[1], rest // grid[1])
        self.known: dict[int, Array] = {}
        self.weight = np.zeros(number.size)
        self._captured: list[Optional[Array]] = []
        self._costs: dict[int, Optional[float]] = {}
        self._passed = 0

    def region(self, region: Region, active: Array) -> list[Any]:
        """Pass a region of one block in the programs that are `active`; return the operands of its terminator."""
        if len(region.blocks) != 1:
            raise _Unknown
        self._passed += 1
        if self._passed > _MOST:
            raise _Unknown
        block = region.blocks[0]
        self.weight += active * _direct(block)
        for op in block.ops:
            if op.name in ("branch", "cond_branch"):
                raise _Unknown
            if op.name in TERMINATORS:
                return [
                    a for arg in op.args for a in (arg if isinstance(arg, (list, tuple)) else [arg])
                ]
            if op.name in _CONTROL:
                getattr(self, f"_{op.name}")(op, active)
            else:
                self._scalar(op)
        return []

    def _value(self, value: Any) -> Optional[Array]:
        return self.known.get(id(value.resolve())) if isinstance(value, Value) else None

    def _needed(self, value: Any) -> Array:
        known = self._value(value)
        if known is None:
            raise _Unknown
        return known

    def _bind(self, targets: Sequence[Value], values: Sequence[Optional[Array]]) -> None:
        for i, target in enumerate(targets):
            value = values[i] if i < len(values) else None
            if value is None:
                self.known.pop(id(target), None)
            else:
                self.known[id(target)] = value

    def _scalar(self, op: Op) -> None:
        """Compute an op of integers whose operands are known."""
        result: Optional[Array] = None
        if op.name == "constant" and isinstance(op.args[0], (bool, int)):
            result = np.asarray(int(op.args[0]))
        elif op.name == "get_program_id":
            result = self.place[int(op.args[0])]
        elif op.name == "get_num_programs":
            result = np.asarray(self.grid[int(op.args[0])])
        elif op.name == "int_cast":
            result = self._value(op.args[0])
        elif op.name in _SCALARS and not getattr(op.results[0].type, "dims", None):
            operands = [self._value(value) for value in op.operands()]
            if all(value is not None for value in operands):
                result = np.asarray(_SCALARS[op.name](*operands))
        self._bind(op.results, [result])

    # ---- control flow -------------------------------------------------------------------------------

    def _call(self, op: Op, active: Array) -> None:
        function, arguments = op.args[0], [self._value(value) for value in op.args[1]]
        cost = self._straight(function.body)
        if cost is not None and not any(_integer(result) for result in op.results):
            self.weight += active * cost
            self._bind(op.results, [])
            return
        self._bind(function.body.blocks[0].arguments, arguments)
        results = [self._value(value) for value in self.region(function.body, active)]
        self._bind(op.results, results)

    def _if(self, op: Op, active: Array) -> None:
        condition = self._needed(op.args[0]).astype(bool)
        branches = []
        for region, live in zip(op.regions, (active & condition, active & ~condition)):
            taken = bool(region.blocks) and bool(live.any())
            ends = self.region(region, live) if taken else []
            branches.append([self._value(value) for value in ends] if taken else None)
        yes, no = (*branches, None)[:2]
        merged: list[Optional[Array]] = []
        for i in range(len(op.results)):
            a, b = (None if side is None or i >= len(side) else side[i] for side in (yes, no))
            if yes is None or no is None:  # no program takes the other way
                merged.append(b if yes is None else a)
            else:
                merged.append(None if a is None or b is None else np.where(condition, a, b))
        self._bind(op.results, merged)

    def _for(self, op: Op, active: Array) -> None:
        low, high, step = (self._needed(value) for value in op.args[:3])
        if np.any(step <= 0):
            raise _Unknown
        trips = np.where(active, np.maximum(0, -((low - high) // step)), 0)
        body = op.regions[0].blocks[0]
        cost = self._straight(op.regions[0])
        if cost is not None:
            self.weight += trips * cost
            self._bind(op.results, [])
            return
        carried = [self._value(value) for value in op.args[3]]
        for number in range(int(trips.max(initial=0))):
            live = number < trips
            self._bind(body.arguments, [low + number * step, *carried])
            ends = [self._value(value) for value in self.region(op.regions[0], live)]
            carried = [
                None if old is None or new is None else np.where(live, new, old)
                for old, new in zip(carried, ends)
            ]
        self._bind(op.results, carried)

    def _while(self, op: Op, active: Array) -> None:
        raise _Unknown

    def _warp_specialize(self, op: Op, active: Array) -> None:
        self._captured = [self._value(value) for value in op.args[0]]
        for region in op.regions:
            self.region(region, active)
        self._bind(op.results, [])

    def _warp_specialize_partitions(self, op: Op, active: Array) -> None:
        passed = self._captured
        for region in op.regions:
            self._bind(region.blocks[0].arguments, passed)
            self.region(region, active)

    def _straight(self, region: Region) -> Optional[float]:
        """Return the weight of code without control flow, calls included; None for other code."""
        if id(region) not in self._costs:
            self._costs[id(region)] = self._straight_cost(region)
        return self._costs[id(region)]

    def _straight_cost(self, region: Region) -> Optional[float]:
        if len(region.blocks) != 1:
            return None
        block = region.blocks[0]
        cost = _direct(block)
        for op in block.ops:
            if op.name == "call" and isinstance(op.args[0], Function):
                inner = self._straight(op.args[0].body)
                if inner is None:
                    return None
                cost += inner
            elif op.name in _CONTROL:
                return None
        return cost


def _integer(value: Value) -> bool:
    return not getattr(value.type, "dims", None) and str(value.type).startswith("i")


def _direct(block: Block) -> float:
    """Return the weight of a block's own ops: the elements that each makes or reads."""
    return float(sum(map(_elements, block.ops)))


def _elements(op: Op) -> float:
    shapes = [tuple(getattr(v.type, "dims", None) or ()) for v in (*op.results, *op.operands())]
    size = max(map(prod, shapes), default=1)
    if ("dot" in op.name or "mma" in op.name) and op.results and shapes[0]:
        depth = shapes[1][-1] if len(shapes) > 1 and shapes[1] else 1
        size = max(size, prod(shapes[0]) * depth // _DEPTH)
    return float(size)
