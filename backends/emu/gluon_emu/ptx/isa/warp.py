"""Exchange between the threads of a warp: PTX ISA 9.7.9.6 and 9.7.13.9 to 9.7.13.14."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.ptx import warps
from gluon_emu.ptx.isa.barrier import synchronous
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.machine.group import LANES
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Pair

__all__: list[str] = []

_LANE = np.arange(LANES)


@instruction("shfl", "vote", "match", "redux")
def exchange(call: Any) -> Step:
    """Execute it as inline assembly does, after the threads have come together."""
    make = {"shfl": warps.shfl, "vote": warps.vote, "match": warps.match, "redux": warps.redux}
    members = call.get(call.operands[-1], TYPES["b32"])
    return synchronous(make[call.name](call), members)


@instruction("activemask")
def activemask(call: Any) -> Step:
    put = call.put(call.operands[0], TYPES["b32"])
    bits = np.uint32(1) << _LANE.astype(np.uint32)

    def run(group: Any) -> None:
        here = np.where(group.lanes() & group.everything(), bits, np.uint32(0))
        put(group, here.sum(1, dtype=np.uint32)[:, None])

    return run


@instruction("elect")
def elect(call: Any) -> Step:
    """Return the first thread of the mask; the ISA leaves open which."""
    if not call.flag("sync") or call.left:
        raise call.refuse("`elect` is there with `.sync` alone")
    call.count(2)
    d = call.operands[0]
    if not isinstance(d, Pair):
        raise call.refuse("`elect.sync` has two results, `_|p`")
    mask = call.get(call.operands[1], TYPES["b32"])
    put_lane, put = call.put(d.first, TYPES["u32"]), call.put(d.second, TYPES["pred"])

    def run(group: Any) -> None:
        named = mask(group)
        first = np.log2(np.maximum(named & (~named + np.uint32(1)), 1)).astype(np.uint32)
        put_lane(group, first)
        put(group, _LANE[None, :] == first)

    return synchronous(run, mask)
