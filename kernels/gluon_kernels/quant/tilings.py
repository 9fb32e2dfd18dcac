"""The kernel and tiles for a product with quantized weights on Hopper: those with the least expected time.

The expected times are those of a model with a few constants for each kernel, which were fitted to times of an H200.
"""

from __future__ import annotations

import functools
import itertools
from typing import Iterator, NamedTuple, Optional

from gluon_kernels.gemm import choice
from gluon_kernels.gemm.tilings import Size
from gluon_kernels.quant.hopper_sums import boxes

__all__ = ["Tiling", "best", "expected", "tilings"]


class Tiling(NamedTuple):
    """A kernel and its tiles.

    Args:
        kernel: "rows", "tokens", "few" and "groups" for `linear_rows`, `linear_tokens`, `linear_few` and `linear_groups`; "restored" for a product
            with weights that are restored first.
        block: rows of `x` of a tile.
        depth: weights along K of a step; 0 where the kernel has one.
        splits: programs that share the K of a tile, 0 where programs have equal shares of the steps of tiles that do not fill the processors; of "rows", warps
            that share a row.
        columns: weights' rows of a tile.
        along: groups of warps of "groups" that share the steps of 64 rows of weights.
    """

    kernel: str
    block: int = 0
    depth: int = 0
    splits: int = 1
    columns: int = 64
    along: int = 1


class Few(NamedTuple):
    """The microseconds of programs that share a processor, one group of warps each.

    Args:
        launch: of a launch.
        step, weights, rows: from a step to the next: at least, with 64 x 128 weights, and with 64 rows of `x` for these.
        busy, busy_weights, busy_rows: of these, that other programs of the processor wait for.
        others: programs that a processor seems to have besides its own.
        shared: of a sum by several programs.
    """

    launch: float
    step: float
    weights: float
    rows: float
    busy: float
    busy_weights: float
    busy_rows: float
    others: float
    shared: float


class Groups(NamedTuple):
    """The microseconds of a program of two to four groups of warps, which has a processor to itself.

    Args:
        launch: of a launch.
        moved: bytes of a step that arrive in one, and `cached` those of all processors that the L2 cache sends.
        product: of 64 x 64 weights with 64 rows of `x`, in the matrix unit; `narrow` more for each further part of the tile.
        conversion: of 64 x 64 weights of 4 bits, `wide` more for 8 bits, and `exponents` more with those of mxfp4.
        both, three: of the shorter of these two that passes while the other one does not; with three groups that share no rows, `three`.
        drained: of a step, at whose end products are waited for.
        step, part: of a step of one group, and of each of its products, besides these.
        tile, group: of a tile besides its steps, and for each group but two.
        gathered: of 64 x 64 sums of each other group that shares rows.
        shared, each, added: of sums that programs share, for each kilobyte of them that a processor writes, and for each program whose sums another one
            adds to its own under equal shares.
        vain: of a row of `x` that a tile is fetched with in vain, as the share of one that is multiplied.
        outside: of a row of `x` behind the last one in the last of several tiles, as the share of one that is fetched.
        once, kept: less for a program with one tile, and of these for each step of a group where all steps have slots, which none releases.
    """

    launch: float
    moved: float
    cached: float
    product: float
    narrow: float
    conversion: float
    wide: float
    exponents: float
    both: float
    three: float
    drained: float
    step: float
    part: float
    tile: float
    group: float
    gathered: float
    shared: float
    each: float
    added: float
    vain: float
    outside: float
    once: float
    kept: float


# By the weights' rows of a tile; fitted to 261 times of 35 shapes on an H200, of which 16 later ones took 1.11 as long.
_FEW_TIMES = {
    64: Few(2.3, 0.245, 0.165, 0.205, 0.068, 0.205, 0.192, 0.26, 2.28),
    128: Few(2.9, 0.213, 0.333, 0.060, 0.128, 0.132, 0.186, 0.26, 2.44),
}
# Fitted to 282 times of 49 shapes on an H200, from the best fit of 893 others on: the chosen tilings take 1.011 of the best ones measured. A launch takes
# 0.2 less since its first copies are ahead of its groups.
_GROUPS_TIMES = Groups(0.506, 93.8e3, 10.4e6, 0.0693, 0.0137, 0.0691, 0.013, 0.0339, 0.508, 0.461, 0.0156, 0.129, 0.0344, 1.86, 0.298, 0.0745, 1.2, 0.0382, 0.42, 0.292, 0.85, 0.178, 0.0263)  # fmt: skip
_TOKENS = 1.23  # of the time that was expected of `linear_tokens`
# As a multiple of the expected times, those of "groups" under equal shares.
_EQUAL = 1.06
# Microseconds besides the product, and bytes of weights that are read and stored in one; 37 shapes take the expected times with a spread of 0.07.
_RESTORED = 1.5, 3.8e6

# Weights' rows of a tile and the depths of its steps, by the rows of `x` of a tile.
_FEW: dict[int, tuple[tuple[int, int], ...]] = {
    **{block: ((64, 64), (64, 128)) for block in (8, 16)},
    **{block: ((64, 64), (64, 128), (128, 64)) for block in (32, 64)},
    128: ((64, 64),),
}
# Rows of `x` of a tile of "groups", and the groups of it: down the weights' rows and along K, by the most rows of `x` that their registers hold.
_BLOCKS = (
    8,
    16,
    32,
    48,
    64,
    80,
    88,
    96,
    104,
    112,
    120,
    128,
    144,
    152,
    160,
    176,
    192,
    208,
    224,
    240,
    256,
)
_GROUPS = (
    (64, ((1, 4), (2, 2), (4, 1), (1, 2), (2, 1))),
    (128, ((1, 3), (1, 2), (2, 1), (3, 1))),
    (192, ((1, 2), (2, 1), (3, 1))),
    (256, ((1, 2), (2, 1))),
)
_DEPTH = 128  # weights along K of a step of "groups"
_MOST, _SLOTS = 8, (4, 8, 12)  # slots for steps of "groups" at most; and where all steps have one
_SHARED = 231_000  # bytes of the steps and sums of "groups"
_OUTSIDE = 16  # rows of `x` outside of a tensor from which on boxes are narrow
_STORED = 384  # bytes through which the float32 results of a row of weights pass
_FEWEST, _EIGHT = 4, 8  # rows of `x` at most of "rows" and "tokens"
_ROWS = ((4, 1), (2, 1), (4, 4), (2, 4), (1, 4))  # weights' rows of a thread, warps that share one


def _up(x: int, y: int) -> int:
    return -(-x // y)


def tilings(m: int, k: int, group: int, exponents: bool) -> Iterator[Tiling]:
    """Yield the tilings that a product may take."""
    yield Tiling("restored")
    if m <= _FEWEST and k % 32 == 0:  # threads load 16 bytes
        for each, along in _ROWS:
            yield Tiling("rows", 1 << (m - 1).bit_length(), 0, along, each * 4 // along)
    if m <= _EIGHT and k % 32 == 0:
        for columns, splits in itertools.product((64, 128), (1, 2, 4, 8)):
            if _up(k, 128) >= 2 * splits:
                yield Tiling("tokens", _EIGHT, 0, splits, columns)
    power = max(8, 1 << (m - 1).bit_length())
    few = (power,) if power <= 64 else (64, 128) if m <= 512 else ()
    forms = [("few", block, form) for block in few for form in _FEW[block]]
    for kernel, block, (columns, depth) in forms:
        if not scaled(block, group, exponents) and group % depth:
            continue  # sums are scaled by groups
        steps = _up(k, depth)
        for splits in (1, 2, 4, 8, 16) if columns == 64 else (1, 2, 4, 8):
            least = steps - _up(steps, splits) * (splits - 1)  # steps of the last part
            if least > 0 and splits <= block:
                yield Tiling(kernel, block, depth, splits, columns)
    yield from _groups(m, k)


def slots(tiling: Tiling, packed: int, size: int, steps: Optional[int]) -> tuple[int, bool]:
    """Return how many slots "groups" have for steps, and True if they are enough for all `steps` of a program, which are None where it may have several
    tiles. Each slot has barriers, which a program sets up before it starts."""
    room = _room(tiling, packed, size)
    if steps is None or steps > min(room, _SLOTS[-1]):
        return min(_MOST, room), False
    return min(room, next(slots for slots in _SLOTS if slots >= steps)), True


def _room(tiling: Tiling, packed: int, size: int = 2) -> int:
    """Return how many steps of "groups" shared memory has room for; `size` is the bytes of an element of the result."""
    widest = 1 << tiling.block.bit_length() - 1  # rows of `x` of the largest part of a tile
    whole = tiling.block if tiling.block <= 128 else widest
    # Bytes of each row of weights on their way to the result; programs that add up store half a part at most.
    stored = _STORED if size > 2 else 2 * whole if tiling.splits <= 1 else widest
    exchanged = tiling.columns * ((tiling.along - 1) * tiling.block * 4 + stored)
    slot = tiling.depth * (tiling.columns // packed + 2 * _boxed(tiling.block)[0])
    return (_SHARED - exchanged) // slot


@functools.cache
def _boxed(block: int) -> tuple[int, int]:
    """Return the columns of the accumulators of a tile, some in vain, and how many accumulators it has."""
    several = boxes(block)
    return sum(width for width, _ in several), len(several)


def narrow(block: int, m: int) -> bool:
    """Return True if tiles are fetched without columns in vain, in boxes of the rows that are needed alone: if many would be outside of the tensor, for which TMA
    takes longer than for others, and if tiles of 16 rows or more leave out as many."""
    boxed, accumulators = _boxed(block)
    several = m > block
    if accumulators > 1 or block == boxed or several and block % _OUTSIDE:
        return False
    return boxed - min(m, block) >= _OUTSIDE


def part(block: int, exponents: bool) -> int:
    """Return the weights along K of a product of "groups": fewer, where one of many rows takes longer than a conversion."""
    return 32 if block >= (224 if exponents else 160) else 64


def _groups(m: int, k: int) -> Iterator[Tiling]:
    """Yield the tilings of `linear_groups`."""
    # One tile of all rows of `x`, or as few rows as two, three or four tiles need, 32 at least; tiles of many rows for more.
    even = {next((b for b in _BLOCKS if b >= m / tiles), 256) for tiles in (1, 2, 3, 4)}
    blocks = sorted(b for b in (even if m <= 512 else _BLOCKS) if b >= min(m, 32))
    steps = _up(k, _DEPTH)
    for tiling in itertools.chain.from_iterable(map(_of_block, blocks)):
        if steps >= max(1, tiling.splits) * tiling.along:
            yield tiling


@functools.cache
def _of_block(block: int) -> list[Tiling]:
    """Return the tilings of `linear_groups` with so many rows of `x`; each group holds a step while it waits for its next."""
    fitting = []
    forms = next(forms for most, forms in _GROUPS if block <= most)
    for (down, along), splits in itertools.product(forms, (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)):
        tiling = Tiling("groups", block, _DEPTH, splits, 64 * down, along)
        least = min(_room(tiling, 1), _room(tiling, 1, 4))
        if splits == 0 and along > 1 or least < (2 if along == 1 else along + 2):
            continue
        if splits <= max(8, block // 8):
            fitting.append(tiling)
    return fitting


def shares(tiles: int, steps: int, processors: int) -> tuple[int, int]:
    """Return how many tiles of so many steps programs share along K, those that do not fill a round of the processors, and how many programs share
    them, with four steps at least: as many for each tile, or all where they are less than twice as many."""
    shared = tiles % processors
    if not shared:
        return 0, 0
    parts = min(processors // shared, steps // 4)
    if parts > 1:
        return shared, shared * parts
    return shared, max(shared, min(processors, shared * steps // 4))


def scaled(block: int, group: int, exponents: bool) -> bool:
    """Return True if `linear_few` multiplies scales with weights rather than with sums, which are more with many rows."""
    return exponents or (group > 0 and (block > 32 or group % 64 > 0))


def expected(
    tiling: Tiling,
    m: int,
    n: int,
    k: int,
    packed: int,
    group: int,
    exponents: bool,
    processors: int,
) -> float:
    """Return the expected microseconds of a product [m, k] by [n, k].

    Args:
        packed: weights of a byte.
        group: weights that share a scale, 0 where all of a row do.
        exponents: scales are those of mxfp4.
    """
    if tiling.kernel == "restored":
        launch, rate = _RESTORED
        return launch + n * k * (1 / packed + 2) / rate + _product(m, n, k, processors)
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
    tiles, steps = _up(n, columns) * _up(m, tiling.block), _up(k, tiling.depth)
    sizes = (tiling, m, packed, exponents)
    if tiling.splits == 0:
        shared, sharers = shares(tiles, steps, processors)
        if sharers <= shared:
            return float("inf")  # no gain
        share = tiles // processors * steps + _up(shared * steps, sharers)
        time = _of_groups(*sizes, share, 1, _up(sharers, shared), tiles * steps)
        return _bounded(_EQUAL * time, n * k / packed)
    programs = tiles * tiling.splits
    resident = _resident(tiling)
    if tiling.splits > 1 and programs > processors * resident:
        return float("inf")  # the programs of a tile wait for each other
    share = _up(steps, tiling.splits)
    busy = _up(programs, processors)
    if tiling.kernel == "few":
        return _few(tiling, share, busy, resident)
    alone = tiling.splits * tiling.along > 1 or tiles <= processors
    time = _of_groups(*sizes, share, busy, 0, tiles * steps, alone)
    return _bounded(time, n * k / packed)


@functools.lru_cache(maxsize=256)
def _product(m: int, n: int, k: int, processors: int) -> float:
    """Return the expected microseconds of a product of 16-bit operands."""
    size = Size(1, m, n, k, processors=processors)
    (time,) = choice.predicted([choice.choose(size)], size)
    assert time is not None  # the chosen one has one
    return time


def _bounded(time: float, size: float) -> float:
    """Return the microseconds of a product that would take `time` if its weights, of so many bytes, came at once.

    Those that the L2 cache holds may be there. A shorter `time` is the better choice still.
    """
    least = _GROUPS_TIMES.launch + size / 4.2e6 if size > 4.5e7 else 0.0
    return max(time, least + time / 10)


def _of_groups(
    tiling: Tiling, m: int, packed: int, exponents: bool, share: int, busy: int, adding: int,
    every: int, alone: bool = False,
) -> float:  # fmt: skip
    """Return the expected microseconds of programs of several groups of warps.

    Args:
        share: steps of a tile that a program has.
        busy: programs that a processor has one after the other.
        adding: programs whose sums one of them adds up.
        every: steps of all tiles.
        alone: each program has one tile.
    """
    times, parts, down = _GROUPS_TIMES, tiling.depth // 64, tiling.columns // 64
    boxed, accumulators = _boxed(tiling.block)
    if narrow(tiling.block, m):
        boxed = tiling.block
    # TMA reads no rows behind the last one; filling those in vain takes as long as bringing them.
    rows = boxed if boxed > tiling.block else min(m, tiling.block)
    behind = -m % tiling.block if m > tiling.block else 0
    size = tiling.depth * (tiling.columns / packed + 2 * (rows + times.outside * behind))
    moved = size / times.moved
    multiplied = tiling.block + times.vain * (boxed - tiling.block)
    product = times.product * multiplied / 64 + times.narrow * (accumulators - 1)
    conversion = times.conversion + (0.0 if packed == 2 else times.wide)
    if exponents:
        conversion += times.exponents
    most, least = max(product, conversion), min(product, conversion)
    both = times.three if down == 3 else times.both
    taken = parts * down * (most + both * least) + times.drained
    latency = times.step + parts * (product + conversion + times.part)
    steps = max(share * max(moved, taken), _up(share, tiling.along) * latency)
    if alone and slots(tiling, packed, 2, share)[1]:
        steps -= times.kept * _up(share, tiling.along)
    after = times.tile + times.group * (down * tiling.along - 2) - times.once * alone
    after += times.gathered * (tiling.along - 1) * tiling.block / 64
    if tiling.splits != 1:
        kilobytes = tiling.columns * tiling.block / 256
        after += times.shared + times.each * kilobytes + times.added * adding
    return times.launch + max(busy * steps, every * size / times.cached) + busy * after


def _few(tiling: Tiling, share: int, busy: int, resident: int) -> float:
    """Return the expected microseconds of programs of one group of warps, of which `busy` have a processor and `resident` share it."""
    times = _FEW_TIMES[tiling.columns]
    wide, rows = tiling.columns / 64 * tiling.depth / 128, tiling.block / 64
    latency = times.step + (times.weights + times.rows * rows) * wide
    taken = times.busy + (times.busy_weights + times.busy_rows * rows) * wide
    steps = share * max(latency, (min(busy, resident) + times.others) * taken)
    shared = times.shared if tiling.splits > 1 else 0.0
    return times.launch + max(1.0, busy / resident) * steps + shared


def _resident(tiling: Tiling) -> int:
    """Return how many programs share a processor."""
    if tiling.kernel == "groups":
        return 1
    if tiling.kernel == "tokens":  # by their registers
        return 2 if tiling.columns == 128 else 3
    return 4 if tiling.block * tiling.columns <= 4096 else 2


def best(
    m: int, n: int, k: int, packed: int, group: int, exponents: bool, processors: int, hopper: bool = True
) -> Tiling:  # fmt: skip
    """Return the tiling with the least expected time; without the units of `hopper`, one of few rows or that of restored weights."""
    able = (t for t in tilings(m, k, group, exponents) if hopper or t.kernel in ("rows", "restored"))  # fmt: skip
    return min(
        able,
        key=lambda t: expected(t, m, n, k, packed, group, exponents, processors),
    )
