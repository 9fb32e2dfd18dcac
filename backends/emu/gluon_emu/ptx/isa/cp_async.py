"""Copies of threads from global to shared memory: PTX ISA 9.7.9.25.3, `cp.async`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.isa.mbarrier import places_of
from gluon_emu.ptx.isa.memory import addresses, space_of
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.machine.agents import Task
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Immediate, Register

__all__: list[str] = []

_U32 = TYPES["u32"]
_HINTS = ("L2::cache_hint", "L2::64B", "L2::128B", "L2::256B")


@instruction("cp.async")
def cp_async(call: Any) -> Step:
    call.flag("async"), call.one_of("ca", "cg")
    space_of(call), call.flag("global")
    hinted = "L2::cache_hint" in call.left
    while call.one_of(*_HINTS):
        pass
    if call.left:
        raise call.refuse(f"`.{call.left[0]}` of `cp.async` is not known")
    operands = list(call.operands)
    if hinted:
        operands.pop()
    if not 3 <= len(operands) <= 5 or not isinstance(operands[2], Immediate):
        raise call.refuse("`cp.async` takes two addresses and a number of bytes")
    size = int(operands[2].value)
    if size not in (4, 8, 16):
        raise call.refuse(f"`cp.async` of {size} bytes", "A copy is of 4, 8 or 16 bytes.")
    into, source = addresses(call, operands[0]), addresses(call, operands[1])
    amount, ignored = None, None
    if len(operands) == 4:
        last = operands[3]
        if isinstance(last, Register) and call.program.widths.get(last.name) == 1:
            ignored = call.get(last, TYPES["pred"])
        else:
            amount = call.get(last, _U32)

    def run(group: Any) -> None:
        memory = group.machine.memory
        lanes = group.lanes()
        ((_, place, _),) = memory.places(group, "shared", into(group), size, True)
        place = group.full(place)[lanes]
        count = np.full(lanes.shape, size)
        if amount is not None:
            count = group.full(amount(group)).astype(np.int64)
            if (count[lanes] > size).any():
                raise EmulatorError(f"a source of {int(count[lanes].max())} of {size} bytes")
        if ignored is not None:
            count = np.where(group.full(ignored(group)), 0, count)
        before, address = group.mask, source(group)
        group.mask = lanes & (count > 0)
        start = np.zeros(lanes.shape, np.int64)
        if group.mask.any():
            whole = size if (count[group.mask] == size).all() else 1
            if whole == size:
                ((_, start, _),) = memory.places(group, "global", address, size, False)
                start = group.full(start)
            else:
                start = _bytewise(group, memory, address, count)
        group.mask = before
        start, bytes_ = start[lanes], count[lanes]
        task = Task("cp", lambda: _copy(memory, place, start, bytes_, size), _threads(group))
        if group.machine.observer is not None:
            group.machine.observer.copied(group, task, place, lanes, size)
        group.machine.agents.start(task, grouped=True)

    return run


def _bytewise(group: Any, memory: Any, address: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Check copies of different lengths; return where each starts."""
    every = group.mask
    start = np.zeros(every.shape, np.int64)
    for length in np.unique(count[every]):
        group.mask = every & (count == length)
        for last in (length - 1, 0):
            ((_, first, _),) = memory.places(group, "global", address + last, 1, False)
        start = np.where(group.mask, group.full(first), start)
    return start


def _threads(group: Any) -> np.ndarray:
    return np.asarray(group.machine.agents.threads_of(group))


def _copy(memory: Any, place: np.ndarray, start: np.ndarray, count: np.ndarray, size: int) -> None:
    source, target = memory.view("global", 1), memory.shared
    if (count == size).all() and not (start & 3).any():
        words, into = memory.view("global", 4), memory.view("shared", 4)
        for i in range(size // 4):
            into[(place >> 2) + i] = words[(start >> 2) + i]
        return
    for i in range(size):
        inside = count > i
        target[place + i] = np.where(inside, source[np.where(inside, start + i, 0)], 0)


@instruction("cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all")
def groups(call: Any) -> Step:
    call.flag("async")
    kind = call.one_of("commit_group", "wait_group", "wait_all")
    if kind == "commit_group":
        return lambda group: group.machine.agents.commit(group, "cp")
    newest = int(call.operands[0].value) if kind == "wait_group" else 0
    every = kind == "wait_all"

    def run(group: Any) -> None:
        agents = group.machine.agents
        agents.wait_of(agents.threads_of(group), "cp", newest, every)

    return run


@instruction("cp.async.mbarrier")
def arrive(call: Any) -> Step:
    """Arrive when the thread's copies so far have come."""
    call.flag("async"), call.flag("mbarrier"), call.flag("arrive")
    counted = call.flag("noinc")
    space = space_of(call)
    call.type()
    call.count(1)
    where = addresses(call, call.operands[0])

    def run(group: Any) -> None:
        machine = group.machine
        lanes = group.lanes()
        places = places_of(group, space, where(group))[lanes]
        threads = _threads(group)
        unique, counts = np.unique(places, return_counts=True)
        if not counted:
            for place, count in zip(unique, counts):
                machine.mbarriers.at(int(place)).pending += int(count)

        if machine.observer is not None:
            for place in unique:
                machine.observer.noted(group, int(place), threads[places == place])

        def come() -> None:
            machine.agents.wait_of(threads, "cp", 0, True)
            for place, count in zip(unique, counts):
                machine.mbarriers.arrive(int(place), int(count))

        machine.agents.start(Task("cp", come, threads))

    return run
