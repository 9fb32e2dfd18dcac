"""Comparisons into masks: VOPC.

ISA: CDNA3 12.9, RDNA3 16.9, RDNA4 16.9.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from gluon_emu.amdgcn.decode.operands import EXEC, Reg
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.table import Op, Step, pattern

_INTEGER = {
    "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": np.not_equal,
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "t": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "tru": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
}


def _unordered(a: Any, b: Any) -> Any:
    return np.isnan(a) | np.isnan(b)


_FLOAT = {
    **_INTEGER,
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~_unordered(a, b),
    "u": _unordered,
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b),
}
_KINDS = ("i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16")


def classes(value: Any, mask: Any) -> Any:
    """Return whether a float is of one of the classes in the bits of `mask` (v_cmp_class)."""
    value = np.asarray(value)
    kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[value.dtype.itemsize]
    bits = value.view(kind)
    mantissa = {2: 10, 4: 23, 8: 52}[value.dtype.itemsize]
    quiet = ((bits >> kind(mantissa - 1)) & kind(1)).astype(bool)
    negative = np.signbit(value)
    nan, infinite, zero = np.isnan(value), np.isinf(value), value == 0
    small = (np.abs(value) < np.finfo(value.dtype).tiny) & ~zero
    normal = ~(nan | infinite | zero | small)
    tests = [nan & ~quiet, nan & quiet, infinite & negative, normal & negative, small & negative,
             zero & negative, zero & ~negative, small & ~negative, normal & ~negative,
             infinite & ~negative]  # fmt: skip
    belongs: Any = False
    for number, test in enumerate(tests):
        belongs = belongs | (test & ((mask >> number) & 1).astype(bool))
    return belongs


def _bind_compare(function: Any, kinds: tuple[str, str], writes_exec: bool) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Set each active lane's bit of the mask to S0 op S1; cmpx forms make it EXEC."""
        operands = ins.operands
        bare = writes_exec and ctx.generation >= 10
        sources = operands if bare and len(operands) == 2 else operands[1:]
        first, second = (
            _bind.vector_reader(ins, o, k, ctx, i)
            for i, (o, k) in enumerate(zip(sources[:2], kinds))
        )
        words = ctx.lanes // 32
        exec_mask = Reg("s", EXEC, words)
        write = None if bare else _bind.mask_writer(operands[0], ctx)

        def step(b: Any) -> None:
            value = np.broadcast_to(function(first(b), second(b)), b.exec.shape)
            if write is not None:
                write(b, value)
            if writes_exec:
                b.set_mask(exec_mask.first, value & b.exec)
                b.exec_changed()

        return step

    return bind


@pattern
def _compare(name: str) -> Optional[Op]:
    for prefix, writes_exec in (("v_cmpx_", True), ("v_cmp_", False)):
        if not name.startswith(prefix):
            continue
        relation, _, kind = name[len(prefix) :].rpartition("_")
        if relation == "class" and kind in ("f16", "f32", "f64"):
            function: Any = classes
            kinds = (kind, "u32")
        elif kind in _KINDS:
            function = (_FLOAT if "f" in kind else _INTEGER).get(relation)
            kinds = (kind, kind)
        else:
            return None
        if function is None:
            return None
        return Op(_bind_compare(function, kinds, writes_exec), "valu", 1, doc="A comparison.")
    return None
