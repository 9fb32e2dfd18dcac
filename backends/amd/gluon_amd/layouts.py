"""Layouts of AMD's matrix units, MFMA (CDNA) and WMMA (RDNA, gfx1250), and partitioned LDS.

Pure Python: neither triton nor torch is imported. The fragment maps are those of the CDNA3/CDNA4
and RDNA3/RDNA4 ISA documents, "Matrix fragments". Triton numbers the registers of a WMMA layout
differently in 3.6, 3.7 and 3.8; `to_linear` follows `gluon_core.layouts.dialect`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Optional, Sequence

from gluon_core.errors import CapabilityError, LayoutError
from gluon_core.layouts.base import (
    DistributedLayout,
    SharedLayout,
    check_bases,
    check_bool,
    check_cga,
    check_int,
    check_ints,
    check_powers,
    check_shape,
    is_int,
    is_power_of_two,
    joined,
    joined_bases,
    unwrap,
)
from gluon_core.layouts.dialect import compiler_version
from gluon_core.layouts.linear import LinearLayout
from gluon_core.layouts.tiling import cga_linear, combine_with_cga, dim_names

__all__ = ["AMDMFMALayout", "AMDWMMALayout", "PartitionedSharedLayout"]

_MFMA_TILES = ([32, 32], [16, 16], [64, 4], [4, 64])
_WMMA_SHAPES = {
    1: ([16, 16, 16],),
    2: ([16, 16, 16], [16, 16, 32]),
    3: (
        [16, 16, 4],
        [16, 16, 32],
        [16, 16, 64],
        [16, 16, 128],
        [32, 16, 64],
        [32, 16, 128],
    ),
}


def _needs_triton(wanted: tuple[int, int], what: str) -> CapabilityError:
    needs, found = (".".join(map(str, v)) for v in (wanted, compiler_version()))
    return CapabilityError(f"{what} needs Triton >= {needs}, found {found}")


def _stack(pieces: Iterable[tuple[str, int, int]]) -> LinearLayout:
    """The product of identities, most minor first; a piece is (in-dim, tensor dimension, size)."""
    layout = LinearLayout({"register": [], "lane": [], "warp": []}, {})
    for in_dim, d, size in pieces:
        layout = layout * LinearLayout.identity_1d(size, in_dim, f"dim{d}")
    return layout


def _size(layout: LinearLayout, d: int) -> int:
    return layout.out_dims.get(f"dim{d}", 1)


def _per_block(shape: Sequence[int], cga_layout: Sequence[Sequence[int]]) -> list[int]:
    blocks = cga_linear(cga_layout, len(shape)).out_dims.values()
    return [max(1, size // count) for size, count in zip(shape, blocks)]


def _repeat(layout: LinearLayout, d: int, size: int) -> LinearLayout:
    """The layout, repeated in registers until it covers `size` elements along dimension `d`."""
    times = max(1, size // _size(layout, d))
    return layout * LinearLayout.identity_1d(times, "register", f"dim{d}")


def _spread(
    tile: LinearLayout,
    dims: Iterable[int],
    tiles: Sequence[int],
    warps: Sequence[int],
    cga: Sequence[Sequence[int]],
    shape: Sequence[int],
    k: Optional[int],
) -> LinearLayout:
    """Spread a tile over the tiles of one warp, over warps, and by repetition over `shape`.

    An accumulator finishes one dimension after the other, its columns for the whole cluster, so
    that some registers repeat others. In a dot operand all warps hold the same elements along `k`,
    the dimension that is summed over, and the repetitions come last.
    """
    sizes = [*_per_block(shape[:-1], [basis[:-1] for basis in cga]), shape[-1]]
    layout = tile
    for d in dims:
        if d == k:
            layout = layout * LinearLayout.zeros_1d(warps[d], "warp", f"dim{d}")
            continue
        layout = layout * LinearLayout.identity_1d(tiles[d], "register", f"dim{d}")
        layout = layout * LinearLayout.identity_1d(warps[d], "warp", f"dim{d}")
        if k is None:
            layout = _repeat(layout, d, sizes[d])
    return combine_with_cga(layout, cga, shape, keep_copies=True)


def _without(bases: Sequence[Sequence[int]], k: int) -> list[list[int]]:
    return [[0 if d == k else v for d, v in enumerate(basis)] for basis in bases]


def _operand(rank: int, operand_index: Any, k_width: Any) -> tuple[int, int, int]:
    """(dimension of rows or columns, dimension of K, k_width) of a dot operand."""
    index = check_int(operand_index, "operand_index", 0, 1)
    width = unwrap(k_width)
    if not is_power_of_two(width):
        raise LayoutError(
            "not a power of two",
            argument="k_width",
            expected="the elements along K that one lane holds, e.g. 4 or 8",
            got=k_width,
        )
    return rank - 2 + index, rank - 1 - index, width


@dataclass(frozen=True)
class AMDMFMALayout(DistributedLayout):
    """The accumulator of MFMA, the matrix unit of CDNA (64 lanes).

    Args:
        version: 1 for gfx908, 2 for gfx90a, 3 for gfx942, 4 for gfx950.
        instr_shape: [M, N, K] of the instruction: 32x32, 16x16, 64x4 or 4x64.
        transposed: a lane holds consecutive columns of a row, instead of rows of a column.
        warps_per_cta: warps along each dimension.
        element_bitwidth: of the accumulator, 32 (default) or 64.
        tiles_per_warp: adjacent instruction tiles that one warp computes, [1, 1] by default.
        cga_layout: how the blocks of a cluster split the tensor.

    Raises:
        LayoutError: an illegal field.

    ISA: CDNA `v_mfma_*`.
    """

    version: int
    instr_shape: list[int]
    transposed: bool
    warps_per_cta: list[int]
    element_bitwidth: Optional[int] = None
    tiles_per_warp: Optional[list[int]] = None
    cga_layout: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        warps = check_powers(self.warps_per_cta, "warps_per_cta")
        tiles = unwrap(self.tiles_per_warp)
        bits = unwrap(self.element_bitwidth)
        self._set(
            version=check_int(self.version, "version", 1, 4),
            instr_shape=check_ints(self.instr_shape, "instr_shape"),
            transposed=check_bool(self.transposed, "transposed"),
            warps_per_cta=warps,
            element_bitwidth=32 if bits is None else check_int(bits, "element_bitwidth"),
            tiles_per_warp=[1] * len(warps) if tiles is None else tiles,
            cga_layout=check_cga(self.cga_layout, len(warps)),
        )
        self.verify()

    def verify(self) -> None:
        """Check the fields against each other. Raises LayoutError."""
        if self.rank not in (2, 3):
            raise LayoutError(
                "MFMA takes matrices, or a batch of them",
                argument="warps_per_cta",
                expected="2 or 3 entries",
                got=self.warps_per_cta,
            )
        check_powers(self.tiles_per_warp, "tiles_per_warp", self.rank)
        shape = self.instr_shape
        if len(shape) != 3 or shape[:2] not in _MFMA_TILES or not is_power_of_two(shape[2]):
            raise LayoutError(
                "not an MFMA instruction",
                argument="instr_shape",
                expected="[M, N, K] with M x N one of 32x32, 16x16, 64x4, 4x64",
                got=shape,
            )
        if shape[:2] == [64, 4] and not self.transposed:
            raise LayoutError(
                "the 64x4 instruction is 4x64 with its operands exchanged",
                argument="transposed",
                expected=True,
                got=False,
            )
        if self.element_bitwidth not in (32, 64):
            raise LayoutError(
                "no such accumulator",
                argument="element_bitwidth",
                expected="32 or 64",
                got=self.element_bitwidth,
            )
        if self.element_bitwidth == 64 and (shape[:2] != [16, 16] or self.version < 2):
            raise LayoutError(
                "64-bit accumulators exist for 16x16 from version 2 on only",
                argument="element_bitwidth",
                expected=32,
                got=64,
            )

    @property
    def rank(self) -> int:
        return len(self.warps_per_cta)

    def mangle(self) -> str:
        shape = joined([self.version], self.instr_shape, [self.transposed], self.warps_per_cta)
        tiles = joined([self.element_bitwidth or 32], self.tiles_per_warp or [1, 1])
        return f"MFMA_{shape}_{tiles}_{joined_bases(self.cga_layout)}_MFMA"

    def _emit(self, builder: Any) -> Any:
        return builder.get_amd_mfma_layout(
            self.version,
            self.warps_per_cta,
            self.instr_shape,
            self.transposed,
            self.cga_layout,
            self.tiles_per_warp,
            self.element_bitwidth,
        )

    def _cover(
        self,
        tile: LinearLayout,
        cga: Sequence[Sequence[int]],
        shape: Sequence[int],
        k: Optional[int] = None,
    ) -> LinearLayout:
        dims = range(self.rank)[::-1]
        assert self.tiles_per_warp is not None
        return _spread(tile, dims, self.tiles_per_warp, self.warps_per_cta, cga, shape, k)

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        m, n = self.rank - 2, self.rank - 1
        # Lanes walk along one dimension; groups of lanes and then registers along the other.
        lanes, rows = (m, n) if self.transposed else (n, m)
        size = {m: self.instr_shape[0], n: self.instr_shape[1]}
        held = 4 if self.element_bitwidth == 32 else 1
        groups = 64 // size[lanes]
        pieces = [("register", rows, held), ("lane", lanes, size[lanes]), ("lane", rows, groups)]
        pieces.append(("register", rows, size[rows] // (held * groups)))
        return self._cover(_stack(pieces), self.cga_layout, shape)

    def dot_operand_linear(
        self, operand_index: int, k_width: int, shape: Sequence[int]
    ) -> LinearLayout:
        """See `DistributedLayout.dot_operand_linear`. `k_width` is 4 or 8 for 16-bit elements."""
        shape = check_shape(shape, self.rank)
        rows, k, width = _operand(self.rank, operand_index, k_width)
        size = self.instr_shape[rows - (self.rank - 2)]
        # 64x4 and 4x64 work on four or sixteen small blocks at once; the operand with all lanes
        # along its rows holds in registers what the other one spreads over lanes.
        depth = 64 // min(self.instr_shape[:2])
        pieces = [("register", k, width), ("lane", rows, size), ("lane", k, 64 // size)]
        tile = _stack([*pieces, ("register", k, depth * size // 64)])
        tile = _repeat(tile, k, shape[k])
        return self._cover(tile, self.cga_layout, shape, k)


@dataclass(frozen=True, init=False)
class AMDWMMALayout(DistributedLayout):
    """The accumulator of WMMA, the matrix unit of RDNA and gfx1250 (32 lanes).

    Both spellings make the same value: `warp_bases` and `reg_bases` (Triton 3.7 and later), or
    `warps_per_cta` and `tiles_per_warp` (Triton 3.6), by keyword or in each version's own order:
    `(version, transposed, warp_bases, reg_bases, instr_shape, cga_layout, rank)` or
    `(version, transposed, warps_per_cta, instr_shape, tiles_per_warp, cga_layout)`.

    Args:
        version: 1 for RDNA3, 2 for RDNA4, 3 for gfx1250.
        transposed: a lane holds consecutive columns of a row, instead of rows of a column.
        warp_bases: per bit of the warp index, the tile it moves to, in tiles; zeros broadcast.
        reg_bases: likewise for the tiles of one warp.
        instr_shape: [M, N, K] of the instruction. [16, 16, 16] by default, in version 3
            [16, 16, 32].
        cga_layout: how the blocks of a cluster split the tensor.
        rank: of the tensor; from the bases, and 2 where there are none.
        warps_per_cta: warps along each dimension.
        tiles_per_warp: adjacent tiles that one warp computes.

    Raises:
        LayoutError: an illegal field.

    ISA: RDNA3/RDNA4 `v_wmma_*`, `v_swmmac_*` excluded.
    """

    version: int
    transposed: bool
    warp_bases: list[list[int]]
    reg_bases: list[list[int]]
    instr_shape: list[int]
    cga_layout: list[list[int]]
    rank: int

    def __init__(
        self,
        version: int,
        transposed: bool,
        warp_bases: Optional[Sequence] = None,
        reg_bases: Optional[Sequence] = None,
        instr_shape: Optional[Sequence[int]] = None,
        cga_layout: Optional[Sequence[Sequence[int]]] = None,
        rank: Optional[int] = None,
        *,
        warps_per_cta: Optional[Sequence[int]] = None,
        tiles_per_warp: Optional[Sequence[int]] = None,
    ):
        warp_bases, reg_bases, instr = unwrap(warp_bases), unwrap(reg_bases), unwrap(instr_shape)
        warps, tiles = unwrap(warps_per_cta), unwrap(tiles_per_warp)
        if _is_flat(warp_bases) and warps is None:
            # The order of 3.6: (warps_per_cta, instr_shape, tiles_per_warp).
            warps, warp_bases = warp_bases, None
            if tiles is None and _is_flat(instr) and (_is_flat(reg_bases) or not _is_instr(instr)):
                tiles, instr = instr, None
            if _is_flat(reg_bases):
                instr, reg_bases = reg_bases, None
        if warps is not None or tiles is not None:
            warp_bases, reg_bases = _bases_from_counts(warps, tiles, warp_bases, reg_bases)
            rank = len(warps) if rank is None else rank
        version = check_int(version, "version", 1, 3)
        known = [len(b) for b in [*(warp_bases or []), *(reg_bases or [])] if isinstance(b, list)]
        rank = unwrap(rank)
        rank = check_int(rank if rank is not None else (known or [2])[0], "rank", 2, 3)
        if instr is None:
            instr = [16, 16, 32 if version == 3 else 16]
        self._set(
            version=version,
            transposed=check_bool(transposed, "transposed"),
            warp_bases=check_bases(warp_bases, "warp_bases", rank),
            reg_bases=check_bases(reg_bases, "reg_bases", rank),
            instr_shape=check_ints(instr, "instr_shape"),
            cga_layout=check_cga(cga_layout, rank),
            rank=rank,
        )
        self.verify()

    def verify(self) -> None:
        """Check the fields against each other. Raises LayoutError."""
        if self.instr_shape not in _WMMA_SHAPES[self.version]:
            raise LayoutError(
                f"not an instruction of WMMA version {self.version}",
                argument="instr_shape",
                expected=" or ".join(map(str, _WMMA_SHAPES[self.version])),
                got=self.instr_shape,
            )
        if not all(any(basis) for basis in self.reg_bases):
            raise LayoutError(
                "two tiles of one warp are the same",
                argument="reg_bases",
                expected="bases that are not zero",
                got=self.reg_bases,
            )
        moves = self.reg_bases + [basis for basis in self.warp_bases if any(basis)]
        argument = "warp_bases and reg_bases"
        if not self._mixed:
            check_cga(moves, self.rank, argument)
            return
        sizes = [1 << max(b[d].bit_length() for b in moves) for d in range(self.rank)]
        tiles = LinearLayout({"tile": moves}, dict(zip(dim_names(self.rank), sizes)))
        if not tiles.is_invertible():
            raise LayoutError(
                "warps and registers do not share out the tiles",
                argument=argument,
                expected=f"independent bases, apart from zeros, that reach each of {sizes} tiles",
                got=f"{self.warp_bases} and {self.reg_bases}",
            )

    @property
    def _mixed(self) -> bool:
        """Does a basis move along several dimensions?"""
        return any(sum(map(bool, basis)) > 1 for basis in self.warp_bases + self.reg_bases)

    @property
    def warps_per_cta(self) -> Optional[list[int]]:
        """The spelling of Triton 3.6; None where the bases are not in its order."""
        counts = self._counts()
        return None if counts is None else counts[0]

    @property
    def tiles_per_warp(self) -> Optional[list[int]]:
        """The spelling of Triton 3.6; None where the bases are not in its order."""
        counts = self._counts()
        return None if counts is None else counts[1]

    def _counts(self) -> Optional[tuple[list[int], list[int]]]:
        tiles, warps = [1] * self.rank, [1] * self.rank
        for bases, counts in ((self.reg_bases, tiles), (self.warp_bases, warps)):
            for basis in bases:
                for d, value in enumerate(basis):
                    counts[d] *= 2 if value else 1
        same = _bases_from_counts(warps, tiles, None, None) == (self.warp_bases, self.reg_bases)
        return (warps, tiles) if same else None

    def mangle(self) -> str:
        bases = f"{joined_bases(self.warp_bases)}_{joined_bases(self.reg_bases)}"
        shape = f"{joined(self.instr_shape)}_{joined_bases(self.cga_layout)}_{self.rank}"
        return f"WMMA_{self.version}_{self.transposed}_{bases}_{shape}_WMMA"

    def _emit(self, builder: Any) -> Any:
        if self.instr_shape[0] == 32 and compiler_version() < (3, 8):
            raise _needs_triton((3, 8), "the 32x16 WMMA instruction")
        if self._mixed and compiler_version() < (3, 8):
            raise _needs_triton((3, 8), f"AMDWMMALayout with warp_bases={self.warp_bases}")
        if compiler_version() >= (3, 7):
            return builder.get_amd_wmma_layout(
                self.version,
                self.transposed,
                self.warp_bases,
                self.reg_bases,
                self.cga_layout,
                self.instr_shape,
                self.rank,
            )
        counts = self._counts()
        if counts is None:
            raise _needs_triton((3, 7), f"AMDWMMALayout with warp_bases={self.warp_bases}")
        return builder.get_amd_wmma_layout(
            self.version, self.transposed, *counts, self.cga_layout, self.instr_shape
        )

    def _cover(
        self,
        tile: LinearLayout,
        cga: Sequence[Sequence[int]],
        shape: Sequence[int],
        k: Optional[int] = None,
    ) -> LinearLayout:
        sizes = _per_block(shape, cga)
        dims = range(self.rank)[::-1]
        counts = self._counts()
        if compiler_version() < (3, 7) and counts is not None:
            return _spread(tile, dims, counts[1], counts[0], cga, shape, k)
        bases = {"register": self.reg_bases, "warp": self.warp_bases}
        if k is not None:
            bases = {name: _without(rows, k) for name, rows in bases.items()}
            bases["register"] = [basis for basis in bases["register"] if any(basis)]
        layout = tile * LinearLayout(bases, dim_names(self.rank))
        if k is not None:
            layout = _repeat(layout, k, sizes[k])
        for d in dims:
            layout = _repeat(layout, d, sizes[d])
        return combine_with_cga(layout, cga, shape, keep_copies=True)

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        m, n = self.rank - 2, self.rank - 1
        if compiler_version() < (3, 8) and any(1 < shape[d] < 16 for d in (m, n)):
            raise LayoutError(
                "the installed Triton refuses a WMMA accumulator smaller than the instruction",
                argument="shape",
                expected="at least 16 x 16, or 1",
                got=list(shape),
                remedy="Use Triton 3.8 or newer, or a larger tile.",
            )
        columns, rows = (m, n) if self.transposed else (n, m)
        if self.version == 1:
            pieces = [("lane", columns, 16), ("lane", rows, 2), ("register", rows, 8)]
        else:
            pieces = [("register", rows, 8), ("lane", columns, 16), ("lane", rows, 2)]
        pieces.append(("register", rows, self.instr_shape[0] // 16))
        return self._cover(_stack(pieces), self.cga_layout, shape)

    def dot_operand_linear(
        self, operand_index: int, k_width: int, shape: Sequence[int]
    ) -> LinearLayout:
        """See `DistributedLayout.dot_operand_linear`.

        In version 1 each lane holds all of an instruction's K, twice: `k_width` changes nothing.
        """
        shape = check_shape(shape, self.rank)
        rows, k, width = _operand(self.rank, operand_index, k_width)
        depth = self.instr_shape[2]
        if self.version == 1:
            tile = _stack([("register", k, depth), ("lane", rows, 16)])
            tile = tile * LinearLayout.zeros_1d(2, "lane", f"dim{k}")
        else:
            tile = _stack([("register", k, width), ("lane", rows, 16), ("lane", k, 2)])
            tile = _repeat(tile, k, depth)
            # The 32 of 32x16 lies along the dimension that registers walk in the accumulator.
            tall = rows == self.rank - 2 + self.transposed
            if tall:
                tile = _repeat(tile, rows, self.instr_shape[0])
        if compiler_version() >= (3, 8):
            return self._cover(tile, _without(self.cga_layout, k), shape, k)
        # Blocks that differ along K only were given different elements then, and all of K came
        # before the tiles of a warp; version 1 counted its doubled lanes as more of K.
        tiles = self.tiles_per_warp
        if compiler_version() >= (3, 7) or tiles is None or tiles[rows] > 1:
            tile = _repeat(tile, k, shape[k] // 2 if self.version == 1 else shape[k])
        return self._cover(tile, self.cga_layout, shape, k)


def _is_flat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(is_int(v) for v in value)


def _is_instr(value: list[int]) -> bool:
    return len(value) == 3 and value[0] in (16, 32) and value[1] == 16


def _bases_from_counts(
    warps: Any, tiles: Any, warp_bases: Any, reg_bases: Any
) -> tuple[list[list[int]], list[list[int]]]:
    """(warp_bases, reg_bases) for warps and tiles per dimension, the last dimension fastest."""
    if warps is None or warp_bases is not None or reg_bases is not None:
        raise LayoutError(
            "the two spellings of a WMMA layout are mixed",
            argument="warps_per_cta",
            expected="warps_per_cta and tiles_per_warp, or warp_bases and reg_bases",
        )
    warps = check_powers(warps, "warps_per_cta")
    rank = len(warps)
    tiles = [1] * rank if tiles is None else check_powers(tiles, "tiles_per_warp", rank)

    def bases(counts: list[int], unit: list[int]) -> list[list[int]]:
        return [
            [unit[d] << bit if i == d else 0 for i in range(rank)]
            for d in reversed(range(rank))
            for bit in range(counts[d].bit_length() - 1)
        ]

    return bases(warps, tiles), bases(tiles, [1] * rank)


@dataclass(frozen=True)
class PartitionedSharedLayout(SharedLayout):
    """A buffer whose slices lie in different partitions of LDS, so that they are read at once.

    The buffer is cut along `partition_dim` into `num_partitions * num_groups` slices; slice i lies
    in partition i % num_partitions. The linear layout has the in-dim "partition" besides.

    Args:
        num_partitions: a power of two, at least 2.
        num_groups: slices in each partition, a power of two.
        partition_dim: the dimension that is cut.
        partition_layout: of one slice, a shared layout that is not itself partitioned.

    Raises:
        LayoutError: an illegal field.

    ISA: gfx1250. Triton 3.8 or later.
    """

    num_partitions: int
    num_groups: int
    partition_dim: int
    partition_layout: Any

    def __post_init__(self) -> None:
        inner = unwrap(self.partition_layout)
        if not isinstance(inner, SharedLayout) or isinstance(inner, PartitionedSharedLayout):
            raise LayoutError(
                "not the layout of a slice",
                argument="partition_layout",
                expected="a shared layout that is not partitioned",
                got=repr(inner),
            )
        self._set(
            num_partitions=check_int(self.num_partitions, "num_partitions", 2),
            num_groups=check_int(self.num_groups, "num_groups", 1),
            partition_dim=check_int(self.partition_dim, "partition_dim", 0, inner.rank - 1),
            partition_layout=inner,
        )
        for name in ("num_partitions", "num_groups"):
            check_powers([getattr(self, name)], name)

    @property
    def rank(self) -> int:
        return self.partition_layout.rank

    @property
    def cga_layout(self) -> list[list[int]]:
        return self.partition_layout.cga_layout

    def pad(self, offsets: Any) -> Any:
        """Offsets within a partition (elements) -> offsets with the gaps of each slice's layout."""
        pad = getattr(self.partition_layout, "pad", None)
        if pad is None:
            return offsets
        size = 1 << len(self.partition_layout.offset_bases)
        whole = self.partition_layout.padded_size()
        return offsets // size * whole + pad(offsets % size)

    def _emit(self, builder: Any) -> Any:
        if compiler_version() < (3, 8):
            raise _needs_triton((3, 8), "PartitionedSharedLayout")
        inner = self.partition_layout._to_ir(builder)
        return builder.get_partitioned_shared_layout(
            self.num_partitions, self.num_groups, self.partition_dim, inner
        )

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        slices = self.num_partitions * self.num_groups
        cut = list(shape)
        if cut[self.partition_dim] < slices:
            raise LayoutError(
                "fewer elements than slices",
                argument="shape",
                expected=f"at least {slices} along dimension {self.partition_dim}",
                got=list(shape),
            )
        cut[self.partition_dim] //= slices
        dim = f"dim{self.partition_dim}"
        layout = self.partition_layout.to_linear(cut)
        layout = layout * LinearLayout.identity_1d(self.num_partitions, "partition", dim)
        return layout * LinearLayout.identity_1d(self.num_groups, "offset", dim)
