"""Products of the tensor core of sm_100: PTX ISA 9.7.16.10, `tcgen05.mma`.

Each instruction's products and its sum are exact to float64 and rounded once, to nearest; the hardware's sums are not
known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.isa.memory import addresses
from gluon_emu.ptx.isa.products import integer_products
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.isa.tcgen05 import lanes_of, pairs_of
from gluon_emu.ptx.isa.tcgen05_operands import (
    Instruction,
    elements,
    in_shared,
    numbers_of,
    scale_cells,
    sum_cells,
)
from gluon_emu.ptx.machine.tensor import CELLS, COLUMNS
from gluon_emu.ptx.numbers import decode, encode, rounded
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Address, Immediate, Vector

__all__: list[str] = []

_KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
# The scales of a row in one instruction, by modifier and kind.
_COUNTS = {
    ("", "mxf8f6f4"): 1, ("scale_vec::1X", "mxf8f6f4"): 1, ("block32", "mxf8f6f4"): 1,
    ("", "mxf4"): 2, ("scale_vec::2X", "mxf4"): 2, ("block32", "mxf4"): 2,
    ("scale_vec::2X", "mxf4nvf4"): 2, ("block32", "mxf4nvf4"): 2,
    ("scale_vec::4X", "mxf4nvf4"): 4, ("block16", "mxf4nvf4"): 4,
}  # fmt: skip
_NARROW = ("e2m1", "e2m3", "e3m2")


@dataclass(frozen=True)
class _Form:
    """The modifiers of a product.

    Args:
        paired: of two blocks.
        alone: `.ws`.
        scales: of a row in one instruction, 0 without.
        shifted: `.ashift`: each row of A but the last is the one behind it, as `tcgen05.shift` moves them.
    """

    kind: str
    paired: bool
    alone: bool
    scales: int
    shifted: bool

    @property
    def packed(self) -> bool:
        return self.kind in ("mxf4", "mxf4nvf4")


@dataclass(frozen=True)
class _Operands:
    """The values of a product's operands.

    Args:
        sums: the address of the sums.
        left: a descriptor, or an address of tensor memory where `held`.
        scales: addresses, none without.
        keeps: whether the sums so far count.
        shift: by how many powers of two they are smaller.
        masked: lanes that stay, by block of the pair; None for none.
    """

    sums: int
    left: int
    held: bool
    right: int
    scales: tuple[int, ...]
    keeps: bool
    shift: int
    masked: Optional[tuple[np.ndarray, ...]]


def _form(call: Any) -> _Form:
    call.flag("mma")
    alone, paired = call.flag("ws"), pairs_of(call)
    kind = (call.one_of(*(f"kind::{kind}" for kind in _KINDS)) or "").removeprefix("kind::")
    scaled, shifted = call.flag("block_scale"), call.flag("ashift")
    size = (
        call.one_of("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32") or ""
    )
    for name in [m for m in call.left if m.startswith("collector::")]:
        call.flag(name)
    count = _COUNTS.get((size, kind), 0)
    if not kind or call.left or scaled != kind.startswith("mx") or scaled and not count:
        more = f"`.{call.left[0]}` of " if call.left else "this form of "
        raise call.refuse(f"{more}`tcgen05.mma` is not known")
    if shifted and (alone or scaled):
        raise call.refuse("`.ashift` is of products without `.ws` and scales")
    return _Form(kind, paired, alone, count if scaled else 0, shifted)


@instruction("tcgen05.mma")
def mma(call: Any) -> Step:
    form = _form(call)
    operands = list(call.operands)
    if len(operands) < 5:
        raise call.refuse("`tcgen05.mma` takes sums, two matrices, a descriptor and a predicate")
    b64, u32 = TYPES["b64"], TYPES["u32"]
    at_sums = addresses(call, operands.pop(0))
    held = isinstance(operands[0], Address)
    left = operands.pop(0)
    at_left = addresses(call, left) if held else call.get(left, b64)
    get_right, describe = call.get(operands.pop(0), b64), call.get(operands.pop(0), u32)
    at_scales = [addresses(call, operands.pop(0)) for _ in range(2 if form.scales else 0)]
    masks: list[Callable[[Any], np.ndarray]] = []
    if operands and isinstance(operands[0], Vector):
        items = operands.pop(0).items
        if len(items) != (8 if form.paired else 4):
            raise call.refuse(f"a mask of {len(items)} words")
        masks = [call.get(item, u32) for item in items]
    keep = call.get(operands.pop(0), TYPES["pred"])
    shift = 0
    if operands and isinstance(operands[0], Immediate) and not form.alone:
        shift = int(operands.pop(0).value)
    if operands:
        raise call.refuse("`tcgen05.mma` with a mask of columns is not known")

    def run(group: Any) -> None:
        full = group.full
        sums, lefts, rights = full(at_sums(group)), full(at_left(group)), full(get_right(group))
        descriptors, keeps = full(describe(group)), full(keep(group))
        scales = [full(where(group)) for where in at_scales]
        words = [full(get(group)) for get in masks]
        for lane in lanes_of(group):
            values = _Operands(
                int(sums[lane]), int(lefts[lane]), held, int(rights[lane]),
                tuple(int(s[lane]) for s in scales), bool(keeps[lane]), shift,
                _lanes_kept([int(w[lane]) for w in words]),
            )  # fmt: skip
            _Product(
                group, lane, form, Instruction.decode(int(descriptors[lane]), form.kind), values
            ).start()

    return run


def _lanes_kept(words: list[int]) -> Optional[tuple[np.ndarray, ...]]:
    if not any(words):
        return None
    bits = np.array([word >> i & 1 for word in words for i in range(32)], bool)
    return tuple(bits.reshape(-1, 128))


class _Product:
    """One product that a thread issues."""

    def __init__(
        self, group: Any, lane: tuple[int, int], form: _Form, shape: Instruction, values: _Operands
    ):
        self.group, self.lane, self.form, self.shape, self.values = group, lane, form, shape, values
        machine = group.machine
        self.machine, self.memory, self.tensor = machine, machine.memory, machine.tensor
        block = int(group.block[lane[0]])
        self.blocks = self.tensor.pair(block) if form.paired else [block]
        count = len(self.blocks)
        self.rows = shape.rows // count
        if form.shifted and (not values.held or self.rows != 128):
            raise EmulatorError("`.ashift` takes 128 rows of A in the tensor memory of each block")
        if shape.rows % count or shape.columns % (8 * count):
            raise EmulatorError(f"a product of {shape.rows} rows and {shape.columns} columns")
        lanes, columns = sum_cells(self.rows, shape.columns, form.paired, form.alone)
        self.lanes = lanes + (values.sums >> 16 & 127)
        if int(self.lanes.max()) > 127:
            raise EmulatorError(f"sums at {values.sums:#010x} of tensor memory reach past lane 127")
        self.first, self.width = values.sums & 0xFFFF, int(columns.max()) + 1
        self.sums = self.lanes * COLUMNS + self.first + columns
        packed, depth = form.packed, shape.depth
        self.left: Any = None
        if values.held:
            if shape.left in _NARROW:
                raise EmulatorError(f"a left matrix of {shape.left} in tensor memory is not known")
            self._left_cells()
        else:
            self.left = in_shared(
                self.memory, values.left, self.rows, depth, shape.left, packed, shape.across[0]
            )
        self.right = in_shared(
            self.memory,
            values.right,
            shape.columns // count,
            depth,
            shape.right,
            packed,
            shape.across[1],
        )

    def _left_cells(self) -> None:
        """Set the cells of the left matrix, and the elements in each."""
        values, shape = self.values, self.shape
        self.each = {"f16": 2, "bf16": 2, "tf32": 1}.get(shape.left, 4)
        width = shape.depth // self.each
        lanes = np.arange(self.rows)
        if self.rows == 64 and not (self.form.paired or self.form.alone):
            lanes = lanes % 16 + lanes // 16 * 32
        lanes = lanes + (values.left >> 16 & 127)
        self.left_first, self.left_width = values.left & 0xFFFF, width
        self.left_cells = lanes[:, None] * COLUMNS + self.left_first + np.arange(width)

    def _scale_cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the cells of the scales of A and of B."""
        a, b = (
            ((address >> 16 & 127) * COLUMNS + (address & 0xFFFF)) for address in self.values.scales
        )
        return a + scale_cells(self.rows), b + scale_cells(self.shape.columns)

    def _check(self, block: int) -> None:
        """See that all columns are allocated in a block, when the product is issued and when it happens."""
        values, check = self.values, self.tensor.check
        check(block, self.first, self.width, "a product into")
        if values.held:
            check(block, self.left_first, self.left_width, "a product that reads")
        for address, rows in zip(values.scales, (self.rows, self.shape.columns)):
            check(block, address & 0xFFFF, -(-rows // 32), "a product with scales in")

    def start(self) -> None:
        for block in self.blocks:
            self._check(block)
        observer = self.machine.observer
        if observer is not None:
            count = self.form.scales
            reads, writes = [], []
            shared = [(one, *self.right) for one in self.blocks]
            for one in self.blocks:
                base = one * CELLS
                if self.values.held:
                    reads.append(base + self.left_cells)
                else:
                    shared.append((one, *self.left))
                if count:
                    reads += [base + cells for cells in self._scale_cells()]
                writes.append(base + self.sums)
            observer.tensor_work(self.group, self.lane, shared, reads, writes)
        self.tensor.start(self.group, self.lane, self.perform)

    def perform(self) -> None:
        shape, values, form = self.shape, self.values, self.form
        packed = form.packed
        right = np.concatenate(
            [
                elements(self.memory, one, self.right, shape.right, packed, shape.across[1])
                for one in self.blocks
            ]
        )
        for number, one in enumerate(self.blocks):
            self._check(one)
            if values.held:
                cells = self.tensor.cells[one * CELLS + self.left_cells]
                if form.shifted:
                    cells = np.concatenate((cells[1:], cells[-1:]))
                raw = cells.view(np.dtype(f"u{4 // self.each}"))
                left = numbers_of(raw.reshape(self.rows, shape.depth), shape.left)
            else:
                left = elements(self.memory, one, self.left, shape.left, packed, shape.across[0])
            b = right
            if form.scales:
                left, b = self._scaled(one, left, right)
            if shape.negated[0] != shape.negated[1]:
                left = -left
            self._add(one, left, b.T, None if values.masked is None else values.masked[number])
        self.machine.changes += 1

    def _scaled(
        self, block: int, left: np.ndarray, right: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        out = []
        for side, matrix, cells in zip((0, 1), (left, right), self._scale_cells()):
            count = self.form.scales
            words = self.tensor.cells[block * CELLS + cells]
            first = self.shape.first[side] if count < 4 else 0
            bytes_ = words[:, None].view(np.uint8)[:, first : first + count]
            if bytes_.shape[1] != count:
                raise EmulatorError(f"{count} scales from byte {first} of a word on")
            codes = bytes_ & 0x7F if self.shape.scales == "e4m3" else bytes_
            scales = decode(codes, self.shape.scales)
            out.append(matrix * np.repeat(scales, matrix.shape[1] // count, 1))
        return out[0], out[1]

    def _add(
        self, block: int, left: np.ndarray, right: np.ndarray, masked: Optional[np.ndarray]
    ) -> None:
        cells, result = self.tensor.cells, self.shape.result
        index = block * CELLS + self.sums
        before = np.zeros(index.shape)
        if self.values.keeps:
            raw = cells[index]
            if result == "s32":
                before = raw.view(np.int32).astype(np.float64)
            else:
                before = decode(raw if result == "f32" else raw.astype(np.uint16), result)
            if self.values.shift:
                before = np.ldexp(before, -self.values.shift)
        if result == "s32":
            new = integer_products(left, right, before, self.shape.saturate)
        elif result == "f32":
            new = (np.matmul(left, right) + before).astype(np.float32).view(np.uint32)
        else:
            new = encode(rounded(np.matmul(left, right) + before, "f16"), "f16").astype(np.uint32)
        if masked is not None:
            new = np.where(masked[self.lanes], cells[index], new)
        cells[index] = new
