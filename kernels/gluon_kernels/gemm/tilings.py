"""The tilings of the kernels of products on Hopper. `choice.py` chooses one."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Iterator

from gluon_kernels.gemm.hopper import boxes
from gluon_kernels.gemm.measures import IN_PARTS, Columns, Measures, Size, cdiv, parts_of

__all__ = ["IN_PARTS", "TILINGS", "Size", "Tiling", "cdiv", "columns", "fits"]


@dataclass(frozen=True)
class Tiling(Measures):
    """A kernel and its compile-time choices.

    Args:
        kernel: "pingpong", "cooperative", "cooperative_k", "stream_k", "split_k" or "direct".
        block: rows, columns and depth of a tile.
        stages: slots of the ring.
        splits: programs that share a tile; 1 but for "cooperative_k", "split_k" and "direct".
        groups: groups of warps that share a tile; 0 but for "cooperative", "cooperative_k" and "stream_k".
        swapped: the transposed result is computed, whose columns are the rows of A.
        walk: rows of tiles that are walked at a time.
        whole: a group has buffers for all that it stores of a tile, not for a part of it.
        blocks: of a cluster, 1, 2, 4 or 8, which divide the rows of each group, and the columns of a tile.
        abreast: those of them that divide the columns.
    """

    kernel: str
    block: tuple[int, int, int]
    stages: int
    splits: int = 1
    groups: int = 0
    swapped: bool = False
    walk: int = 8
    whole: bool = False
    blocks: int = 1
    abreast: int = 1

    @property
    def name(self) -> str:
        m, n, k = self.block
        parts = f"/{self.splits}" if self.splits > 1 else ""
        pair = self.blocks == 2 and self.abreast == 1
        forms = " swapped" * self.swapped + " whole" * self.whole + " pair" * pair
        if self.blocks > 1 and not pair:
            forms += f" {self.blocks // self.abreast}by{self.abreast}"
        return f"{self.kernel} {m}x{n}x{k} s{self.stages}{forms}{parts}"

    @property
    def parts(self) -> Any:
        return parts_of(self.block[1])

    @property
    def boxed(self) -> int:
        if self.kernel in ("split_k", "direct"):
            return self.block[1]
        return sum(width for width, _ in boxes(self.block[1], self.abreast))

    def runs(self, *kernels: str) -> Any:
        return self.kernel in kernels


_PINGPONG = (
    ((128, 192, 64), 4), ((128, 192, 32), 8), ((128, 160, 64), 4), ((128, 128, 64), 6),
    ((64, 352, 64), 3), ((64, 256, 64), 5), ((64, 192, 64), 6), ((64, 128, 64), 8),
    ((64, 240, 64), 4), ((64, 176, 64), 6), ((64, 96, 64), 9), ((64, 64, 128), 6), ((64, 32, 128), 8), ((64, 160, 64), 7), ((64, 112, 64), 8), ((64, 80, 64), 10), ((64, 48, 128), 6),
    ((128, 176, 64), 4), ((128, 144, 64), 5), ((128, 112, 64), 5), ((128, 96, 64), 6), ((64, 320, 64), 4),
)  # fmt: skip
_COOPERATIVE = (
    (2, (128, 320, 64), 3), (2, (128, 288, 64), 3), (2, (128, 160, 64), 5), (2, (128, 144, 64), 6), (2, (128, 112, 64), 6), (2, (128, 96, 64), 7), (2, (128, 80, 64), 8),
    (2, (256, 144, 64), 4), (2, (256, 112, 64), 3), (2, (256, 96, 64), 4), (2, (256, 80, 64), 4),
    (2, (128, 256, 64), 4), (2, (128, 224, 64), 4), (2, (128, 128, 64), 6), (2, (128, 192, 64), 5),
    (2, (256, 128, 64), 4), (2, (256, 160, 64), 3), (2, (256, 192, 64), 3),
    (3, (192, 128, 64), 4), (3, (192, 192, 64), 3),
    (2, (256, 64, 64), 5), (2, (256, 32, 64), 5), (2, (128, 64, 128), 4), (2, (128, 32, 128), 5),
    (2, (128, 240, 64), 4), (2, (128, 176, 64), 5), (2, (256, 176, 64), 3), (3, (192, 96, 64), 5),
    (2, (128, 208, 64), 4), (2, (128, 272, 64), 4), (2, (256, 208, 64), 3),
)  # fmt: skip
_WHOLE = (
    (0, (128, 128, 64), 5), (0, (64, 256, 64), 4), (0, (64, 128, 64), 7),
    (2, (128, 256, 64), 3), (2, (256, 128, 64), 3), (2, (128, 128, 64), 5),
)  # fmt: skip
_STREAM_K = (
    (False, (128, 128, 64), 6), (False, (128, 192, 64), 5), (False, (128, 256, 64), 4),
    (False, (256, 128, 64), 4), (False, (256, 160, 64), 3), (False, (256, 192, 64), 3),
    (True, (128, 96, 64), 6), (True, (128, 160, 64), 5), (True, (256, 128, 64), 4), (True, (128, 304, 32), 6),
)  # fmt: skip
_COOPERATIVE_K = (
    (False, (128, 128, 64), 6), (False, (128, 192, 64), 5), (False, (128, 256, 64), 4), (False, (256, 128, 64), 4),
    (False, (256, 160, 64), 4), (False, (256, 192, 64), 4), (False, (256, 64, 64), 5), (False, (128, 64, 128), 4), (False, (128, 32, 128), 5),
    (True, (256, 64, 64), 5), (True, (128, 64, 128), 4), (True, (128, 32, 128), 5), (True, (128, 96, 64), 7), (True, (128, 160, 64), 6), (True, (128, 224, 64), 4), (True, (128, 304, 64), 4), (True, (256, 112, 64), 4),
)  # fmt: skip
_DIRECT = (
    ((16, 64, 128), 4), ((16, 128, 64), 4), ((32, 64, 64), 4), ((32, 128, 64), 4), ((32, 128, 64), 7),
    ((64, 64, 64), 4), ((64, 64, 64), 7), ((64, 128, 64), 4), ((64, 128, 64), 7), ((128, 64, 64), 4), ((128, 64, 64), 7),
    ((128, 32, 64), 4), ((128, 128, 64), 4), ((128, 128, 64), 6),
)  # fmt: skip
_SPLIT_K = (
    ((128, 128, 64), 6), ((128, 128, 64), 3), ((128, 64, 128), 4), ((128, 64, 64), 4), ((128, 32, 128), 4), ((128, 32, 64), 5),
    ((64, 32, 128), 6), ((64, 32, 128), 4), ((64, 64, 64), 4), ((64, 64, 128), 6), ((64, 64, 128), 3),
    ((64, 128, 64), 6), ((64, 128, 64), 3), ((32, 64, 128), 6), ((32, 64, 128), 4), ((32, 128, 64), 6), ((32, 128, 64), 4),
    ((16, 64, 128), 6), ((16, 64, 128), 4), ((16, 128, 64), 6), ((8, 64, 128), 6), ((8, 128, 64), 6),
)  # fmt: skip
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_MORE_SPLITS = (7, 10)  # of programs of four warps, which have registers for as many sums
_SWAPPED = (
    (2, (128, 320, 64), 3), (2, (128, 304, 64), 3), (2, (128, 304, 32), 6), (2, (128, 256, 64), 4), (2, (128, 224, 64), 4), (2, (128, 160, 64), 5),
    (2, (256, 128, 64), 4), (2, (256, 160, 64), 3), (2, (128, 96, 64), 6), (2, (128, 64, 128), 4),
    (2, (256, 64, 64), 4), (2, (256, 32, 64), 5), (2, (128, 32, 128), 4),
    (0, (64, 96, 64), 9), (0, (64, 64, 128), 6), (0, (64, 32, 128), 8), (0, (64, 128, 64), 7), (0, (64, 112, 64), 8), (0, (64, 80, 64), 9), (0, (64, 48, 128), 6), (0, (64, 144, 64), 7),
    (2, (128, 144, 64), 5), (2, (128, 112, 64), 6), (2, (128, 80, 64), 7), (2, (128, 48, 128), 4), (2, (256, 96, 64), 4), (2, (256, 80, 64), 4),
    (2, (128, 240, 64), 4), (2, (128, 176, 64), 4), (0, (64, 176, 64), 5), (2, (256, 112, 64), 4),
    (0, (128, 144, 64), 5), (0, (128, 160, 64), 5), (0, (128, 176, 64), 4),
    (0, (128, 96, 64), 6), (0, (128, 112, 64), 6), (0, (128, 192, 64), 4), (0, (128, 208, 64), 4),
    (2, (128, 208, 64), 4), (0, (64, 160, 64), 6), (0, (64, 192, 64), 6), (0, (64, 208, 64), 5),
)  # fmt: skip
_PAIRS = (
    (False, 2, (256, 320, 64), 3), (False, 2, (256, 256, 64), 4), (False, 2, (256, 192, 64), 5), (False, 2, (256, 160, 64), 5), (False, 2, (256, 144, 64), 5),
    (False, 2, (256, 128, 64), 6), (False, 2, (256, 96, 64), 7), (False, 2, (256, 64, 128), 4),
    (False, 2, (512, 128, 64), 4), (False, 2, (512, 192, 64), 3), (False, 3, (384, 192, 64), 3),
    (True, 2, (256, 160, 64), 4), (True, 2, (256, 96, 64), 5), (True, 2, (512, 128, 64), 3), (True, 2, (256, 64, 128), 3),
    (False, 0, (128, 256, 64), 5), (False, 0, (128, 192, 64), 6), (False, 0, (128, 128, 64), 8), (False, 0, (128, 96, 64), 9),
    (False, 0, (256, 128, 64), 6), (False, 0, (256, 192, 64), 4), (False, 0, (256, 160, 64), 5), (False, 0, (256, 112, 64), 5), (False, 0, (256, 96, 64), 6),
    (False, 0, (256, 80, 64), 7), (False, 2, (256, 240, 64), 4), (False, 2, (256, 176, 64), 5), (False, 0, (256, 176, 64), 4), (False, 2, (256, 224, 64), 4), (False, 2, (256, 288, 64), 3), (False, 2, (256, 112, 64), 6), (False, 2, (512, 160, 64), 3), (False, 2, (512, 96, 64), 4),
    (True, 2, (256, 240, 64), 3), (True, 2, (256, 176, 64), 3), (True, 2, (256, 128, 64), 4), (True, 2, (256, 192, 64), 3), (True, 2, (256, 112, 64), 4), (True, 2, (256, 80, 64), 5), (True, 0, (128, 96, 64), 7), (True, 0, (128, 160, 64), 5),
    (True, 0, (128, 128, 64), 6), (True, 0, (128, 112, 64), 6), (True, 0, (128, 80, 64), 8), (True, 0, (128, 64, 128), 4),
    (False, 0, (256, 144, 64), 5), (False, 0, (256, 208, 64), 4), (False, 2, (256, 208, 64), 4), (True, 0, (256, 160, 64), 4),
    (False, 0, (128, 80, 64), 11), (False, 0, (128, 160, 64), 7), (True, 0, (128, 48, 64), 11), (True, 0, (128, 144, 64), 6),
    (False, 0, (128, 32, 128), 8), (False, 0, (128, 224, 64), 4),
)  # fmt: skip
_CLUSTERS = (
    (False, 0, (256, 64, 128), 6, 4, 1), (False, 0, (256, 80, 64), 10, 4, 1), (False, 0, (256, 96, 64), 9, 4, 1), (False, 0, (256, 128, 64), 8, 4, 1),
    (False, 0, (256, 192, 64), 6, 4, 1), (False, 0, (128, 128, 128), 6, 4, 2), (False, 0, (128, 160, 64), 10, 4, 2), (False, 0, (128, 192, 64), 9, 4, 2),
    (False, 0, (128, 256, 64), 8, 4, 2), (False, 0, (256, 128, 128), 6, 8, 2), (False, 0, (256, 160, 64), 10, 8, 2), (False, 0, (256, 192, 64), 9, 8, 2),
    (False, 0, (256, 256, 64), 8, 8, 2), (False, 0, (128, 256, 128), 6, 8, 4), (False, 0, (128, 384, 64), 9, 8, 4),
    (False, 2, (512, 64, 128), 4, 4, 1), (False, 2, (512, 96, 64), 7, 4, 1), (False, 2, (512, 128, 64), 6, 4, 1), (False, 2, (512, 192, 64), 5, 4, 1),
    (False, 2, (256, 192, 64), 7, 4, 2), (False, 2, (256, 256, 64), 6, 4, 2), (False, 2, (256, 320, 64), 5, 4, 2), (False, 2, (256, 384, 64), 4, 4, 2),
    (False, 2, (512, 192, 64), 7, 8, 2), (False, 2, (512, 256, 64), 6, 8, 2), (False, 2, (512, 320, 64), 5, 8, 2), (False, 2, (256, 384, 64), 7, 8, 4),
    (False, 2, (256, 512, 64), 6, 8, 4),
    (True, 0, (256, 64, 128), 6, 4, 1), (True, 0, (256, 80, 64), 10, 4, 1), (True, 0, (256, 96, 64), 9, 4, 1), (True, 0, (256, 112, 64), 8, 4, 1),
    (True, 0, (256, 128, 64), 8, 4, 1), (True, 0, (256, 128, 128), 6, 8, 2), (True, 0, (256, 160, 64), 10, 8, 2), (True, 0, (256, 192, 64), 9, 8, 2),
    (True, 0, (256, 256, 64), 8, 8, 2),
    (True, 2, (512, 64, 128), 4, 4, 1), (True, 2, (512, 96, 64), 7, 4, 1), (True, 2, (512, 128, 64), 6, 4, 1), (True, 2, (512, 192, 64), 7, 8, 2),
    (True, 2, (512, 256, 64), 6, 8, 2),
    (False, 2, (512, 112, 64), 6, 4, 1), (True, 2, (512, 112, 64), 6, 4, 1),
    (False, 3, (192, 192, 64), 5, 2, 2), (False, 3, (192, 256, 64), 4, 2, 2), (False, 2, (256, 256, 64), 3, 2, 2),
    (False, 0, (128, 224, 64), 5, 2, 2), (False, 0, (128, 256, 64), 5, 2, 2), (False, 0, (128, 288, 64), 4, 2, 2), (False, 0, (128, 320, 64), 4, 2, 2),
    (False, 0, (128, 384, 64), 3, 2, 2),
    (True, 0, (128, 128, 64), 6, 2, 2), (True, 0, (128, 192, 64), 5, 2, 2), (True, 0, (128, 256, 64), 4, 2, 2), (True, 0, (128, 288, 64), 4, 2, 2),
    (True, 0, (128, 384, 64), 3, 2, 2),
    (False, 0, (128, 160, 64), 7, 2, 2), (False, 0, (128, 192, 64), 6, 2, 2), (True, 0, (128, 160, 64), 6, 2, 2),
    (False, 0, (256, 144, 64), 8, 4, 1), (False, 0, (256, 160, 64), 7, 4, 1), (False, 0, (128, 256, 64), 8, 4, 4), (False, 0, (128, 320, 64), 7, 4, 4),
    (True, 0, (256, 48, 64), 12, 4, 1), (True, 0, (256, 160, 64), 6, 4, 1), (True, 0, (256, 176, 64), 5, 4, 1), (True, 0, (256, 192, 64), 6, 4, 2),
    (False, 2, (512, 144, 64), 6, 4, 1), (True, 2, (512, 80, 64), 7, 4, 1), (True, 2, (512, 144, 64), 5, 4, 1), (True, 2, (512, 160, 64), 5, 4, 1),
    (False, 0, (256, 32, 128), 8, 4, 1), (False, 0, (256, 48, 128), 7, 4, 1), (False, 0, (256, 112, 64), 8, 4, 1), (False, 0, (256, 176, 64), 6, 4, 1),
    (True, 0, (256, 32, 128), 8, 4, 1), (True, 0, (256, 144, 64), 7, 4, 1), (False, 0, (128, 96, 128), 7, 4, 2), (True, 0, (128, 64, 128), 8, 4, 2),
    (False, 0, (512, 128, 64), 8, 8, 1), (True, 0, (512, 128, 64), 8, 8, 1),
)  # fmt: skip


def _tilings() -> Iterator[Tiling]:
    for block, stages in _PINGPONG:
        yield Tiling("pingpong", block, stages)
    for groups, block, stages in _COOPERATIVE:
        yield Tiling("cooperative", block, stages, groups=groups)
    for groups, block, stages in _WHOLE:
        yield Tiling(
            "cooperative" if groups else "pingpong", block, stages, groups=groups, whole=True
        )
    for groups, block, stages in _SWAPPED:
        kernel = "cooperative" if groups else "pingpong"
        yield Tiling(kernel, block, stages, groups=groups, swapped=True)
    for swapped, groups, block, stages in _PAIRS:
        kernel = "cooperative" if groups else "pingpong"
        yield Tiling(kernel, block, stages, groups=groups, swapped=swapped, blocks=2)
    for swapped, groups, block, stages, blocks, abreast in _CLUSTERS:
        kernel = "cooperative" if groups else "pingpong"
        yield Tiling(
            kernel, block, stages, groups=groups, swapped=swapped, blocks=blocks, abreast=abreast
        )
    for swapped, block, stages in _STREAM_K:
        yield Tiling("stream_k", block, stages, groups=2, swapped=swapped)
    for splits in _SPLITS[1:]:
        for swapped, block, stages in _COOPERATIVE_K:
            yield Tiling("cooperative_k", block, stages, splits, groups=2, swapped=swapped)
    for splits in (*_SPLITS, *_MORE_SPLITS):
        for block, stages in _SPLIT_K:
            yield Tiling("split_k", block, stages, splits)
    for splits in _SPLITS:
        for block, stages in _DIRECT:
            yield Tiling("direct", block, stages, splits)


TILINGS: dict[str, Tiling] = {tiling.name: tiling for tiling in _tilings()}


@functools.lru_cache(maxsize=None)
def columns() -> Columns:
    """Return the columns of all tilings."""
    return Columns(list(TILINGS.values()))


def fits(tiling: Tiling, size: Size) -> bool:
    """Return True if the tiling can run a product of this size, and does not multiply far more than is asked for."""
    return bool(tiling.fitting(size))
