"""Which tiling of which kernel a product takes on Hopper: the one with the least time by a fitted model.

The time of a tiling is `start + wave * waves + step * waves * steps + byte * bytes moved`, where a wave is as many tiles as run at a time
and a step is one block of K. The four numbers of each tiling were fitted to measurements (`tuned/hopper.json`,
`python benchmarks/tune_gemm.py`), for shapes of all kinds; measured shapes that the model gets wrong have an entry of their own.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Optional

__all__ = ["TILINGS", "Size", "Tiling", "choose", "features", "fits"]

SHARED = 232448  # bytes of shared memory that a block of sm_90 may have
FILE = Path(__file__).parent / "tuned" / "hopper.json"


@dataclass(frozen=True)
class Size:
    """The facts that decide the choice: sizes, bytes of an element and of one of the result, orientation, processors."""

    batch: int
    m: int
    n: int
    k: int
    bits: int = 16
    out_bits: int = 16
    transposed: tuple[bool, bool] = (False, True)
    processors: int = 132


@dataclass(frozen=True)
class Tiling:
    """A kernel and its compile-time choices.

    Args:
        kernel: "pingpong", "cooperative" or "split_k".
        block: rows, columns and depth of a tile.
        stages: slots of the ring.
        splits: programs that share a tile; 1 but for "split_k".
        num_warps: of the partition that multiplies.
        group: rows of tiles that are walked at a time.
    """

    kernel: str
    block: tuple[int, int, int]
    stages: int
    splits: int = 1
    num_warps: int = 4
    group: int = 8

    @property
    def name(self) -> str:
        m, n, k = self.block
        splits = f"/{self.splits}" if self.splits > 1 else ""
        return f"{self.kernel} {m}x{n}x{k} s{self.stages}{splits}"

    def shared(self, size: Size) -> int:
        """Return the bytes of shared memory of a block, barriers aside."""
        m, n, k = self.block
        ring = (m + n) * k * self.stages * size.bits // 8
        if self.kernel == "split_k":
            return ring
        rows = m if self.kernel == "pingpong" else m // 2
        boxes = 2 if n == 192 else 1
        return ring + 2 * boxes * rows * 128  # a box is 128 bytes wide


def _tilings() -> Iterator[Tiling]:
    for block, stages in (((128, 192, 64), 4), ((128, 192, 32), 8), ((128, 128, 64), 6)):
        yield Tiling("pingpong", block, stages)
    for block, stages in (((64, 256, 64), 5), ((64, 192, 64), 6), ((64, 128, 64), 8)):
        yield Tiling("pingpong", block, stages)
    for block, stages in (((128, 256, 64), 4), ((256, 128, 64), 4), ((128, 192, 64), 5)):
        yield Tiling("cooperative", block, stages)
    yield Tiling("cooperative", (128, 128, 64), 6)
    for splits in (1, 2, 4, 8):
        yield Tiling("split_k", (128, 128, 64), 6, splits, num_warps=8)
        for rows in (64, 32, 16, 8):
            yield Tiling("split_k", (rows, 64, 128), 6, splits)
            yield Tiling("split_k", (rows, 128, 64), 6, splits)
    yield Tiling("split_k", (128, 64, 128), 4, 1, num_warps=8)
    yield Tiling("split_k", (128, 64, 128), 4, 2, num_warps=8)
    yield Tiling("split_k", (64, 64, 64), 4)
    yield Tiling("split_k", (64, 128, 64), 3)
    yield Tiling("split_k", (128, 128, 64), 3, num_warps=8)


TILINGS: dict[str, Tiling] = {tiling.name: tiling for tiling in _tilings()}


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def fits(tiling: Tiling, size: Size) -> bool:
    """Return True if the tiling can run a product of this size, and may be worth a try."""
    m, n, k = tiling.block
    if tiling.shared(size) + 1024 > SHARED:
        return False
    if tiling.kernel != "split_k":
        return True
    tiles = cdiv(size.m, m) * cdiv(size.n, n) * size.batch
    if tiles > 65535 or size.batch > 65535:
        return False
    if tiling.splits > 1:  # the programs of a tile wait for each other
        steps = cdiv(size.k, k)
        return tiles * tiling.splits <= size.processors and steps >= 2 * tiling.splits
    return True


def features(tiling: Tiling, size: Size) -> tuple[float, float, float, float]:
    """Return what the time of a tiling is linear in: 1, waves, waves times steps, and bytes."""
    m, n, k = tiling.block
    tiles = cdiv(size.m, m) * cdiv(size.n, n) * size.batch
    steps = cdiv(cdiv(size.k, k), tiling.splits)
    at_a_time = size.processors
    if tiling.kernel == "split_k":
        at_a_time *= max(1, min(4, SHARED // (tiling.shared(size) + 1024)))
    waves = cdiv(tiles * tiling.splits, at_a_time)
    moved = size.batch * (size.m * size.k + size.k * size.n) * size.bits // 8
    moved += size.batch * size.m * size.n * size.out_bits // 8
    return 1.0, float(waves), float(waves * steps), float(moved)


@functools.lru_cache(maxsize=None)
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(FILE.read_text())
    return table


def predicted(tiling: Tiling, size: Size) -> Optional[float]:
    """Return the microseconds that the model expects; None where the tiling was not measured."""
    numbers = _table()["model"].get(tiling.name)
    if numbers is None:
        return None
    return float(sum(a * b for a, b in zip(numbers, features(tiling, size))))


@functools.lru_cache(maxsize=4096)
def choose(size: Size) -> Tiling:
    """Return the tiling for a product."""
    measured = _table()["shapes"].get(f"{size.batch}x{size.m}x{size.n}x{size.k}")
    if measured is not None and measured in TILINGS and fits(TILINGS[measured], size):
        return TILINGS[measured]
    best, least = None, float("inf")
    for tiling in TILINGS.values():
        if not fits(tiling, size):
            continue
        time = predicted(tiling, size)
        if time is not None and time < least:
            best, least = tiling, time
    if best is None:
        raise LookupError(f"the table of {FILE} has no tiling for {size}")
    return best
