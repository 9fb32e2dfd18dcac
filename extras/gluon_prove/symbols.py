"""Scalars and views as far as code generation knows them: terms, and parts of buffers."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_prove.values import Term, apply
from gluon_sim.errors import OutOfBoundsError
from gluon_sim.executor.compile import constant_array
from gluon_sim.memory.shared import SharedView, derived
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.ir import Op, Value
from gluon_sim.tracing.types import MemDescType, ScalarType

__all__ = [
    "CASTS",
    "PROGRAM",
    "increment",
    "is_scalar",
    "linear",
    "symbolic",
    "truth",
    "view_of",
    "whole",
]

CASTS = frozenset("int_cast bitcast splat unsplat convert_layout".split())
PROGRAM = {"get_program_id": "program", "get_num_programs": "programs"}


def is_scalar(op: Op) -> bool:
    """Return whether an op computes an integer from integers."""
    if op.name not in ELEMENTWISE and op.name not in CASTS:
        return False
    if len(op.results) != 1:
        return False
    types = [op.results[0].type, *(v.type for v in op.operands())]
    return all(isinstance(t, ScalarType) and not t.is_float for t in types)


def symbolic(name: str, args: list[Any], bits: int) -> Any:
    """Evaluate a scalar op on values that code generation knows."""
    if all(isinstance(a, int) for a in args):
        return apply(name, args, bits, lambda root: False)
    if name in ("int_cast", "zero_extend") and bits > 1:
        return args[0]  # no value is so large that it changes: assumed, and said
    if name in ("add", "sub", "mul") and all(isinstance(a, (int, Term)) for a in args):
        if name == "add" and args[0] == 0:
            return args[1]
        if name in ("add", "sub") and args[1] == 0:
            return args[0]
    if name == "select" and isinstance(args[0], int):
        return args[1] if args[0] else args[2]
    return Term(name, tuple(args))


def truth(value: Any) -> bool:
    """Return whether a term is 0 or 1, as comparisons and their combinations are."""
    if not isinstance(value, Term):
        return False
    bits = value.name in ("and", "or", "xor") and all(
        truth(arg) or isinstance(arg, int) and arg in (0, 1) for arg in value.args
    )
    return bits or value.name.startswith("icmp")


def linear(value: Term) -> tuple[Term, int]:
    """Return a term as an unknown and a number that is added to it."""
    offset = 0
    while (
        value.name in ("add", "sub")
        and isinstance(value.args[0], Term)
        and isinstance(value.args[1], int)
    ):
        offset += value.args[1] if value.name == "add" else -value.args[1]
        value = value.args[0]
    if value.name == "add" and isinstance(value.args[0], int) and isinstance(value.args[1], Term):
        inner, more = linear(value.args[1])
        return inner, offset + value.args[0] + more
    return value, offset


def increment(value: Value, last: Value) -> Optional[int]:
    """By how much each round of a loop changes a carried value, where that is a constant."""
    total, current = 0, last.resolve()
    calls: list[Op] = []
    for _ in range(16):
        if current is value.resolve():
            return total
        owner = current.owner
        if not isinstance(owner, Op):
            if not calls or owner is not calls[-1].args[0].body.blocks[0]:
                return None
            current = calls.pop().args[1][current.index].resolve()
            continue
        if owner.name == "call":
            (block, *more) = owner.args[0].body.blocks
            if more or block.ops[-1].name != "ret":
                return None
            calls.append(owner)
            current = block.ops[-1].args[0][current.index].resolve()
            continue
        if owner.name == "int_cast":
            current = owner.args[0].resolve()
            continue
        if owner.name not in ("add", "sub"):
            return None
        a, b = (v.resolve() for v in owner.args[:2])
        constant = b.owner
        if not isinstance(constant, Op) or constant.name != "constant":
            if owner.name == "sub" or not isinstance(a.owner, Op) or a.owner.name != "constant":
                return None
            a, b, constant = b, a, a.owner
        amount = int(constant_array(constant).reshape(-1)[0])
        total += amount if owner.name == "add" else -amount
        current = a
    return None


def view_of(op: Op) -> Callable[..., Any]:
    type = op.results[0].type
    assert isinstance(type, MemDescType)
    if op.name == "memdesc_index":

        def index(view: SharedView, number: int) -> SharedView:
            if not 0 <= number < view.shape[0]:
                raise OutOfBoundsError(
                    f"the index {number} is outside of a buffer of {view.shape[0]}",
                    report="bounds.index",
                )
            return view.index(type, np.array([number]))

        return index
    if op.name == "memdesc_subslice":
        offsets = tuple(op.args[-1])

        def cut(view: SharedView) -> SharedView:
            return view.part(type, offsets)

        return cut
    if op.name == "memdesc_reinterpret":
        return lambda view: view.reinterpret(type, True)
    how = "trans" if op.name == "memdesc_trans" else "reshape"
    indices = tuple(op.args[-1])
    return lambda view: view.with_type(type, derived(view.table, how, *indices))


def whole(kind: str) -> Callable[..., Any]:
    """Model accesses at unknown indices: to all of the buffer."""

    def touch(machine: Any, *args: Any, **named: Any) -> None:
        for arg in args:
            if isinstance(arg, SharedView):
                machine.touch_shared(kind, arg)

    return touch
