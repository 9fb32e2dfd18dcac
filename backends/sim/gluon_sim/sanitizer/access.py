"""The cost of accesses: requests and sectors of global memory, passes over shared-memory banks.

Counted from the addresses that a kernel really computes, thread by thread through the layout. A
lane moves as many neighbouring registers in one instruction as their addresses follow each other,
are aligned and share a mask, up to 16 bytes; a compiler that knows less makes more requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Optional

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.layouts import Layout

__all__ = ["GlobalCost", "SharedCost", "global_cost", "holders", "shared_cost"]

SECTOR = 32
LINE_SECTORS = 4  # sectors of a cache line, the unit that engines request
_WIDEST = 16


@dataclass(frozen=True)
class Holders:
    """Which element each register holds: `index` is (warps, lanes, registers), flat elements.

    `first` marks one of the holders of each element, those that store it.
    """

    index: np.ndarray
    first: np.ndarray


@lru_cache(maxsize=512)
def holders(layout: Layout, shape: tuple[int, ...]) -> Optional[Holders]:
    """Return the linear form of a register layout; None where it has no linear form."""
    try:
        linear = layout.to_linear(shape).without_zero_bases("register")
    except (AttributeError, GluonError):
        return None
    sizes = linear.in_dims
    order = [d for d in ("block", "warp", "lane", "register") if d in sizes]
    grid = np.meshgrid(*(np.arange(sizes[d]) for d in order), indexing="ij")
    coords = linear.apply_arrays(**dict(zip(order, grid)))
    index: np.ndarray = np.zeros(grid[0].shape, np.int64)
    for d, extent in enumerate(shape):
        index = index * extent + coords[f"dim{d}"]
    blocks = sizes.get("block", 1)
    index = index.reshape(
        blocks * sizes.get("warp", 1), sizes.get("lane", 1), sizes.get("register", 1)
    )
    first = np.zeros(index.size, bool)
    first[np.unique(index.ravel(), return_index=True)[1]] = True
    return Holders(index, first.reshape(index.shape))


@dataclass
class GlobalCost:
    """The cost of one access by some programs: bytes asked for, requests of warps, sectors of 32 bytes."""

    bytes: int = 0
    requests: int = 0
    sectors: int = 0
    ideal: int = 0


@dataclass
class SharedCost:
    """The cost of one access: bytes, passes over the banks, and passes without conflicts."""

    bytes: int = 0
    passes: int = 0
    ideal: int = 0


def _vector(address: np.ndarray, live: np.ndarray, size: int) -> int:
    """Return the registers that one instruction moves; `address` is (..., registers)."""
    count = address.shape[-1]
    vector = 1
    while vector * 2 * size <= _WIDEST and count % (vector * 2) == 0:
        wide = vector * 2
        groups = address.reshape(*address.shape[:-1], count // wide, wide)
        on = live.reshape(groups.shape)
        alike = (on == on[..., :1]).all()
        follow = groups == groups[..., :1] + np.arange(wide) * size
        aligned = groups[..., :1] % (wide * size) == 0
        if not (alike and ((follow & aligned) | ~on).all()):
            break
        vector = wide
    return vector


def _distinct(values: np.ndarray, live: np.ndarray) -> np.ndarray:
    """Count the different live values along the last axis."""
    hidden = np.where(live, values, np.iinfo(np.int64).max)
    hidden.sort(axis=-1)
    fresh = np.ones(hidden.shape, bool)
    np.not_equal(hidden[..., 1:], hidden[..., :-1], out=fresh[..., 1:])
    counts: np.ndarray = (fresh & (hidden != np.iinfo(np.int64).max)).sum(axis=-1)
    return counts


def global_cost(
    addresses: np.ndarray,
    mask: Optional[np.ndarray],
    size: int,
    held: Optional[Holders],
    stores: bool,
) -> GlobalCost:
    """Return the cost of accesses at `addresses` (programs, *shape) of `size` bytes each.

    Without `held` one engine moves it all: sectors count once per program, and each program makes
    one request.
    """
    rows = addresses.shape[0]
    flat = addresses.reshape(rows, -1)
    live = np.ones((1, 1), bool) if mask is None else mask.reshape(mask.shape[0], -1)
    live = np.broadcast_to(live, flat.shape)
    cost = GlobalCost(bytes=int(live.sum()) * size)
    if held is None:
        last = _distinct(flat // SECTOR, live)
        cost.sectors = int(last.sum())
        cost.requests = int((last > 0).sum())
        cost.ideal = int((-(-_distinct(flat, live) * size // SECTOR)).sum())
        return cost
    held_addresses, on = flat[:, held.index], live[:, held.index]  # (rows, warps, lanes, registers)
    if stores:
        on = on & held.first
    vector = _vector(held_addresses, on, size)
    starts = np.ascontiguousarray(held_addresses[..., ::vector].swapaxes(-1, -2))
    on = np.ascontiguousarray(on[..., ::vector].swapaxes(-1, -2))
    sectors = _distinct(starts // SECTOR, on)
    cost.requests = int(on.any(axis=-1).sum())
    cost.sectors = int(sectors.sum())
    cost.ideal = int((-(-_distinct(starts, on) * (vector * size) // SECTOR)).sum())
    return cost


def shared_cost(
    offsets: np.ndarray, size: int, held: Optional[Holders], banks: int, stores: bool
) -> SharedCost:
    """Return the cost of accesses at byte `offsets` (programs, *shape) of `size` bytes each.

    Lanes that fill the banks once go in one pass: 32 lanes of 4 bytes, 8 of 16 bytes with 32
    banks. Lanes that touch the same word share it. Without `held` an engine
    moves whole rows of the banks.
    """
    flat = offsets.reshape(offsets.shape[0], -1)
    cost = SharedCost(bytes=flat.size * size)
    if held is None:
        cost.passes = cost.ideal = flat.shape[0] * -(-flat.shape[1] * size // (banks * 4))
        return cost
    held_offsets = flat[:, held.index]
    on = np.broadcast_to(held.first if stores else np.ones((), bool), held_offsets.shape)
    vector = _vector(held_offsets, on, size)
    starts = held_offsets[..., ::vector].swapaxes(-1, -2)
    on = on[..., ::vector].swapaxes(-1, -2)
    lanes = starts.shape[-1]
    together = min(lanes, max(1, banks * 4 // (vector * size)))
    starts, on = starts.reshape(-1, together), on.reshape(-1, together)
    words = max(1, vector * size // 4)
    word = (starts[..., None] // 4 + np.arange(words)).reshape(starts.shape[0], -1)
    on = np.repeat(on, words, axis=-1)
    hidden = np.where(on, word, np.iinfo(np.int64).max)
    hidden.sort(axis=-1)
    fresh = np.ones(hidden.shape, bool)
    np.not_equal(hidden[:, 1:], hidden[:, :-1], out=fresh[:, 1:])
    fresh &= hidden != np.iinfo(np.int64).max
    group, _ = np.nonzero(fresh)
    busy = np.bincount(group * banks + hidden[fresh] % banks, minlength=len(hidden) * banks)
    cost.passes = int(busy.reshape(-1, banks).max(axis=1).sum())
    cost.ideal = int(fresh.any(axis=1).sum())
    return cost
