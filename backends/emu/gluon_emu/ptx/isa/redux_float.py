"""Reductions of float32 over the threads of a warp, of sm_100: PTX ISA 9.7.13.10."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.ptx.isa.barrier import synchronous
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.program import TYPES

__all__: list[str] = []

_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_NAMES = [
    f"redux.sync.{kind}{more}.f32"
    for kind in ("min", "max")
    for more in ("", ".abs", ".NaN", ".abs.NaN")
]


@instruction(*_NAMES)
def redux(call: Any) -> Step:
    call.flag("sync")
    least, absolute, nan = call.one_of("min", "max") == "min", call.flag("abs"), call.flag("NaN")
    f32 = call.type()
    call.count(3)
    get, members = call.get(call.operands[1], f32), call.get(call.operands[2], TYPES["b32"])
    put = call.put(call.operands[0], f32)
    fn: Any = (np.minimum if least else np.maximum) if nan else (np.fmin if least else np.fmax)

    def run(group: Any) -> None:
        values = group.full(get(group))
        if absolute:
            values = np.abs(values)
        named = (group.full(members(group))[:, :, None] & _BITS) != 0
        neutral = np.float32(np.inf if least else -np.inf)
        every = np.isnan(values)[:, None, :] | ~named
        held = np.where(named, values[:, None, :], neutral)
        # Minus zero is less than zero.
        ranked = fn.reduce(held, axis=-1)
        zero = np.signbit(held) & (held == 0) & named
        sign = zero.any(-1) if least else ~((held == 0) & named & ~zero).any(-1)
        ranked = np.where(ranked == 0, np.where(sign, np.float32(-0.0), np.float32(0.0)), ranked)
        lost = every.all(-1) if not nan else (np.isnan(held) & named).any(-1)
        bits = np.where(lost, np.uint32(0x7FFFFFFF), ranked.astype(np.float32).view(np.uint32))
        put(group, bits.view(np.float32))

    return synchronous(run, members)
