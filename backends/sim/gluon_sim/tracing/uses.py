"""The uses of a value: only stored somewhere as it is, or used."""

from __future__ import annotations

from typing import Optional

from gluon_sim.tracing.ir import Op, Region, Value
from gluon_sim.tracing.program import Program

__all__ = ["first_use", "is_late", "is_used", "users_in"]

# Ops that give their operand on as it is, in another place or shape.
_PASS = frozenset(
    "convert_layout reshape trans broadcast expand_dims splat unsplat bitcast join split cat".split()
)
# Ops that put a value into memory -> its position among their operands.
_PUT = {"store": 1, "masked_store": 1, "local_store": 1}


def first_use(program: Program, op: Op) -> Optional[Op]:
    """Return the first op that does more with the results of `op` than to store them; None for none."""
    users = users_in(program)
    readers: list[Op] = []
    seen: set[int] = set()
    left = list(op.results)
    while left:
        value = left.pop()
        for user in users.get(id(value), ()):
            if user.name in _PASS:
                if id(user) not in seen:
                    seen.add(id(user))
                    left += user.results
                continue
            operands = [v.resolve() for v in user.operands()]
            places = [i for i, v in enumerate(operands) if v is value]
            if places != [_PUT.get(user.name)]:
                readers.append(user)
    return min(readers, key=lambda user: (user.loc.file, user.loc.line), default=None)


def users_in(program: Program) -> dict[int, list[Op]]:
    """Return the ops that take a value, by its id."""
    known = program.findings.users
    if known is None:
        known = program.findings.users = {}
        for op in program.walk_ops():
            value: Value
            for value in op.operands():
                known.setdefault(id(value.resolve()), []).append(op)
    return known


def is_used(op: Op) -> bool:
    """Return True if anything reads the op's result; looked up once, kept with the op."""
    if not op.results:
        return False
    if op.used is None:
        target = op.results[0]
        region = op.block.region if op.block is not None else None
        while region is not None and (around := region.get_parent_region()) is not None:
            region = around
        op.used = region is None or _reads(region, target)
    return op.used


def _reads(region: Region, target: Value) -> bool:
    for block in region.blocks:
        for op in block.ops:
            if any(v is target for v in op.operands()):
                return True
            if any(_reads(r, target) for r in op.regions):
                return True
    return False


def is_late(op: Op) -> bool:
    """Return True if an arrival at a barrier comes before anything uses what a load from shared memory returns; kept with the op.

    Such a load may still be on its way: an assembler lets neither a barrier nor an arrival wait for it.
    """
    if op.late is None:
        op.late = (
            op.name == "local_load" and op.block is not None and _arrives_first(op, op.block.ops)
        )
    return op.late


def _arrives_first(op: Op, ops: list[Op]) -> bool:
    same = {id(value) for value in op.results}
    for later in ops[ops.index(op) + 1 :]:
        if any(id(value) in same for value in later.operands()):
            if later.name not in _PASS:
                return False
            same |= {id(value) for value in later.results}
        elif any(_uses(region, same) for region in later.regions):
            return False
        elif "arrive" in later.name:
            return True
    return False


def _uses(region: Region, values: set[int]) -> bool:
    return any(
        any(id(value) in values for value in op.operands())
        or any(_uses(inner, values) for inner in op.regions)
        for block in region.blocks
        for op in block.ops
    )
