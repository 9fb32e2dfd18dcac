"""Rows of a matrix over programs and threads: the tiling that all kernels over rows share.

A program holds ROWS short rows, one row, or one of PARTS parts of a long row, in PIECES tiles of WIDTH columns each. So the
registers hold a row of any width with less than one tile of padding, and memory is read once. The programs of a long row exchange
two numbers each through the L2 cache, once: `exchange`.

A row may start anywhere; ALIGN says which power of two divides its columns and strides, which is how many elements an
access may have.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Optional

import gluon_core as gluon
from gluon_core import language as gl

__all__ = [
    "OWN",
    "ClusterTiling",
    "Tiling",
    "block_tiling",
    "cluster_tiling",
    "column_tiling",
    "exchange",
    "fold",
    "is_whole",
    "load_pieces",
    "row_start",
    "share",
    "share_of",
    "stacked",
    "tiling",
    "walking_tiling",
]


@gluon.jit
def row_start(pointer, row, stride):
    """Return a pointer to a row, however large the matrix is."""
    return pointer + row.to(gl.int64) * stride


@gluon.jit
def share(arrived, PARTS: gl.constexpr, ROWS: gl.constexpr):
    """Return the first row of this program, and its part of that row; see `share_of`."""
    return share_of(arrived, gl.num_programs(0), PARTS, ROWS)


@gluon.jit
def share_of(arrived, programs, PARTS: gl.constexpr, ROWS: gl.constexpr):
    """Do as `share` where so many programs of the launch have rows, the first ones if PARTS is 1.

    Programs that wait for each other take their place in the order in which they begin, so that all those that a program
    waits for have begun or begin next.
    """
    if PARTS == 1:
        row = gl.program_id(0) * ROWS
        part = gl.to_tensor(0)
    else:
        place = gl.atomic_add(arrived, 1, sem="relaxed", scope="gpu")
        last = programs - 1
        if place == last:
            gl.atomic_add(arrived, -1 - last, sem="relaxed", scope="gpu")
        row = place // PARTS
        part = place % PARTS
    return row, part


@gluon.jit
def place_of(row, rows, columns, start, stride, ALIGN: gl.constexpr, ROWS: gl.constexpr,
             WIDTH: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """Return offsets of a tile from the start of its first row, and which exist."""
    near = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = start + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    offsets = near[:, None] * (stride // ALIGN * ALIGN) + column[None, :]
    inside = (column < columns // ALIGN * ALIGN)[None, :]
    if ROWS > 1:
        inside = inside & (row + near < rows)[:, None]
    return offsets, inside


@gluon.jit
def load_pieces(src, row, rows, columns, start, stride, other, ALIGN: gl.constexpr, ROWS: gl.constexpr,
                PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr, WHOLE: gl.constexpr = False):  # fmt: skip
    """Return the tiles of this program; `other` where there is no element. With WHOLE, rows have all columns of all tiles but the last one."""
    src = row_start(src, row, stride // ALIGN * ALIGN) + start
    offsets, _ = place_of(row, rows, columns, 0, stride, ALIGN, ROWS, WIDTH, layout)
    pieces = ()
    for i in gl.static_range(PIECES):
        here = src + i * WIDTH  # constants of pointers take no instruction
        if WHOLE and i + 1 < PIECES:
            if ROWS > 1:
                exists = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout)) < rows
                piece = gl.portable.load(here, offsets, exists[:, None], other)
            else:
                piece = gl.portable.load(here, offsets)
        else:
            column = start + i * WIDTH
            _, inside = place_of(row, rows, columns, column, stride, ALIGN, ROWS, WIDTH, layout)
            piece = gl.portable.load(here, offsets, inside, other)
        pieces = pieces + (piece,)
    return pieces


@gluon.constexpr_function
def is_whole(number, parts, pieces):
    """Return True for tiles of which rows that have one program have all columns: all but the last one."""
    return parts == 1 and number + 1 < pieces


@gluon.jit
def store_piece(dst, value, row, rows, columns, start, stride, ALIGN: gl.constexpr, WHOLE: gl.constexpr = False):  # fmt: skip
    """Store one tile that begins at column `start`; with WHOLE, rows have all its columns."""
    layout: gl.constexpr = value.type.layout
    ROWS: gl.constexpr = value.shape[0]
    WIDTH: gl.constexpr = value.shape[1]
    dst = row_start(dst, row, stride // ALIGN * ALIGN) + start
    offsets, _ = place_of(row, rows, columns, 0, stride, ALIGN, ROWS, WIDTH, layout)
    if WHOLE:
        if ROWS > 1:
            exists = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout)) < rows
            gl.portable.store(dst, offsets, value, exists[:, None])
        else:
            gl.portable.store(dst, offsets, value)
    else:
        _, inside = place_of(row, rows, columns, start, stride, ALIGN, ROWS, WIDTH, layout)
        gl.portable.store(dst, offsets, value, inside)


@gluon.jit
def load_columns(
    src, columns, start, ALIGN: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr, WHOLE: gl.constexpr = False
):  # fmt: skip
    """Return float32 [1, WIDTH] of a vector that all rows share, such as a weight; with WHOLE, it has all of these."""
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    if WHOLE:
        value = gl.portable.load(src + start, column)
    else:
        value = gl.portable.load(src + start, column, start + column < columns // ALIGN * ALIGN)
    return value.to(gl.float32)[None, :]


@gluon.jit
def fold(pieces, PIECES: gl.constexpr):
    """Return the sums along the rows of all tiles together, [ROWS]."""
    total = pieces[0]
    for i in gl.static_range(1, PIECES):
        total += pieces[i]
    return gl.sum(total, axis=1)


@gluon.jit
def exchange(sums, arrived, row, part, one, other, PARTS: gl.constexpr):
    """Give the other programs of this row two numbers, wait for theirs, and return all, float32 [PARTS] each.

    Args:
        sums: float32 [rows, PARTS, 2], of any content.
        arrived: int32 [1 + rows], see `share`; a row's counter grows by PARTS, a power of two, with each launch.
        one, other: [1].
    """
    mine = sums + (row.to(gl.int64) * PARTS + part) * 2
    gl.store(mine, gl.sum(one, 0))
    gl.store(mine + 1, gl.sum(other, 0))
    gl.barrier()
    counter = arrived + 1 + row
    now = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    goal = (now & -PARTS) + PARTS
    now += 1
    while now - goal < 0:
        now = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    gl.barrier()
    layout: gl.constexpr = gl.portable.blocked_layout([PARTS], gl.float32)
    offsets = sums + row.to(gl.int64) * (PARTS * 2) + gl.arange(0, PARTS, layout) * 2
    return gl.load(offsets), gl.load(offsets + 1)


@dataclass(frozen=True)
class Tiling:
    """Hold the distribution of rows over programs.

    Args:
        align: elements of an access, a power of two that divides the row's start.
        parts: programs of a row, a power of two.
        rows: of a program.
        pieces: tiles of a program.
        width: columns of a tile.
    """

    align: int
    parts: int
    rows: int
    pieces: int
    width: int
    num_warps: int
    layout: gl.BlockedLayout

    def grid(self, rows: int) -> int:
        return -(-rows // self.rows) * self.parts

    def constants(self) -> dict[str, Any]:
        """Return the constants of a kernel by name, and `num_warps`."""
        return {
            "ALIGN": self.align,
            "PARTS": self.parts,
            "ROWS": self.rows,
            "PIECES": self.pieces,
            "WIDTH": self.width,
            "layout": self.layout,
            "num_warps": self.num_warps,
        }


@dataclass(frozen=True)
class ClusterTiling(Tiling):
    """Hold the distribution of a row over the warps of a cluster: a row of a tile for each, see `hopper`."""

    blocks: int = 8
    even: bool = False  # no tile goes beyond the row

    def constants(self) -> dict[str, Any]:
        warps = self.blocks * self.num_warps
        own = {
            "BLOCKS": self.blocks,
            "WARPS": warps,
            "SPAN": self.width // warps,
            "EVEN": self.even,
        }
        return {**super().constants(), **own}


OWN = 32


@functools.lru_cache(maxsize=4096)
def tiling(
    columns: int,
    bits: int,
    align: int,
    warp_size: int = 32,
    rows: int = 2**20,
    held: int = 1,
    waits: bool = True,
    processors: int = 132,
    own: int = OWN,
) -> Tiling:
    """Return the tiling of rows for a width.

    A row goes to several programs where it is too long for the registers of one, or where there are too few rows. A program that
    waits for the others keeps its registers meanwhile; then a row is one program's as long as that is possible.

    Args:
        columns: of a row.
        bits: of an element.
        align: elements that start of a row, width and strides are multiples of; a power of two.
        rows: of the matrix.
        held: tiles that a thread keeps for each that it loads.
        waits: the programs of a row wait for each other; all must fit on the device at once.
        processors: multiprocessors of the device.
        own: elements of a row that a thread has, about.
    """
    vector = min(align, 128 // bits)
    threads = -(-columns // vector)  # accesses of a row
    if threads <= warp_size:  # a warp has one row or several
        threads = 1 << (threads - 1).bit_length()
        near = warp_size // threads
        deep = max(1, 32 // (vector * held))  # rows of a thread
        while deep > 1 and rows < near * deep * 8 * processors:
            deep //= 2
        layout = gl.BlockedLayout([1, vector], [near, threads], [1, 1], [1, 0])
        return Tiling(align, 1, near * deep, 1, threads * vector, 1, layout)
    # Elements loaded one or two at a time have registers of their own, and take instructions rather than time to arrive.
    narrow = waits and vector * bits < 64
    most = 80 if narrow else 104 if waits else 32
    alone = 16 * warp_size * most // held  # columns of a program that has a row
    shared = (
        8 * warp_size * 16 if narrow else 4 * warp_size * 64
    ) // held  # and of one that shares it
    most_parts = 1 << min(6, processors.bit_length() - 1) if waits else 1024
    parts = 1
    if columns > alone:
        while columns > parts * shared and 2 * parts <= most_parts:
            parts *= 2
    while parts * rows < processors and columns > parts * 4096 and 2 * parts <= most_parts:
        parts *= 2
    of_part = -(-columns // parts)
    # As many warps as hold about `own` elements each, or 64 of a part, 12 of a narrow one; of the near ones that which pads least.
    own = own if parts == 1 else 12 if narrow else 64
    aim = of_part * held / (warp_size * own)
    aim = max(1.0, min(16.0, aim))
    candidates = []
    for warps in (1, 2, 4, 8, 16):
        width = warps * warp_size * vector
        pieces = -(-of_part // width)
        if pieces * vector * held <= 64 or warps == 16:
            padded = pieces * width / of_part
            distance = max(warps / aim, aim / warps)
            candidates.append((padded * (1 + 0.15 * (distance - 1)), warps, pieces, width))
    _, warps, pieces, width = min(candidates)
    deep = 1  # rows of a warp
    if warps == parts == 1:
        while 2 * deep * pieces * vector * held <= 32 and rows >= 2 * deep * 8 * processors:
            deep *= 2
    layout = gl.BlockedLayout([1, vector], [1, warp_size], [1, warps], [1, 0])
    return Tiling(align, parts, deep, pieces, width, warps, layout)


def stacked(tiles: Tiling, warps: int = 8) -> Tiling:
    """Return a tiling whose programs have several times the rows, in warps of their own: for programs that are few."""
    times = max(1, warps // tiles.num_warps)
    layout = tiles.layout
    across = gl.BlockedLayout(
        layout.size_per_thread,
        layout.threads_per_warp,
        [times, tiles.num_warps],
        layout.order,
    )
    return replace(tiles, rows=times * tiles.rows, num_warps=times * tiles.num_warps, layout=across)


def column_tiling(
    columns: int, bits: int, align: int, rows: int, warps: int, warp_size: int = 32, processors: int = 132
) -> Tiling:  # fmt: skip
    """Return the tiling of programs that add up their columns of all rows: 64, or fewer where that is few programs.

    Args:
        columns, bits, align, rows, processors: see `tiling`.
        warps: of a program.
    """
    vector = min(align, 128 // bits)
    width = min(64, warp_size * vector)
    while width > 16 and 2 * -(-columns // width) < processors:
        width //= 2
    lanes = width // vector
    near = warp_size // lanes * warps
    deep = 1  # rows of a thread
    most = 16 // vector if vector * bits >= 64 else 8  # three programs of 8 warps on a processor
    while 2 * deep <= most and deep * near < min(rows, 256):
        deep *= 2
    layout = gl.BlockedLayout([1, vector], [warp_size // lanes, lanes], [warps, 1], [1, 0])
    return Tiling(align, 1, deep * near, 1, width, warps, layout)


WALKED = 2048  # columns of a program that walks over rows


def walking_tiling(
    columns: int, bits: int, align: int, warp_size: int = 32, processors: int = 132
) -> Optional[Tiling]:
    """Return the tiling of programs that each walk over their columns of all rows, and wait for the others of a row.

    Args:
        columns, bits, align, processors: see `tiling`.

    Returns:
        None where a row has more columns than all programs.
    """
    vector, warps = min(align, 128 // bits), 8
    width = warps * warp_size * vector
    pieces = max(1, WALKED // width)
    parts = 2
    while parts * pieces * width < columns:
        parts *= 2
    if parts > 1 << min(6, processors.bit_length() - 1):
        return None
    rows = 4 if bits == 16 and vector >= 4 else 2  # more would not fit into 128 registers
    layout = gl.BlockedLayout([rows, vector], [1, warp_size], [1, warps], [1, 0])
    return Tiling(align, parts, rows, pieces, width, warps, layout)


def cluster_tiling(
    columns: int, bits: int, align: int, rows: int, processors: int = 132, held: int = 1, blocks: int = 8,
    most: int = 2048, warps_of_block: tuple[int, ...] = (8, 4),
) -> Optional[ClusterTiling]:  # fmt: skip
    """Return the tiling of rows that the warps of a cluster share, on a device with clusters.

    Args:
        columns, bits, align, rows, processors: see `tiling`.
        held: matrices of which a thread keeps elements as they were loaded.
        blocks: of a cluster.
        most: bits that a thread keeps.
        warps_of_block: what a block may have, most first.

    Returns:
        None for rows that are too long for the registers of a cluster, or whose elements are not loaded 8 bytes at a time.
    """
    vector = min(align, 128 // bits)
    if vector * bits < 64:
        return None
    candidates = []
    few = rows * blocks < 2 * processors  # what takes time then is a row of a warp
    for warps in warps_of_block:
        width = blocks * warps * 32 * vector
        pieces = -(-columns // width)
        if pieces * vector * bits * held <= most:
            candidates.append((0 if few else pieces * width, -warps, pieces, pieces * width))
    if not candidates:
        return None
    _, warps, pieces, width = min(candidates)
    of_blocks = [[1 << i, 0] for i in range(blocks.bit_length() - 1)]
    layout = gl.BlockedLayout([1, vector], [1, 32], [-warps, 1], [1, 0], of_blocks)
    even = columns == width
    return ClusterTiling(align, 1, 1, pieces, width // pieces, -warps, layout, blocks, even)


@functools.lru_cache(maxsize=4096)
def block_tiling(
    rows: int, columns: int, bits: int, align: int, warp_size: int = 32, processors: int = 132
) -> Tiling:
    """Return the tiling of a kernel that looks at no neighbours: blocks of about 2048 elements, fewer where those are too few programs.

    Args:
        rows, columns: of the matrix.
        bits: of an element.
        align: elements that start of a row, width and strides are multiples of; a power of two.
    """
    vector, warps = min(align, 128 // bits), 4
    elements = 2048
    while elements > warps * warp_size * vector and rows * columns < 4 * processors * elements:
        elements //= 2
    width = min(elements, 1 << (columns - 1).bit_length())
    # The last block of columns has as little padding as narrower ones leave.
    while width * bits > 1024 and -(-columns // width) * width * 8 > columns * 9:
        width //= 2
    width = max(width, vector)
    lanes = min(warp_size, width // vector)
    across = min(warps, width // (lanes * vector))
    deep = elements // width
    layout = gl.BlockedLayout(
        [1, vector], [warp_size // lanes, lanes], [warps // across, across], [1, 0]
    )
    return Tiling(align, 1, deep, 1, width, warps, layout)
