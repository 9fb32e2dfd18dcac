"""The quantities of tilings, which decide what fits and how long it takes: of one `Tiling`, or of many at once, as the arrays of `Columns`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

import numpy as np

__all__ = ["IN_PARTS", "KERNELS", "Columns", "Measures", "Size", "cdiv", "parts_of"]

SHARED = 232448  # bytes of shared memory that a block of sm_90 may have
MULTIPROCESSOR = 233472  # bytes that the blocks of one share, with 1024 more for each
FEW_STEPS = 16  # of K, with which the stores of tiles take as long as their products
LONGEST = 4  # tiles of a cluster of four blocks or more, up to which its times were measured
LARGE = 8e10  # multiplications and additions of one matrix, up to which times of all tilings were measured
WIDTHS = (256, 128, 64, 32, 16)  # of accumulators, which the columns of a tile are the sum of
KERNELS = ("pingpong", "cooperative", "stream_k", "split_k", "direct", "cooperative_k")
IN_PARTS = ("split_k", "direct", "cooperative_k")  # their programs have a tile, or a part of its K
# Bytes of a result from which threads store it, and elements of K up to which they do, by whether rows are torn. The L2 cache reads torn sectors of large results from
# memory; products of longer K go on while TMA stores.
WRITTEN = {False: (5e7, 64), True: (5e7, 128)}
COPIED = 64  # products for each byte of copies, up to which loads of threads pay however large a product is


def cdiv(a: Any, b: Any) -> Any:
    return -(-a // b)


def parts_of(columns: int) -> tuple[int, ...]:
    """Return how many accumulators of each of the WIDTHS a tile's columns are the sum of."""
    counts = []
    for width in WIDTHS:
        counts.append(columns // width)
        columns %= width
    return tuple(counts)


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

    def written(self, torn: bool) -> bool:
        """Return True if storing the result takes most of the time; rows that are `torn` begin in the middle of sectors of memory."""
        result = self.batch * self.m * self.n * self.out_bits / 8
        least, longest = WRITTEN[torn]
        return self.bits == 16 and not self.eight and result > least and self.k <= longest

    @property
    def aligned(self) -> bool:
        """Return True if rows of the result begin at multiples of 16 bytes."""
        return self.n * self.out_bits % 128 == 0

    @property
    def name(self) -> str:
        return f"{self.batch}x{self.m}x{self.n}x{self.k}" + "e" * self.eight


class Measures:
    """Quantities of a tiling and a size; numbers of one tiling, arrays of several.

    Args:
        block: rows, columns and depth of a tile.
        parts: `parts_of` its columns.
        boxed: columns of its accumulators, some in vain.
        stages, splits, groups, swapped, whole, blocks, abreast: those of `Tiling`.
    """

    block: Any
    boxed: Any
    parts: Any
    stages: Any
    splits: Any
    groups: Any
    swapped: Any
    whole: Any
    blocks: Any
    abreast: Any

    def runs(self, *kernels: str) -> Any:
        """Return True for tilings of one of these kernels."""
        raise NotImplementedError

    @property
    def warps(self) -> Any:
        """Return the warps of a program, of the first role where it has roles; without roles as many as hold the loads of a step."""
        return np.where(self.runs("direct") & (self.block[0] * self.block[1] > 8192), 8, 4)

    def tiles(self, size: Size) -> Any:
        """Return the number of tiles of all matrices."""
        rows = np.where(self.swapped, size.n, size.m)
        columns = np.where(self.swapped, size.m, size.n)
        return cdiv(rows, self.block[0]) * cdiv(columns, self.block[1]) * size.batch

    def shared_tiles(self, size: Size) -> Any:
        """Return how many tiles programs share along K under stream-K: those that do not fill a round of the processors."""
        return self.tiles(size) % size.processors

    def sharers(self, size: Size) -> Any:
        """Return how many programs share these tiles, with several steps each: as many for each tile, or all where they are less than twice as many."""
        shared, steps = self.shared_tiles(size), cdiv(size.k, self.block[2])
        parts = np.minimum(size.processors // np.maximum(shared, 1), steps // 4)
        few = np.maximum(shared, np.minimum(size.processors, shared * steps // 4))
        return np.where(parts > 1, shared * parts, few)

    def programs(self, size: Size) -> Any:
        """Return how many persistent programs there are: at most one for each processor, or cluster of them."""
        tiles = self.tiles(size)
        shared = self.runs("stream_k") & (tiles < size.processors)
        return np.where(shared, self.sharers(size), np.minimum(tiles, self.clusters(size)))

    def clusters(self, size: Size) -> Any:
        """Return how many clusters the device runs at a time. Those of four and eight do not fit some of its groups of processors: an H200 of 132 runs 30 and 15,
        and one more would wait until another has had all its tiles."""
        fitting = size.processors - size.processors // 11
        of_groups = np.where(np.greater(self.blocks, 2), fitting, size.processors)
        return np.maximum(1, of_groups // self.blocks)

    def busy(self, size: Size) -> Any:
        """Return which share of the processors has a block at a time."""
        programs = np.where(
            self.runs(*IN_PARTS), self.tiles(size) * self.splits, self.programs(size)
        )
        return np.minimum(1.0, programs * self.blocks / size.processors)

    def resident(self, size: Size) -> Any:
        """Return how many programs a processor runs at a time."""
        most = np.where(np.greater(self.groups, 0), 1, 16 // self.warps)
        room = np.minimum(MULTIPROCESSOR // (self.shared(size) + 1024), most)
        return np.where(self.runs(*IN_PARTS), np.maximum(1, room), 1)

    def shared(self, size: Size, box: Any = 128) -> Any:
        """Return the bytes of shared memory of a block, where results are stored in boxes of so many bytes."""
        m, n, k = self.block
        stacked = self.blocks // self.abreast
        ring = self._ring(size)
        swapped = np.where(self.by_tma(size), self._columns(size), self._converted())
        users = self._users()
        rows = m // stacked // np.maximum(self.groups, 1)
        whole = self.whole | np.greater(self.abreast, 1)
        boxes = 0
        for count, width in zip(self.parts, WIDTHS):
            row = width // self.abreast * size.out_bits // 8
            boxes = boxes + count * np.where(whole, row, np.minimum(box, row))
        stored = np.where(self.swapped, swapped, users * boxes * rows)
        return ring + np.where(self.runs(*IN_PARTS), 0, stored)

    def _ring(self, size: Size) -> Any:
        """Return the bytes of the ring, and of barriers."""
        m, _, k = self.block
        sides = m // (self.blocks // self.abreast) + self.boxed // self.abreast
        return sides * k * self.stages * size.bits // 8 + 1024

    def _users(self) -> Any:
        """Return how many groups store at a time."""
        return np.where(np.equal(self.groups, 0), 2, self.groups)

    def _converted(self) -> Any:
        """Return the bytes through which columns are transposed, a part at a time; conversions in a cluster have room for all blocks."""
        groups = np.maximum(
            self.groups, self.block[0] // self.blocks // 64 * np.equal(self.groups, 0)
        )
        return 2 * np.maximum(self.blocks, groups) * self.blocks * (4 * 128 * 17)

    def _columns(self, size: Size) -> Any:
        """Return the bytes of buffers for the columns of a tile, from which TMA stores them."""
        m, n, _ = self.block
        elements = m // np.maximum(1, self.groups) * n // self.blocks
        return self._users() * elements * size.out_bits // 8

    def by_tma(self, size: Size) -> Any:
        """Return True if TMA stores the result, where it can: columns go through registers but in large clusters, whose conversions take too much memory."""
        return np.logical_not(self.swapped) | (np.greater(self.blocks, 2) & size.aligned)

    def streams(self, size: Size, torn: bool) -> Any:
        """Return True where threads store rows of the result in less time than TMA does: of a large result of short K."""
        alone = np.logical_not(self.swapped) & np.equal(self.blocks, 1)
        return size.written(torn) & alone & self.runs("pingpong", "cooperative")

    def box(self, size: Size) -> Any:
        """Return the bytes of a row that one store by TMA takes: 128, or 64 where shared memory is scarce."""
        return np.where(self.shared(size) <= SHARED, 128, 64)

    def fitting(self, size: Size) -> Any:
        """Return True for tilings that can run a product of this size, and do not multiply far more than is asked for."""
        m, n, k = self.block
        tiles, steps = self.tiles(size), cdiv(size.k, k)
        in_parts, stream_k = self.runs(*IN_PARTS), self.runs("stream_k")
        vain = (size.m < m) & (m > 64) & (tiles * m * n > 3 * size.m * size.n * size.batch)
        short = self.whole & (steps > FEW_STEPS)  # a longer ring is worth more
        # Columns of so large tiles go through registers, which takes longer than the products of fewer steps.
        brief = self.swapped & np.equal(self.groups, 0) & (m // self.blocks >= 128) & (steps < FEW_STEPS // 2)  # fmt: skip
        slow = self.runs("direct") & (not _loads_pay(size))
        # Without stores by TMA, conversions of a pair take more shared memory than is left.
        crowded = np.greater(self.blocks, 1) & np.logical_not(self.swapped) & (not size.aligned)
        narrow = ((m < 64) & (size.m > 16 * m)) | ((n < 64) & (size.n > 8 * n) & (size.m > m))
        # 8 columns are 16 bytes, too narrow to swizzle. Steps along K then add to the base offset of the descriptor, which PTX
        # (ISA 9.7.15.5.1) wants to be 0 where a pattern begins at its alignment: an H100 reports an illegal address.
        crossed = (m < 16) & size.transposed[0]
        many = (tiles // max(size.batch, 1) > 65535) | (size.batch > 65535)
        # The programs of a tile wait for each other.
        waits = (tiles * self.splits > size.processors * self.resident(size)) | (steps < 2 * self.splits)  # fmt: skip
        unfit = narrow | crossed | many | (np.greater(self.splits, 1) & waits)
        # Programs gain by a share of the last round's tiles if each of these has several parts.
        shared = self.shared_tiles(size)
        shares = (self.sharers(size) > shared) & (shared > 0) & (shared * steps * size.processors < 2**31)  # fmt: skip
        # With more than forty tiles for each cluster 8192x8192x8192 took twice the time of blocks alone on an H200.
        far = np.greater(self.blocks, 2) & (tiles > LONGEST * self.clusters(size))
        alone = in_parts & unfit
        unfit = vain | short | brief | slow | crowded
        unfit = unfit | alone | far | (stream_k & np.logical_not(shares))
        return self.has_room(size) & np.logical_not(unfit)

    def doubtful(self, size: Size) -> Any:
        """Return True where no time of a product of this size was measured, but for blocks with tiles of 128x192 and more, which run it at the rate of cuBLAS."""
        m, n, _ = self.block
        known = m * n >= 128 * 192 * self.blocks
        return (2.0 * size.m * size.n * size.k > LARGE) & np.logical_not(known)

    def has_room(self, size: Size) -> Any:
        """Return True for tilings whose shared memory a block has."""
        return self.shared(size, self.box(size)) <= SHARED


def _loads_pay(size: Size) -> bool:
    """Return True for products that loads of threads may bring sooner than TMA: small ones, and those that it reads from copies only, up to sizes that
    take longer than the copies."""
    products = size.batch * size.m * size.n * size.k
    return size.bits == 16 and products <= (
        max(2**36, COPIED * size.padded) if size.padded else 2**26
    )


class Columns(Measures):
    """Tilings as columns of a table: an array for each field."""

    def __init__(self, tilings: Sequence[Any]) -> None:
        self.tilings = tuple(tilings)
        self.block = tuple(np.array([t.block[i] for t in tilings], int) for i in range(3))
        self.boxed = np.array([t.boxed for t in tilings], int)
        self.parts = np.array([t.parts for t in tilings], int).reshape(-1, len(WIDTHS)).T
        for name in ("stages", "splits", "groups", "blocks", "abreast"):
            setattr(self, name, np.array([getattr(t, name) for t in tilings], int))
        for name in ("swapped", "whole"):
            setattr(self, name, np.array([getattr(t, name) for t in tilings], bool))
        self._kernels = np.array([KERNELS.index(t.kernel) for t in tilings], int)
        self._known: dict[Any, np.ndarray] = {}
        self._taken: Optional[tuple[Columns, np.ndarray]] = None  # from where, and which places
        self._last: Optional[Size] = None
        self._of: dict[str, np.ndarray] = {}  # quantities of the last size

    def __len__(self) -> int:
        return len(self.tilings)

    def runs(self, *kernels: str) -> Any:
        numbers = [KERNELS.index(kernel) for kernel in kernels]
        return self.once(kernels, lambda of: np.isin(of._kernels, numbers))

    def has_room(self, size: Size) -> Any:
        return self._of_elements("has_room", size)

    def resident(self, size: Size) -> Any:
        return self._of_elements("resident", size)

    def tiles(self, size: Size) -> Any:
        return self._of_last(size, "tiles")

    def shared_tiles(self, size: Size) -> Any:
        return self._of_last(size, "shared_tiles")

    def sharers(self, size: Size) -> Any:
        return self._of_last(size, "sharers")

    def clusters(self, size: Size) -> Any:
        return self.once(("clusters", size.processors), lambda of: super().clusters(size))

    def _of_last(self, size: Size, name: str) -> Any:
        """Return a quantity of the last size, measured once."""
        if self._last is not size:
            self._last, self._of = size, {}
        if name not in self._of:
            self._of[name] = getattr(super(), name)(size)
        return self._of[name]

    def _of_elements(self, name: str, size: Size) -> Any:
        """Return a quantity that depends on the elements of a size alone, and on where rows of the result begin."""
        key = name, size.bits, size.out_bits, size.aligned
        return self.once(key, lambda of: getattr(super(), name)(size))

    def once(self, key: Any, measure: Callable[[Columns], np.ndarray]) -> Any:
        """Return an array of the tilings, [tilings, ...], measured once."""
        if key not in self._known:
            if self._taken and key in self._taken[0]._known:
                every, places = self._taken
                self._known[key] = every._known[key][places]
            else:
                self._known[key] = measure(self)
        return self._known[key]

    def at(self, places: np.ndarray) -> Columns:
        """Return the columns of the tilings at some places."""
        some = Columns.__new__(Columns)
        some.tilings = tuple(self.tilings[i] for i in places)
        some.block = tuple(side[places] for side in self.block)
        some.parts = self.parts[:, places]
        for name in ("boxed", "stages", "splits", "groups", "blocks", "abreast", "swapped", "whole", "_kernels"):  # fmt: skip
            setattr(some, name, getattr(self, name)[places])
        some._known, some._taken = {}, (self, places)
        some._last, some._of = None, {}
        return some
