"""Which tiling of which kernel a product takes on Hopper: the one with the least time by a fitted model.

The time of a tiling is linear in a few quantities (`features`). The factors of each kernel are fitted to measurements
(`tuned/hopper.json`, `python benchmarks/tune_gemm.py`) of shapes of all kinds. The errors of measured products and tilings like the ones at hand (`traits`)
correct the model: a Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2.2) over all of them, whose weights are in
the table. Products whose choice is wrong yet have an entry of their own.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from pathlib import Path
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from gluon_kernels.gemm.tilings import IN_PARTS, TILINGS, Size, Tiling, cdiv, fits

__all__ = [
    "FILE",
    "choose",
    "expected",
    "features",
    "kind_of",
    "likeness",
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
UNSURE = 0.25  # of the time that a tiling is expected to take more which is like no measured one: the least of many uncertain times is too low
# Differences that make a time half as telling, about: octaves of the sides, of those of a tile, of parts, of steps, of programs for each processor and of
# the elements that are multiplied in vain; pitches, copies and 8-bit elements; stages; buffers; the last round's share of the processors; kernels.
SIDE, TILE, PARTS, STEPS, ROUNDS, WASTE = 0.3, 0.5, 0.4, 0.25, 0.25, 0.65
KIND, STAGES, WHOLE, LAST, KERNEL = 0.6, 0.07, 0.4, 0.8, 0.65
PAIR = 0.5  # pairs of blocks
KERNELS = ("pingpong", "cooperative", "stream_k", "split_k", "direct", "cooperative_k")
FILE = Path(__file__).parent / "tuned" / "hopper.json"


def features(tiling: Tiling, size: Size) -> tuple[float, ...]:
    """Return the quantities in which the time of a tiling is linear, with the same factors for all tilings of a kernel.

    They are: 1; tiles one after the other, alone and by the area of a tile; steps of these, one after the other, alone, by the products of a step and by its
    sides; steps of a processor, which its programs do at a time, likewise, or under stream-K the parts that are added one after the other; rows of
    these steps that do not begin at a sector of memory, or loads of threads; bytes moved in all; bytes of the result; 1 where programs share a tile; kilobytes
    of sums that a processor writes then; thousands of stores of a processor where rows of the result do not begin at 16 bytes.
    """
    m, n, k = tiling.block
    tiles, steps = tiling.tiles(size), cdiv(size.k, k)
    shares, written = 0.0, 0.0
    if tiling.kernel == "stream_k":
        shared, sharers = tiling.shared_tiles(size), tiling.sharers(size)
        waves = cdiv(tiles, size.processors)
        across = (tiles // size.processors) * steps + float(cdiv(shared * steps, max(sharers, 1)))
        load, busy = float(cdiv(sharers, max(shared, 1))), across
    elif tiling.kernel in IN_PARTS:
        steps = cdiv(steps, tiling.splits)
        programs = tiles * tiling.splits
        waves = cdiv(programs, size.processors * tiling.resident(size))
        each = max(1.0, programs / size.processors)
        across, load = float(waves * steps), each * steps
        busy = load
        if tiling.splits > 1:
            shares, written = 1.0, each * m * n * 4 / 1024
    else:
        waves = cdiv(tiles, size.processors // tiling.blocks)
        across = busy = float(waves * steps)
        load = tiles * steps * tiling.blocks / size.processors
    rows = sum(
        x for x, pitch in zip((n, m) if tiling.swapped else (m, n), size.pitches) if pitch % 32
    )
    loaded = busy * rows / tiling.blocks / 128
    if tiling.kernel == "direct":
        loaded = busy * k * (m / size.vectors[0] + n / size.vectors[1]) / 8192
    vector = math.gcd(size.n, 128 // size.out_bits)
    stores = size.batch * size.m * size.n / vector / size.processors / 1000
    if vector * size.out_bits == 128:
        stores = 0.0
    result = size.batch * size.m * size.n * size.out_bits / 8 / size.processors / 1e4
    m, n = m / tiling.blocks, float(n)  # of a block, which gets the columns, and copies half of them
    area, products = m * n / 2**14, m * n * k / 2**20
    sides = (m + n / tiling.blocks) * k / 2**14
    return (
        1.0, float(waves), waves * area, across, across * products, across * sides, load,
        load * (area if tiling.kernel == "stream_k" else products), load * sides, loaded, size.memory, result, shares, written, stores,
    )  # fmt: skip


class Table(NamedTuple):
    """The fitted table.

    Args:
        model: factors of `features` by the kernel of tilings, and whether they are swapped.
        shapes: tilings of products that the model gets wrong.
        points: traits of the measured tilings of products.
        weights: of the process at these.
    """

    model: dict[str, list[float]]
    shapes: dict[str, str]
    points: np.ndarray
    weights: np.ndarray


def read(table: dict[str, Any]) -> Table:
    """Return the table that a file has: weights of measured sizes by tiling."""
    sizes = [size_of(row) for row in table.get("sizes", ())]
    points, weights = [], []
    for name, rows in table.get("weights", {}).items():
        for number, weight in rows:
            points.append(traits(TILINGS[name], sizes[number]))
            weights.append(weight)
    return Table(
        table["model"], table.get("shapes", {}), np.array(points, np.float32),
        np.array(weights, np.float32),
    )  # fmt: skip


def size_of(row: Sequence[int]) -> Size:
    """Return a size of which the table keeps `row`."""
    batch, m, n, k, kind = row
    pitches = (16 * (kind & 1), 8 * (kind & 2))
    return Size(batch, m, n, k, padded=kind >> 2 & 1, pitches=pitches, eight=bool(kind & 8))


def row_of(size: Size) -> tuple[int, ...]:
    """Return how the table keeps a size: its sides, and of what kind it is."""
    first, second = (pitch % 32 > 0 for pitch in size.pitches)
    kind = first + 2 * second + 4 * (size.padded > 0) + 8 * size.eight
    return size.batch, size.m, size.n, size.k, kind


@functools.lru_cache(maxsize=None)
def _table() -> Table:
    return read(json.loads(FILE.read_text()))


def kind_of(tiling: Tiling) -> str:
    """Return the name of the tilings that share the factors of the model."""
    return tiling.kernel + " swapped" * tiling.swapped + " pair" * (tiling.blocks == 2)


def expected(tiling: Tiling, size: Size, table: Table) -> Optional[float]:
    """Return the microseconds by the factors of the tiling's kernel, without copies; None where it has none."""
    numbers = table.model.get(kind_of(tiling))
    if numbers is None:
        return None
    quantities = features(tiling, size)
    time = float(sum(map(operator.mul, numbers, quantities)))
    m, n, k = tiling.block
    copied = tiling.tiles(size) * cdiv(size.k, k) * (m + n) * k * size.bits / 8
    time = max(time, float(numbers[0]) + copied / L2)
    written = WRITE * size.batch * size.m * size.n * size.out_bits / 8
    return max(time, LAUNCH + (size.memory + written - CACHE) / MEMORY)


def traits(tiling: Tiling, size: Size) -> tuple[float, ...]:
    """Return a point for a tiling of a product: times at points near each other err alike."""
    m, n, k = tiling.block
    rows, columns = (size.n, size.m) if tiling.swapped else (size.m, size.n)
    programs = tiling.tiles(size) * tiling.splits * tiling.blocks
    rounds = programs / size.processors / tiling.resident(size)
    log = math.log2
    return (
        *(SIDE * log(side) for side in (size.m, size.n, size.k, size.batch)),
        *(KIND * (pitch % 32 > 0) for pitch in size.pitches), KIND * (size.padded > 0), KIND * size.eight,
        *(TILE * log(side) for side in tiling.block), STAGES * tiling.stages, PARTS * log(tiling.splits), TILE * tiling.swapped,
        WHOLE * tiling.whole, ROUNDS * log(rounds), LAST * rounds / math.ceil(rounds), STEPS * log(cdiv(size.k, k) / tiling.splits),
        WASTE * log(cdiv(rows, m) * m / rows), WASTE * log(cdiv(columns, n) * n / columns),
        *(KERNEL * (tiling.kernel == kernel) for kernel in KERNELS), PAIR * (tiling.blocks == 2),
    )  # fmt: skip


def likeness(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how much the error at each point says of that at each of the others: 1 at the same point."""
    squares = (points**2).sum(1)[:, None] + (others**2).sum(1)[None, :] - 2 * points @ others.T
    return np.asarray(np.exp(-np.maximum(squares, 0) / 2))


def predicted(
    tilings: Sequence[Tiling], size: Size, table: Optional[Table] = None
) -> list[Optional[float]]:
    """Return the microseconds that the model expects of each tiling; None where it was not measured."""
    table = table or _table()
    times = [expected(tiling, size, table) for tiling in tilings]
    if len(table.weights) and tilings:
        points = np.array([traits(tiling, size) for tiling in tilings], np.float32)
        like = likeness(points, table.points)
        factors = np.exp(like @ table.weights + UNSURE * (1 - like.max(1)))
        times = [t if t is None else t * float(factor) for t, factor in zip(times, factors)]
    copies = [padding(size) if tiling.kernel != "direct" else 0.0 for tiling in tilings]
    return [t if t is None else t + copy for t, copy in zip(times, copies)]


def padding(size: Size) -> float:
    """Return the microseconds of a launch that copies operands."""
    return PAD[0] + size.padded / PAD[1] if size.padded else 0.0


@functools.lru_cache(maxsize=256)
def ranked(size: Size) -> tuple[Tiling, ...]:
    """Return the tilings for a product, the one with the least expected time first."""
    fitting = [tiling for tiling in TILINGS.values() if fits(tiling, size)]
    times = []
    for tiling, time in zip(fitting, predicted(fitting, size)):
        if time is not None:
            copied = size.padded > 0 and tiling.kernel != "direct"
            times.append((time + HOST[0] * copied + HOST[1] * (tiling.splits > 1), tiling))
    best = [tiling for _, tiling in sorted(times, key=lambda pair: pair[0])]
    measured = _table().shapes.get(size.name)
    first = [t for t in best if t.name == measured]
    if not best:
        raise LookupError(f"the table of {FILE} has no tiling for {size}")
    return (*first, *(t for t in best if t not in first))


@functools.lru_cache(maxsize=4096)
def choose(size: Size) -> Tiling:
    """Return the first of `ranked`."""
    return ranked(size)[0]
