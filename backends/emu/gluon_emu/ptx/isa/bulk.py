"""Bulk copies, of ranges of bytes and of boxes of tensors: PTX ISA 9.7.9.25.4 to 9.7.9.28."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.isa.atomics import update_of
from gluon_emu.ptx.isa.mbarrier import places_of
from gluon_emu.ptx.isa.memory import address_of, addresses
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.isa.tensor import box_of, move, rows_of
from gluon_emu.ptx.machine.agents import Task
from gluon_emu.ptx.machine.observe import Places
from gluon_emu.ptx.numbers import uint
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.tensormap import BYTES, FIELDS
from gluon_emu.ptx.text import Address, Vector

__all__: list[str] = []

_U32 = TYPES["u32"]
_SPACES = ("shared::cluster", "shared::cta", "global", "shared")
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_KINDS = {
    0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 8: "f32",
    9: "f64", 10: "bf16", 11: "f32", 12: "f32",
}  # fmt: skip


def _lanes(group: Any) -> list[tuple[int, int]]:
    return [(int(r), int(c)) for r, c in np.argwhere(group.lanes())]


def _bytes_at(group: Any, address: int) -> bytes:
    """Return a tensor map at a generic address of global memory.

    Raises:
        EmulatorError: the address is misaligned, or elsewhere.
    """
    arrays = group.machine.memory.arrays
    if address % 64:
        raise EmulatorError(f"a tensor map at {address:#x}, which is no multiple of 64")
    if not arrays.holds(address, address + BYTES, False):
        raise EmulatorError(f"a tensor map at {address:#x}: {arrays.nearest(address, BYTES)}")
    start = address - arrays.low
    return bytes(arrays.bytes[start : start + BYTES])


class _Form:
    """The modifiers that bulk copies share."""

    def __init__(self, call: Any):
        for word in ("reduce", "async", "bulk"):
            call.flag(word)
        self.prefetch = call.flag("prefetch")
        self.tensor = call.flag("tensor")
        dimensions = call.one_of("1d", "2d", "3d", "4d", "5d")
        self.rank = int(dimensions[0]) if dimensions else 0
        self.into = call.one_of(*_SPACES) or ""
        self.source = call.one_of(*_SPACES) or ""
        self.barrier = call.flag("mbarrier::complete_tx::bytes")
        call.flag("bulk_group")
        self.multicast = call.flag("multicast::cluster")
        mode = call.one_of(
            "tile", "im2col", "im2col_no_offs", "tile::gather4", "tile::scatter4", "im2col::w"
        )
        if mode == "im2col::w":
            raise call.refuse(f"`.{mode}` is not known")
        self.rows = mode in ("tile::gather4", "tile::scatter4")  # four rows by their numbers
        self.im2col = (mode or "").startswith("im2col")
        self.reduction = call.one_of(*_REDUCTIONS)
        self.hinted = call.flag("L2::cache_hint")
        call.flag("L2")
        self.masked = call.flag("cp_mask")
        call.flag("noftz")
        self.paired = call.one_of("cta_group::1", "cta_group::2") == "cta_group::2"


def _numbers(call: Any, operand: Any) -> list[Callable[[Any], np.ndarray]]:
    items = operand.items if isinstance(operand, Vector) else [operand]
    return [call.get(item, TYPES["s32"]) for item in items]


@instruction("cp.async.bulk.commit_group", "cp.async.bulk.wait_group")
def groups(call: Any) -> Step:
    call.flag("async"), call.flag("bulk")
    if call.flag("commit_group"):
        return lambda group: group.machine.agents.commit(group, "bulk")
    newest, reads = int(call.operands[0].value), "read" in call.left
    return lambda group: group.machine.agents.wait(group, "bulk", newest, reads)


@instruction("cp.async.bulk.prefetch")
def prefetch(call: Any) -> Step:
    return lambda group: None


@instruction("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
def tensor(call: Any) -> Step:
    form = _Form(call)
    load = form.into.startswith("shared")
    if call.left:
        raise call.refuse(f"`.{call.left[0]}` of `{call.name}` is not known")
    operands = list(call.operands)
    described = operands[1] if load else operands[0]
    if not isinstance(described, Address) or not described.more:
        raise call.refuse("a copy of a tensor takes `[map, {coordinates}]`")
    at_map = address_of(call, described.base, described.offset)
    coordinates = _numbers(call, described.more[0])
    if len(coordinates) != (5 if form.rows else form.rank):
        raise call.refuse(f"{len(coordinates)} coordinates of {form.rank} dimensions")
    at_shared = addresses(call, operands[0] if load else operands[1])
    rest = operands[2:]
    at_barrier = addresses(call, rest.pop(0)) if load else None
    offsets: list[Any] = []
    if form.im2col and rest and isinstance(rest[0], Vector):
        offsets = [call.get(item, TYPES["u16"], True) for item in rest.pop(0).items]
    mask = call.get(rest.pop(0), TYPES["u16"], True) if form.multicast else None
    reduction = form.reduction

    def run(group: Any) -> None:
        machine = group.machine
        full = group.full
        at_maps, starts = full(at_map(group)), full(at_shared(group))
        where = [full(get(group)) for get in coordinates]
        far = [full(get(group)) for get in offsets]
        masks = None if mask is None else full(mask(group))
        barriers = None if at_barrier is None else full(_barrier(group, at_barrier))
        lanes = _lanes(group)
        chosen = tuple(zip(*lanes)) or ((), ())
        numbers = zip(*(values[chosen].tolist() for values in where))
        pixels = zip(*(values[chosen].tolist() for values in far)) if far else repeat(())
        maps = {address: _bytes_at(group, address) for address in set(at_maps[chosen].tolist())}
        rest = zip(
            at_maps[chosen].tolist(),
            (starts[chosen] & 0xFFFFFF).tolist(),
            _shared_places(group, starts)[chosen].tolist(),
            repeat(None) if barriers is None else barriers[chosen].tolist(),
        )
        for lane, number, pixel, (address, start, place, barrier) in zip(
            lanes, numbers, pixels, rest
        ):
            raw = maps[address]
            box = (
                rows_of(raw, number[0], list(number[1:]))
                if form.rows
                else box_of(raw, number, pixel, load, reduction is None)
            )
            blocks = _blocks(group, lane, place, masks)
            if start % 128:
                raise EmulatorError(
                    f"a box at {start:#x} of shared memory, which is no multiple of 128"
                )
            if start + box.reach > machine.memory.shared_bytes:
                past = start + box.reach - machine.memory.shared_bytes
                raise EmulatorError(f"a box that ends {past} bytes past the end of shared memory")
            parity = None
            if form.paired and barrier is not None:
                parity = barrier // machine.memory.stride & 1
            _launch(group, lane, box, blocks, start, load, barrier, reduction, parity)

    return run


def _barrier(group: Any, where: Callable[[Any], np.ndarray]) -> np.ndarray:
    return places_of(group, "shared", where(group))


def _shared_places(group: Any, starts: np.ndarray) -> np.ndarray:
    ((_, places, _),) = group.machine.memory.places(
        group, "shared", starts & ((1 << 56) - 1), 16, True
    )
    return np.asarray(group.full(places))


def _blocks(
    group: Any, lane: tuple[int, int], place: int, masks: Optional[np.ndarray]
) -> list[int]:
    """Return the blocks whose shared memory takes part: one, or those of the mask."""
    memory = group.machine.memory
    if masks is None:
        return [place // memory.stride]
    first = int(memory.cluster_first[group.block[lane[0]]])
    ranks = [r for r in range(16) if int(masks[lane]) >> r & 1]
    if not ranks or ranks[-1] >= group.machine.cluster_size:
        raise EmulatorError(
            f"a copy to the blocks {int(masks[lane]):#x} of a cluster of {group.machine.cluster_size}"
        )
    return [first + rank for rank in ranks]


def _launch(
    group: Any, lane: tuple[int, int], box: Any, blocks: list[int], start: int, load: bool,
    barrier: Optional[int], reduction: Optional[str], parity: Optional[int] = None,
) -> None:  # fmt: skip
    """
    Args:
        parity: of the block of each pair whose barrier gets the bytes; None for the block that gets the copy.
    """
    machine = group.machine
    memory, stride = machine.memory, machine.memory.stride
    bound, report = machine.steps[group.pc], machine.report
    fold = None if reduction is None else _folding(reduction, _KINDS[box.map.element])
    signals: list[int] = []
    if barrier is not None:
        owners = blocks if parity is None else [block & ~1 | parity for block in blocks]
        signals = [block * stride + barrier % stride for block in owners]

    def copy() -> None:
        try:
            for number, block in enumerate(blocks):
                move(memory, box, block, start, load, fold)
                if signals:
                    machine.mbarriers.complete(signals[number], box.bytes)
        except EmulatorError as error:
            raise report(type(error), error.message, bound, group, lane) from None

    for place in signals:
        machine.mbarriers.at(place)
    row = int(group.rows[lane[0]])
    task = Task("bulk", copy, np.array([row * 32 + lane[1]]), group.pc, barrier is not None)
    task.clusters = frozenset((row // machine.warps // machine.cluster_size,))
    if machine.observer is not None:
        inside = np.flatnonzero(box.inside)
        far = box.source[inside] - memory.arrays.low
        near = [block * stride + box.places(start) for block in blocks]
        shared: Places = [("shared", offset if load else offset[inside], None) for offset in near]
        elsewhere: Places = [("global", far, None)]
        both = (elsewhere, shared) if load else (shared, elsewhere)
        machine.observer.bulk(group, lane, *both, box.unit, signals, reduction is not None)
    machine.agents.start(task, grouped=barrier is None)


class _Typed:
    """The part of an instruction that `update_of` uses."""

    def unknown_type(self, type: Any) -> Exception:
        return EmulatorError(f"no reduction of `.{type.name}`")


def _folding(kind: str, name: str) -> Callable[..., np.ndarray]:
    type = TYPES.get(name, TYPES["b32"])
    if name == "u8" or name == "u16":
        type = TYPES[name]
    update = update_of(_Typed(), kind, type, "L2")  # subnormal numbers stay, other than with `atom`
    return lambda old, new: update(old.view(uint(type.bits)), [new.view(uint(type.bits))])


@instruction("cp.async.bulk", "cp.reduce.async.bulk")
def bulk(call: Any) -> Step:
    """Copy a range of bytes, a multiple of 16."""
    form = _Form(call)
    kind = None
    if form.reduction is not None:
        names = [m for m in call.left if m in TYPES]
        kind = names[0] if names else None
        call.left = [m for m in call.left if m not in names]
    if call.left or form.masked and form.barrier:
        raise call.refuse(f"this `{call.name}` is not known")
    operands = list(call.operands)
    into, source = addresses(call, operands[0]), addresses(call, operands[1])
    amount = call.get(operands[2], _U32)
    rest = operands[3:]
    at_barrier = addresses(call, rest.pop(0)) if form.barrier else None
    mask = call.get(rest.pop(0), TYPES["u16"], True) if form.multicast else None
    chosen = call.get(rest[-1], TYPES["u16"], True) if form.masked else None
    to_shared, from_shared = form.into.startswith("shared"), form.source.startswith("shared")
    fold = None if form.reduction is None else _folding(form.reduction, kind or "b32")
    unit = 1 if fold is None else TYPES[kind or "b32"].bits // 8

    def run(group: Any) -> None:
        machine = group.machine
        memory = machine.memory
        sizes = group.full(amount(group))
        targets, sources = group.full(into(group)), group.full(source(group))
        barriers = None if at_barrier is None else group.full(_barrier(group, at_barrier))
        masks = None if mask is None else group.full(mask(group))
        bytes_ = None if chosen is None else group.full(chosen(group))
        before = group.mask
        for lane in _lanes(group):
            size = int(sizes[lane])
            if size % 16 or (int(targets[lane]) | int(sources[lane])) % 16:
                raise EmulatorError(
                    f"a bulk copy of {size} bytes: sizes and addresses are multiples of 16"
                )
            only = np.zeros(sizes.shape, bool)
            only[lane] = True
            group.mask = only
            start = _range(group, memory, sources, from_shared, size, False, lane)
            target = _range(group, memory, targets, to_shared, size, True, lane)
            blocks = [0]
            if masks is not None:
                blocks = _blocks(group, lane, target, masks)
                target %= memory.stride
            barrier = None if barriers is None else int(barriers[lane])
            each = 0xFFFF if bytes_ is None else int(bytes_[lane])
            range_ = _Range((start, from_shared), (target, to_shared), size, unit, each)
            peers = None if masks is None else blocks
            _copy_range(group, lane, range_, peers, barrier, fold)
        group.mask = before

    return run


def _range(
    group: Any,
    memory: Any,
    address: np.ndarray,
    shared: bool,
    size: int,
    write: bool,
    lane: tuple[int, int],
) -> int:
    """Check a range; return the byte where it starts in its space."""
    space = "shared" if shared else "global"
    if not size:
        return 0
    low = address & ((1 << 56) - 1) if shared else address
    for last in (size - 16, 0):
        ((_, place, _),) = memory.places(group, space, low + last, 16, write)
    return int(group.full(place)[lane])


@dataclass(frozen=True)
class _Range:
    """Bytes to copy.

    Args:
        source, target: the first byte, and whether it is in shared memory.
        unit: bytes of an element.
        chosen: which of 16 bytes are copied, as bits.
    """

    source: tuple[int, bool]
    target: tuple[int, bool]
    size: int
    unit: int
    chosen: int = 0xFFFF


def _copy_range(
    group: Any,
    lane: tuple[int, int],
    range_: _Range,
    peers: Optional[list[int]],
    barrier: Optional[int],
    fold: Any,
) -> None:
    """
    Args:
        peers: blocks that each get a copy.
    """
    machine = group.machine
    memory, unit = machine.memory, range_.unit
    sides = (range_.source, range_.target)
    views = [memory.view("shared" if shared else "global", unit) for _, shared in sides]
    count = range_.size // unit

    def copy() -> None:
        first = range_.source[0] // unit
        values = views[0][first : first + count].copy()
        for block in peers or [0]:
            far = 0 if peers is None else block * memory.stride
            start = (range_.target[0] + far) // unit
            new = values if fold is None else fold(views[1][start : start + count], values)
            if range_.chosen != 0xFFFF:
                picked = (range_.chosen >> np.arange(count) % 16 & 1) != 0
                new = np.where(picked, new, views[1][start : start + count])
            views[1][start : start + count] = new
            if barrier is not None:
                place = barrier if peers is None else far + barrier % memory.stride
                machine.mbarriers.complete(place, range_.size)

    row = int(group.rows[lane[0]])
    task = Task("bulk", copy, np.array([row * 32 + lane[1]]), group.pc, barrier is not None)
    task.clusters = frozenset((row // machine.warps // machine.cluster_size,))
    if machine.observer is not None and range_.size:
        units = np.arange(0, range_.size, 16)
        offsets = [0] if peers is None else [block * memory.stride for block in peers]
        reads: Places = [(_name(range_.source[1]), range_.source[0] + units, None)]
        writes: Places = [
            (_name(range_.target[1]), range_.target[0] + far + units, None) for far in offsets
        ]
        signals = [] if barrier is None else [barrier]
        if barrier is not None and peers is not None:
            signals = [far + barrier % memory.stride for far in offsets]
        machine.observer.bulk(group, lane, reads, writes, 16, signals, fold is not None)
    machine.agents.start(task, grouped=barrier is None)


def _name(shared: bool) -> str:
    return "shared" if shared else "global"


@instruction("st.async", "red.async")
def store_async(call: Any) -> Step:
    """`st.async`, `red.async`: a store to a peer that arrives as bytes at an mbarrier."""
    call.flag("async")
    call.one_of("weak", "relaxed"), call.one_of("cluster")
    call.one_of(*_SPACES), call.flag("mbarrier::complete_tx::bytes")
    reduction = call.one_of(*_REDUCTIONS)
    count = {"v2": 2, "v4": 4}.get(call.one_of("v2", "v4") or "", 1)
    type = call.type()
    call.count(3)
    where, at_barrier = addresses(call, call.operands[0]), addresses(call, call.operands[2])
    value = call.operands[1]
    items = list(value.items) if isinstance(value, Vector) else [value]
    if len(items) != count:
        raise call.refuse(f"{len(items)} registers where the instruction has {count}")
    gets = [call.get(item, type) for item in items]
    raw, size = uint(type.bits), type.bits // 8
    update = update_of(call, reduction, type, "shared") if reduction else None

    def run(group: Any) -> None:
        machine = group.machine
        memory, lanes = machine.memory, group.lanes()
        places = _barrier(group, at_barrier)[lanes]
        ((_, address, _),) = memory.places(group, "shared", where(group), size * count, True)
        address = group.full(address)[lanes] // size
        values = [group.full(np.asarray(get(group)).view(raw))[lanes] for get in gets]

        def come() -> None:
            view = memory.view("shared", size)
            for i, new in enumerate(values):
                for place, one in zip(address + i, new):
                    view[place] = (
                        one if update is None else update(view[place : place + 1], [one])[0]
                    )
            for place, number in zip(*np.unique(places, return_counts=True)):
                machine.mbarriers.complete(int(place), int(number) * size * count)

        if machine.observer is not None:
            for number, lane in enumerate(_lanes(group)):
                into: Places = [("shared", address[number : number + 1] * size, None)]
                signal = [int(places[number])]
                machine.observer.bulk(group, lane, [], into, size * count, signal, bool(reduction))
        machine.agents.start(Task("bulk", come, machine.agents.threads_of(group), group.pc, True))

    return run


@instruction("tensormap.replace")
def replace(call: Any) -> Step:
    """Change a field of a tensor map in memory."""
    call.flag("replace"), call.flag("tile")
    name = call.one_of(*FIELDS)
    if name is None:
        raise call.refuse("this field of a tensor map is not known")
    space = {"global": "global"}.get(call.one_of(*_SPACES) or "", "shared")
    call.flag("b1024")
    type = call.type()
    operands = list(call.operands)
    where = addresses(call, operands.pop(0))
    offset, size, step = FIELDS[name]
    if step:
        offset += step * int(operands.pop(0).value)
    get = call.get(operands.pop(0), type, True)
    raw = uint(8 * size)

    def run(group: Any) -> None:
        value = np.asarray(get(group)).astype(raw)
        group.machine.memory.store(group, space, where(group) + offset, size, [value])

    return run


@instruction("tensormap.cp_fenceproxy")
def copy_map(call: Any) -> Step:
    """Copy a tensor map from shared to global memory, and make it visible to copies."""
    call.count(3)
    into, source = addresses(call, call.operands[0]), addresses(call, call.operands[1])

    def run(group: Any) -> None:
        memory, before = group.machine.memory, group.mask
        lanes = group.lanes()
        group.mask = lanes & (np.cumsum(lanes, 1) == 1)  # one thread of each warp
        for offset in range(0, BYTES, 8):
            words = memory.load(group, "shared", source(group) + offset, 8)
            memory.store(group, "global", into(group) + offset, 8, words)
        group.mask = before

    return run
