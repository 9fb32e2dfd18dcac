"""The kernel and tiles for a product with quantized weights on Hopper: those with the least expected time.

The expected times are those of a model with a few constants for each kernel, which were fitted to times of an H200.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

__all__ = ["Tiling", "best", "expected", "tilings"]


class Tiling(NamedTuple):
    """A kernel and its tiles.

    Args:
        kernel: "few" or "many" for `linear_few` and `linear_many`; "restored" for a product with weights that are restored first.
        block: rows of `x` of a tile.
        depth: weights along K of a step.
        splits: programs that share the K of a tile.
        columns: weights' rows of a tile.
    """

    kernel: str
    block: int = 0
    depth: int = 0
    splits: int = 1
    columns: int = 64


# Weights' rows of a tile, and the depths of its steps, by the rows of `x` of a tile.
_FEW = {8: ((64, 64), (64, 128)), 16: ((64, 64), (64, 128)), 32: ((64, 64), (64, 128), (128, 64)), 64: ((64, 64), (64, 128), (128, 64)), 128: ((64, 64),)}  # fmt: skip
_FEWEST = 4  # rows of `x` that are multiplied without the matrix unit
_ROWS = (
    (4, 1),
    (2, 1),
    (4, 4),
    (2, 4),
    (1, 4),
)  # weights' rows of a thread, and warps that share a row
_MANY: dict[int, tuple[tuple[int, int], ...]] = {
    **{block: ((64, 64),) for block in (8, 16, 32)},
    64: ((64, 64), (128, 64), (256, 64)),
    128: ((128, 64), (256, 64)),
    256: ((128, 64),),
}
_ROLES = 0.85  # of the time of `linear_few`, that a warp which copies leaves to one group of warps


def _up(x: int, y: int) -> int:
    return -(-x // y)


def tilings(m: int, k: int, group: int, exponents: bool) -> Iterator[Tiling]:
    """Yield the tilings that a product may take."""
    yield Tiling("restored")
    if m <= _FEWEST and k % 32 == 0:  # threads load 16 bytes
        for each, along in _ROWS:
            yield Tiling("rows", 1 << (m - 1).bit_length(), 0, along, each * 4 // along)
    power = max(8, 1 << (m - 1).bit_length())
    few = (power,) if power <= 64 else (64, 128) if m <= 512 else ()
    many = (
        (power,)
        if power <= 64
        else (64, 128)
        if m <= 128
        else (64, 128, 256)
        if m <= 512
        else (128, 256)
    )
    forms = [("few", block, form) for block in few for form in _FEW[block]]
    forms += [("many", block, form) for block in many for form in _MANY[block]]
    for kernel, block, (columns, depth) in forms:
        if kernel == "few" and not scaled(block, group, exponents) and group % depth:
            continue  # sums are scaled by groups
        steps = _up(k, depth)
        for splits in (1, 2, 4, 8, 16) if columns == 64 else (1, 2, 4, 8):
            least = steps - _up(steps, splits) * (splits - 1)  # steps of the last part
            if least > 0 and splits <= block:
                yield Tiling(kernel, block, depth, splits, columns)


def scaled(block: int, group: int, exponents: bool) -> bool:
    """Return True if `linear_few` multiplies scales with weights rather than with sums, which are more with many rows."""
    return exponents or (group > 0 and (block > 32 or group % 64 > 0))


def expected(
    tiling: Tiling, m: int, n: int, k: int, packed: int, grouped: bool, processors: int
) -> float:
    """Return the expected microseconds of a product [m, k] by [n, k].

    Args:
        packed: weights of a byte.
        grouped: scales are multiplied with weights.
    """
    if tiling.kernel == "restored":
        moved = n * k * (1 / packed + 2)
        tile = 2.0 * 128 * 256 * k / 7.8e8  # of all processors at once
        tiles = _up(m, 128) * _up(n, 256)
        # Whole rounds, or tiles that programs share.
        product = min(_up(tiles, processors) * processors, 1.15 * tiles) * tile
        return 5.2 + moved / 3.9e6 + max(product, n * k * 2 / 4e6)
    if tiling.kernel == "rows":
        width = 128 * tiling.splits * 4 * packed  # weights of a row that a step multiplies
        steps = _up(k, width)
        rounds = _up(_up(n, tiling.columns), 4 * processors)
        issue = n * steps * width * (4.5 + 1.1 * tiling.block) / (processors * 2.1e5)
        return 2.4 + max(n * k / packed / 3.5e6, issue, rounds * (0.8 + 0.25 * steps))
    columns = tiling.columns
    few = tiling.kernel == "few" or columns == 64
    tiles = _up(n, columns) * _up(m, tiling.block)
    programs = tiles * tiling.splits
    resident = _resident(tiling)
    if tiling.splits > 1 and programs > processors * resident:
        return float("inf")  # the programs of a tile wait for each other
    share = _up(_up(k, tiling.depth), tiling.splits)
    busy = _up(programs, processors)
    rows = m / _up(m, tiling.block)  # TMA reads no rows behind the last one
    moved = tiling.depth * (columns / packed + 2 * rows)
    depth = tiling.depth / 128
    if few:
        wide = columns / 64
        latency = 0.196 + (0.283 + 0.127 * tiling.block / 64) * wide * depth
        work = max(moved / 58e3, 0.065 + (0.088 + 0.12 * tiling.block / 64) * wide * depth)
        at_once = min(busy, resident)
        steps = share * max(latency, (at_once + 0.2) * work)
        after = 0.0 if tiling.splits == 1 else 2.2 + 0.03 * tiling.splits
        roles = _ROLES if tiling.kernel == "many" else 1.0
        return 2.7 + max(1.0, busy / resident) * steps * roles + after
    multiplied = columns * tiling.block * depth * 128 / 3.6e6
    step = max(0.05 + moved / 61e3, multiplied, 0.3 * columns / 128)
    step += 0.1 * columns / 128 if grouped else 0.0
    after = (
        1.9 if tiling.splits == 1 else 4.0 + 0.065 * tiling.splits * tiling.block * columns / 16384
    )
    return 2.8 + busy * (share * step + after)


def _resident(tiling: Tiling) -> int:
    """Return how many programs share a processor."""
    if tiling.kernel == "many" and tiling.columns > 64:
        return 1
    return 4 if tiling.block * tiling.columns <= 4096 else 2


def best(
    m: int, n: int, k: int, packed: int, group: int, exponents: bool, processors: int, hopper: bool = True
) -> Tiling:  # fmt: skip
    """Return the tiling with the least expected time; without the units of `hopper`, one of few rows or that of restored weights."""
    fitting = (t for t in tilings(m, k, group, exponents) if hopper or t.kernel in ("rows", "restored"))  # fmt: skip
    return min(
        fitting,
        key=lambda t: expected(t, m, n, k, packed, exponents or group > 0, processors),
    )
