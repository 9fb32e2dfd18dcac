"""Allocation and order of tensor memory: PTX ISA 9.7.16.7, 9.7.16.8 (waits), 9.7.16.11 (fences), 9.7.16.12 (commit)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.isa.memory import addresses, space_of
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.program import TYPES

__all__ = ["aligned", "lanes_of", "pairs_of"]

_U32 = TYPES["u32"]


def aligned(step: Step) -> Step:
    """Return a step that waits until all threads of a warp are there; warps whose guard fails pass by."""

    def run(group: Any) -> Any:
        if group.active is None and group.mask is None:
            return step(group)
        lanes = group.lanes()
        exited = group.machine.exited[group.rows]
        here = (exited | lanes).all(1) | ~lanes.any(1)
        return step(group) if here.all() else group.machine.await_warps(group, here)

    return run


def pairs_of(call: Any) -> bool:
    """Take `.cta_group`; return whether it is of two blocks."""
    return bool(call.one_of("cta_group::1", "cta_group::2") == "cta_group::2")


def lanes_of(group: Any) -> list[tuple[int, int]]:
    """Return (warp, lane) of the threads that execute the current instruction."""
    return [(int(row), int(lane)) for row, lane in np.argwhere(group.lanes())]


def _placed(error: Any, row: int) -> Any:
    error.place = (row, 0)
    return error


def _prefix(call: Any, name: str) -> bool:
    """Take what allocation and deallocation share; return whether they are of two blocks."""
    for word in (name, "sync", "aligned"):
        call.flag(word)
    return pairs_of(call)


@instruction("tcgen05.alloc")
def alloc(call: Any) -> Step:
    """Allocate columns; their address comes to shared memory, whichever proxy reads or writes there next."""
    paired = _prefix(call, "alloc")
    space = space_of(call)
    if call.type().bits != 32:
        raise call.refuse("`tcgen05.alloc` is of .b32")
    call.count(2)
    where, columns = addresses(call, call.operands[0]), call.get(call.operands[1], _U32)

    def run(group: Any) -> Any:
        machine, here = group.machine, group.lanes()
        counts = group.full(columns(group))
        starts = np.zeros((group.rows.size, 1), np.uint32)
        late = np.zeros(here.shape, bool)
        for row in np.flatnonzero(here.any(1)):
            try:
                start = machine.tensor.allocate(int(group.block[row]), int(counts[row, 0]), paired)
            except EmulatorError as error:
                raise _placed(error, int(row)) from None
            if start is None:
                late[row] = True
            else:
                starts[row] = start
        group.mask = here & ~late
        if group.mask.any():
            ((_, places, _),) = machine.memory.places(group, space, where(group), 4, True)
            done = group.mask.any(1)
            into = group.full(places)[done, 0]
            machine.memory.view("shared", 4)[into // 4] = starts[done, 0]
            machine.tensor.addressed.update(into.tolist())
            machine.changes += 1
        if not late.any():
            return None
        rest = group.everything() & ~late
        if rest.any():
            other = group.part(rest)
            other.pc = group.pc + 1
            machine.place(other)
        return machine.tensor.await_columns(group.part(late))

    return aligned(run)


@instruction("tcgen05.dealloc")
def dealloc(call: Any) -> Step:
    _prefix(call, "dealloc")
    if call.type().bits != 32:
        raise call.refuse("`tcgen05.dealloc` is of .b32")
    call.count(2)
    start, columns = call.get(call.operands[0], _U32), call.get(call.operands[1], _U32)

    def run(group: Any) -> None:
        starts, counts = group.full(start(group)), group.full(columns(group))
        for row in np.flatnonzero(group.lanes().any(1)):
            try:
                group.machine.tensor.free(
                    int(group.block[row]), int(starts[row, 0]) & 0xFFFF, int(counts[row, 0])
                )
            except EmulatorError as error:
                raise _placed(error, int(row)) from None

    return aligned(run)


@instruction("tcgen05.relinquish_alloc_permit")
def relinquish(call: Any) -> Step:
    def run(group: Any) -> None:
        group.machine.tensor.closed[group.block[group.lanes().any(1)]] = True

    return aligned(run)


@instruction("tcgen05.wait::ld", "tcgen05.wait::st")
def wait(call: Any) -> Step:
    loads = "wait::ld" in call.left

    def run(group: Any) -> None:
        tensor = group.machine.tensor
        tensor.wait_loads(group) if loads else tensor.wait_stores(group)
        if group.machine.observer is not None:
            group.machine.observer.tensor_waited(group, loads)

    return aligned(run)


@instruction("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def fence(call: Any) -> Step:
    """Order the unit's work for threads that meet; a barrier does it here by itself, as compilers rely on."""
    return lambda group: None


@instruction("tcgen05.commit")
def commit(call: Any) -> Step:
    call.flag("commit")
    pairs_of(call)
    if not call.flag("mbarrier::arrive::one"):
        raise call.refuse("`tcgen05.commit` arrives at an mbarrier")
    multicast = call.flag("multicast::cluster")
    space_of(call)
    if call.type().bits != 64:
        raise call.refuse("an mbarrier is of .b64")
    call.count(2 if multicast else 1)
    where = addresses(call, call.operands[0])
    mask = call.get(call.operands[1], TYPES["u16"], True) if multicast else None

    def run(group: Any) -> None:
        machine = group.machine
        memory, observer = machine.memory, machine.observer
        low = where(group) & 0xFFFFFFFF
        ((_, places, _),) = memory.places(group, "shared", low, 8, True)
        places = group.full(places)
        masks = None if mask is None else group.full(mask(group))
        for lane in lanes_of(group):
            signals = [int(places[lane])]
            if masks is not None:
                first = int(memory.cluster_first[group.block[lane[0]]])
                ranks = [r for r in range(16) if int(masks[lane]) >> r & 1]
                if not ranks or ranks[-1] >= machine.cluster_size:
                    raise EmulatorError(
                        f"blocks {int(masks[lane]):#x} of a cluster of {machine.cluster_size}"
                    )
                signals = [
                    (first + rank) * memory.stride + signals[0] % memory.stride for rank in ranks
                ]
            for place in signals:
                machine.mbarriers.at(place)
            number = None if observer is None else observer.tensor_committed(group, lane, signals)

            def arrive(places: list[int] = signals, number: Any = number) -> None:
                for place in places:
                    if number is not None:
                        machine.observer.tensor_done(place, number)
                    machine.mbarriers.arrive(place)

            machine.tensor.start(group, lane, arrive)

    return run


@instruction("tcgen05")
def unknown(call: Any) -> Step:
    """Refuse whatever comes after sm_100."""
    form = ".".join((call.name, *call.statement.modifiers))
    raise call.refuse(f"`{form}` is not known")
