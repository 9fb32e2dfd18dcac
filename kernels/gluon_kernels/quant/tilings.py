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
        groups: of four warps that share the K of a program.
    """

    kernel: str
    block: int = 0
    depth: int = 0
    splits: int = 1
    groups: int = 1


_COLUMNS = {"few": 64, "many": 128}  # weights' rows of a tile
_RESIDENT = {"few": 4, "many": 1}  # programs of a processor


def _up(x: int, y: int) -> int:
    return -(-x // y)


def tilings(m: int, k: int, group: int, exponents: bool) -> Iterator[Tiling]:
    """Yield the tilings that a product may take."""
    yield Tiling("restored")
    power = max(8, 1 << (m - 1).bit_length())
    few = (power,) if power <= 64 else (64, 128) if m <= 512 else ()
    many = () if m <= 64 else (128, 256)
    for kernel, block in [("few", block) for block in few] + [("many", block) for block in many]:
        for depth in (64, 128) if kernel == "few" and block <= 64 else (64,):
            if kernel == "few" and not scaled(block, group, exponents) and group % depth:
                continue  # sums are scaled by groups
            steps = _up(k, depth)
            for splits in (1, 2, 4, 8):
                least = steps - _up(steps, splits) * (splits - 1)  # steps of the last part
                for groups in (1, 2, 4) if kernel == "few" else (1,):
                    if least >= groups and splits <= block and groups * block <= 128:
                        yield Tiling(kernel, block, depth, splits, groups)


def scaled(block: int, group: int, exponents: bool) -> bool:
    """Return True if `linear_few` multiplies scales with weights rather than with sums, which are more with many rows."""
    return exponents or (group > 0 and (block > 32 or group % 64 > 0))


def expected(tiling: Tiling, m: int, n: int, k: int, packed: int, processors: int) -> float:
    """Return the expected microseconds of a product [m, k] by [n, k]; `packed` weights have a byte."""
    if tiling.kernel == "restored":
        moved = n * k * (1 / packed + 2)
        flops = 2.0 * _up(m, 128) * 128 * n * k
        return 7.0 + moved / 3.5e6 + max(flops / 6.5e8, n * k * 2 / 4e6)
    columns = _COLUMNS[tiling.kernel]
    tiles = _up(n, columns) * _up(m, tiling.block)
    if tiling.splits > 1 and tiles * tiling.splits > processors * _RESIDENT[tiling.kernel]:
        return float("inf")  # the programs of a tile wait for each other
    share = _up(_up(k, tiling.depth), tiling.splits)
    busy = _up(tiles * tiling.splits, processors)
    bytes_of_step = tiling.depth * (columns / packed + 2 * tiling.block)
    products = columns * tiling.block * tiling.depth / 3.6e6
    if tiling.kernel == "few":
        conversion = 0.2 * tiling.depth / 128
        step = max(
            0.25 + conversion, min(busy, 4) * max(conversion, bytes_of_step / 40e3, products)
        )
        rounds = max(1.0, busy / 4)
        after = 0.0 if tiling.splits == 1 else 1.5 + 0.1 * tiling.splits
        return 2.5 + rounds * share * step + after
    step = max(0.3, bytes_of_step / 42e3, products)
    after = 1.5 if tiling.splits == 1 else 2.5 + 0.25 * tiling.splits * tiling.block / 128
    return 3.0 + busy * (share * step + after)


def best(
    m: int, n: int, k: int, packed: int, group: int, exponents: bool, processors: int
) -> Tiling:
    """Return the tiling with the least expected time."""
    return min(
        tilings(m, k, group, exponents), key=lambda t: expected(t, m, n, k, packed, processors)
    )
