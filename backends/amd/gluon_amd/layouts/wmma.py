"""The accumulator of WMMA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

from gluon_amd.features import (
    WMMA_32X16,
    WMMA_BASES,
    WMMA_K_REPEATED,
    WMMA_MIXED_BASES,
    WMMA_SMALL_TILES,
)
from gluon_amd.layouts.tiles import operand, per_block, repeat, spread, stack, without
from gluon_core.errors import LayoutError, refuse
from gluon_core.layouts.base import (
    DistributedLayout,
    Layout,
)
from gluon_core.layouts.linear import LinearLayout

__all__ = ["AMDWMMALayout"]

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
        warp_bases: Union[Sequence[Sequence[int]], Sequence[int], None] = None,
        reg_bases: Union[Sequence[Sequence[int]], Sequence[int], None] = None,
        instr_shape: Optional[Sequence[int]] = None,
        cga_layout: Optional[Sequence[Sequence[int]]] = None,
        rank: Optional[int] = None,
        *,
        warps_per_cta: Optional[Sequence[int]] = None,
        tiles_per_warp: Optional[Sequence[int]] = None,
    ):
        warp_bases, reg_bases, instr = (
            self.unwrap(warp_bases),
            self.unwrap(reg_bases),
            self.unwrap(instr_shape),
        )
        warps, tiles = self.unwrap(warps_per_cta), self.unwrap(tiles_per_warp)
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
        version = self.check_int(version, "version", 1, 3)
        known = [len(b) for b in [*(warp_bases or []), *(reg_bases or [])] if isinstance(b, list)]
        rank = self.unwrap(rank)
        rank = self.check_int(rank if rank is not None else (known or [2])[0], "rank")
        if instr is None:
            instr = [16, 16, 32 if version == 3 else 16]
        self._set(
            version=version,
            transposed=self.check_bool(transposed, "transposed"),
            warp_bases=self.check_bases(warp_bases, "warp_bases", rank),
            reg_bases=self.check_bases(reg_bases, "reg_bases", rank),
            instr_shape=self.check_ints(instr, "instr_shape"),
            cga_layout=self.check_bases(cga_layout, "cga_layout", rank),
            rank=rank,
        )

    def verify(self) -> None:
        """Check the fields against each other. Raises LayoutError."""
        self.check_int(self.rank, "rank", 2, 3)
        self.check_cga(self.cga_layout, self.rank)
        if self.instr_shape not in _WMMA_SHAPES[self.version]:
            refuse(
                LayoutError(
                    f"not an instruction of WMMA version {self.version}",
                    argument="instr_shape",
                    expected=" or ".join(map(str, _WMMA_SHAPES[self.version])),
                    got=self.instr_shape,
                )
            )
        moves = [basis for basis in self.reg_bases + self.warp_bases if any(basis)]
        argument = "warp_bases and reg_bases"
        if not self._mixed:
            self.check_cga(moves, self.rank, argument)
            return
        sizes = [1 << max((b[d].bit_length() for b in moves), default=0) for d in range(self.rank)]
        tiles = LinearLayout({"tile": moves}, dict(zip(self.dim_names(self.rank), sizes)))
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
        """Return the spelling of Triton 3.6; None where the bases are not in its order."""
        counts = self._counts()
        return None if counts is None else counts[0]

    @property
    def tiles_per_warp(self) -> Optional[list[int]]:
        """Return the spelling of Triton 3.6; None where the bases are not in its order."""
        counts = self._counts()
        return None if counts is None else counts[1]

    def _counts(self) -> Optional[tuple[list[int], list[int]]]:
        tiles, warps = [1] * self.rank, [1] * self.rank
        for bases, counts in ((self.reg_bases, tiles), (self.warp_bases, warps)):
            for basis in bases:
                for d, value in enumerate(basis):
                    counts[d] *= 2 if value else 1
        same = _bases_of(warps, tiles) == (self.warp_bases, self.reg_bases)
        return (warps, tiles) if same else None

    def mangle(self) -> str:
        bases = f"{self.joined_bases(self.warp_bases)}_{self.joined_bases(self.reg_bases)}"
        shape = f"{self.joined(self.instr_shape)}_{self.joined_bases(self.cga_layout)}_{self.rank}"
        return f"WMMA_{self.version}_{self.transposed}_{bases}_{shape}_WMMA"

    def _emit(self, builder: Any) -> Any:
        if self.instr_shape[0] == 32:
            self.require_followed(WMMA_32X16, "the 32x16 WMMA instruction")
        if self._mixed:
            self.require_followed(
                WMMA_MIXED_BASES, f"AMDWMMALayout with warp_bases={self.warp_bases}"
            )
        if self.follows(WMMA_BASES):
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
            self.require_followed(WMMA_BASES, f"AMDWMMALayout with warp_bases={self.warp_bases}")
        return builder.get_amd_wmma_layout(
            self.version, self.transposed, *(counts or ()), self.cga_layout, self.instr_shape
        )

    def _cover(
        self,
        tile: LinearLayout,
        cga: Sequence[Sequence[int]],
        shape: Sequence[int],
        k: Optional[int] = None,
    ) -> LinearLayout:
        sizes = per_block(shape, cga)
        dims = range(self.rank)[::-1]
        counts = self._counts()
        if not self.follows(WMMA_BASES) and counts is not None:
            return spread(tile, dims, counts[1], counts[0], cga, shape, k)
        bases = {"register": self.reg_bases, "warp": self.warp_bases}
        if k is not None:
            bases = {name: without(rows, k) for name, rows in bases.items()}
            bases["register"] = [basis for basis in bases["register"] if any(basis)]
        layout = tile * LinearLayout(bases, self.dim_names(self.rank))
        if k is not None:
            layout = repeat(layout, k, sizes[k])
        for d in dims:
            layout = repeat(layout, d, sizes[d])
        return self.combine_with_cga(layout, cga, shape, keep_copies=True)

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        m, n = self.rank - 2, self.rank - 1
        if not self.follows(WMMA_SMALL_TILES) and any(1 < shape[d] < 16 for d in (m, n)):
            raise LayoutError(
                "the installed Triton refuses a WMMA accumulator smaller than the instruction",
                argument="shape",
                expected="at least 16 x 16, or 1",
                got=list(shape),
                remedy=f"Use {WMMA_SMALL_TILES.releases}, or a larger tile.",
            )
        columns, rows = (m, n) if self.transposed else (n, m)
        if self.version == 1:
            pieces = [("lane", columns, 16), ("lane", rows, 2), ("register", rows, 8)]
        else:
            pieces = [("register", rows, 8), ("lane", columns, 16), ("lane", rows, 2)]
        pieces.append(("register", rows, self.instr_shape[0] // 16))
        return self._cover(stack(pieces), self.cga_layout, shape)

    def dot_operand_linear(
        self, operand_index: int, k_width: int, shape: Sequence[int]
    ) -> LinearLayout:
        """See `DistributedLayout.dot_operand_linear`.

        In version 1 each lane holds all of an instruction's K, twice: `k_width` changes nothing.
        """
        shape = self.check_shape(shape, self.rank)
        rows, k, width = operand(self.rank, operand_index, k_width)
        depth = self.instr_shape[2]
        if self.version == 1:
            tile = stack([("register", k, depth), ("lane", rows, 16)])
            tile = tile * LinearLayout.zeros_1d(2, "lane", f"dim{k}")
        else:
            tile = stack([("register", k, width), ("lane", rows, 16), ("lane", k, 2)])
            tile = repeat(tile, k, depth)
            # The 32 of 32x16 is along the dimension that registers walk in the accumulator.
            tall = rows == self.rank - 2 + self.transposed
            if tall:
                tile = repeat(tile, rows, self.instr_shape[0])
        if self.follows(WMMA_K_REPEATED):
            return self._cover(tile, without(self.cga_layout, k), shape, k)
        # Blocks that differ along K only were given different elements then, and all of K came
        # before the tiles of a warp; version 1 counted its doubled lanes as more of K.
        tiles = self.tiles_per_warp
        if self.follows(WMMA_BASES) or tiles is None or tiles[rows] > 1:
            tile = repeat(tile, k, shape[k] // 2 if self.version == 1 else shape[k])
        return self._cover(tile, self.cga_layout, shape, k)


def _is_flat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(Layout.is_int(v) for v in value)


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
    warps = Layout.check_powers(warps, "warps_per_cta")
    rank = len(warps)
    return _bases_of(
        warps, [1] * rank if tiles is None else Layout.check_powers(tiles, "tiles_per_warp", rank)
    )


def _bases_of(warps: list[int], tiles: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    rank = len(warps)

    def bases(counts: list[int], unit: list[int]) -> list[list[int]]:
        return [
            [unit[d] << bit if i == d else 0 for i in range(rank)]
            for d in reversed(range(rank))
            for bit in range(counts[d].bit_length() - 1)
        ]

    return bases(warps, tiles), bases(tiles, [1] * rank)
