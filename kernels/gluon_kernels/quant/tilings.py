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
# Microseconds, fitted to 261 times of 35 shapes on an H200. "few": a launch; of a step 1, its weights (64 x 128), these for 64 rows of `x`: until the next
# may begin, and that others wait; programs besides those of a processor; a sum by several programs. "many": a launch; a step and bytes in one; sums in
# one; a step at least; more with scales of groups; a tile; one shared by programs, and that of each.
_FACTORS = {
    ("few", 64): (2.1, 0.221, 0.149, 0.185, 0.061, 0.185, 0.173, 0.26, 2.05),
    ("few", 128): (2.6, 0.192, 0.300, 0.054, 0.115, 0.119, 0.168, 0.26, 2.2),
    ("many", 128): (2.4, 0.152, 67e3, 2.8e6, 0.23, 0.125, 1.04, 3.48, 0.18),
    ("many", 256): (0.8, 0.030, 64e3, 2.58e6, 0.60, 0.18, 3.34, 5.48, 0.44),
}
_TOKENS = 1.0  # of the time expected of `linear_tokens`
_ROLES = 0.95  # of the time of `linear_few`, that a warp which copies leaves to one group of warps


def _up(x: int, y: int) -> int:
    return -(-x // y)


def tilings(m: int, k: int, group: int, exponents: bool) -> Iterator[Tiling]:
    """Yield the tilings that a product may take."""
    yield Tiling("restored")
    if m <= _FEWEST and k % 32 == 0:  # threads load 16 bytes
        for each, along in _ROWS:
            yield Tiling("rows", 1 << (m - 1).bit_length(), 0, along, each * 4 // along)
    if m <= 8 and k % 32 == 0:
        for columns in (64, 128):
            for splits in (1, 2, 4, 8):
                if _up(k, 128) >= 2 * splits:
                    yield Tiling("tokens", 8, 0, splits, columns)
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
        return 6.5 + moved / 3.9e6 + max(product, n * k * 2 / 4e6)
    if tiling.kernel == "rows":
        width = 128 * tiling.splits * 4 * packed  # weights of a row that a step multiplies
        steps = _up(k, width)
        rounds = _up(_up(n, tiling.columns), 4 * processors)
        issue = n * steps * width * (3.1 + 4.9 * tiling.block) / (processors * 2.1e5)
        return 2.9 + max(n * k / packed / 2.6e6, issue, rounds * (0.96 + 0.04 * steps))
    columns = tiling.columns
    if tiling.kernel == "tokens":
        programs, resident = _up(n, columns) * tiling.splits, _resident(tiling)
        if tiling.splits > 1 and programs > processors * resident:
            return float("inf")
        busy, share = _up(programs, processors), _up(_up(k, 64 * packed), tiling.splits)
        issue = (min(busy, resident) + 0.2) * (0.33 if packed == 2 else 0.2) * columns / 128
        steps = share * max(0.15 + 0.35 * columns / 128, issue) * _TOKENS
        shared = 2.05 if tiling.splits > 1 else 0.0
        return 2.6 + max(max(1.0, busy / resident) * steps, n * k / packed / 4e6) + shared
    programs = _up(n, columns) * _up(m, tiling.block) * tiling.splits
    resident = _resident(tiling)
    if tiling.splits > 1 and programs > processors * resident:
        return float("inf")  # the programs of a tile wait for each other
    share = _up(_up(k, tiling.depth), tiling.splits)
    busy = _up(programs, processors)
    if tiling.kernel == "few" or columns == 64:
        return _few(tiling, share, busy, resident)
    begin, least, rate, product, each, scaling, alone, shared, sums = _FACTORS["many", columns]
    rows = m / _up(m, tiling.block)  # TMA reads no rows behind the last one
    moved = tiling.depth * (columns / packed + 2 * rows)
    multiplied = columns * tiling.block * tiling.depth / product
    step = max(least + moved / rate, multiplied, each) + (scaling if grouped else 0.0)
    after = alone if tiling.splits == 1 else shared + sums * tiling.splits * tiling.block / 128
    return begin + busy * (share * step + after)


def _few(tiling: Tiling, share: int, busy: int, resident: int) -> float:
    """Return the expected microseconds of programs of one group of warps, of which `busy` have a processor and `resident` share it."""
    begin, least, each, by_rows, work, each_work, work_by_rows, more, shared = _FACTORS["few", tiling.columns]  # fmt: skip
    wide, rows = tiling.columns / 64 * tiling.depth / 128, tiling.block / 64
    latency = least + (each + by_rows * rows) * wide
    taken = work + (each_work + work_by_rows * rows) * wide
    steps = share * max(latency, (min(busy, resident) + more) * taken)
    steps *= _ROLES if tiling.kernel == "many" else 1.0
    return begin + max(1.0, busy / resident) * steps + (shared if tiling.splits > 1 else 0.0)


def _resident(tiling: Tiling) -> int:
    """Return how many programs share a processor."""
    if tiling.kernel == "many" and tiling.columns > 64:
        return 1
    if tiling.kernel == "tokens":  # by their registers
        return 2 if tiling.columns == 128 else 3
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
