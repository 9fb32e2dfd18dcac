"""The tensor data mover of gfx1250: boxes of a tensor between memory and LDS.

The descriptor's groups are those that LLVM's and AMD's drivers write: group 0 with the LDS and
global addresses, group 1 with sizes, padding and the first strides, groups 2 and 3 for more than two dimensions, or with the rows of a gather. One copy per wave; EXEC plays no part. A mask of
the workgroups of a cluster lets those that ask for the same box share the way to it; each asks, and
each gets it in its own LDS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from gluon_emu.amdgcn.decode.operands import Reg
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.mbarrier import arrive
from gluon_emu.amdgcn.isa.table import Step, custom
from gluon_emu.errors import AccessError

__all__ = ["Box", "read_descriptor"]


def _bits(words: list[int], low: int, count: int) -> int:
    whole = 0
    for i, word in enumerate(words):
        whole |= int(word) << (32 * i)
    return whole >> low & (1 << count) - 1


@dataclass(frozen=True)
class Box:
    """The fields of a descriptor; dimensions from the fastest on.

    Args:
        live: whether the copy does anything.
        lds: byte address in LDS, `base` in global memory, of the box.
        size: bytes of an element.
        tensor: elements of the tensor from the box's corner on; `tile` of the box.
        strides: in elements, of dimensions 1 and up.
        interval, amount: of padding in LDS, in words; 0 for none.
        rows: of a gather, else None.
        barrier: byte address in LDS of a barrier that the copy arrives at, None for none.
    """

    live: bool
    lds: int
    base: int
    size: int
    tensor: tuple[int, ...]
    tile: tuple[int, ...]
    strides: tuple[int, ...]
    interval: int
    amount: int
    rows: Any
    barrier: Any


def read_descriptor(groups: list[list[int]]) -> Box:
    """Return a `Box` from the words of two or four groups."""
    zero, one = groups[0], groups[1]
    two = groups[2] if len(groups) > 2 else [0] * 4
    three = groups[3] if len(groups) > 3 else [0] * 4
    gather = bool(zero[0] >> 31 & 1)
    padded = one[0] >> 20 & 1
    tensor = [_bits(one, 48, 32), _bits(one, 80, 32)]
    tile = [_bits(one, 112, 16), _bits(one, 128, 16)]
    strides = [_bits(one, 160, 48)]
    rows: Optional[np.ndarray] = None
    if gather:
        if zero[0] >> 30 & 1:
            picked = [*two, *three]
        else:
            picked = [half for word in (*two, *three) for half in (word & 0xFFFF, word >> 16)]
        rows = np.array(picked[: tile[1]], np.int64)
    elif len(groups) > 2:
        tile += [_bits(one, 144, 16), _bits(two, 112, 16), _bits(three, 80, 16)]
        tensor += [two[0], two[1], _bits(three, 48, 32)]
        strides += [_bits(one, 208, 48), _bits(two, 64, 48), _bits(three, 0, 48)]
    while len(tile) > 1 and not tile[-1]:
        tile.pop()
    rank = len(tile)
    return Box(
        live=bool(zero[0] & 3),
        lds=zero[1],
        base=_bits(zero, 64, 57),
        size=1 << (one[0] >> 16 & 3),
        tensor=tuple(tensor[:rank]),
        tile=tuple(tile),
        strides=tuple(strides[: rank - 1]),
        interval=2 << (one[0] >> 22 & 7) if padded else 0,
        amount=(one[0] >> 25 & 127) + 1 if padded else 0,
        rows=rows,
        barrier=(one[1] & 0xFFFF) << 3 if one[0] >> 18 & 1 else None,
    )


def places(box: Box) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(addresses, byte addresses in LDS, whether inside the tensor) of the elements, flat."""
    shape = box.tile[::-1]
    index = np.indices(shape).reshape(len(shape), -1)[::-1]  # fastest first
    inside = np.ones(index.shape[1], bool)
    offset = index[0].astype(np.int64)
    for dimension, row_index in enumerate(index):
        position = row_index
        if box.rows is not None and dimension == 1:
            position = box.rows[row_index]
        inside &= position < box.tensor[dimension]
        if dimension:
            offset = offset + position * box.strides[dimension - 1]
    linear = np.arange(index.shape[1], dtype=np.int64) * box.size
    if box.interval:
        linear = linear + linear // (4 * box.interval) * (4 * box.amount)
    return (
        (box.base + offset * box.size).astype(np.uint64),
        box.lds + linear,
        inside,
    )


def _groups(ins: Instruction, b: Any, row: int) -> list[list[int]]:
    return [
        [int(b.s[o.first + i][row]) for i in range(o.count)]
        for o in ins.operands
        if isinstance(o, Reg)
    ]


def _move(ins: Instruction, b: Any, row: int, number: Any, load: bool) -> None:
    machine = b.machine
    groups = _groups(ins, b, row)
    box = read_descriptor(groups)
    if not box.live:
        return
    address, local, inside = places(box)
    memory, lds = machine.memory, machine.lds
    if int(local.max(initial=0)) + box.size > lds.words * 4:
        raise machine.report(
            AccessError,
            f"a box that ends at byte {int(local.max()) + box.size} of LDS, which has {lds.size}",
            ins,
            b,
            row,
        )
    address = memory.safe(address, inside)
    wrong = memory.bad(address, box.size, inside, not load)
    if wrong is not None:
        first = int(address[np.nonzero(wrong)[0][0]])
        where = memory.nearest(first, box.size)
        raise machine.report(
            AccessError, f"a box with an element at {first:#x}: {where}", ins, b, row
        )
    base = int(b.groups[row]) * lds.words * 4
    one = b.only(row)
    place = (local + base)[None, :]
    every = np.ones(place.shape, bool)
    wave_number = np.broadcast_to(np.asarray(number), (b.waves.size,))[row]
    if machine.order is not None:
        every_byte = address[None, :], box.size, inside[None, :]
        if load:
            machine.order.load(one, ins, *every_byte, wave_number, False)
        else:
            key = ("tensor", "tensor")
            machine.order.store(one, ins, *every_byte, key, wave_number, False)
    if load:
        machine.copied.check(one, ins, address[None, :], box.size, inside[None, :])
        lds.note_write(one, ins, place, box.size, every, wave_number, 3)
        raw = memory.bytes[
            (address - np.uint64(memory.low)).astype(np.int64)[:, None] + np.arange(box.size)
        ]
        raw = np.where(inside[:, None], raw, np.uint8(0))
        lds.bytes[place[0][:, None] + np.arange(box.size)] = raw
    else:
        lds.note_read(one, ins, place, box.size, every, wave_number, 3)
        raw = lds.bytes[place[0][:, None] + np.arange(box.size)]
        start = (address - np.uint64(memory.low)).astype(np.int64)[inside]
        memory.bytes[start[:, None] + np.arange(box.size)] = raw[inside]
        machine.copied.add(
            one, ins, address[None, :], box.size, inside[None, :], ("tensor", "tensor"), wave_number
        )
    machine.moved(ins.index, int(inside.sum()) * box.size)
    if box.barrier is not None:
        known = lds.done(one)[:, 0].copy()
        known[3] = max(known[3], int(wave_number))
        arrive(lds, base + box.barrier, 1, int(b.waves[row]) % lds.waves, known)


def _tensor(load: bool) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Copy a box of a tensor to LDS, with zeros outside the tensor; or back, inside the tensor only."""

        def step(b: Any) -> None:
            number = b.outstanding.issue("tensor", "tensor", (), ins.index, lds=load)
            for row in range(b.waves.size):
                _move(ins, b, row, number, load)

        return step

    return bind


custom("tensor_load_to_lds", family="vmem", results=0)(_tensor(True))
custom("tensor_store_from_lds", family="vmem", results=0)(_tensor(False))
