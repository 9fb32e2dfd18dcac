"""Which tiling of which kernel a product takes on Hopper: the one with the least time by a fitted model.

The time of a tiling is linear in a few quantities (`features`). The factors of each kernel are fitted to measurements
(`benchmarks/gemm_times.json`, by `benchmarks/fit_gemm.py`) of shapes of all kinds. The errors of measured products and tilings like the ones at hand (`traits`)
correct the model: a Gaussian process with a rational quadratic kernel (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2.2 and 4.2.1)
whose weights belong to some of the measured points, the others regressed on these (8.3.1). The table (`tuned/hopper.json`) has the points and the weights. Products whose
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
    "kind_of",
    "likeness",
    "packed",
    "padding",
    "predicted",
    "ranked",
    "read",
    "row_of",
    "size_of",
    "traits",
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
# The least of many uncertain times is too low: the logarithm of a tiling's time is raised by UNSURE times the likeness to measured ones that it lacks of SURE.
SURE, UNSURE = 0.85, 4.0
DOUBT = 1.25  # times the expected time, of a tiling that was not measured at products so large
UNIT, FEW = (
    16,
    32,
)  # rows that the sides of tiles are multiples of, and up to which there are smaller ones
MOST = 20  # tilings that measurements correct, the best by the model
NEARLY = 1.35  # times the time of the best, from which on they correct no tiling
PRODUCTS = 4e8  # multiplications of 16 bits per microsecond of the device
TRACE = 0.02  # of the expected time, below which a bound says nothing
MEASURED_K = 16384  # elements of 16 bits, up to which times were measured
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
# and with few rows; measured on an H200.
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
OF_PRODUCT = ("m", "n", "k", "batch", "pitch of A", "pitch of B", "padded", "eight")
OF_BOTH = (
    "rounds",
    "steps",
    "rows in vain",
    "columns in vain",
    "last round",
    "time",
    "memory",
    "L2",
    "products",
    "parts",
)
OF_TILING = (
    "tile rows",
    "tile columns",
    "tile depth",
    "stages",
    "splits",
    "swapped",
    "whole",
    *KERNELS,
    "blocks",
)
TRAITS = (
    *OF_PRODUCT,
    *OF_BOTH,
    *OF_TILING,
)  # the table has a scale for each: how much a difference matters
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
        scales: of the traits, [TRAITS].
        points: scaled traits of measured tilings of products, for `_like`.
        weights: of the process at these.
    """

    model: dict[str, list[float]]
    shapes: dict[str, str]
    scales: np.ndarray
    points: np.ndarray
    weights: np.ndarray


@functools.lru_cache(maxsize=8)
def _factors(table: Table, of: Columns) -> np.ndarray:
    """Return the factors of each tiling, [quantities, tilings]; not a number where there are none."""
    none = [math.nan] * QUANTITIES
    factors = [table.model.get(kind_of(tiling), none) for tiling in of.tilings]
    return np.ascontiguousarray(np.array(factors).T)


def read(table: dict[str, Any]) -> Table:
    """Return the table that a file has: scales of traits, and points with their weights."""
    scales = np.array([table["scales"][name] for name in TRAITS], np.float32)
    halves = np.frombuffer(base64.b85decode(table["points"]), np.float16)
    points = halves.reshape(-1, len(TRAITS)).astype(np.float32)
    weights = np.frombuffer(base64.b85decode(table["weights"]), np.float32)
    return Table(table["model"], table.get("shapes", {}), scales, _second(points), weights)


def packed(points: np.ndarray, weights: np.ndarray) -> dict[str, str]:
    """Return what a file has of the points, [points, TRAITS], of which it keeps eleven bits, and of the weights."""
    arrays: dict[str, np.ndarray] = {
        "points": points.astype(np.float16),
        "weights": weights.astype(np.float32),
    }
    return {name: base64.b85encode(array.tobytes()).decode() for name, array in arrays.items()}


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


def traits(of: Columns, size: Size, times: np.ndarray) -> np.ndarray:
    """Return a point for each tiling of a product, [tilings, TRAITS]: times at points near each other err alike. `times` are the expected ones."""
    m, n, k = of.block
    rows, across = np.where(of.swapped, size.n, size.m), np.where(of.swapped, size.m, size.n)
    tiles, steps = of.tiles(size), cdiv(size.k, k)
    parts = tiles * of.splits
    rounds = parts / of.clusters(size) / of.resident(size)
    bounds = np.stack((
        size.memory / MEMORY + 0 * times, tiles * steps * (m + n) * k * size.bits / 8 / L2, tiles * steps * m * n * k / PRODUCTS,
    ))  # fmt: skip
    written = np.where(of.splits > 1, parts * m * n * 4 / size.processors / 1e4, 0.0)
    logs = np.stack((rounds, steps / of.splits, cdiv(rows, m) * m / rows, cdiv(across, n) * n / across, times, 1 + written))  # fmt: skip
    points: np.ndarray = of.once("traits", _traits_of_tilings).copy()
    points[:, : len(OF_PRODUCT)] = _traits_of(size)
    both = points[:, len(OF_PRODUCT) : len(OF_PRODUCT) + len(OF_BOTH)]
    both[:, [0, 1, 2, 3, 5, 9]] = np.log2(logs).T
    both[:, 4] = rounds / np.ceil(rounds)
    both[:, 6:9] = np.log2(bounds / times + TRACE).T
    return points


def _traits_of_tilings(of: Columns) -> np.ndarray:
    """Return the traits that tilings have for all products, [tilings, TRAITS], with zeros in place of the others."""
    log = np.log2
    m, n, k = of.block
    kernels = (of.runs(kernel) for kernel in KERNELS)
    values = (
        log(m),
        log(n),
        log(k),
        of.stages,
        log(of.splits),
        of.swapped,
        of.whole,
        *kernels,
        log(of.blocks),
    )
    points = np.zeros((len(of), len(TRAITS)), np.float32)
    points[:, -len(OF_TILING) :] = np.stack(values, 1)
    return points


def _traits_of(size: Size) -> tuple[float, ...]:
    """Return the traits that all tilings of a product have."""
    sides = (math.log2(side) for side in (size.m, size.n, size.k, size.batch))
    pitches = (float(pitch % 32 > 0) for pitch in size.pitches)
    return *sides, *pitches, float(size.padded > 0), float(size.eight)


def likeness(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how much the error at each point says of that at each of the others, both scaled: 1 at the same point."""
    return _like(_first(points), _second(others))


def _first(points: np.ndarray) -> np.ndarray:
    """Return rows whose product with columns of `_second` is one and half of the squared distance, [points, traits + 2]."""
    ones = np.ones_like(points[:, :1])
    return np.hstack([-points, ones, 1 + 0.5 * (points**2).sum(1, keepdims=True)])


def _second(points: np.ndarray) -> np.ndarray:
    """Return columns for `_first`, [traits + 2, points]."""
    ones = np.ones_like(points[:, :1])
    rows = np.hstack([points, 0.5 * (points**2).sum(1, keepdims=True), ones])
    return np.ascontiguousarray(rows.T)


def _like(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    distances = first @ second
    return np.asarray(np.reciprocal(distances, out=distances))


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
    """Return the factors of the expected times that the measurements of sizes like this one give."""
    if not len(table.weights):
        return np.ones(len(of))
    if size.k > MEASURED_K:  # steps beyond err like those before
        size = replace(size, k=MEASURED_K)
        times = expected(of, size, table)
    points = traits(of, size, times).astype(np.float32) * table.scales
    like = _like(_first(points), table.points)
    unsure = UNSURE * np.maximum(0.0, SURE - like.max(1))
    return np.asarray(np.exp(like @ table.weights + unsure))


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
    large = 2.0 * size.m * size.n * size.k > LARGE
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
