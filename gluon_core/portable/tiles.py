"""Arithmetic that lowerings share: how warps split a tile, how threads and shared memory cover it.

Pure Python; sizes are elements unless the name says otherwise.
"""

from __future__ import annotations

from typing import Any, Sequence

from gluon_core.layouts import BlockedLayout, SwizzledSharedLayout

__all__ = ["blocked_layout", "contiguous", "row_swizzle", "split_warps"]


def split_warps(m: int, n: int, num_warps: int, tile_m: int, tile_n: int) -> list[int]:
    """Warps along M and N of an `(m, n)` accumulator made of `(tile_m, tile_n)` instruction tiles.

    Each doubling goes to the side on which a warp still has more rows or columns, so that a warp's
    part is as square as it can be and operands are read as rarely as they can be; a side that is
    used up takes none while the other has room, so that no warp repeats another's work. Warps that
    have to repeat it do so along the side that has more of them: rows of products of one kernel then
    are in the same warps, whatever their columns are.
    """
    warps = [1, 1]
    while warps[0] * warps[1] < num_warps:
        left_m, left_n = m // (warps[0] * tile_m), n // (warps[1] * tile_n)
        if left_m <= 1 and left_n > 1:
            side = 1
        elif left_n <= 1 and left_m > 1:
            side = 0
        elif left_m <= 1 and left_n <= 1 and warps[0] != warps[1]:
            side = 0 if warps[0] > warps[1] else 1
        else:
            side = 0 if m // warps[0] >= n // warps[1] else 1
        warps[side] *= 2
    return warps


def row_swizzle(row: int, bits: int, vector_bytes: int = 16) -> SwizzledSharedLayout:
    """Shared memory with rows of `row` contiguous elements, swizzled so that the same column of
    consecutive rows falls into different banks.

    Args:
        row: elements of a row.
        bits: bits of an element.
        vector_bytes: bytes that move together.
    """
    vector = max(1, min(row, vector_bytes * 8 // bits))
    row_bytes = max(1, row * bits // 8)
    per_phase = max(1, 128 // row_bytes)
    max_phase = max(1, min(128 // vector_bytes // per_phase, row // vector))
    if max_phase == 1:
        per_phase = 1
    return SwizzledSharedLayout(vector, per_phase, max_phase, [1, 0])


def blocked_layout(
    shape: Sequence[int],
    bits: int,
    num_warps: int,
    warp_size: int,
    order: Sequence[int] = (1, 0),
    vector_bytes: int = 16,
) -> BlockedLayout:
    """Return a layout in which neighbouring threads touch neighbouring vectors of `vector_bytes` bytes.

    Args:
        shape: of the tile.
        bits: bits of an element.
        num_warps: warps that share the tile.
        warp_size: threads of a warp.
        order: dimensions, fastest first.
        vector_bytes: most contiguous bytes of one thread.
    """
    rank = len(shape)
    order = [1, 0] if rank == 2 and order is None else list(order)[:rank]
    size, threads, warps = [1] * rank, [1] * rank, [1] * rank
    fastest = order[0]
    # No more than leaves every thread something: a vector that idles half the block costs more.
    total = 1
    for extent in shape:
        total *= extent
    share = max(1, total // (num_warps * warp_size))
    size[fastest] = max(1, min(shape[fastest], vector_bytes * 8 // bits, share))
    left = warp_size
    for dim in order:
        threads[dim] = max(1, min(left, shape[dim] // size[dim]))
        left //= threads[dim]
    threads[order[-1]] *= left
    left = num_warps
    for dim in reversed(order):
        warps[dim] = max(1, min(left, shape[dim] // (size[dim] * threads[dim])))
        left //= warps[dim]
    warps[order[-1]] *= left
    return BlockedLayout(size, threads, warps, order)


def contiguous(registers: Any, shared: Any, shape: Sequence[int]) -> int:
    """Return the number of consecutive elements of shared memory in each thread's registers, which one
    thread can copy at once.

    Args:
        registers: a distributed layout.
        shared: the shared memory's layout.
        shape: of the tile.
    """
    offsets = registers.to_linear(shape).invert_and_compose(shared.to_linear(shape))
    held = {basis[0] for basis in offsets.bases["register"]}
    count = 1
    while count in held:
        count *= 2
    return count
