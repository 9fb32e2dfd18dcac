"""Compute the cost of an access or a conversion: vectors, bank conflicts, shuffles, shared memory bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Optional, Sequence

from gluon_core.errors import ArgumentError, LayoutError
from gluon_core.layouts.base import (
    DistributedLayout,
    Layout,
    SharedLayout,
    check_shape,
    is_power_of_two,
)
from gluon_core.layouts.distributed import AutoLayout, CoalescedLayout
from gluon_core.layouts.f2 import independent_rows
from gluon_core.layouts.later import np
from gluon_core.layouts.linear import LinearLayout
from gluon_core.layouts.shared import PaddedSharedLayout, SwizzledSharedLayout

__all__ = [
    "ConversionCost",
    "bank_conflicts",
    "conversion",
    "copied_bits",
    "equal",
    "matrix_rows",
    "owner",
    "vector_elements",
]

_MAX_VECTOR_BITS = 128
_ROW_BITS = 128  # of a row of a matrix that a warp loads at once
_ROWS = 3  # bits of the index of such a row
_LANES_OF_ROW = 2  # bits of a lane among those that share one


def _check_access(bits: int, banks: int) -> None:
    if not is_power_of_two(bits) or bits > 128:
        raise ArgumentError(
            "not an element width", argument="bits", expected="1, 2, 4, ... 128", got=bits
        )
    if not is_power_of_two(banks):
        raise ArgumentError("not a bank count", argument="banks", expected="32 or 64", got=banks)


@lru_cache(maxsize=1 << 10)
def _access(register: LinearLayout, shared: LinearLayout) -> dict[str, list[int]]:
    """For each bit of the register, lane and warp index, which bits of the offset it flips."""
    register = register.without_zero_bases("register")
    path = register.invert_and_compose(shared)
    column = list(path.out_dims).index("offset")
    return {dim: [row[column] for row in rows] for dim, rows in path.bases.items()}


def _vector(access: dict[str, list[int]], bits: int, most_bits: int) -> int:
    """Consecutive elements that one lane can move in one instruction."""
    registers = access["register"]
    flips = [value for values in access.values() for value in values]
    vector = 1
    while 2 * vector * bits <= most_bits:
        wanted = {1 << i for i in range((2 * vector).bit_length() - 1)}
        inside = [value for value in flips if value % (2 * vector)]
        if sorted(inside) != sorted(wanted) or not wanted <= set(registers):
            break
        vector *= 2
    return vector


def vector_elements(
    register: DistributedLayout,
    shared: SharedLayout,
    shape: Sequence[int],
    bits: int,
    max_vector_bits: int = _MAX_VECTOR_BITS,
) -> int:
    """Consecutive elements that one lane moves to or from shared memory in one instruction."""
    _check_access(bits, 32)
    shape = check_shape(shape, None)
    access = _access(register.to_linear(shape), shared.to_linear(shape))
    vector = _vector(access, bits, max_vector_bits)
    if isinstance(shared, PaddedSharedLayout):
        vector = min([vector, *(interval for interval, _ in shared.interval_padding_pairs)])
    return vector


def bank_conflicts(
    register: DistributedLayout,
    shared: SharedLayout,
    shape: Sequence[int],
    bits: int,
    banks: int = 32,
    max_vector_bits: int = _MAX_VECTOR_BITS,
    together: Optional[Sequence[int]] = None,
) -> int:
    """Extra passes over the banks for each pass that a conflict-free access would take.

    Lanes that fill the banks once go together: with 32 banks, 32 lanes for words of 32 bits, 16
    for 64 bits, 8 for 128 bits. 0 means no conflict; n means that each such group takes
    n + 1 passes. Lanes that read the same word share it. As in the compiler, elements of less than
    32 bits count as apart only by their whole offset: a swizzle inside a word may hide a conflict.

    Args:
        register: the layout of the values in registers.
        shared: the layout of the buffer.
        shape: of both.
        bits: of one element.
        banks: of 4 bytes each: 32, or 64 on hardware that has so many.
        max_vector_bits: the widest access of one lane.
        together: which lanes go together, on hardware that does not take neighbours: lane indices
            that span (by xor) the group of lane 0.

    Raises:
        LayoutError: a layout does not fit the shape.
    """
    _check_access(bits, banks)
    shape = check_shape(shape, None)
    access = _access(register.to_linear(shape), shared.to_linear(shape))
    vector = _vector(access, bits, max_vector_bits)
    if isinstance(shared, PaddedSharedLayout):
        vector = min([vector, *(interval for interval, _ in shared.interval_padding_pairs)])
    if together is None:
        lanes = _together(access["lane"], vector, bits, banks)
    else:
        lanes = [_flipped(access["lane"], lane) for lane in together]
    if isinstance(shared, PaddedSharedLayout):
        return _padded_conflicts(shared, access, lanes, vector, bits, banks)
    return _linear_conflicts(lanes, bits, banks)


def matrix_rows(
    register: DistributedLayout, shared: SharedLayout, shape: Sequence[int], bits: int
) -> Optional[tuple[int, int]]:
    """Return what an instruction that loads matrices of eight rows of 16 bytes gives a lane: (elements, extra passes
    over the banks); None where the layouts are not those of such matrices, as they are or transposed.
    """
    shape = check_shape(shape, None)
    if bits not in (8, 16) or isinstance(shared, PaddedSharedLayout):
        return None
    access = _access(register.to_linear(shape), shared.to_linear(shape))
    registers, lanes, row, word = access["register"], access["lane"], _ROW_BITS // bits, 32 // bits
    if len(registers) < word.bit_length() - 1 or len(lanes) != _ROWS + _LANES_OF_ROW:
        return None
    held = registers[: word.bit_length() - 1]  # those of one word
    inside = [flip for flips in access.values() for flip in flips if flip % row]
    in_row = [*held, *lanes[:_LANES_OF_ROW]]
    rows = lanes[_LANES_OF_ROW:]
    if bits == 16 and in_row != [1, 2, 4]:
        in_row, rows = rows, in_row
    if in_row != [1 << i for i in range(len(in_row))] or sorted(inside) != in_row:
        return None
    whole = min(4 * word, 1 << len(registers))  # four matrices at most
    return whole, _linear_conflicts(rows, bits, 32)


def copied_bits(
    layout: DistributedLayout,
    shared: SharedLayout,
    shape: Sequence[int],
    bits: int,
    widths: Sequence[int],
) -> Optional[int]:
    """Return the bits that each lane of a copy past the registers writes at once, one of `widths`; None where the
    lanes would not write one after the other.

    A swizzle of whole writes does not count: it permutes the writes of a warp's lanes, so they exchange
    addresses instead.
    """
    most = max(widths)
    if isinstance(shared, SwizzledSharedLayout) and shared.max_phase > 1:
        most = min(most, shared.vec * bits)
        shared = SwizzledSharedLayout(1, 1, 1, shared.order, shared.cga_layout)
    try:
        path = layout.to_linear(shape).invert_and_compose(shared.to_linear(shape))
    except LayoutError:  # no linear form to ask: the compiler will
        return most
    column = list(path.out_dims).index("offset")
    steps = {name: [row[column] for row in rows] for name, rows in path.bases.items()}
    for width in sorted(widths, reverse=True):
        held = width // bits
        if width > most or width % bits or held & (held - 1):
            continue
        together = [1 << i for i in range(held.bit_length() - 1)]
        side_by_side = [held << i for i in range(len(steps["lane"]))]
        if steps["register"][: len(together)] != together or steps["lane"] != side_by_side:
            continue
        written = held << len(side_by_side)
        if isinstance(shared, PaddedSharedLayout):
            if any(interval < written for interval, _ in shared.interval_padding_pairs):
                continue
        return width
    return None


def _flipped(flips: Sequence[int], index: int) -> int:
    """Return the bits of the offset that differ between lane 0 and lane `index`."""
    value = 0
    for bit, flip in enumerate(flips):
        value ^= flip if index >> bit & 1 else 0
    return value


def _together(lanes: list[int], vector: int, bits: int, banks: int) -> list[int]:
    """Return the lane bits that go in one pass: as many lanes as fill the banks with their words."""
    words = max(1, vector * bits // 32)
    return lanes[: max(0, (banks // words).bit_length() - 1)]


def _linear_conflicts(lanes: list[int], bits: int, banks: int) -> int:
    """Return the number of places that share a bank, less one, if lane bits flip `lanes` of the offset."""
    row = max(1, banks * 32 // bits)
    return (
        1 << (len(independent_rows(lanes)) - len(independent_rows([f % row for f in lanes])))
    ) - 1


def _span(flips: Sequence[int]) -> np.ndarray:
    values: np.ndarray = np.zeros(1, dtype=np.int64)
    for flip in flips:
        values = np.concatenate([values, values ^ flip])
    return values


def _padded_conflicts(
    shared: PaddedSharedLayout,
    access: dict[str, list[int]],
    lanes: list[int],
    vector: int,
    bits: int,
    banks: int,
) -> int:
    """Return the passes of the worst group of lanes; padding is not linear, so each group is counted."""
    rest = [flip for flip in access["register"] if flip >= vector or flip % vector == 0]
    rest += access["lane"] + access.get("warp", [])
    words = max(1, vector * bits // 32)
    together = _span(lanes)
    worst = 1
    for start in np.unique(_span([flip for flip in rest if flip])):
        first = np.asarray(shared.pad(together ^ start)) * bits // 32
        touched = np.unique((first[:, None] + np.arange(words)[None, :]).ravel())
        worst = max(worst, int(np.bincount(touched % banks).max()))
    return worst - 1


# -- equality and ownership ----------------------------------------------------------------------


def equal(a: Layout, b: Layout, shape: Sequence[int]) -> bool:
    """Do both layouts put each element in the same places, however they are spelled?

    Registers that only hold copies do not count.
    """
    if a == b:
        return True
    unresolved = (AutoLayout, CoalescedLayout)
    if isinstance(a, unresolved) or isinstance(b, unresolved):
        return False
    if isinstance(a, DistributedLayout) != isinstance(b, DistributedLayout):
        return False
    if isinstance(a, PaddedSharedLayout) or isinstance(b, PaddedSharedLayout):
        if not (isinstance(a, PaddedSharedLayout) and isinstance(b, PaddedSharedLayout)):
            return False
        if sorted(a.interval_padding_pairs) != sorted(b.interval_padding_pairs):
            return False
    first, second = a.to_linear(shape), b.to_linear(shape)
    if isinstance(a, DistributedLayout):
        first, second = (x.without_zero_bases("register") for x in (first, second))
    return first == second


def owner(
    layout: DistributedLayout, shape: Sequence[int], coord: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """Return all holders of one element, as (block, warp, lane, register), sorted.

    Raises:
        LayoutError: `coord` is outside of `shape`.
    """
    shape = check_shape(shape, None)
    if len(coord) != len(shape) or not all(0 <= c < s for c, s in zip(coord, shape)):
        raise LayoutError(
            "no such element", argument="coord", expected=f"inside {list(shape)}", got=list(coord)
        )
    layout_map = layout.to_linear(shape)
    point = LinearLayout({"one": [list(coord)]}, layout_map.out_dims)
    base = point.invert_and_compose(layout_map).bases["one"][0]
    holders = [dict(zip(layout_map.in_dims, base))]
    for vector in layout_map.kernel():
        holders += [{dim: h[dim] ^ vector[dim] for dim in h} for h in holders]
    return sorted((h["block"], h["warp"], h["lane"], h["register"]) for h in holders)


# -- conversions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConversionCost:
    """Hold the steps of a conversion from one register layout to another.

    Attributes:
        kind: "none", "registers", "shuffle", "shared" or "cluster": the farthest that data moves.
        moved_registers: registers of one lane that change their place (0 for "none").
        shuffles: 32-bit exchanges between the lanes of a warp, for each lane.
        shared_bytes: shared memory for one block's tile.
        store_conflicts, load_conflicts: extra passes over the banks on the way, without swizzling.
    """

    kind: str
    moved_registers: int = 0
    shuffles: int = 0
    shared_bytes: int = 0
    store_conflicts: int = 0
    load_conflicts: int = 0


def conversion(
    src: DistributedLayout, dst: DistributedLayout, shape: Sequence[int], bits: int
) -> ConversionCost:
    """Return the steps of `convert_layout` from `src` to `dst` for a tensor of elements of `bits`.

    It stays within the registers where each lane needs the same permutation of them. The numbers
    describe the direct way; a compiler may swizzle the buffer to avoid the conflicts.
    """
    _check_access(bits, 32)
    shape = check_shape(shape, None)
    before = src.to_linear(shape).without_zero_bases("register")
    after = dst.to_linear(shape).without_zero_bases("register")
    if before == after:
        return ConversionCost("none")
    registers = after.in_size("register")
    same_place = all(
        before.bases.get(dim) == after.bases.get(dim) for dim in ("lane", "warp", "block")
    )
    if same_place and _stays(before, after, ("lane", "warp", "block")):
        return ConversionCost("registers", moved_registers=_moved(before, after))
    if _stays(before, after, ("warp", "block")):
        packed = max(1, 32 // bits)
        words = -(-registers * bits // 32) if registers >= packed else registers
        return ConversionCost("shuffle", moved_registers=registers, shuffles=words)
    blocks = _blocks(before)
    tile_bytes = before.total_out_size // blocks * max(bits, 8) // 8
    kind = "shared" if _stays(before, after, ("block",)) else "cluster"
    store, load = (_row_major_conflicts(x, bits) for x in (before, after))
    return ConversionCost(kind, registers, 0, tile_bytes, store, load)


def _blocks(layout: LinearLayout) -> int:
    """Return the number of different tiles that the blocks hold."""
    return 1 << sum(any(row) for row in layout.bases.get("block", []))


def _stays(before: LinearLayout, after: LinearLayout, dims: Sequence[str]) -> bool:
    """Return True if every piece of hardware named by `dims` already holds all that it needs."""
    if any(before.in_size(dim) != after.in_size(dim) for dim in dims):
        return False
    own, wanted = before._flat(), after._flat(before.out_dims)
    held = independent_rows([row for dim in own if dim not in dims for row in own[dim]])
    for dim, rows in wanted.items():
        for i, row in enumerate(rows):
            delta = row ^ own[dim][i] if dim in dims else row
            if len(independent_rows([*held, delta])) != len(held):
                return False
    return True


def _moved(before: LinearLayout, after: LinearLayout) -> int:
    """Return the registers of lane 0 whose element is in another register before."""
    first = {tuple(r): i for i, r in reversed(list(enumerate(_register_table(before))))}
    return sum(first.get(tuple(r)) != i for i, r in enumerate(_register_table(after)))


def _register_table(layout: LinearLayout) -> np.ndarray:
    part = layout.sublayout(["register"], layout.out_dims)
    images = part.apply_arrays(register=np.arange(part.in_size("register")))
    return np.stack([images[dim] for dim in sorted(images)], axis=-1)


def _row_major_conflicts(layout: LinearLayout, bits: int) -> int:
    """Conflicts of an access to an unswizzled row-major buffer of the whole tensor."""
    flat = layout.transpose_outs(list(layout.out_dims)[::-1]).flatten_outs("offset")
    access = {dim: [row[0] for row in rows] for dim, rows in flat.bases.items()}
    vector = _vector(access, bits, _MAX_VECTOR_BITS)
    lanes = _together(access["lane"], vector, bits, 32)
    return _linear_conflicts(lanes, bits, 32)
