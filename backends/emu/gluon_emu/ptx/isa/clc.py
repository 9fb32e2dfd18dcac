"""Cluster launch control: PTX ISA 9.7.13.17 and 9.7.13.18. The answer is opaque; this is the emulator's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.ptx.isa.mbarrier import places_of
from gluon_emu.ptx.isa.memory import addresses, space_of
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.isa.tcgen05 import lanes_of
from gluon_emu.ptx.machine.agents import Task
from gluon_emu.ptx.machine.group import LANES
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Register, Sink, Vector

__all__: list[str] = []

_BYTES = 16
_CANCELED = 1 << 62
_AXES = "xyz"


@instruction("clusterlaunchcontrol.try_cancel")
def try_cancel(call: Any) -> Step:
    """Ask for a cluster that has not started; the answer comes later, and an mbarrier gets its bytes."""
    call.flag("try_cancel"), call.flag("async"), space_of(call)
    call.flag("mbarrier::complete_tx::bytes")
    everywhere = call.flag("multicast::cluster::all")
    if call.left not in (["b128"], []):
        raise call.refuse(f"`.{call.left[0]}` of `{call.name}` is not known")
    call.count(2)
    where, at_barrier = addresses(call, call.operands[0]), addresses(call, call.operands[1])

    def run(group: Any) -> None:
        machine = group.machine
        memory = machine.memory
        ((_, places, _),) = memory.places(group, "shared", where(group), _BYTES, True)
        places = group.full(places)
        barriers = places_of(group, "shared", at_barrier(group))
        for lane in lanes_of(group):
            block = int(group.block[lane[0]])
            blocks = [block]
            if everywhere:
                first = int(memory.cluster_first[block])
                blocks = list(range(first, first + machine.cluster_size))
            offset, barrier = int(places[lane]) % memory.stride, int(barriers[lane]) % memory.stride
            signals = [one * memory.stride + barrier for one in blocks]
            for place in signals:
                machine.mbarriers.at(place)

            def answer(blocks: Any = blocks, offset: int = offset, signals: Any = signals) -> None:
                claimed = machine.claim()
                x, y, z = claimed or (0, 0, 0)
                words = memory.view("shared", 8)
                for one, place in zip(blocks, signals):
                    start = (one * memory.stride + offset) // 8
                    words[start], words[start + 1] = x | y << 32, z | (_CANCELED if claimed else 0)
                    machine.mbarriers.complete(place, _BYTES)

            if machine.observer is not None:
                parts = np.arange(0, _BYTES, 4)
                writes = [("shared", one * memory.stride + offset + parts, None) for one in blocks]
                machine.observer.bulk(group, lane, [], writes, 4, signals)
            thread = np.array([int(group.rows[lane[0]]) * LANES + lane[1]])
            machine.agents.start(Task("bulk", answer, thread, group.pc, True))

    return run


@instruction("clusterlaunchcontrol.query_cancel")
def query_cancel(call: Any) -> Step:
    call.flag("query_cancel")
    asks = call.flag("is_canceled")
    axis = call.one_of(*(f"get_first_ctaid::{axis}" for axis in _AXES))
    whole = call.flag("get_first_ctaid")
    call.flag("v4")
    source = call.operands[-1]
    if not isinstance(source, Register) or not (asks or axis or whole):
        raise call.refuse("this form of `clusterlaunchcontrol.query_cancel` is not known")
    u32 = TYPES["u32"]
    response = call.get(source, TYPES["b128"])
    if asks:
        answer = call.put(call.operands[0], TYPES["pred"])
        return lambda group: answer(group, (response(group)["high"] & np.uint64(_CANCELED)) != 0)
    d = call.operands[0]
    items = list(d.items) if isinstance(d, Vector) else [d]
    puts = [None if isinstance(item, Sink) else call.put(item, u32) for item in items]
    first = _AXES.index(axis[-1]) if axis else 0

    def run(group: Any) -> None:
        answer = response(group)
        one, two = answer["low"], answer["high"]
        numbers = (one & np.uint64(0xFFFFFFFF), one >> np.uint64(32), two & np.uint64(0xFFFFFFFF))
        for number, put in enumerate(puts, first):
            if put is not None and number < 3:
                put(group, numbers[number].astype(np.uint32))

    return run
