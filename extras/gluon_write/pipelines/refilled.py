"""Copy a tile of a later step to the buffer that a step has just read, where that lets more programs run.

    gl.nvidia.ampere.async_copy.wait_group(1)
    k = k_ring.index(0).load()
    gl.nvidia.ampere.async_copy.async_load(k_ring.index(0), k_ptrs_ahead)
    gl.nvidia.ampere.async_copy.commit_group()

A ring has one buffer less. Each tile waits for its own copy, and another barrier comes before the next one: on an H200 decoding with
latent keys of 512 columns, of which a multiprocessor holds two programs so, takes 0.84 of the time, and 1.07 where there is one for each; other
decoding, of which it holds more anyway, takes 1.00 to 1.04.
"""

from __future__ import annotations

from typing import Any

from gluon_write.loops.loops import Loop

__all__ = ["by_tile", "refills"]

_FEW_WARPS = 4  # that leave a multiprocessor waiting


def refills(reader: Any, loop: Loop, buffers: int, size: int, left: int) -> bool:
    """Return True if a loop's products read registers alone, and one buffer less lets a multiprocessor hold more programs than one.

    Args:
        reader: of the loop, a `Prefetcher`. buffers: of each tile otherwise.
        size: bytes of a step's copies. left: those that are free for them.
    """
    tiles = loop.tiles.values()
    if loop.issued or reader.copies.space != "nvidia.ampere.async_copy" or not loop.products:
        return False
    if any(tile.stored or tile.tiles or reader.shared(tile, loop) for tile in tiles):
        return False
    few, more = (left // (count * size) for count in (buffers, buffers - 1))
    return bool(few == 1 < more and reader.warps <= _FEW_WARPS)


def by_tile(lines: list[str]) -> list[list[str]]:
    """Return the lines that copy each tile, which end with its group of copies; the last part has all that follow."""
    ends = [number + 1 for number, line in enumerate(lines) if line.endswith(".commit_group()")]
    return [lines[a:b] for a, b in zip([0, *ends], [*ends[:-1], len(lines)])]
