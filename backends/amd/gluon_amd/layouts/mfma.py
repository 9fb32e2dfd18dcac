"""The accumulator of MFMA."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Sequence

from gluon_amd.layouts.tiles import operand, repeat, spread, stack
from gluon_core.errors import LayoutError, refuse
from gluon_core.layouts.base import (
    DistributedLayout,
)
from gluon_core.layouts.linear import LinearLayout

__all__ = ["AMDMFMALayout"]

_MFMA_TILES = ([32, 32], [16, 16], [64, 4], [4, 64])


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
        warps = self.check_ints(self.warps_per_cta, "warps_per_cta")
        tiles = self.unwrap(self.tiles_per_warp)
        bits = self.unwrap(self.element_bitwidth)
        self._set(
            version=self.check_int(self.version, "version"),
            instr_shape=self.check_ints(self.instr_shape, "instr_shape"),
            transposed=self.check_bool(self.transposed, "transposed"),
            warps_per_cta=warps,
            element_bitwidth=32 if bits is None else self.check_int(bits, "element_bitwidth"),
            tiles_per_warp=[1] * len(warps)
            if tiles is None
            else self.check_ints(tiles, "tiles_per_warp"),
            cga_layout=self.check_bases(self.cga_layout, "cga_layout", len(warps)),
        )
        self._check_instruction()

    def _check_instruction(self) -> None:
        self.check_int(self.version, "version", 1, 4)
        shape = self.instr_shape
        if len(shape) != 3 or shape[:2] not in _MFMA_TILES:
            raise self._no_instruction()
        if self.element_bitwidth not in (32, 64):
            raise LayoutError(
                "unsupported accumulator",
                argument="element_bitwidth",
                expected="32 or 64",
                got=self.element_bitwidth,
            )

    def _no_instruction(self) -> LayoutError:
        return LayoutError(
            "not an MFMA instruction",
            argument="instr_shape",
            expected="[M, N, K] with M x N one of 32x32, 16x16, 64x4, 4x64",
            got=self.instr_shape,
        )

    def verify(self) -> None:
        """Check the fields against each other. Raises LayoutError."""
        self.check_powers(self.warps_per_cta, "warps_per_cta")
        self.check_cga(self.cga_layout, self.rank)
        if self.rank not in (2, 3):
            raise LayoutError(
                "MFMA takes matrices, or a batch of them",
                argument="warps_per_cta",
                expected="2 or 3 entries",
                got=self.warps_per_cta,
            )
        tiles = self.check_powers(self.tiles_per_warp, "tiles_per_warp")
        if len(tiles) < self.rank:
            self.check_powers(tiles, "tiles_per_warp", self.rank)
        if not all(map(self.is_power_of_two, self.instr_shape[2:])):
            raise self._no_instruction()
        if self.instr_shape[:2] == [64, 4] and not self.transposed:
            refuse(
                LayoutError(
                    "the 64x4 instruction is 4x64 with its operands exchanged",
                    argument="transposed",
                    expected=True,
                    got=False,
                )
            )

    @property
    def rank(self) -> int:
        return len(self.warps_per_cta)

    def mangle(self) -> str:
        shape = self.joined([self.version], self.instr_shape, [self.transposed], self.warps_per_cta)
        tiles = self.joined([self.element_bitwidth or 32], self.tiles_per_warp or [1, 1])
        return f"MFMA_{shape}_{tiles}_{self.joined_bases(self.cga_layout)}_MFMA"

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
        return spread(tile, dims, self.tiles_per_warp, self.warps_per_cta, cga, shape, k)

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        m, n = self.rank - 2, self.rank - 1
        # Lanes walk along one dimension; groups of lanes and then registers along the other.
        lanes, rows = (m, n) if self.transposed else (n, m)
        size = {m: self.instr_shape[0], n: self.instr_shape[1]}
        held = 4 if self.element_bitwidth == 32 else 1
        groups = 64 // size[lanes]
        pieces = [("register", rows, held), ("lane", lanes, size[lanes]), ("lane", rows, groups)]
        pieces.append(("register", rows, size[rows] // (held * groups)))
        return self._cover(stack(pieces), self.cga_layout, shape)

    def dot_operand_linear(
        self, operand_index: int, k_width: int, shape: Sequence[int]
    ) -> LinearLayout:
        """See `DistributedLayout.dot_operand_linear`. `k_width` is 4 or 8 for 16-bit elements."""
        shape = self.check_shape(shape, self.rank)
        rows, k, width = operand(self.rank, operand_index, k_width)
        size = self.instr_shape[rows - (self.rank - 2)]
        # 64x4 and 4x64 work on four or sixteen small blocks at once; the operand with all lanes along
        # its rows holds the blocks in registers, the other one spreads them over lanes.
        depth = 64 // min(self.instr_shape[:2])
        pieces = [("register", k, width), ("lane", rows, size), ("lane", k, 64 // size)]
        tile = stack([*pieces, ("register", k, depth * size // 64)])
        tile = repeat(tile, k, shape[k])
        return self._cover(tile, self.cga_layout, shape, k)
