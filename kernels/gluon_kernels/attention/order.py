"""The order in which persistent programs take the tiles of attention, chosen on the host so that all get equal work.

Under a causal mask a tile's work grows with its place. Programs take every n-th tile of a list: groups of heads one after the other,
and in a group the tiles by their work. How well that shares the work depends on the number of programs, tiles and heads; a few
orders are tried, and the one whose busiest program has the least work is taken. A code tells kernels the order (see `tiles.dealt`).
"""

from __future__ import annotations

import heapq
from functools import lru_cache
from typing import Iterator

import torch

__all__ = [
    "GRADIENT_CACHE",
    "GROUP",
    "KEYS",
    "MANY",
    "UNMASKED",
    "code",
    "code_of_parts",
    "heads_of",
    "keys_of",
    "order_of",
    "rows_of",
    "steps_of_part",
    "tiles_in_parts",
]

GROUP = 8  # heads whose keys and values stay in the cache
SIZES = (8, 12, 16, 6, 4, 24, 32, 2)
SIZES_OF_MANY = (8, 12)  # where programs have many tiles
SIZES_OF_LARGE = (4, 6, 2)  # where GROUP heads crowd the cache
MANY = 16  # tiles of a program
CACHE = 24 << 20  # bytes of keys and values of a group
CROWDED = 72 << 20
GRADIENT_CACHE = 40 << 20  # bytes that groups of heads load and add to
OVERFULL = 1.5  # of these, at most, where programs end together then
OVERHEAD = 0.7  # of a tile of queries, in tiles of keys
NEAR = 1.01  # of the least possible work of the busiest program
KEYS = 128  # of a tile
FEW_KEYS = 64
EARLY = 512  # keys of narrow heads without a mask, up to which tiles of FEW_KEYS pay in few rounds
EARLY_ROUNDS = 2
SAVED = 0.06  # of the keys that tiles cover, for which tiles of FEW_KEYS pay
WIDE_TILE = 0.86  # the time of 192 rows over that of as many rows in tiles of 128
NARROW_TILE = 0.62  # the time of 64 rows over that of 128, by two groups of warps
LEAST_PART = 2  # tiles of keys
MOST_PARTS = 32
TILE = 1 << 14  # numbers of 128 rows of 128 columns, for which times are those of a tile of keys
JOINING = 3.0  # of a second kernel, in tiles of keys
JOINED = 1e6  # numbers of parts that are stored and loaded again in the time of a tile of keys
START = 2.0  # of a program of gradients, in steps
LEAST_STEPS = 2  # of a part of a tile of keys
MOST_PIECES = 8  # of a tile of keys
ADDING = 0.3  # steps that the parts of tiles of keys take, which the last kernel adds up
ADDED = 1 << 20  # numbers of both gradients that programs store and load again in a step's time
JOIN = 1.5  # steps that another kernel takes, for sums of heads
MOVED = (
    5000.0  # rows of keys whose gradients all programs store and load again in the time of a step
)
SIMULATED = 1 << 13  # programs; of more, the ends hardly matter


def code(size: int, ascending: bool, backwards: bool) -> int:
    """Return an order: heads of a group; if the tiles of each other group ascend; if each other round begins with the last program.

    Codes are odd and above 1, so that kernels are not compiled for some of them.
    """
    return 8 * size + 4 * ascending + 2 * backwards + 1


UNMASKED = code(GROUP, True, True)  # of tiles that have equal work


def _candidates(
    heads: int, tiles: int, programs: int, bytes_of_head: int
) -> Iterator[tuple[int, bool, bool]]:
    sizes = SIZES_OF_MANY if tiles * heads > MANY * programs else SIZES
    if GROUP * bytes_of_head > CROWDED:
        sizes = SIZES_OF_LARGE
    for size in sizes:
        if size > GROUP and (size > heads or size * bytes_of_head > CACHE):
            continue
        for ascending in (True, False) if size < heads else (False,):
            for backwards in (True, False):
                yield size, ascending, backwards


def _busiest(work: torch.Tensor, heads: int, programs: int, form: tuple[int, bool, bool]) -> float:
    """Return the work of the busiest program."""
    size, ascending, backwards = form
    tiles = work.shape[0]
    tile = torch.arange(tiles * heads, device="cpu")
    group = tile // (size * tiles)
    many = (heads - group * size).clamp(max=size)
    m = tile % (size * tiles) // many
    groups = -(-heads // size)
    up = ((groups - group + 1) % 2 == 1) & ascending
    m = torch.where(up, m, tiles - 1 - m)
    program = tile % programs
    if backwards:
        program = torch.where(tile // programs % 2 == 1, programs - 1 - program, program)
    return float(torch.bincount(program, work[m], programs).max())


@lru_cache(maxsize=4096)
def order_of(
    length: int, keys: int, heads: int, rows: int, programs: int, bytes_of_head: int
) -> tuple[int, float]:
    """Return the order of causal tiles of so many rows, and the work of the busiest program in tiles of keys.

    Args:
        bytes_of_head: of the keys and values of a head of queries.
    """
    tiles = -(-length // rows)
    ends = (torch.arange(1, tiles + 1, device="cpu") * rows).clamp(max=keys)
    work = -(-ends // KEYS) + torch.tensor(OVERHEAD, dtype=torch.float64, device="cpu")
    least = max(float(work.sum()) * heads / programs, float(work.max()))
    best, form = float("inf"), (GROUP, True, True)
    for candidate in _candidates(heads, tiles, programs, bytes_of_head):
        busiest = _busiest(work, heads, programs, candidate)
        if busiest < best:
            best, form = busiest, candidate
        if best <= NEAR * least:
            break
    return code(*form), best


def rows_of(
    length: int, keys: int, heads: int, width: int, causal: bool, programs: int, bytes_of_head: int
) -> tuple[int, int]:
    """Return the rows of a tile, and the order of tiles: three groups of warps have registers for sums of 64 columns, and one takes less time where
    programs are few."""
    best = None
    for rows, cost in ((128, 1.0), (192, 1.5 * WIDE_TILE), (64, NARROW_TILE)):
        if rows == 192 and width > 64:
            continue
        if causal:
            order, busiest = order_of(length, keys, heads, rows, programs, bytes_of_head)
        else:
            count = -(-length // rows) * heads
            order, busiest = (
                UNMASKED,
                tiles_in_parts(count, -(-keys // KEYS), rows * width, programs)[2],
            )
        if best is None or busiest * cost < best[0]:
            best = busiest * cost, rows, order
    assert best is not None
    return best[1], best[2]


def keys_of(length: int, keys: int, rows: int, width: int, causal: bool, rounds: float) -> int:
    """Return the keys of a tile for tiles of so many rows, of the kernel of whole sequences: few, where those of many have a large share that no row sees, and
    where programs have few steps of narrow heads, whose first products begin earlier then.

    Args:
        rounds: tiles of queries for each processor.
    """
    if width <= 64 and keys <= EARLY and rounds <= EARLY_ROUNDS and not causal:
        return FEW_KEYS
    tiles = -(-length // rows)
    ends = [min((i + 1) * rows, keys) if causal else keys for i in range(tiles)]
    many, few = (sum(-(-end // size) * size for end in ends) for size in (KEYS, FEW_KEYS))
    return FEW_KEYS if few <= (1 - SAVED) * many else KEYS


@lru_cache(maxsize=4096)
def tiles_in_parts(
    tiles: int, keys: int, numbers: int, programs: int, rate: float = 1.0
) -> tuple[int, int, float]:
    """Return how many tiles of queries without a mask have all keys, the parts of the keys of each other one, and the time of both.

    Programs take every n-th tile: where the last round is not full, its tiles are computed in parts, which another kernel joins.

    Args:
        keys: of a row, in tiles.
        numbers: of the result of a tile of queries.
        rate: of products, in that of 16 bits.
    """
    full = tiles // programs * programs
    left = tiles - full
    best = tiles, 1, -(-tiles // programs) * (keys + OVERHEAD)
    for parts in range(2, min(MOST_PARTS, keys // LEAST_PART) + 1 if left else 0):
        share = -(-left * parts // programs) * (-(-keys // parts) + OVERHEAD)
        spent = full // programs * (keys + OVERHEAD) + share
        spent += (JOINING + left * parts * numbers / JOINED) * rate * TILE / numbers
        if spent < best[2]:
            best = full, parts, spent
    return best


def code_of_parts(whole: int) -> int:
    """Return the number that says to kernels how many tiles have all keys; it is odd and above 1, as codes are."""
    return 2 * whole + 3


@lru_cache(maxsize=4096)
def heads_of(
    tiles: tuple[int, ...],
    groups: int,
    shared: int,
    programs: int,
    bytes_of_head: int,
    slowed: float,
) -> tuple[int, int]:
    """Return how many of the heads of queries that share keys one program takes for the gradients of its tile of keys, and how many such
    groups of heads are walked together.

    All heads, unless that leaves processors idle; the gradients of several programs are added up later.

    Args:
        tiles: the steps of each tile of keys, for a head of queries; not ascending.
        groups: heads of keys in all batches.
        bytes_of_head: that all programs of a group load and add to while they walk over a head of queries.
        slowed: the time of a step in a program of several heads, of that in one of a single head.
    """
    best, form = float("inf"), (shared, 1)
    for each in (n for n in range(shared, 0, -1) if shared % n == 0):
        many = groups * (shared // each)
        few = len(tiles) * many <= MANY * programs
        for size in _sizes_together(many, bytes_of_head, few) if tiles[0] != tiles[-1] else (1,):
            spent = _longest(tiles, many, size, each * slowed if each > 1 else 1.0, programs)
            if many > groups:
                spent += JOIN + 128 * len(tiles) * many / MOVED
            if spent < best:
                best, form = spent, (each, size)
    return form


@lru_cache(maxsize=4096)
def steps_of_part(
    tiles: tuple[int, ...], groups: int, width: int, programs: int, joined: bool
) -> int:
    """Return how many of the steps of a tile of keys a program takes at most, so that few tiles have parts for processors that would be idle; 0 for all.

    Args:
        tiles: the steps of each tile of keys, for a program.
        groups: how many such lists of tiles there are.
        width: columns of a tile.
        joined: True if the gradients of several programs are added up in any case.
    """
    if len(tiles) * groups > programs:
        return 0

    def spent(pieces: tuple[int, ...], parts: int) -> float:
        added = 128 * len(tiles) * groups * parts * width / ADDED
        joining = ADDING + added if parts > 1 or joined else 0.0
        return _longest(pieces, groups, groups, 1.0, programs) + joining

    best, most = spent(tiles, 1), 0
    for few in range(max(LEAST_STEPS, -(-tiles[0] // MOST_PIECES)), tiles[0]):
        pieces = tuple(-(-n // -(-n // few)) for n in tiles for _ in range(-(-n // few)))
        if len(pieces) * groups <= programs:
            time = spent(pieces, -(-tiles[0] // few))
            if time < best:
                best, most = time, few
    return most


def _sizes_together(groups: int, bytes_of_head: int, few: bool) -> Iterator[int]:
    """Yield how many groups may be walked together: about as many as the cache holds, since a last block of few groups begins with its long tiles when others
    end; where programs have few tiles, all that fit the cache, too, so that the last tiles are short ones."""
    most = _together(groups, bytes_of_head)
    more = (most + 1) * bytes_of_head <= OVERFULL * GRADIENT_CACHE and most < groups
    yield from dict.fromkeys((most, most + more, max(most - 1, 1), max(most // 2, 1)))
    most = min(groups, GRADIENT_CACHE // bytes_of_head) if few else 0
    size = 2 * GROUP
    while size < most:
        yield -(-groups // -(-groups // size))
        size *= 2
    if most > GROUP:
        yield -(-groups // -(-groups // most))


def _together(groups: int, bytes_of_head: int) -> int:
    """Return how many groups are walked together: they fit the cache, and the last ones are not fewer than the others."""
    most = max(1, min(GROUP, GRADIENT_CACHE // bytes_of_head))
    return -(-groups // -(-groups // most))


def _longest(tiles: tuple[int, ...], groups: int, size: int, each: float, programs: int) -> float:
    """Return when the last processor ends: each takes the next program when it is free."""
    work = [START + steps * each for steps in tiles]
    if len(tiles) * groups > SIMULATED:
        return sum(work) * groups / programs + work[0] / 2
    ends = [0.0] * programs
    for first in range(0, groups, size):
        many = min(size, groups - first)
        for steps in work:
            for _ in range(many):
                heapq.heapreplace(ends, ends[0] + steps)
    return max(ends)
