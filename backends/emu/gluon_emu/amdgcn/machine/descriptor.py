"""Descriptor arguments: the words that the driver builds from a tensor for the tensor data mover."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["encode_descriptor"]


def encode_descriptor(
    meta: dict[str, Any], base: int, shape: list[int], strides: list[int], num_warps: int
) -> np.ndarray:
    """Return the 20 words of groups 0 to 3: a box that each of `num_warps` waves copies a part of.

    Args:
        meta: `elem_bits`, `block_size`, and `interval_padding_pairs` in elements.
    """
    rank, bits = len(shape), int(meta["elem_bits"])
    tile = _share([int(n) for n in meta["block_size"]], num_warps)[::-1]
    sizes, steps = shape[::-1], strides[::-1][1:]
    pairs = meta.get("interval_padding_pairs") or []
    fields: dict[int, list[tuple[int, int, int]]] = {0: [], 1: [], 2: [], 3: []}

    def put(group: int, low: int, count: int, value: int) -> None:
        fields[group].append((low, count, value))

    put(0, 0, 1, 1)
    put(0, 64, 57, base)
    put(0, 127, 1, 1)
    put(1, 16, 2, (bits // 8).bit_length() - 1)
    if pairs:
        interval, amount = (int(n) * bits // 32 for n in pairs[0])
        if interval and amount:
            put(1, 20, 1, 1)
            put(1, 22, 3, interval.bit_length() - 2)
            put(1, 25, 7, amount - 1)
    places = [(1, 48, 1, 112), (1, 80, 1, 128), (2, 0, 1, 144), (2, 32, 2, 112), (3, 48, 3, 80)]
    for i in range(rank):
        size_group, size_at, tile_group, tile_at = places[i]
        put(size_group, size_at, 32, sizes[i])
        put(tile_group, tile_at, 16, tile[i])
    for i, (group, first_bit) in enumerate([(1, 160), (1, 208), (2, 64), (3, 0)][: rank - 1]):
        put(group, first_bit, 48, steps[i])
    words = []
    for group, count in ((0, 4), (1, 8), (2, 4), (3, 4)):
        whole = 0
        for low, width, value in fields[group]:
            whole |= (value & (1 << width) - 1) << low
        words += [whole >> (32 * i) & 0xFFFFFFFF for i in range(count)]
    return np.array(words, np.uint32)


def _share(block: list[int], num_warps: int) -> list[int]:
    """Return the part of a box that one wave copies: waves divide the slowest dimension first."""
    left, share = num_warps, []
    for size in block:
        parts = 1
        while left > 1 and parts * 2 <= size:
            parts, left = parts * 2, left // 2
        share.append(-(-size // parts))
    return share if len(block) > 1 else [-(-block[0] // num_warps)]
