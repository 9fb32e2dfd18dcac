"""The largest or smallest elements of rows, by radix select, on any device.

An element becomes an unsigned integer that compares as it does. Groups of eight elements are looked at by their largest one alone. The k-th
largest of these bounds the k-th largest element from below, so the elements wanted are in groups that reach the bound. A
program reads a part of a row and lists such groups, k to 2 k of them; the program of a row that comes last selects among the
lists, and among the elements of what is left. So memory is read once.

Where a list overflows, as it does when most elements are equal, that program walks over the row from the cache, a bit of the key
in each pass.
"""

import triton.language as tl

import gluon_core as gluon
from gluon_core import language as gl

NAN_WINS = gl.constexpr(tl.PropagateNan.ALL)


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def keys_of(x, inside, BITS: gl.constexpr, LARGEST: gl.constexpr):
    """Return uint32 that compare as elements do, 0 where there is none; NaN is the largest number, zeros are equal."""
    signed: gl.constexpr = gl.int16 if BITS == 16 else gl.int32
    plain: gl.constexpr = gl.uint16 if BITS == 16 else gl.uint32
    bits = (x + 0.0).to(signed, bitcast=True)
    # A negative number has all bits inverted, others the sign alone.
    ordered = bits ^ ((bits >> (BITS - 1)) | -(2 ** (BITS - 1)))
    key = gl.where(x != x, -1, ordered).to(plain, bitcast=True).to(gl.uint32)
    if not LARGEST:
        key = gl.maximum(key ^ (2**BITS - 1), 1)
    return gl.where(inside, key, 0)


@gluon.jit
def bound_of(keys, count, most, BITS: gl.constexpr, TILES: gl.constexpr):
    """Return a number that at least `count` keys reach, at most `most` where there is such a number.

    Two bits are settled at a time; the numbers of keys that reach the three candidates are one sum.

    Args:
        keys: tiles of one shape and one dtype, uint32 or uint64; a thread has up to 1023 keys.
    """
    dtype: gl.constexpr = keys[0].dtype
    bound = gl.to_tensor(0).to(dtype)
    reached = gl.to_tensor(2**20)
    shift = gl.to_tensor(BITS - 2)
    while (shift >= 0) & (reached > most):
        step = gl.to_tensor(1).to(dtype) << shift.to(dtype)
        one = bound + step
        two = one + step
        three = two + step
        counts = gl.zeros(keys[0].shape, gl.int32, keys[0].type.layout)
        for i in gl.static_range(TILES):
            counts += (keys[i] >= one).to(gl.int32)
            counts += gl.where(keys[i] >= two, 1 << 10, 0)
            counts += gl.where(keys[i] >= three, 1 << 20, 0)
        if len(keys[0].shape) == 2:  # of a thread
            counts = gl.sum(counts, 1)
        sums = (counts & 1023).to(gl.int64) + ((counts >> 10) & 1023).to(gl.int64) * (1 << 20)
        sums = gl.sum(sums + (counts >> 20).to(gl.int64) * (1 << 40), 0)
        first = (sums & 0xFFFFF).to(gl.int32)
        second = ((sums >> 20) & 0xFFFFF).to(gl.int32)
        third = (sums >> 40).to(gl.int32)
        digit = (first >= count).to(gl.int32) + (second >= count).to(gl.int32)
        digit += (third >= count).to(gl.int32)
        bound += step * digit.to(dtype)
        above = gl.where(digit == 1, first, gl.where(digit == 2, second, third))
        reached = gl.where(digit == 0, reached, above)
        shift -= 2
    return gl.maximum(bound, 1)  # an element that does not exist has the key 0


@gluon.jit
def store_ranked(
    src, keys, columns, values, indices, total, count, MOST: gl.constexpr, CHUNK: gl.constexpr
):
    """Store the `count` first of `total` listed elements, at most MOST, in their order; columns decide among equals."""
    pairs: gl.constexpr = gl.portable.blocked_layout([MOST, CHUNK], gl.int32)
    mine = gl.arange(0, MOST, gl.SliceLayout(1, pairs))
    key = gl.load(keys + mine, mask=mine < total, other=0).to(gl.uint32, bitcast=True)
    column = gl.load(columns + mine, mask=mine < total, other=0)
    rank = gl.zeros([MOST], gl.int32, gl.SliceLayout(1, pairs))
    for start in range(0, total, CHUNK):
        other = start + gl.arange(0, CHUNK, gl.SliceLayout(0, pairs))
        other_key = gl.load(keys + other, mask=other < total, other=0)
        other_key = other_key.to(gl.uint32, bitcast=True)[None, :]
        other_column = gl.load(columns + other, mask=other < total, other=0)[None, :]
        before = other_key > key[:, None]
        before = before | ((other_key == key[:, None]) & (other_column < column[:, None]))
        rank += gl.sum((before & (other < total)[None, :]).to(gl.int32), 1)
    chosen = (mine < total) & (rank < count)
    value = gl.load(src + column, mask=chosen, other=0.0)
    gl.store(values + rank, value, mask=chosen)
    gl.store(indices + rank, column.to(indices.dtype.element_ty), mask=chosen)


@gluon.jit
def listed(keys, columns, chosen, names, places, room):
    """Append the chosen to a list in memory, in the order of the tile; return how many there are."""
    ones = chosen.to(gl.int32)
    index = gl.associative_scan(ones, 0, add) - 1
    gl.store(names + index, keys.to(gl.int32, bitcast=True), mask=chosen & (index < room))
    gl.store(places + index, columns, mask=chosen & (index < room))
    return gl.sum(ones, 0)


@gluon.jit
def walk(
    src, columns, names, places, count, BITS: gl.constexpr, LARGEST: gl.constexpr, WIDTH: gl.constexpr,
    flat: gl.constexpr,
):  # fmt: skip
    """List exactly `count` elements of a row of any content: those of lower columns among equals."""
    bound = gl.to_tensor(0).to(gl.uint32)
    for i in range(BITS):
        higher = bound | (gl.to_tensor(1).to(gl.uint32) << (BITS - 1 - i).to(gl.uint32))
        reached = gl.zeros([WIDTH], gl.int32, flat)
        for start in range(0, columns, WIDTH):
            column = start + gl.arange(0, WIDTH, flat)
            x = gl.load(src + column, mask=column < columns, other=0.0)
            reached += (keys_of(x, column < columns, BITS, LARGEST) >= higher).to(gl.int32)
        bound = gl.where(gl.sum(reached, 0) >= count, higher, bound)
    above = gl.zeros([WIDTH], gl.int32, flat)
    for start in range(0, columns, WIDTH):
        column = start + gl.arange(0, WIDTH, flat)
        x = gl.load(src + column, mask=column < columns, other=0.0)
        above += (keys_of(x, column < columns, BITS, LARGEST) > bound).to(gl.int32)
    left = count - gl.sum(above, 0)
    stored = gl.to_tensor(0)
    for start in range(0, columns, WIDTH):
        column = start + gl.arange(0, WIDTH, flat)
        x = gl.load(src + column, mask=column < columns, other=0.0)
        key = keys_of(x, column < columns, BITS, LARGEST)
        equal = (key == bound) & (column < columns)
        before = gl.associative_scan(equal.to(gl.int32), 0, add)
        chosen = (key > bound) | (equal & (before <= left))
        left -= gl.minimum(left, gl.sum(equal.to(gl.int32), 0))
        stored += listed(key, column, chosen, names + stored, places + stored, count)
    return stored


@gluon.jit
def larger(a, b):
    return gl.maximum(a, b, propagate_nan=NAN_WINS)


@gluon.jit
def smaller(a, b):
    return gl.minimum(a, b)


@gluon.jit
def group_keys(
    src, first, end, BITS: gl.constexpr, LARGEST: gl.constexpr, PAIR: gl.constexpr, LANES: gl.constexpr,
    VECTOR: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Return the keys of groups that begin with row `first` of tiles: of the largest of PAIR * VECTOR elements each."""
    lane = gl.arange(0, LANES, gl.SliceLayout(1, layout))
    near = gl.arange(0, VECTOR, gl.SliceLayout(0, layout))
    lowest: gl.constexpr = -float("inf") if LARGEST else float("inf")
    start = first * (LANES * VECTOR)
    column = start + lane[:, None] * VECTOR + near[None, :]
    best = gl.portable.load(src, column, column < end, lowest).to(gl.float32)
    for j in gl.static_range(1, PAIR):
        column = start + j * (LANES * VECTOR) + lane[:, None] * VECTOR + near[None, :]
        x = gl.portable.load(src, column, column < end, lowest).to(gl.float32)
        best = larger(best, x) if LARGEST else smaller(best, x)
    best = gl.reduce(best, 1, larger if LARGEST else smaller).to(src.dtype.element_ty)
    return keys_of(best, start + lane * VECTOR < end, BITS, LARGEST)


@gluon.jit
def part_keys(
    src, part, end, BITS: gl.constexpr, LARGEST: gl.constexpr, GROUPS: gl.constexpr, PAIR: gl.constexpr,
    LANES: gl.constexpr, VECTOR: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Return the keys of a part's groups, GROUPS tiles of LANES."""
    keys = ()
    for i in gl.static_range(GROUPS):
        first = (part * GROUPS + i) * PAIR
        keys = keys + (group_keys(src, first, end, BITS, LARGEST, PAIR, LANES, VECTOR, layout),)
    return keys


@gluon.jit
def topk(
    src, values, indices, names, arrived, columns, stride, count, numbers, BITS: gl.constexpr,
    LARGEST: gl.constexpr, ALIGN: gl.constexpr, PARTS: gl.constexpr, GROUPS: gl.constexpr,
    PAIR: gl.constexpr, LANES: gl.constexpr, VECTOR: gl.constexpr, CAP: gl.constexpr,
    MOST: gl.constexpr, CHUNK: gl.constexpr, layout: gl.constexpr, flat: gl.constexpr,
):  # fmt: skip
    """Store the `count` largest elements of each row to `values`, and their columns to `indices`, descending.

    Args:
        names: int32, `numbers` of [rows, PARTS + 2, CAP]: keys of groups in the lists of the parts and in that of the row; keys of
            the row's elements. As many `places` follow: numbers of groups, and columns of elements; then [rows, PARTS] `facts`: the
            lengths of lists.
        arrived: int32 [rows], which grows by PARTS, a power of two, with each launch.
        GROUPS: groups of a thread, each of PAIR accesses of VECTOR elements.
        CAP: groups of a list, at least twice `count`, or all of a row.
        MOST: elements whose order is found, at least `count` and at most CAP.
    """
    row = (gl.program_id(0) // PARTS).to(gl.int64)
    part = gl.program_id(0) % PARTS
    places = names + gl.to_tensor(numbers).to(gl.int64)
    facts = places + gl.to_tensor(numbers).to(gl.int64)
    src += row * (stride // ALIGN * ALIGN)
    lists = row * (PARTS + 2) * CAP
    end = columns // ALIGN * ALIGN
    keys = part_keys(src, part, end, BITS, LARGEST, GROUPS, PAIR, LANES, VECTOR, layout)
    bound = bound_of(keys, count, 2 * count, BITS, GROUPS)
    numbers = (keys[0] >= bound).to(gl.int32)
    for i in gl.static_range(1, GROUPS):
        numbers += (keys[i] >= bound).to(gl.int32)
    total = gl.sum(numbers, 0)
    index = gl.convert_layout(numbers, flat)  # a layout that scans take
    index = gl.convert_layout(gl.associative_scan(index, 0, add), numbers.type.layout) - numbers
    lane = gl.arange(0, LANES, gl.SliceLayout(1, layout))
    of_part = lists + part * CAP
    for i in gl.static_range(GROUPS):
        chosen = keys[i] >= bound
        fits = chosen & (index < CAP)
        gl.store(names + of_part + index, keys[i].to(gl.int32, bitcast=True), mask=fits)
        gl.store(places + of_part + index, (part * GROUPS + i) * LANES + lane, mask=fits)
        index += chosen.to(gl.int32)
    if PARTS > 1:
        gl.store(facts + row * PARTS + part, total)
    gl.barrier()
    before = gl.to_tensor(0)
    if PARTS > 1:
        before = gl.atomic_add(arrived + row, 1, sem="acq_rel", scope="gpu")
        gl.barrier()
    if before % PARTS == PARTS - 1:
        values += row * count
        indices += row * count
        own = lists
        length = total
        fits_all = total <= CAP
        if PARTS > 1:
            # The groups of the row, by the same bound.
            own = lists + PARTS * CAP
            tiles: gl.constexpr = gl.portable.blocked_layout([PARTS * CAP], gl.int32)
            slot = gl.arange(0, PARTS * CAP, tiles)
            lengths = gl.load(facts + row * PARTS + slot // CAP)
            fits_all = gl.max(lengths, 0) <= CAP
            there = fits_all & (slot % CAP < lengths)
            name = gl.load(names + lists + slot, mask=there, other=0).to(gl.uint32, bitcast=True)
            group = gl.load(places + lists + slot, mask=there, other=0)
            limit = bound_of((name,), count, 2 * count, BITS, 1)
            length = listed(name, group, there & (name >= limit), names + own, places + own, CAP)
            fits_all = fits_all & (length <= CAP)
            gl.barrier()
        # Their elements.
        SIZE: gl.constexpr = PAIR * VECTOR
        near: gl.constexpr = gl.portable.blocked_layout([CAP * SIZE], gl.int32)
        slot = gl.arange(0, CAP * SIZE, near)
        exists = fits_all & (slot // SIZE < length)
        group = gl.load(places + own + slot // SIZE, mask=exists, other=0)
        element = slot % SIZE
        column = (group // LANES * PAIR + element // VECTOR) * (LANES * VECTOR)
        column += group % LANES * VECTOR + element % VECTOR
        exists = exists & (column < end)
        x = gl.load(src + column, mask=exists, other=0.0)
        key = keys_of(x, exists, BITS, LARGEST)
        limit = bound_of((key,), count, count, BITS, 1)
        own = lists + (PARTS + 1) * CAP
        length = listed(key, column, key >= limit, names + own, places + own, MOST)
        if not (fits_all & (length <= MOST)):
            gl.barrier()
            length = walk(
                src,
                columns,
                names + own,
                places + own,
                count,
                BITS,
                LARGEST,
                LANES,
                flat,
            )
        gl.barrier()
        store_ranked(src, names + own, places + own, values, indices, length, count, MOST, CHUNK)
