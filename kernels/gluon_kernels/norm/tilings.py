"""The tilings of kernels over rows for tensors: clusters, rows that begin anywhere, and vectors that all rows share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

from torch import Tensor

from gluon_core import language as gl
from gluon_kernels.norm.rows import (
    OWN,
    ClusterTiling,
    Tiling,
    block_tiling,
    cluster_tiling,
    stacked,
    tiling,
)
from gluon_kernels.norm.views import Rows, common_align
from gluon_kernels.plans import current_target, multiprocessors, registers

__all__ = [
    "ahead",
    "begin_at_once",
    "blocks_of",
    "early",
    "is_packed",
    "keeps_exponentials",
    "of_bodies",
    "of_few_rows",
    "of_halves",
    "of_short_rows",
    "own_elements",
    "packed",
    "shifts",
    "tiling_of",
    "tiling_or_cluster",
    "whole_accesses",
]

LEAST_ODD = 512  # columns: a program has several shorter rows, one element at a time
EARLY_UP_TO = 40  # elements of a row that a thread keeps
REGISTERS = 1 << 16  # of a multiprocessor
KEPT = 48  # exponentials of a thread: four blocks of a cluster have room on a multiprocessor
AHEAD_FROM = 32  # elements of a row that a thread keeps
AHEAD_BYTES = 72 << 10  # of a block: three have room on a multiprocessor
FEW_SHORT = 44  # rows for each multiprocessor, up to which threads have one
NARROW = 12  # elements in accesses of fewer than 8 bytes, from which on threads have one row
BUSY = 4  # warps that each multiprocessor has at least


def tiling_of(
    *rows: Rows, held: int = 1, waits: bool = True, least: int = 0, own: int = OWN
) -> Tiling:
    """Return the tiling for matrices of one shape, as if they had at least so many rows; see `tiling`."""
    first = rows[0]
    return tiling(
        first.columns,
        max(8 * row.tensor.element_size() for row in rows),
        common_align(*rows),
        current_target().warp_size,
        max(first.count, least),
        held,
        waits,
        multiprocessors(first.tensor),
        own,
    )


def of_short_rows(own: int, *rows: Rows) -> Optional[Tiling]:
    """Return a tiling whose threads have so many elements of a row, or fewer; None where a warp has no room for the row, or elements have no 16 bits.

    A warp has several rows if each has few lanes, and its instructions serve them all.
    """
    if any(row.tensor.element_size() != 2 for row in rows):
        return None
    first, align = rows[0], common_align(*rows)
    size, processors = current_target().warp_size, multiprocessors(first.tensor)
    vector, lanes = min(align, 8), 4
    while lanes < size and -(-first.columns // (lanes * vector)) * vector > own:
        lanes *= 2
    most = min(size, 1 << (-(-first.columns // vector) - 1).bit_length())  # lanes with elements
    while lanes < most and first.count * lanes < BUSY * size * processors:
        lanes *= 2
    pieces = -(-first.columns // (lanes * vector))
    if pieces * vector > own:
        return None
    layout = gl.BlockedLayout([1, vector], [size // lanes, lanes], [1, 1], [1, 0])
    tiles = Tiling(align, 1, size // lanes, pieces, lanes * vector, 1, layout)
    for warps in (4, 2):
        more = stacked(tiles, warps)
        if more.grid(first.count) >= processors:
            return more
    return tiles


def packed(tiles: Tiling, rows: Rows, most: Optional[int] = None) -> Tiling:
    """Return a tiling whose programs have four warps with rows of their own, where a row is one warp's and rows are many.

    A processor has room for 32 programs, of however few warps, and each of them takes time to begin; threads with more than two rows gain nothing,
    and with more than one where rows are few.

    Args:
        most: rows of a thread.
    """
    single = tiles.num_warps == tiles.parts == 1 and not isinstance(tiles, ClusterTiling)
    size, lanes = current_target().warp_size, tiles.layout.threads_per_warp[1]  # of a row
    near = size // lanes
    narrow = tiles.layout.size_per_thread[1] * rows.tensor.element_size() < 8
    if single and (rows.count < FEW_SHORT * multiprocessors(rows.tensor) or (narrow and own_elements(tiles) >= NARROW)):  # fmt: skip
        tiles = replace(tiles, rows=near)
    if single and most is not None:
        tiles = replace(tiles, rows=min(tiles.rows, most * size // lanes))
    if single and tiles.rows * lanes <= 2 * size:
        for warps in (4, 2):
            more = stacked(tiles, warps)
            if more.grid(rows.count) >= 2 * multiprocessors(rows.tensor):
                return more
    return tiles


def of_halves(*rows: Rows) -> Optional[Tiling]:
    """Return a tiling whose warps have two rows each, where one would leave a quarter of a warp's elements or more without a column; None elsewhere, and for few rows."""
    first, align, size = rows[0], common_align(*rows), current_target().warp_size
    many = first.count >= FEW_SHORT * multiprocessors(first.tensor)
    vector, half = min(align, 8), size // 2
    pieces = -(-first.columns // (half * vector))
    if pieces != 3 or not many or any(row.tensor.element_size() != 2 for row in rows):
        return None
    layout = gl.BlockedLayout([1, vector], [2, half], [1, 1], [1, 0])
    return stacked(Tiling(align, 1, 2, pieces, half * vector, 1, layout), 4)


def of_few_rows(*rows: Rows) -> Tiling:
    """Return the tiling of rows that have a program each: 8 warps, or 16 where threads of 8 would have more than 40 elements."""
    first, align, size = rows[0], common_align(*rows), current_target().warp_size
    vector = min(align, 128 // max(8 * row.tensor.element_size() for row in rows))
    warps = 8 if first.columns <= 40 * 8 * size else 16
    pieces = -(-first.columns // (warps * size * vector))
    layout = gl.BlockedLayout([1, vector], [1, size], [1, warps], [1, 0])
    return Tiling(align, 1, 1, pieces, warps * size * vector, warps, layout)


def tiling_or_cluster(
    *rows: Rows, held: int = 1, least: Optional[int] = None, fewest: int = 8, waits: bool = True,
    raises: bool = False, anew: bool = False, own: int = OWN, alone: int = 0,
) -> tuple[Tiling, dict[str, Any]]:  # fmt: skip
    """Return the tiling for matrices of one shape and the options of the launch: clusters that share long rows, on Hopper.

    The simulator runs no assembly that reaches other blocks.

    Args:
        held, waits, own: see `tiling`.
        least: bits of a row from which on clusters are faster than one program; None where they never are.
        fewest: blocks of a cluster, if these hold a row in few registers, and are several for each multiprocessor.
        raises: threads may keep exponentials, see `keeps_exponentials`.
        anew: threads keep elements of 16 bits as they were loaded, see `portable.anew`.
        alone: columns up to which one program is faster than a cluster where rows are fewer than multiprocessors.
    """
    first, target, tiles = rows[0], current_target(), tiling_of(*rows, waits=waits, own=own)
    bits = max(8 * row.tensor.element_size() for row in rows)
    whole = common_align(*rows) * bits >= 64  # elements come 8 bytes at a time
    if target.has("nvidia.wgmma") and first.columns <= alone and tiles.parts > 1 and whole:
        return of_few_rows(*rows), {}
    long = tiles.parts > 1 or (least is not None and first.columns * bits >= least)
    if long and target.has("nvidia.wgmma") and target.backend != "sim":
        align, processors = common_align(*rows), multiprocessors(first.tensor)
        if raises and first.count < processors:  # a row's time is that of its exchange
            for blocks in (4, 8):
                shared = cluster_tiling(first.columns, bits, align, first.count, processors, held, blocks, OWN * bits, (4,))  # fmt: skip
                if shared is not None:
                    return shared, {"num_ctas": blocks}
        of_block = (8,) if anew else (8, 4)
        for blocks in (2, 4, 8):
            most = 1024 if blocks < 8 else 2048
            few = blocks < 8 and first.count * blocks < 3 * processors
            if blocks < fewest or few:
                continue
            shared = cluster_tiling(
                first.columns, bits, align, first.count, processors, held, blocks, most, of_block
            )
            kept = raises and shared is not None and keeps_exponentials(shared)
            if shared is not None and (kept or blocks == 8 or not raises):
                return shared, {"num_ctas": blocks, **registers(_registers(shared, bits * held, kept, anew))}  # fmt: skip
    return tiles, {}


def own_elements(tiles: Tiling) -> int:
    """Return how many elements of a row a thread has."""
    vector: int = tiles.layout.size_per_thread[1]
    return tiles.pieces * vector


def keeps_exponentials(tiles: Tiling) -> bool:
    """Return True if threads keep exponentials in float32 in place of their elements, which they raise a second time otherwise."""
    return own_elements(tiles) <= KEPT


def is_packed(rows: Rows) -> bool:
    """Return True for elements of 16 bits that NVIDIA's threads load four at a time or more."""
    return rows.tensor.element_size() == 2 and rows.align >= 4 and current_target().has("nvidia.cp_async")  # fmt: skip


def _registers(tiles: Tiling, bits: int, kept: bool, anew: bool) -> int:
    """Return the registers of a thread that has room for its elements of so many bits, as they were loaded or raised, and for few more."""
    own = own_elements(tiles)
    if kept:
        return max(48, -(-own // 8) * 8 + 16)
    if anew:  # converted elements are not kept
        return max(40, -(-own // 16) * 8 + 24)
    return 80 if own * bits <= 1024 else 128


def whole_accesses(*rows: Rows) -> Optional[tuple[Rows, ...]]:
    """Return rows that begin anywhere as ones that begin with an access, for the kernels that load their bodies; None where those do not pay.

    Matrices must begin at the same places within an access, which they do if their strides are alike.
    """
    bits = {8 * row.tensor.element_size() for row in rows}
    width = 128 // max(bits)
    alike = len(bits) == 1 and len({row.stride % width for row in rows}) == 1
    apart = any(row.tensor.data_ptr() & 15 for row in rows)
    if not alike or apart or common_align(*rows) * max(bits) >= 64 or rows[0].columns < LEAST_ODD:
        return None
    return tuple(replace(row, align=width) for row in rows)


def of_bodies(tiles: Tiling) -> Tiling:
    """Return the tiling for rows whose bodies are narrower than they are, each by itself."""
    tiles = replace(tiles, rows=1)
    return replace(tiles, even=False) if isinstance(tiles, ClusterTiling) else tiles


def shifts(x: Tensor, *vectors: Optional[Tensor]) -> bool:
    """Return True if vectors that all rows share are loaded by whole accesses and shifted, by instructions of NVIDIA's."""
    alike = all(v is None or (v.dtype == x.dtype and not v.data_ptr() & 15) for v in vectors)
    return alike and current_target().has("nvidia.cp_async")


def ahead(
    tiles: Tiling, weight: Optional[Tensor], bias: Optional[Tensor], anew: bool = False
) -> bool:
    """Return True if blocks of a cluster copy their columns of the weight to shared memory before they load the row.

    With fewer columns of a block the copies take as long as the loads that they replace, and with those of a bias they take longer.
    Where elements are converted `anew`, more blocks hide the latency.
    """
    if not isinstance(tiles, ClusterTiling) or weight is None or bias is not None:
        return False
    own = tiles.pieces * tiles.layout.size_per_thread[1]
    size = weight.element_size() * tiles.pieces * tiles.width // tiles.blocks
    return own > (2 * AHEAD_FROM if anew else AHEAD_FROM) and size <= AHEAD_BYTES


def early(tiles: Tiling, rows: Rows, vectors: int = 1) -> bool:
    """Return True if programs load the vectors that all rows share before they wait for their rows: where all begin at once, and registers have room for both."""
    processors, own = multiprocessors(rows.tensor), own_elements(tiles)
    blocks = tiles.grid(rows.count)
    if isinstance(
        tiles, ClusterTiling
    ):  # one for each multiprocessor: no other hides the latency, or needs registers
        return blocks * tiles.blocks <= processors and tiles.num_warps <= 8
    warps = -(-blocks // processors) * tiles.num_warps  # of a multiprocessor
    needed = 24 + own + 3 * vectors * own // 4  # registers of a thread, as compiled
    room = own <= EARLY_UP_TO and warps * current_target().warp_size * needed <= REGISTERS
    few = blocks * tiles.num_warps <= 32 * processors
    return few and room and tiles.parts == 1 and tiles.rows == 1


def begin_at_once(tiles: Tiling, rows: Rows) -> bool:
    """Return True if all programs of a norm with weight and bias begin at once, by the registers that it was compiled to."""
    programs = -(-tiles.grid(rows.count) // multiprocessors(rows.tensor))
    threads = programs * tiles.num_warps * current_target().warp_size
    return threads * (24 + own_elements(tiles)) <= REGISTERS


def blocks_of(*rows: Rows) -> tuple[Tiling, tuple[int, int]]:
    """Return the tiling of a kernel that looks at no neighbours, and its grid."""
    first, bits = rows[0], max(8 * row.tensor.element_size() for row in rows)
    size = current_target().warp_size
    tiles = block_tiling(
        first.count, first.columns, bits, common_align(*rows), size, multiprocessors(first.tensor)
    )
    return tiles, (-(-first.count // tiles.rows), -(-first.columns // tiles.width))
