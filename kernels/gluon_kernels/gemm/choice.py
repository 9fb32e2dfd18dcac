"""Which tiling of which kernel a product takes on Hopper: the one with the least time by a fitted model.

The time of a tiling is linear in a few quantities (`features`). The factors of each kernel are fitted to measurements
(`benchmarks/gemm_times.json`, by `benchmarks/fit_gemm.py`) of shapes of all kinds. Several small neural networks, trained on the same measurements, correct the
time by facts of the product and the tiling (`inputs`). The table (`tuned/hopper.json`) has the factors and the weights of the networks. Products whose
choice is wrong yet have an entry of their own.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Optional, Sequence

import numpy as np

from gluon_kernels.gemm.measures import IN_PARTS, KERNELS, LARGE, Columns, Size, cdiv
from gluon_kernels.gemm.pad import SECTOR
from gluon_kernels.gemm.tilings import TILINGS, Tiling, columns

__all__ = [
    "FILE",
    "Columns",
    "choose",
    "corrections",
    "expected",
    "features",
    "inputs",
    "kind_of",
    "packed",
    "padding",
    "predicted",
    "ranked",
    "read",
    "row_of",
    "size_of",
]

L2 = 9.0e6  # bytes per microsecond that all processors together copied from the L2 cache of an H100
LAUNCH = 2.0  # microseconds at least
CACHE = 2.5e7  # bytes that the L2 cache of an H200 keeps
MEMORY = 4.4e6  # bytes per microsecond of its memory
WRITE = 0.3  # of the time of a byte that is read, that one takes more that is written
PAD = (1.2, 2.0e6)  # microseconds of a launch that copies operands, and bytes that it reads in one
# Microseconds that a launch of copies, and a launch in parts, may take more on the device than one launch that needs neither: calls are
# not only made in graphs, and their host takes several times as long.
HOST = (4.0, 0.5)
# The least of many uncertain times is too low: the logarithm of a tiling's time is raised by UNSURE times the deviation of the networks' corrections. None of
# these is more than MOST_OFF.
UNSURE, MOST_OFF = 0.5, 0.7
WIDE = 5.0  # deviations of an input, as which the networks take larger ones
DOUBT = 1.25  # times the expected time, of a tiling that was not measured at products so large
UNIT, FEW = (
    16,
    32,
)  # rows that the sides of tiles are multiples of, and up to which there are smaller ones
MOST = 40  # tilings that measurements correct, the best by the model
NEARLY = 1.5  # times the time of the best, from which on they correct no tiling
PRODUCTS = 4e8  # multiplications of 16 bits per microsecond of the device
TRACE = 0.02  # of the expected time, below which a bound says nothing
MEASURED = 16384  # rows, columns, and elements of 16 bits along K, up to which times were measured
# From LONG elements of K on, tilings that occupy less than FEW_BUSY of the processors took longer than others that occupy MANY_BUSY in nineteen of twenty measured
# products. Those are taken where they are expected to take at most SLOWER times as long, and memory is not what limits the product: it takes BOUND times its time.
LONG, FEW_BUSY, MANY_BUSY, SLOWER, BOUND = 4096, 0.55, 0.75, 1.2, 1.5
# Times of tilings whose rows threads store, as multiples of the first one's, measured on an H200; and how many times as large as the result all tiles may be.
STREAMED = {
    ("cooperative", (128, 256, 64)): 1.0,
    ("cooperative", (256, 128, 64)): 1.03,
    ("pingpong", (128, 128, 64)): 1.05,
    ("pingpong", (64, 256, 64)): 1.01,
}
VAIN = 1.4
# Products per picosecond of rounds of tiles, by blocks or by pairs of 256 rows and more, in products larger than those of which times of all tilings were measured,
# with few rows and more columns than these; measured on an H200.
FEW_ROWS = 128, 512
OF_ROUNDS = {
    ("cooperative", (256, 256, 64), False): 703,
    ("cooperative", (256, 240, 64), False): 705,
    ("cooperative", (256, 224, 64), False): 715,
    ("cooperative", (256, 192, 64), False): 710,
    ("cooperative", (128, 224, 64), False): 690,
    ("cooperative", (384, 192, 64), False): 620,
    ("pingpong", (128, 192, 64), False): 685,
    ("pingpong", (128, 160, 64), True): 672,
    ("pingpong", (128, 176, 64), True): 650,
    ("pingpong", (128, 192, 64), True): 655,
    ("pingpong", (128, 208, 64), True): 640,
    ("cooperative", (128, 304, 32), True): 650,
    ("cooperative", (128, 144, 64), True): 605,
    ("cooperative", (256, 112, 64), True): 665,
    ("cooperative", (128, 240, 64), True): 640,
}
QUANTITIES = 15  # numbers of `features`
TRAITS = 43  # numbers of `_traits`
INPUTS = TRAITS + 2 * QUANTITIES  # numbers of `inputs`
FILE = Path(__file__).parent / "tuned" / "hopper.json"


def features(of: Columns, size: Size) -> tuple[Any, ...]:
    """Return the QUANTITIES in which the time of a tiling is linear, with the same factors for all tilings of a kernel: numbers, or one for each tiling.

    They are: 1; tiles one after the other, alone and by the area of a tile; steps of these, one after the other, alone, by the products of a step and by its
    sides; steps of a processor, which its programs do at a time, likewise, or under stream-K the parts that are added one after the other; rows of
    these steps that do not begin at a sector of memory, or loads of threads; bytes moved in all; bytes of the result; 1 where programs share a tile; kilobytes
    of sums that a processor writes then; thousands of stores of a processor where rows of the result do not begin at 16 bytes.
    """
    _, _, k = of.block
    stream_k, in_parts = of.runs("stream_k"), of.runs(*IN_PARTS)
    tiles, depth = of.tiles(size), cdiv(size.k, k)
    steps = cdiv(depth, of.splits)  # of a program
    at_once = of.clusters(size) * of.resident(size)
    waves = np.where(stream_k, cdiv(tiles, size.processors), cdiv(tiles * of.splits, at_once))
    each = tiles * of.splits * of.blocks / size.processors  # tiles, or parts, of a processor
    across, load = waves * steps, np.where(in_parts, np.maximum(1.0, each), each) * steps
    busy = np.where(in_parts, load, across)
    if stream_k.any():
        shared, sharers = of.shared_tiles(size), of.sharers(size)
        own = tiles // size.processors * depth + cdiv(shared * depth, np.maximum(sharers, 1))
        across, busy = (np.where(stream_k, own, x) for x in (across, busy))
        load = np.where(stream_k, cdiv(sharers, np.maximum(shared, 1)), load)
    area, products, sides, sums, in_splits, worth = of.once("tile", _of_tiles).T
    written = np.maximum(1.0, each) * sums
    apart = tuple(pitch % 32 > 0 for pitch in size.pitches)
    loaded = busy * of.once(
        (apart, size.vectors), partial(_rows_apart, apart=apart, vectors=size.vectors)
    )
    vector = math.gcd(size.n, 128 // size.out_bits)
    stores = size.batch * size.m * size.n / vector / size.processors / 1000
    if vector * size.out_bits == 128:
        stores = 0.0
    result = size.batch * size.m * size.n * size.out_bits / 8 / size.processors / 1e4
    return (
        1.0, waves, waves * area, across, across * products, across * sides, load,
        load * worth, load * sides, loaded, size.memory, result, in_splits, written, stores,
    )  # fmt: skip


def _of_tiles(of: Columns) -> np.ndarray:
    """Return the areas, products and sides of the tiles of a block, the kilobytes of sums, 1 where programs share a tile, and the area or the products."""
    m, n, k = of.block
    in_splits = np.greater(of.splits, 1)
    sums = np.where(in_splits, m * n * 4 / 1024, 0.0)
    stacked = of.blocks // of.abreast
    m, n = m / stacked, n / of.abreast  # of a block, which copies its part of what blocks share
    area, products = m * n / 2**14, m * n * k / 2**20
    sides = (m / of.abreast + n / stacked) * k / 2**14
    worth = np.where(of.runs("stream_k"), area, products)
    return np.stack((area, products, sides, sums, in_splits, worth), 1)


def _rows_apart(of: Columns, apart: tuple[bool, ...], vectors: tuple[int, ...]) -> np.ndarray:
    """Return the rows of a step of K that do not begin at a sector of memory, or the loads of threads."""
    m, n, k = of.block
    rows = np.where(of.swapped, n * apart[0] + m * apart[1], m * apart[0] + n * apart[1])
    loads = k * (m / vectors[0] + n / vectors[1]) / 8192
    return np.asarray(np.where(of.runs("direct"), loads, rows / of.blocks / 128))


@dataclass(frozen=True, eq=False)
class Table:
    """The fitted table.

    Args:
        model: factors of `features` by the kernel of tilings, and whether they are swapped.
        shapes: tilings of products that the model gets wrong.
        centers, scales: of the inputs of the networks, [INPUTS].
        layers: weights, [networks, from, to], and what is added, [networks, 1, to], of one layer of all networks after the other.
    """

    model: dict[str, list[float]]
    shapes: dict[str, str]
    centers: np.ndarray
    scales: np.ndarray
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]


@functools.lru_cache(maxsize=8)
def _factors(table: Table, of: Columns) -> np.ndarray:
    """Return the factors of each tiling, [quantities, tilings]; not a number where there are none."""
    none = [math.nan] * QUANTITIES
    factors = [table.model.get(kind_of(tiling), none) for tiling in of.tilings]
    return np.ascontiguousarray(np.array(factors).T)


def read(table: dict[str, Any]) -> Table:
    """Return the table that a file has."""
    layers, left = [], np.frombuffer(base64.b85decode(table["layers"]), np.float16)
    nets, widths = table["nets"], (INPUTS, *table["widths"], 1)
    for before, width in zip(widths, widths[1:]):
        number = nets * (before + 1) * width
        layer = left[:number].astype(np.float32).reshape(nets, before + 1, width)
        layers.append((layer[:, :-1], layer[:, -1:]))
        left = left[number:]
    centers, scales = (np.array(table[name], np.float32) for name in ("centers", "scales"))
    return Table(table["model"], table.get("shapes", {}), centers, scales, tuple(layers) if nets else ())  # fmt: skip


def packed(layers: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Return what a file has of the layers of networks, of which it keeps eleven bits of each number."""
    parts = [np.concatenate(layer, 1).astype(np.float16) for layer in layers]
    every = b"".join(part.tobytes() for part in parts)
    widths = [part.shape[2] for part in parts[:-1]]
    return {"nets": len(parts[0]) if parts else 0, "widths": widths, "layers": base64.b85encode(every).decode()}  # fmt: skip


def size_of(row: Sequence[int]) -> Size:
    """Return a size of which measured times keep `row`."""
    batch, m, n, k, kind = row
    pitches = (16 * (kind & 1), 8 * (kind & 2))
    vectors = (8 >> (kind >> 4 & 3), 8 >> (kind >> 6))
    return Size(
        batch, m, n, k, vectors=vectors, padded=kind >> 2 & 1, pitches=pitches, eight=bool(kind & 8)
    )


def row_of(size: Size) -> tuple[int, ...]:
    """Return how measured times keep a size: its sides, and a number for its pitches, copies, elements and loads."""
    first, second = (pitch % 32 > 0 for pitch in size.pitches)
    kind = first + 2 * second + 4 * (size.padded > 0) + 8 * size.eight
    for shift, vector in zip((4, 6), size.vectors):
        kind += (4 - vector.bit_length()) << shift
    return size.batch, size.m, size.n, size.k, kind


@functools.lru_cache(maxsize=None)
def _table() -> Table:
    return read(json.loads(FILE.read_text()))


def kind_of(tiling: Tiling) -> str:
    """Return the name of the tilings that share the factors of the model."""
    cluster = {1: "", 2: " pair"}.get(tiling.blocks, " cluster")
    return tiling.kernel + " swapped" * tiling.swapped + cluster


def expected(of: Columns, size: Size, table: Table) -> np.ndarray:
    """Return the microseconds by the factors of each tiling's kernel, without copies; not a number where it has none."""
    factors = _factors(table, of)
    time = np.zeros(len(of))
    for factor, quantity in zip(factors, features(of, size)):
        time += factor * quantity
    m, n, k = of.block
    copied = of.tiles(size) * cdiv(size.k, k) * (m + n) * k * size.bits / 8
    time = np.maximum(time, factors[0] + copied / L2)
    written = WRITE * size.batch * size.m * size.n * size.out_bits / 8
    return np.asarray(np.maximum(time, LAUNCH + (size.memory + written - CACHE) / MEMORY))


def inputs(of: Columns, size: Size, times: np.ndarray, table: Table) -> np.ndarray:
    """Return what the networks know of each tiling of a product, [tilings, INPUTS]; `times` are the expected ones."""
    quantities = [x + np.zeros(len(of)) for x in features(of, size)]
    shares = np.nan_to_num(_factors(table, of)) * np.stack(quantities) / times
    return np.concatenate((_traits(of, size, times), shares.T, np.log2(shares.T + TRACE)), 1)


def _traits(of: Columns, size: Size, times: np.ndarray) -> np.ndarray:
    """Return facts of each tiling of a product, [tilings, TRAITS]."""
    m, n, k = of.block
    rows, across = np.where(of.swapped, size.n, size.m), np.where(of.swapped, size.m, size.n)
    tiles, steps = of.tiles(size), cdiv(size.k, k)
    parts = tiles * of.splits
    rounds = parts / of.clusters(size) / of.resident(size)
    copied = tiles * steps * (m + n) * k * size.bits / 8
    bounds = (size.memory / MEMORY, copied / L2, tiles * steps * m * n * k / PRODUCTS)
    sums = np.where(of.splits > 1, parts * m * n * 4 / size.processors / 1e4, 0.0)
    logs = (
        rounds, steps / of.splits, cdiv(rows, m) * m / rows, cdiv(across, n) * n / across, times, 1 + sums,
        *(bound / times + TRACE for bound in bounds), tiles, np.maximum(1.0, size.k / k / of.splits / of.stages),
    )  # fmt: skip
    whole = np.ceil(rounds)
    numbers = (rounds / whole, whole / rounds, np.minimum(rounds, 3.0), of.busy(size), of.resident(size))  # fmt: skip
    of_both = np.log2(np.stack([x + np.zeros(len(of)) for x in logs])), np.stack(numbers)
    of_product = np.tile(_traits_of(size), (len(of), 1))
    return np.concatenate((of_product, *(x.T for x in of_both), of.once("traits", _traits_of_tilings)), 1)  # fmt: skip


def _traits_of_tilings(of: Columns) -> np.ndarray:
    """Return the facts that tilings have for all products."""
    m, n, k = of.block
    stacked = of.blocks // of.abreast
    logs = (m, n, k, of.splits, of.blocks, of.abreast, m / n, m * n / (m / stacked + n / of.abreast))  # fmt: skip
    kinds = (of.runs(kernel) for kernel in KERNELS)
    return np.stack((*np.log2(logs), of.stages, of.swapped, of.whole, *kinds, of.groups == 3), 1)


def _traits_of(size: Size) -> tuple[float, ...]:
    """Return the facts that all tilings of a product have."""
    sides = (size.m, size.n, size.k, size.batch, size.memory / CACHE)
    pitches = (float(pitch % 32 > 0) for pitch in size.pitches)
    return *map(math.log2, sides), *pitches, float(size.padded > 0), float(size.eight)


def predicted(
    tilings: Sequence[Tiling], size: Size, table: Optional[Table] = None
) -> list[Optional[float]]:
    """Return the microseconds that the model expects of each tiling; None where it was not measured."""
    if not tilings:
        return []
    table, of = table or _table(), Columns(tilings)
    times = expected(of, size, table)
    times = times * corrections(of, size, table, times)
    times += np.where(of.runs("direct"), 0.0, padding(size))
    return [None if math.isnan(time) else float(time) for time in times]


def corrections(of: Columns, size: Size, table: Table, times: np.ndarray) -> np.ndarray:
    """Return the factors of the expected times by which the networks correct these, and more where they disagree."""
    if not table.layers:
        return np.ones(len(of))
    if max(size.m, size.n, size.k) > MEASURED:  # steps and tiles beyond err like those before
        m, n, k = (min(side, MEASURED) for side in (size.m, size.n, size.k))
        size = replace(size, m=m, n=n, k=k)
        times = expected(of, size, table)
    values = (inputs(of, size, times, table) - table.centers) / table.scales
    values = np.clip(values, -WIDE, WIDE).astype(np.float32)[None]
    *before, (weights, added) = table.layers
    for layer, more in before:
        values = values @ layer + more
        values = values / (1 + np.exp(np.minimum(-values, 80.0)))
    logs = np.clip((values @ weights + added)[:, :, 0], -MOST_OFF, MOST_OFF)
    return np.asarray(np.exp(logs.mean(0) + UNSURE * logs.std(0)))


def padding(size: Size) -> float:
    """Return the microseconds of a launch that copies operands."""
    return PAD[0] + size.padded / PAD[1] if size.padded else 0.0


@functools.lru_cache(maxsize=4096)
def choose(size: Size) -> Tiling:
    """Return the tiling with the least expected time, or the best measured one of a product that the model gets wrong."""
    chosen: Tiling = columns().tilings[_order(_alike(size))[0]]
    return chosen


def ranked(size: Size) -> tuple[Tiling, ...]:
    """Return the tilings for a product, the chosen one first, then by the expected time."""
    tilings = columns().tilings
    return tuple(tilings[place] for place in _order(_alike(size)))


def _alike(size: Size) -> Size:
    """Return one size for all that have as many rows of tiles: callers change M from call to call."""
    if size.m <= FEW or size.m % UNIT == 0 or size.name in _table().shapes:
        return size
    return replace(size, m=cdiv(size.m, UNIT) * UNIT)


def for_large_result(size: Size) -> Optional[str]:
    """Return the tiling for a result that takes most of the time to store; None where too much of its tiles would be in vain."""
    torn = size.n * size.out_bits // 8 % SECTOR > 0
    if not size.written(torn) or size.padded or not size.aligned:
        return None
    costs = {}
    for tiling in TILINGS.values():
        weight = STREAMED.get((tiling.kernel, tiling.block)) if tiling.whole else None
        if weight:
            m, n, _ = tiling.block
            stored = cdiv(size.m, m) * m * cdiv(size.n, n) * n
            costs[tiling.name] = weight * stored / (size.m * size.n)
    best = min(costs, key=costs.__getitem__)
    return best if costs[best] < VAIN else None


def for_few_rows(size: Size) -> Optional[str]:
    """Return the tiling for a product of few rows, larger than the measured ones: the one whose rounds take the least time."""
    least, most = FEW_ROWS
    large = 2.0 * size.m * size.n * size.k > LARGE and size.n > MEASURED
    other = size.batch > 1 or size.bits != 16 or size.eight or size.padded
    if not large or other or not least < size.m <= most:
        return None
    costs = {}
    for tiling in TILINGS.values():
        m, n, _ = tiling.block
        rate = OF_ROUNDS.get((tiling.kernel, tiling.block, tiling.swapped))
        blocks = 1 if tiling.swapped or m <= 128 else 2
        if rate and (tiling.blocks, tiling.abreast) == (blocks, 1) and tiling.fitting(size):
            rounds = cdiv(tiling.tiles(size), int(tiling.clusters(size)))
            costs[tiling.name] = rounds * m * n / blocks / rate
    best = min(costs, key=costs.__getitem__, default=None)
    # Parts of K occupy the processors that less than a round of tiles leaves idle.
    return best if best and TILINGS[best].busy(size) >= MANY_BUSY else None


@functools.lru_cache(maxsize=256)
def _order(size: Size) -> list[int]:
    """Return the places of the tilings that fit in `columns`, the best first. The measurements correct the best ones by the model alone."""
    every, table = columns(), _table()
    times = np.where(every.fitting(size), expected(every, size, table), math.nan)
    doubt = np.where(every.doubtful(size), DOUBT, 1.0)
    more = HOST[1] * (every.splits > 1)
    if size.padded:
        more = more + np.where(every.runs("direct"), 0.0, padding(size) + HOST[0])
    total = times * doubt + more
    order = np.argsort(total)[: np.count_nonzero(times == times)]  # no numbers are last
    if not len(order):
        raise LookupError(f"the table of {FILE} has no tiling for {size}")
    count = np.count_nonzero(total[order[:MOST]] <= NEARLY * total[order[0]])
    every.once("traits", _traits_of_tilings)  # those of the best are taken from there

    def corrected(some: np.ndarray) -> tuple[list[int], float]:
        """Return places by the corrected times, and the least of these."""
        factors = corrections(every.at(some), size, table, times[some])
        ours = times[some] * factors * doubt[some] + more[some]
        return some[np.argsort(ours)].tolist(), float(ours.min())

    best, least = corrected(order[:count])
    if size.k >= LONG and every.splits[best[0]] == 1 and least > BOUND * (LAUNCH + size.memory / MEMORY):  # fmt: skip
        busy = every.busy(size)
        busier = order[busy[order] >= MANY_BUSY][:MOST]
        if busy[best[0]] < FEW_BUSY and len(busier):
            others, of_others = corrected(busier)
            best = others + best if of_others <= SLOWER * least else best
    places = list(dict.fromkeys((*best, *order.tolist())))
    measured = for_large_result(size) or table.shapes.get(size.name) or for_few_rows(size)
    if measured:
        places.sort(key=lambda place: every.tilings[place].name != measured)
    return places
