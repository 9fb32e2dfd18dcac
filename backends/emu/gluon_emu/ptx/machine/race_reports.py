"""The reports of the search for races."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.errors import EmulatorError, MissingWaitError, OrderError, RaceError
from gluon_emu.ptx.machine.clocks import CAUSAL
from gluon_emu.ptx.machine.group import LANES
from gluon_emu.ptx.machine.shadow import LATE, Accesses
from gluon_emu.ptx.machine.tensor import COLUMNS, ROWS

__all__ = ["refuse", "refuse_used", "spoken"]


def refuse(
    races: Any, group: Any, earlier: Any, unit: Any, thread: tuple[Any, Any], how: tuple[str, bool, int],
    wrote: bool, proxy: bool,
) -> None:  # fmt: skip
    machine = races.machine
    space, writes, _ = how
    bound = machine.steps[group.pc]
    agent, place = int(earlier.agent), int(earlier.place)
    row = int(np.flatnonzero(group.rows == thread[0])[0])
    verb, other = ("write" if writes else "read"), ("write" if wrote else "read")
    before = f"the {other} by {spoken(machine, place)}"
    kind: Any = OrderError if space == "global" else RaceError
    if agent > 0:
        before += f" of {_thread(machine, agent)}"
    remedy = None
    words = f"{_where(races, space, int(unit))}: this {verb} and {before} have no order"
    if proxy:
        words += " between the generic and the async proxy"
        remedy = "Put `fence.proxy.async` behind the write, before the barrier that follows it."
        if not wrote:
            words += ": nothing used the value before its warp arrived at a barrier, and no barrier waits for a load"
            remedy = "Use the value before the arrival, or put `fence.proxy.async` between the two."
    elif agent < 0:
        kind = MissingWaitError
        words = f"{_where(races, space, int(unit))}: this {verb} does not wait for {before}"
        remedy = _wait(machine, place)
    elif _signalled_for_others(races, thread, earlier):
        remedy = "Another lane of that warp signalled: put `bar.warp.sync` before its signal."
    elif races.narrow is not None and space == "global":
        remedy = f"{races.narrow}"
    elif space == "shared":
        remedy = "Put a barrier between the two."
    raise machine.report(kind, words, bound, group, (row, int(thread[1])), remedy)


def refuse_used(
    races: Any, group: Any, earlier: Accesses, flat: np.ndarray, threads: tuple[np.ndarray, np.ndarray],
    how: tuple[str, bool, int], wrote: bool,
) -> None:  # fmt: skip
    """Report accesses without an order; of loads whose values may be unused, once a value is used."""
    rows, lanes = threads
    doubtful = (earlier.agent > 0) & (earlier.strong != LATE)
    if how[1]:
        readers, places, doubtful = earlier.agent - 1, earlier.place, doubtful & (not wrote)
    else:
        readers, places = rows * LANES + lanes, np.full(rows.size, group.pc)
    sure = ~doubtful
    for place, thread in {*zip(places[doubtful].tolist(), readers[doubtful].tolist())}:
        if not races.unused.may_be(place, thread):
            sure |= (places == place) & (readers == thread)
    for place in [None] if sure.any() else np.unique(places).tolist():
        first = int(np.argmax(sure if place is None else places == place))
        where = (rows[first], lanes[first])
        try:
            refuse(races, group, earlier.of(first), flat[first], where, how, wrote, False)
        except EmulatorError as error:
            if place is None:
                raise
            races.unused.doubt(place, readers[places == place].tolist(), error)


def _signalled_for_others(races: Any, thread: tuple[Any, Any], earlier: Any) -> bool:
    row = int(earlier.agent) - 1 >> 5
    if row == int(thread[0]):
        return False
    if races.cluster_of[row] != races.cluster_of[int(thread[0])]:
        return False
    return bool(races.clock.some[CAUSAL, int(thread[0]), int(races.own[row])] >= earlier.epoch)


def spoken(machine: Any, place: int) -> str:
    source = machine.steps[place].source
    where = source.location
    line = f"line {source.line} of the PTX"
    near = f"{where.file}:{where.line}, {line}" if where is not None else line
    text = source.text if len(source.text) < 90 else source.text[:87] + "..."
    return f"`{text}` ({near})"


def _thread(machine: Any, agent: int) -> str:
    row, lane = agent - 1 >> 5, agent - 1 & 31
    block = _number(machine, int(machine.block_of[row]))
    return f"block {block}, warp {row % machine.warps}, lane {lane}"


def _number(machine: Any, block: int) -> tuple[int, ...]:
    return tuple(int(i) for i in machine.block_ids[block])


def _where(races: Any, space: str, unit: int) -> str:
    if space == "tensor":
        lanes, column = divmod(unit, COLUMNS)
        owner, first = lanes // (ROWS // 16), lanes % (ROWS // 16) * 16
        where = f"lanes {first} to {first + 15}, column {column:#x} of the tensor memory"
        return f"{where} of block {_number(races.machine, owner)}"
    if space == "shared":
        byte = unit * races.shared.unit
        block = _number(races.machine, byte // races.machine.memory.stride)
        return f"byte {byte % races.machine.memory.stride:#x} of the shared memory of block {block}"
    assert races.globals is not None
    byte = unit * races.globals.unit
    piece = int(np.searchsorted(races.bases, byte, "right")) - 1
    arrays = races.machine.memory.arrays
    address = byte - int(races.bases[piece]) + int(races.low[piece]) + arrays.low
    for one in arrays.allocations:
        if one.start <= address + races.globals.unit - 1 and address < one.end:
            return f"byte {max(0, address - one.start)} of {one.name}"
    return f"address {address:#x}"


def _wait(machine: Any, place: int) -> str:
    name = machine.steps[place].source.statement.name
    modifiers = machine.steps[place].source.statement.modifiers
    if name == "wgmma":
        return "Wait for the product: `wgmma.commit_group`, `wgmma.wait_group`."
    if name == "tcgen05":
        if modifiers[0] in ("ld", "st"):
            return f"Put `tcgen05.wait::{modifiers[0]}` behind it, before the barrier that follows."
        return "Wait for it: `tcgen05.commit`, and `mbarrier.try_wait` at that mbarrier."
    if "bulk" not in modifiers:
        return "Wait for the copy: `cp.async.wait_group`, then a barrier for other threads."
    if "mbarrier::complete_tx::bytes" in modifiers or name in ("st", "red"):
        return "Wait for its mbarrier: `mbarrier.try_wait`."
    return "Wait for the copy: `cp.async.bulk.commit_group`, `cp.async.bulk.wait_group`, then a barrier."
