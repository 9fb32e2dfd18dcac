"""mbarrier objects: PTX ISA 9.7.13.15."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from gluon_emu.ptx.isa.memory import addresses, space_of
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Sink

__all__ = ["places_of"]

_U32, _B64 = TYPES["u32"], TYPES["b64"]
_PENDING = np.uint64(
    40
)  # where a state, which is opaque, has the missing arrivals; the phase is below


def places_of(group: Any, space: str, address: np.ndarray, kind: str = "mbarrier") -> np.ndarray:
    """Return the byte of the objects in all of the shared memory, (warps, 32)."""
    places = group.machine.memory.places(group, space, address, 8, True)
    if len(places) != 1 or places[0][0] != "shared":
        raise ValueError("an mbarrier that is not in shared memory")
    if group.machine.observer is not None:
        group.machine.observer.access(kind, group, places, 8)
    return np.asarray(group.full(places[0][1]))


def _prefix(call: Any) -> str:
    """Take what all instructions share; return the space, and let `call.ordered` say if threads are ordered."""
    call.ordered = call.one_of("release", "acquire", "relaxed") != "relaxed"
    call.one_of("cta", "cluster")
    space = space_of(call)
    if call.type() != _B64:
        raise call.refuse("an mbarrier is of .b64")
    return space


def _each(
    group: Any, space: str, address: Any, value: Optional[np.ndarray] = None, kind: str = "mbarrier"
) -> Any:
    """Yield (place, number, value) of each object, and each value that threads have for it."""
    lanes = group.lanes()
    where = places_of(group, space, address, kind)[lanes]
    if value is None:
        for place, count in zip(*np.unique(where, return_counts=True)):
            yield int(place), int(count), 0
        return
    pairs = np.stack((where, group.full(value)[lanes].astype(np.int64)))
    unique, counts = np.unique(pairs, axis=1, return_counts=True)
    for (place, amount), count in zip(unique.T, counts):
        yield int(place), int(count), int(amount)


@instruction("mbarrier.init", "mbarrier.expect_tx", "mbarrier.complete_tx")
def change(call: Any) -> Step:
    kind = call.one_of("init", "expect_tx", "complete_tx")
    space = _prefix(call)
    call.count(2)
    where, amount = addresses(call, call.operands[0]), call.get(call.operands[1], _U32)

    def run(group: Any) -> None:
        objects = group.machine.mbarriers
        act = {"init": objects.init, "expect_tx": objects.expect, "complete_tx": objects.complete}
        access = "mbarrier.init" if kind == "init" else "mbarrier"
        for place, count, value in _each(group, space, where(group), amount(group), access):
            act[str(kind)](place, value if kind == "init" else count * value)

    return run


@instruction("mbarrier.inval")
def inval(call: Any) -> Step:
    call.flag("inval")
    space = _prefix(call)
    call.count(1)
    where = addresses(call, call.operands[0])

    def run(group: Any) -> None:
        for place, _, _ in _each(group, space, where(group), kind="mbarrier.init"):
            group.machine.mbarriers.invalidate(place)

    return run


@instruction("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(call: Any) -> Step:
    drop = call.one_of("arrive", "arrive_drop") == "arrive_drop"
    expects = call.flag("expect_tx")
    call.flag("noComplete")
    space = _prefix(call)
    operands = list(call.operands)
    put: Any = None
    if operands and not hasattr(operands[0], "base"):
        state = operands.pop(0)
        if not isinstance(state, Sink):
            put = call.put(state, _B64)
    if not 1 <= len(operands) <= 2 or expects and len(operands) != 2:
        raise call.refuse("`mbarrier.arrive` takes an address and a count")
    where = addresses(call, operands[0])
    amount = call.get(operands[1], _U32) if len(operands) == 2 else None
    releases = call.ordered

    def run(group: Any) -> None:
        objects, address = group.machine.mbarriers, where(group)
        value = None if amount is None else amount(group)
        observer = group.machine.observer
        if observer is not None:
            observer.signal(group, places_of(group, space, address), releases)
        if put is not None:
            lanes, state = group.lanes(), np.zeros((group.rows.size, 32), np.uint64)
            places = places_of(group, space, address)
            each = np.ones(lanes.shape, np.int64)
            if value is not None and not expects:
                each = group.full(value).astype(np.int64)
            for place in np.unique(places[lanes]):
                one, mine = objects.at(int(place)), lanes & (places == place)
                came = np.cumsum(each[mine]) - each[mine]  # by the threads before
                state[mine] = one.phase | (one.pending - came).clip(0) << int(_PENDING)
            put(group, state)
        for place, count, number in _each(group, space, address, value):
            if expects:
                objects.expect(place, count * number)
                number = 1
            objects.arrive(place, count * number if value is not None else count, drop)

    return run


@instruction("mbarrier.test_wait", "mbarrier.try_wait")
def wait(call: Any) -> Step:
    """`try_wait` waits, and returns false only where nothing else can happen."""
    tries = call.one_of("test_wait", "try_wait") == "try_wait"
    parity = call.flag("parity")
    space = _prefix(call)
    call.count(3, 4)
    put = call.put(call.operands[0], TYPES["pred"])
    where = addresses(call, call.operands[1])
    phase = call.get(call.operands[2], _U32 if parity else _B64)
    if len(call.operands) == 4:
        call.get(call.operands[3], _U32)
    acquires = call.ordered

    def run(group: Any) -> Any:
        objects = group.machine.mbarriers
        lanes = group.lanes()
        places = places_of(group, space, where(group))
        wanted = group.full(phase(group)).astype(np.int64) & ((1 << int(_PENDING)) - 1)
        done = np.zeros(places.shape, bool)
        own, of = np.unique(places[lanes], return_inverse=True)
        phases = np.array([objects.at(int(place)).phase for place in own], np.int64)[of]
        done[lanes] = ((phases & 1) if parity else phases) != wanted[lanes]
        ready = done | ~lanes
        if not tries or group.passed or ready.all():
            group.polled = group.polled or not tries or group.passed
            group.passed = False
            if group.machine.observer is not None:
                group.machine.observer.observed(group, places, done, acquires)
            put(group, done)
            return None
        every = group.everything()
        rows = ready.all(1)
        if rows.any():
            group.machine.place(group.part(every & rows[:, None]))
            places = places[~rows]
            group = group.part(every & ~rows[:, None])
        return objects.wait(group, places)

    return run


@instruction("mbarrier.pending_count")
def pending(call: Any) -> Step:
    """Return the arrivals that a phase missed before the one that gave the state."""
    call.flag("pending_count")
    call.count(2)
    b64 = call.type()
    get, put = call.get(call.operands[1], b64), call.put(call.operands[0], _U32)
    return lambda group: put(group, (get(group) >> _PENDING).astype(np.uint32))
