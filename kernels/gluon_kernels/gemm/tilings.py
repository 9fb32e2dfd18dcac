"""The tilings of the kernels of products on Hopper, and which of them can run a product. `choice.py` chooses one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

__all__ = ["IN_PARTS", "TILINGS", "Size", "Tiling", "cdiv", "fits"]

SHARED = 232448  # bytes of shared memory that a block of sm_90 may have
MULTIPROCESSOR = 233472  # bytes that the blocks of one share, with 1024 more for each
FEW_STEPS = 16  # of K, with which the stores of tiles take as long as their products


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Size:
    """Hold the facts that decide the choice of a tiling.

    Args:
        batch, m, n, k: sizes.
        bits, out_bits: of an element, and of one of the result.
        transposed: A is stored as [K, M], B as [N, K].
        processors: of the device.
        vectors: elements of A and of B that one load of a thread takes.
        padded: bytes of the operands that TMA reads from a padded copy.
        pitches: bytes from a row to the next, of A and B as TMA reads them; 0 if that is a multiple of 32.
        eight: elements are pairs of 8-bit ones along K.
    """

    batch: int
    m: int
    n: int
    k: int
    bits: int = 16
    out_bits: int = 16
    transposed: tuple[bool, bool] = (False, True)
    processors: int = 132
    vectors: tuple[int, int] = (8, 8)
    padded: int = 0
    pitches: tuple[int, int] = (0, 0)
    eight: bool = False

    @property
    def memory(self) -> float:
        """Return the bytes of the operands and the result."""
        operands = (self.m * self.k + self.k * self.n) * self.bits // 8
        return float(self.batch * (operands + self.m * self.n * self.out_bits // 8))

    @property
    def name(self) -> str:
        return f"{self.batch}x{self.m}x{self.n}x{self.k}" + "e" * self.eight


@dataclass(frozen=True)
class Tiling:
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
        blocks: of a cluster: 2 share the columns of a tile, and each has half of the rows of each group.
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

    @property
    def name(self) -> str:
        m, n, k = self.block
        parts = f"/{self.splits}" if self.splits > 1 else ""
        forms = " swapped" * self.swapped + " whole" * self.whole + " pair" * (self.blocks == 2)
        return f"{self.kernel} {m}x{n}x{k} s{self.stages}{forms}{parts}"

    @property
    def warps(self) -> int:
        """Return the warps of a program, of the first role where it has roles; without roles as many as hold the loads of a step."""
        return 8 if self.kernel == "direct" and self.block[0] * self.block[1] > 8192 else 4

    def tiles(self, size: Size) -> int:
        """Return the number of tiles of all matrices."""
        rows, columns = (size.n, size.m) if self.swapped else (size.m, size.n)
        return cdiv(rows, self.block[0]) * cdiv(columns, self.block[1]) * size.batch

    def shared_tiles(self, size: Size) -> int:
        """Return how many tiles programs share along K: those that do not fill a round of the processors."""
        return self.tiles(size) % size.processors

    def sharers(self, size: Size) -> int:
        """Return how many programs share these tiles, with several steps each: as many for each tile, or all where they are less than twice as many."""
        shared, steps = self.shared_tiles(size), cdiv(size.k, self.block[2])
        if not shared:
            return 0
        parts = min(size.processors // shared, steps // 4)
        if parts > 1:
            return shared * parts
        return max(shared, min(size.processors, shared * steps // 4))

    def programs(self, size: Size) -> int:
        """Return how many persistent programs there are: at most one for each processor, or pair of them."""
        tiles = self.tiles(size)
        if self.kernel == "stream_k" and tiles < size.processors:
            return self.sharers(size)
        return min(tiles, size.processors // self.blocks)

    def resident(self, size: Size) -> int:
        """Return how many programs a processor runs at a time."""
        if self.kernel not in IN_PARTS:
            return 1
        most = 1 if self.groups else 16 // self.warps
        return max(1, min(MULTIPROCESSOR // (self.shared(size) + 1024), most))

    def shared(self, size: Size, box: int = 128) -> int:
        """Return the bytes of shared memory of a block, where results are stored in boxes of so many bytes."""
        m, n, k = self.block
        m //= self.blocks
        ring = (m + n) * k * self.stages * size.bits // 8 + 1024
        if self.kernel in IN_PARTS:
            return ring
        if self.swapped:  # a part at a time, through registers
            return ring + 2 * max(self.blocks, self.groups) * self.blocks * 4 * 128 * 17
        rows, users = (m, 2) if self.groups == 0 else (m // self.groups, self.groups)
        boxes = sum(width * size.out_bits // 8 if self.whole else min(box, width * size.out_bits // 8) for width in parts_of(n))  # fmt: skip
        return ring + users * boxes * rows

    def box(self, size: Size) -> int:
        """Return the bytes of a row that one store by TMA takes: 128, or 64 where shared memory is scarce."""
        return 128 if self.shared(size) <= SHARED else 64


def parts_of(columns: int) -> tuple[int, ...]:
    """Return the powers of two, each 16 to 256, that a tile's columns are the sum of."""
    parts: list[int] = []
    for width in (256, 128, 64, 32, 16):
        while columns >= width:
            parts.append(width)
            columns -= width
    return tuple(parts)


IN_PARTS = (
    "split_k",
    "direct",
    "cooperative_k",
)  # kernels whose programs have a tile, or a part of its K
_PINGPONG = (
    ((128, 192, 64), 4), ((128, 192, 32), 8), ((128, 160, 64), 4), ((128, 128, 64), 6),
    ((64, 352, 64), 3), ((64, 256, 64), 5), ((64, 192, 64), 6), ((64, 128, 64), 8),
    ((64, 96, 64), 9), ((64, 64, 128), 6), ((64, 32, 128), 8), ((64, 160, 64), 7), ((64, 112, 64), 8), ((64, 80, 64), 10), ((64, 48, 128), 6),
)  # fmt: skip
_COOPERATIVE = (
    (2, (128, 320, 64), 3), (2, (128, 288, 64), 3), (2, (128, 160, 64), 5), (2, (128, 144, 64), 6), (2, (128, 112, 64), 7), (2, (128, 96, 64), 7), (2, (128, 80, 64), 8),
    (2, (256, 144, 64), 4), (2, (256, 112, 64), 4), (2, (256, 96, 64), 5), (2, (256, 80, 64), 5),
    (2, (128, 256, 64), 4), (2, (128, 224, 64), 4), (2, (128, 128, 64), 6), (2, (128, 192, 64), 5),
    (2, (256, 128, 64), 4), (2, (256, 160, 64), 3), (2, (256, 192, 64), 3),
    (3, (192, 128, 64), 4), (3, (192, 192, 64), 3),
    (2, (256, 64, 64), 5), (2, (256, 32, 64), 6), (2, (128, 64, 128), 4), (2, (128, 32, 128), 5),
)  # fmt: skip
_WHOLE = (
    (0, (128, 128, 64), 5), (0, (64, 256, 64), 4), (0, (64, 128, 64), 7),
    (2, (128, 256, 64), 3), (2, (256, 128, 64), 3), (2, (128, 128, 64), 5),
)  # fmt: skip
_STREAM_K = (
    (False, (128, 128, 64), 6), (False, (128, 192, 64), 5), (False, (128, 256, 64), 4),
    (False, (256, 128, 64), 4), (False, (256, 160, 64), 3), (False, (256, 192, 64), 3),
    (True, (128, 96, 64), 6), (True, (128, 160, 64), 5), (True, (256, 128, 64), 4), (True, (128, 304, 32), 7),
)  # fmt: skip
_COOPERATIVE_K = (
    (False, (128, 128, 64), 6), (False, (128, 192, 64), 5), (False, (128, 256, 64), 4), (False, (256, 128, 64), 4),
    (False, (256, 160, 64), 4), (False, (256, 192, 64), 4), (False, (256, 64, 64), 5), (False, (128, 64, 128), 4), (False, (128, 32, 128), 5),
    (True, (256, 64, 64), 5), (True, (128, 64, 128), 4), (True, (128, 32, 128), 5), (True, (128, 96, 64), 7), (True, (128, 160, 64), 6), (True, (128, 224, 64), 5), (True, (128, 304, 64), 4), (True, (256, 112, 64), 4),
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
_SWAPPED = (
    (2, (128, 304, 64), 3), (2, (128, 304, 32), 7), (2, (128, 256, 64), 4), (2, (128, 224, 64), 4), (2, (128, 160, 64), 5),
    (2, (256, 128, 64), 4), (2, (256, 160, 64), 3), (2, (128, 96, 64), 6), (2, (128, 64, 128), 4),
    (2, (256, 64, 64), 5), (2, (256, 32, 64), 5), (2, (128, 32, 128), 5),
    (0, (64, 96, 64), 9), (0, (64, 64, 128), 6), (0, (64, 32, 128), 8), (0, (64, 128, 64), 7), (0, (64, 112, 64), 8), (0, (64, 80, 64), 9), (0, (64, 48, 128), 6),
    (2, (128, 144, 64), 5), (2, (128, 112, 64), 6), (2, (128, 80, 64), 7), (2, (128, 48, 128), 4), (2, (256, 96, 64), 4), (2, (256, 80, 64), 4),
)  # fmt: skip
_PAIRS = (
    (False, 2, (256, 320, 64), 3), (False, 2, (256, 256, 64), 4), (False, 2, (256, 192, 64), 5), (False, 2, (256, 160, 64), 5), (False, 2, (256, 144, 64), 5),
    (False, 2, (256, 128, 64), 6), (False, 2, (256, 112, 64), 6), (False, 2, (256, 96, 64), 7), (False, 2, (256, 80, 64), 7), (False, 2, (256, 64, 128), 4),
    (False, 2, (512, 128, 64), 4), (False, 2, (512, 160, 64), 3), (False, 2, (512, 192, 64), 3), (False, 2, (512, 64, 64), 5), (False, 3, (384, 192, 64), 3),
    (True, 2, (256, 256, 64), 3), (True, 2, (256, 304, 32), 5), (True, 2, (256, 160, 64), 4), (True, 2, (256, 96, 64), 5), (True, 2, (256, 64, 128), 3),
    (True, 2, (512, 128, 64), 3), (True, 2, (512, 160, 64), 3),
    (False, 0, (128, 256, 64), 5), (False, 0, (128, 192, 64), 6), (False, 0, (128, 128, 64), 8), (False, 0, (128, 96, 64), 9), (False, 0, (128, 64, 128), 6),
    (False, 0, (256, 128, 64), 6), (False, 0, (256, 192, 64), 4), (False, 0, (256, 160, 64), 4),
    (True, 0, (128, 128, 64), 6), (True, 0, (128, 112, 64), 6), (True, 0, (128, 96, 64), 7), (True, 0, (128, 80, 64), 8), (True, 0, (128, 64, 128), 4), (True, 0, (128, 48, 128), 5),
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
    for swapped, block, stages in _STREAM_K:
        yield Tiling("stream_k", block, stages, groups=2, swapped=swapped)
    for splits in _SPLITS[1:]:
        for swapped, block, stages in _COOPERATIVE_K:
            yield Tiling("cooperative_k", block, stages, splits, groups=2, swapped=swapped)
    for splits in _SPLITS:
        for block, stages in _SPLIT_K:
            yield Tiling("split_k", block, stages, splits)
        for block, stages in _DIRECT:
            yield Tiling("direct", block, stages, splits)


TILINGS: dict[str, Tiling] = {tiling.name: tiling for tiling in _tilings()}


def fits(tiling: Tiling, size: Size) -> bool:
    """Return True if the tiling can run a product of this size, and does not multiply far more than is asked for."""
    if tiling.shared(size, tiling.box(size)) > SHARED:
        return False
    m, n, _ = tiling.block
    tiles = tiling.tiles(size)
    if size.m < m and m > 64 and tiles * m * n > 3 * size.m * size.n * size.batch:
        return False
    if tiling.whole and cdiv(size.k, tiling.block[2]) > FEW_STEPS:  # a longer ring is worth more
        return False
    if tiling.kernel == "stream_k":
        return _shares(tiling, size)
    if tiling.kernel == "direct" and not _loads_pay(size):
        return False
    if tiling.kernel not in IN_PARTS:
        return True
    if (m < 64 and size.m > 16 * m) or (n < 64 and size.n > 8 * n and size.m > m):
        return False
    if m < 16 and size.transposed[0]:
        # 8 columns are 16 bytes, too narrow to swizzle. Steps along K then add to the base offset of the descriptor, which PTX
        # (ISA 9.7.15.5.1) wants to be 0 where a pattern begins at its alignment: an H100 reports an illegal address.
        return False
    if tiles // size.batch > 65535 or size.batch > 65535:
        return False
    if tiling.splits > 1:  # the programs of a tile wait for each other
        most = size.processors * tiling.resident(size)
        return tiles * tiling.splits <= most and cdiv(size.k, tiling.block[2]) >= 2 * tiling.splits
    return True


def _loads_pay(size: Size) -> bool:
    """Return True for products that loads of threads may bring sooner than TMA: small ones, and those that it reads from copies only."""
    products = size.batch * size.m * size.n * size.k
    return size.bits == 16 and products <= (2**36 if size.padded else 2**26)


def _shares(tiling: Tiling, size: Size) -> bool:
    """Return True if programs gain by a share of the last round's tiles: if each of these has several parts."""
    shared, steps = tiling.shared_tiles(size), cdiv(size.k, tiling.block[2])
    return tiling.sharers(size) > shared > 0 and shared * steps * size.processors < 2**31
