"""Price a layout for the ops that use it, and a conversion between two layouts.

The unit is one instruction of one warp; a 32-byte sector of memory counts as one, an exchange through
shared memory as its stores, loads, and a barrier."""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from math import prod
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.layouts import DistributedLayout, SharedLayout
from gluon_write.solver.unknowns import Access, AnyLayout, Reduction, Scan, Unknown
from gluon_write.tracing.pointer_names import pointer_name

__all__ = [
    "LEAST_COPY_BITS",
    "LONG",
    "conversion_price",
    "conversion_table",
    "counted",
    "crosses_warps",
    "dearer",
    "held_by",
    "maps_alike",
    "price",
    "reasons",
    "vector_of",
]

#: Elementwise op -> instructions for an element, of those with many. FFTs took 0.73 and 0.88 of the time with sines so priced.
LONG = {
    "erf": 19, "sin": 40, "cos": 40, "exp": 5, "exp2": 4, "log": 20, "log2": 18, "fdiv": 8, "frem": 17, "precise_divf": 13,
    "precise_sqrt": 9, "extern_elementwise": 32,
}  # fmt: skip
_AGAIN = 0.25  # a sector in the L1 cache
_ISSUE = 4.0  # a memory instruction, next to an arithmetic one
# An atomic op waits for memory, and for what the thread stored before. On an H200 counts of the tokens of 64 experts took 3.9
# times as long with 16 of them in each thread of four warps that held copies of the counts.
_ATOMIC = 64.0
# The L2 cache takes the lines of a store one by one. On an H200 pages of values, whose elements are 32 bytes apart, took
# 0.76 of the time with neighbours in lanes, which have half of the lines.
_STORED_LINE = 1.0
_COPY = 1.0  # the address in a ring and the condition of a step, which each copy has besides
# A conversion waits: all warps for its stores, and for the loads after them. Measured on an H200 alone. Vectors
# had better be computed again outside of loops: a mask that was converted behind a loop kept ptxas from
# overlapping its `wgmma`.
_BARRIERS, _BARRIERS_OF_VECTORS = 200.0, 480.0
# A reduction across warps is such an exchange, too, which other programs hide where warps would repeat its elements
# instead: on an H200 a gated scan and gradients of a group norm without one took 0.74 and 0.66 of the time, logarithms of
# sums down 20,001 columns 0.67, a vector of 64 elements in four warps 1.16. In no loop it costs less: a loss of 64 numbers, two reductions and a hyperbolic tangent, took
# 0.93 of the time with both across warps, a short convolution 1.22.
_ACROSS_WARPS, _ACROSS_WARPS_ONCE = 230.0, 110.0
# Triton 3.6 reverses tensors before and after a scan to lower numbers, by a shuffle for each bit of a lane, whichever
# dimension it scans.
_SHUFFLE = 2.0
# One instruction that reduces integers of a warp. On an H200 packed signs of 10,000,001 numbers took 0.80 of the time with it.
_AT_ONCE = 3.0
_NO_ROOM = 1e9  # of a conversion that shared memory cannot hold
_FAR = 4096  # elements between neighbours whose distance is not known
_SECTOR = 32
_LINE = 128
# Triton 3.6 moves each element as often as a thread holds it, and ptxas computes what is moved. On an H200 two gates of 64 took
# 1.13 of the time with stores of 16 copies than with a conversion.
_REPEATED = 2
_LINE_PRICE = 4.0  # L1 looks up a line while each of the four schedulers issues an instruction
# Loads in a loop straight into an operand's layout keep an address for each row of a thread, in two registers. On an
# H200 steps of pages of 16 rows took 0.92 of the time with rows that neighbours load together, in 64 registers
# for 72, and a buffer.
_ROW_OF_OPERAND = 48.0
# Elements of less than a word, which a mask keeps apart: each row of a thread has an address that a loop moves, in
# two registers. Pairs of neighbours halve the rows. On an H200 ten groups of products in tiles from 16x64 to 128x128 take
# 0.86 to 1.00 of the time, since a step loads both tiles before it stores one. Without products `_PART` counts them.
_ROW_OF_HALVES = 8.0
# Each row and each column of a tile that a thread moves single elements of: an offset and a condition, of which few have a
# predicate of their own. On an H200 a stencil of 3x3 took 0.60 of the time with four rows and four columns instead of sixteen rows, the
# sums of rows of 300 elements 0.77, and a softmax with a mask of bytes 0.98.
_PART = 4.0
# One without a condition. On an H200 softmaxes along the middle of 4x32x32 took 0.70 of the time with the 32 rows of an image, which
# no mask names, in each thread instead of eight of each of four images, whose reductions cross warps.
_OFFSET = 2.0
# Loads in a loop into the layout of a unit's sum, whose rows have addresses of their own, too. On an H200 a listed block of
# 16 values took 0.93 of the time with one row in each thread, in 56 registers for 64, and a buffer.
_ROW_OF_SUM = 32.0
_MATRIX = 2
_NVIDIA_LANES = 5  # bits of a lane; AMD's price of a line is not measured
_WIDEST = 128
_LONGEST_RUN = 16  # elements of the widest access
LEAST_COPY_BITS = 32
_THREADS = "lane", "warp", "block"
_MOST_REGISTERS = 128  # of a thread for one tensor; more are spilled


@lru_cache(maxsize=1 << 17)
def _bases(
    layout: DistributedLayout, shape: tuple[int, ...]
) -> dict[str, tuple[tuple[int, ...], ...]]:
    linear = layout.to_linear(list(shape))
    return {name: tuple(tuple(row) for row in rows) for name, rows in linear.bases.items()}


def _registers(layout: DistributedLayout, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [row for row in _bases(layout, shape).get("register", ()) if any(row)]


def _coordinates(rows: Sequence[tuple[int, ...]], rank: int) -> np.ndarray:
    places = np.zeros((1 << len(rows), rank), dtype=np.int64)
    numbers = np.arange(1 << len(rows))
    for bit, row in enumerate(rows):
        places[(numbers >> bit) & 1 == 1] ^= np.array(row, dtype=np.int64)
    return places


def vector_of(layout: DistributedLayout, access: Access) -> int:
    """Return how many elements one instruction of a thread moves: neighbours, in the order of its registers."""
    widest = min(_WIDEST, access.together * access.bits)
    vector = 1
    for dim, step in enumerate(access.strides):
        unit = 1
        for row in _registers(layout, access.shape) if step == 1 else ():
            if unit * 2 * access.bits > widest or row[dim] != unit or sum(row) != unit:
                break
            unit *= 2
        vector = max(vector, unit)
    return vector


def held_by(layout: DistributedLayout, access: Access) -> tuple[int, int, int]:
    """Return the elements of a thread, how many of them one instruction moves, and the bits of one."""
    return 1 << len(_registers(layout, access.shape)), vector_of(layout, access), access.bits


def sectors_of(layout: DistributedLayout, access: Access) -> int:
    """Return how many 32-byte sectors one instruction of a warp touches."""
    return _parts_of(layout, access, _SECTOR)


def _parts_of(layout: DistributedLayout, access: Access, part: int) -> int:
    """Return how many aligned parts of memory, of some bytes, one instruction of a warp touches."""
    rank = len(access.shape)
    # Neighbours in two dimensions whose distances are not known are in no sector together, either.
    far = [_FAR * prod(access.shape[:dim]) for dim in range(rank)]
    # Rows of a tile that is narrower than a sector follow each other: a tile would be wider if its rows were longer, but
    # for one that a loop moves along them.
    near = next((n for n, step in zip(access.shape, access.strides) if step == 1), 0)
    if rank == _MATRIX and access.weight == 1 and 0 < near * access.bits < 8 * _SECTOR:
        far = [near] * rank
    means = access.means or access.strides
    steps = [one if step is None else step for one, step in zip(far, means)]
    lanes = _coordinates(_bases(layout, access.shape).get("lane", ()), rank)
    vector = vector_of(layout, access)
    size = max(1, access.bits // 8)
    starts = np.floor(lanes @ np.array(steps)).astype(np.int64) * size
    firsts, lasts = starts // part, (starts + vector * size - 1) // part
    return len(np.unique(np.concatenate([firsts, lasts])))


@lru_cache(maxsize=1 << 15)
def _access_price(
    layout: DistributedLayout, form: tuple[Any, ...], warps: int, multiplies: bool
) -> float:
    access = Access(*form)
    if vector_of(layout, access) * access.bits < access.least:
        return float("inf")
    registers = 1 << len(_registers(layout, access.shape))
    repeated = (1 << len(_bases(layout, access.shape).get("register", ()))) - registers
    vector = vector_of(layout, access)
    count = (registers + _REPEATED * repeated) / vector * warps
    sectors = sectors_of(layout, access)
    moved = float(sectors)
    nvidia = len(_bases(layout, access.shape).get("lane", ())) == _NVIDIA_LANES
    if nvidia:
        # Sectors of which an instruction moves a part, as every other one does that moves the rest. The L1 cache has it for
        # the next one of the widest loads that run once: on an H200 scales of groups of 128 elements took 0.93 of the time
        # with 16 of them in a thread. Without that price for single elements transposes took 1.10, for loops sparse rows 1.40.
        filled = -(-(vector * access.bits << _NVIDIA_LANES) // (8 * _SECTOR))
        again = not access.name and access.weight == 1 and vector * access.bits == _WIDEST
        moved += max(0, sectors - filled) * (_AGAIN if again else 1.0)
        moved = max(moved, _LINE_PRICE * _parts_of(layout, access, _LINE))
    if nvidia and access.name == "store":
        moved += _STORED_LINE * _parts_of(layout, access, _LINE)
    issue = {"copy": _ISSUE + _COPY, "atomic": _ATOMIC}.get(access.name, _ISSUE)
    rows = 0.0
    if access.weight > 1 and hasattr(layout, "operand_index"):
        rows = _ROW_OF_OPERAND * warps * _rows_of(layout, access)
    elif access.weight > 1 and hasattr(layout, "instr_shape"):
        apart = [dim for dim, step in enumerate(access.strides) if step != 1]
        held = _registers(layout, access.shape)
        more = (1 << sum(any(row[dim] for dim in apart) for row in held)) - 1
        rows = _ROW_OF_SUM * warps * more
    elif nvidia and access.weight > 1 and vector * access.bits < LEAST_COPY_BITS and multiplies:
        rows = _ROW_OF_HALVES * warps * _rows_of(layout, access)
    return (count * (issue + moved) + rows) * access.weight


def _parts_price(layout: DistributedLayout, access: Access, warps: int) -> float:
    """Return the price of the offsets and the conditions of single elements of a tile."""
    lanes = len(_bases(layout, access.shape).get("lane", ()))
    dims = [dim for dim, size in enumerate(access.shape) if size > 1]
    if lanes != _NVIDIA_LANES or len(dims) < _MATRIX or vector_of(layout, access) > 1:
        return 0.0
    held = _registers(layout, access.shape)
    parts = sum(
        (1 << sum(1 for row in held if row[dim])) * (_OFFSET if dim in access.alike else _PART)
        for dim in dims
    )
    return warps * parts * access.weight


def _rows_of(layout: DistributedLayout, access: Access) -> int:
    """Return how many rows, whose distances are not known, a thread holds elements of."""
    far = [dim for dim, step in enumerate(access.strides) if step is None]
    held = _registers(layout, access.shape)
    return 1 << sum(any(row[dim] for dim in far) for row in held) if far else 0


def _reduction_price(layout: DistributedLayout, reduction: Reduction, warps: int) -> float:
    axis = reduction.axis
    bases = _bases(layout, reduction.shape)
    held = 1 << sum(1 for row in _registers(layout, reduction.shape) if not row[axis])
    lanes = sum(1 for row in bases.get("lane", ()) if row[axis])
    across = any(row[axis] for row in bases.get("warp", ()))
    within = 1 << len(_registers(layout, reduction.shape))
    waits = _ACROSS_WARPS_ONCE if reduction.weight == 1 else _ACROSS_WARPS
    steps = _AT_ONCE if reduction.at_once and lanes == _NVIDIA_LANES else lanes * 2
    return warps * (within + held * steps) + (waits + warps * held * 4 if across else 0)


def _scan_price(layout: DistributedLayout, scan: Scan, warps: int) -> float:
    """Return the price of a scan: of neighbours in a thread, of the last of them in a warp, and across warps."""
    bases = _bases(layout, scan.shape)
    rows = bases.get("register", ())
    held = scan.tensors << sum(map(any, rows))
    places = {row[scan.axis] for row in rows}
    neighbours = next(bit for bit in range(len(rows) + 1) if 1 << bit not in places)
    last = held >> neighbours
    lanes = sum(1 for row in bases.get("lane", ()) if row[scan.axis])
    across = any(row[scan.axis] for row in bases.get("warp", ()))
    total = held + last * lanes * (_SHUFFLE + 2)
    if scan.reverse:
        total += held * len(bases.get("lane", ())) * _SHUFFLE * 2
    waits = _ACROSS_WARPS_ONCE if scan.weight == 1 else _ACROSS_WARPS
    return warps * total + (waits + warps * last * 4 if across else 0)


def _is_vector(shape: tuple[int, ...]) -> bool:
    return sum(size > 1 for size in shape) < _MATRIX


def _run(layout: DistributedLayout, shape: tuple[int, ...], most: int) -> int:
    """Return how many neighbours of a vector a thread holds at a time, up to the most of an access."""
    held = {max(row) for row in _registers(layout, shape)}
    run = 1
    while run in held and run < min(most, _LONGEST_RUN):
        run *= 2
    return run


def price(
    layout: DistributedLayout, unknown: Unknown, warps: int, multiplies: bool = False
) -> float:
    """Return the price of all ops on values with `layout`.

    Args:
        multiplies: the kernel has products, next to whose copies few registers hold offsets.
    """
    registers = 1 << len(_registers(layout, unknown.shape))
    computed = registers
    if unknown.run > 1:
        computed //= _run(layout, unknown.shape, unknown.run)
    bases = _bases(layout, unknown.shape)
    if unknown.compiled and not any(any(row) for part in _THREADS for row in bases.get(part, ())):
        computed = 0
    total = float(warps * computed * (1 + unknown.steps))
    words = registers * max(unknown.bits, 32) // 32
    if words > _MOST_REGISTERS:
        total += warps * (words - _MOST_REGISTERS) * 8
    for access in unknown.accesses:
        cost = _access_price(layout, access.form(), warps, multiplies)
        if unknown.fixed is None or np.isfinite(cost):
            total += cost
        if not multiplies:
            total += _parts_price(layout, access, warps)
    for reduction in unknown.reductions:
        total += _reduction_price(layout, reduction, warps) * reduction.weight
    for scan in unknown.scans:
        total += _scan_price(layout, scan, warps) * scan.weight
    return total


def conversion_price(
    source: DistributedLayout,
    result: DistributedLayout,
    shape: tuple[int, ...],
    bits: int,
    warps: int,
    once: bool = False,
    room: int = 0,
) -> float:
    """Return the price of converting a tensor; 0 for one and the same layout.

    Args:
        once: the conversion is in no loop.
        room: bytes of shared memory that a program has; 0 for any number.
    """
    if source == result:
        return 0.0
    numbers = _number(source, shape), _number(result, shape)
    return _conversion_price(*numbers, shape, bits, warps, once, room)


def conversion_table(
    sources: Sequence[Optional[DistributedLayout]],
    results: Sequence[Optional[DistributedLayout]],
    shape: tuple[int, ...],
    bits: int,
    warps: int,
    once: bool = False,
    room: int = 0,
) -> np.ndarray:
    """Return `conversion_price` of each pair of layouts, infinite where one is None."""
    ends = [[_numbered(one, shape) for one in layouts] for layouts in (sources, results)]
    alike = [list(dict.fromkeys(numbers)) for numbers in ends]
    around = shape, bits, warps, once, room
    prices = np.array([
        [np.inf if None in (one, other) else _conversion_price(one, other, *around) for other in alike[1]]
        for one in alike[0]
    ], dtype=float)  # fmt: skip
    prices = prices.reshape(len(alike[0]), len(alike[1]))
    rows, columns = (list(map(kinds.index, numbers)) for kinds, numbers in zip(alike, ends))
    table: np.ndarray = prices[np.ix_(rows, columns)]
    places: dict[Any, list[int]] = {}
    for j, result in enumerate(results):
        places.setdefault(result, []).append(j)
    for i, source in enumerate(sources):
        if source is not None:
            table[i, places.get(source, [])] = 0.0
    return table


@lru_cache(maxsize=1 << 17)
def _conversion_price(
    source: int,
    result: int,
    shape: tuple[int, ...],
    bits: int,
    warps: int,
    once: bool,
    room: int,
) -> float:
    """Return the price of a conversion between layouts of which the facts have numbers."""
    before, after = _FACTS[source], _FACTS[result]
    held, wanted = 1 << len(before.registers), 1 << len(after.registers)
    if _stays_in_warp(before, after):
        alike = before.lanes == after.lanes and before.warps == after.warps
        if alike and before.registers == after.registers:
            return 0.5
        if alike and _spans(before.of_lane, (*after.registers, *after.blocks)):
            elements = _sums(before.registers), _sums(after.registers)
            first = {element: i for i, element in reversed(list(enumerate(elements[0])))}
            moved = sum(first.get(element) != i for i, element in enumerate(elements[1]))
            return 0.5 + warps * moved
        if all(before.lanes) and all(after.lanes) and _shuffled(before, after):
            words = -(-wanted * max(bits, 8) // 32) if wanted * max(bits, 8) >= 32 else wanted
            return warps * (words * 2 + wanted)  # a copy in several lanes goes through memory
    moved = sum(-(-count * max(bits, 8) // _WIDEST) for count in (held, wanted))
    wide = len(before.lanes) > _NVIDIA_LANES
    waits = _BARRIERS_OF_VECTORS if _is_vector(shape) and once or wide else _BARRIERS
    through = 0 < room < prod(shape) * max(bits, 8) // 8
    return waits + warps * moved * _ISSUE * 2 + (_NO_ROOM if through else 0.0)


def _sums(rows: Sequence[int]) -> list[int]:
    """Return the elements of a lane's registers, as numbers."""
    places = [0]
    for row in rows:
        places += [place ^ row for place in places]
    return places


class _Facts(NamedTuple):
    """Hold what the price of a conversion needs of a layout, its bases as integers.

    Attributes:
        registers: those that differ. lanes, warps, blocks: of the machine's parts.
        of_warp, of_lane: vectors that span the elements of one warp and of one lane, the highest bit of each alone.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    blocks: tuple[int, ...]
    of_warp: tuple[int, ...]
    of_lane: tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def _facts(layout: DistributedLayout, shape: tuple[int, ...]) -> _Facts:
    """Return the facts of a layout; an element's number concatenates the bits of its coordinates."""
    widths = [max(1, size - 1).bit_length() for size in shape]
    shifts = [sum(widths[i + 1 :]) for i in range(len(shape))]
    bases = {
        dim: tuple(sum(v << s for v, s in zip(row, shifts)) for row in rows)
        for dim, rows in _bases(layout, shape).items()
    }
    registers, lanes = bases.get("register", ()), bases.get("lane", ())
    return _Facts(
        tuple(filter(None, registers)),
        lanes,
        bases.get("warp", ()),
        bases.get("block", ()),
        _span((*registers, *lanes)),
        _span((*registers, *bases.get("block", ()))),
    )


_FACTS: dict[int, _Facts] = {}
_NUMBERS: dict[_Facts, int] = {}
_free = count()  # numbers, of which threads that ask at the same time may waste some


@lru_cache(maxsize=1 << 16)
def _number(layout: DistributedLayout, shape: tuple[int, ...]) -> int:
    """Return the number of the facts of a layout: many layouts of a shape have the same ones."""
    facts = _facts(layout, shape)
    number = _NUMBERS.setdefault(facts, next(_free))
    _FACTS[number] = facts
    return number


def _numbered(layout: Optional[DistributedLayout], shape: tuple[int, ...]) -> Optional[int]:
    """Return `_number`; None without a layout, and of one that no tensor of the shape can have."""
    try:
        return None if layout is None else _number(layout, shape)
    except GluonError:
        return None


def maps_alike(first: AnyLayout, second: AnyLayout, shape: tuple[int, ...]) -> bool:
    """Return True for layouts that give each thread the same elements, in the same order of registers."""
    if isinstance(first, SharedLayout) or isinstance(second, SharedLayout):
        return False
    numbers = {_numbered(first, shape), _numbered(second, shape)}
    return len(numbers) == 1 and None not in numbers


def _span(rows: Sequence[int]) -> tuple[int, ...]:
    """Return the vectors that span numbers, the highest bit of each alone: the same ones for the same span."""
    vectors: list[int] = []
    for row in rows:
        row = _reduced(row, vectors)
        if row:
            top = 1 << row.bit_length() - 1
            vectors = [vector ^ row if vector & top else vector for vector in vectors]
            vectors = sorted([*vectors, row], reverse=True)
    return tuple(vectors)


def _reduced(row: int, vectors: Sequence[int]) -> int:
    """Return what the vectors leave of a number; 0 if they span it."""
    for vector in vectors:
        if row ^ vector < row:
            row ^= vector
    return row


def _spans(vectors: Sequence[int], rows: Sequence[int]) -> bool:
    """Return True if vectors span numbers."""
    return not any(_reduced(row, vectors) for row in rows)


def crosses_warps(
    source: DistributedLayout, result: DistributedLayout, shape: tuple[int, ...]
) -> bool:
    """Return True if a warp gets elements of another one from a conversion."""
    return not _stays_in_warp(_facts(source, shape), _facts(result, shape))


def _stays_in_warp(before: _Facts, after: _Facts) -> bool:
    """Return True if a compiler sees that each warp has all the elements that it gets.

    Triton takes a warp for its own source alone where both layouts name its part alike. Warps that all hold
    a vector store it to shared memory, and each loads its part: on an H200 three scans of 128 elements took 1.34 of the time
    with such conversions between them.
    """
    if before.warps != after.warps or before.blocks != after.blocks:
        return False
    return before.of_warp == after.of_warp or _spans(before.of_warp, after.of_warp)


def _shuffled(before: _Facts, after: _Facts) -> bool:
    """Return True if a conversion in a warp takes no barrier.

    Triton shuffles where one bit of a register becomes one of a lane. Where more do, it goes through shared memory, and warps
    that hold the same elements wait for each other.
    """
    swapped = len(_span((*before.lanes, *after.lanes))) - len(before.lanes)
    return swapped < 2 or all(before.warps)


def reasons(layout: DistributedLayout, unknown: Unknown, jits: Sequence[Any]) -> list[str]:
    """Describe the cost of the ops on values with `layout`, the costliest first.

    Args:
        jits: the functions of the kernel.
    """
    words = []
    for access in unknown.accesses:
        vector = vector_of(layout, access)
        sectors = sectors_of(layout, access)
        moved = vector * access.bits // 8
        kinds = "atomic", "copy", "store", "load"
        kind = next((k for k in kinds if k in access.name), "access")
        limit = _limit(access, vector)
        name = pointer_name(jits, access.place)
        of = (
            f" {'to' if kind == 'store' else 'on' if kind == 'atomic' else 'of'} {name}"
            if name
            else ""
        )
        own, all_lanes = counted(moved, "byte"), counted(sectors, "sector")
        words.append(f"{kind}{of}: {own} a thread{limit}, {all_lanes} a warp")
    for one in unknown.reductions:
        across = any(row[one.axis] for row in _bases(layout, one.shape).get("warp", ()))
        words.append(
            f"reduction over dimension {one.axis}: "
            + ("across warps" if across else "within a warp")
        )
    return list(dict.fromkeys(words))


def dearer(price: float, best: float) -> str:
    """Compare the price of the next best choice with that of the best one."""
    more = f"{100 * (price / best - 1):.1f}"
    return "costs the same" if more == "0.0" else f"costs {more}% more"


def _limit(access: Access, vector: int) -> str:
    """Say what keeps an access from moving more than `vector` elements at once; "" where the layout does."""
    if vector * access.bits >= _WIDEST:
        return ""
    if 1 not in access.strides:
        return ", no more are surely adjacent"
    if vector < access.together:
        return ""
    return (
        ", the mask may split more" if vector < access.aligned else ", no more are surely aligned"
    )


def counted(number: int, word: str) -> str:
    """Return a number of things in words."""
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number} {word if number == 1 else plural}"
