"""Layouts that go with WMMA of gfx1250: of its block scales, and of operands in partitioned LDS."""

from __future__ import annotations

from typing import Optional, Union

from gluon_amd.features import (
    PARTITIONED,
    PARTITIONED_WHOLE,
    SCALES_OF_16,
    SCALES_OF_TILES,
    SCALES_SPLIT,
    SCALES_SPLIT_ROWS,
)
from gluon_amd.layouts import AMDWMMALayout, PartitionedSharedLayout
from gluon_core.errors import ArgumentError, LayoutError, ShapeError
from gluon_core.layouts import DistributedLinearLayout, DotOperandLayout, PaddedSharedLayout
from gluon_core.layouts.base import (
    Layout,
)
from gluon_core.plugin.ops import compile_time, tl, unwrap
from gluon_core.plugin.typing import Const, Shape

__all__ = ["get_wmma_scale_layout", "make_partitioned_dot_layouts"]

_DEPTH = 128  # K of the scaled instruction


def _log2(size: int) -> int:
    return size.bit_length() - 1


@compile_time
def get_wmma_scale_layout(
    dot_operand_layout: Union[DotOperandLayout, tl.constexpr],
    shape: Shape,
    scale_factor: Const[int] = 32,
) -> DistributedLinearLayout:
    """Return the layout in which `wmma_scaled` takes the block scales of an operand.

    Lane `l` of the first 16 holds the scales of row `l` of a tile, for the whole K of an
    instruction; the other 16 lanes hold those of the next tile of the warp, for the instruction can
    take them from there.

    Args:
        dot_operand_layout: the operand's layout, `DotOperandLayout(i, AMDWMMALayout(3, ...), ...)`.
        shape: of the scales, [M or N, K / scale_factor], also for operand 1.
        scale_factor: elements of K that share a scale, 32, or 16 with Triton 3.8.

    Returns:
        A `DistributedLinearLayout` of `shape`.

    Raises:
        LayoutError: not an operand of WMMA version 3, or tiles that the installed Triton lacks.
        ShapeError: `shape` is no matrix.
        ArgumentError: another scale factor.
        CapabilityError: 16 before Triton 3.8.

    ISA: gfx1250, v_wmma_scale_f32_16x16x128_f8f6f4, OPSEL of the scale operands.
    """
    layout = unwrap(dot_operand_layout)
    parent = layout.parent if isinstance(layout, DotOperandLayout) else None
    if not isinstance(parent, AMDWMMALayout) or parent.version != 3 or parent.rank != 2:
        raise LayoutError(
            "not an operand of scaled WMMA",
            argument="dot_operand_layout",
            expected="DotOperandLayout(i, AMDWMMALayout(3, ...), k_width)",
            got=repr(layout),
        )
    factor = unwrap(scale_factor)
    if factor not in (16, 32):
        raise ArgumentError(
            "no such block of scales", argument="scale_factor", expected="16 or 32", got=factor
        )
    if factor == 16:
        Layout.require_followed(SCALES_OF_16, "get_wmma_scale_layout(scale_factor=16)")
    try:
        rows, columns = Layout.check_shape(shape, 2)
    except LayoutError as error:
        raise ShapeError(
            "not the shape of scales", argument="shape", expected="[M or N, K / 32]", got=shape
        ) from error
    return _scale_layout(layout.operand_index, parent, rows, columns, factor)


def _scale_layout(
    index: int, parent: AMDWMMALayout, rows: int, columns: int, factor: int
) -> DistributedLinearLayout:
    tall = parent.instr_shape[0] == 32 and index == parent.transposed
    unit = 32 if tall else 16
    blocks = _blocks(index, parent, rows, columns)
    own = [
        max(1, size >> sum(any(b) and b[d] > 0 for b in blocks))
        for d, size in enumerate((rows, columns))
    ]

    def row(value: int) -> list[int]:
        return [value if value < own[0] else 0, 0]

    def column(value: int) -> list[int]:
        return [0, value if value < own[1] else 0]

    warps = [basis[index] * unit for basis in parent.warp_bases]
    tiles = [basis[index] * unit for basis in parent.reg_bases if basis[index]]
    covered = unit << len(tiles + [w for w in set(warps) if w])
    repeats = [covered << bit for bit in range(_log2(max(1, own[0] // covered)))]
    rest = tiles + repeats
    if tall:
        upper = 16
    elif parent.instr_shape[0] == 32:
        upper = 0  # the operand of 16 rows is not repeated: both halves have the same scales
    elif not Layout.follows(SCALES_OF_TILES):
        if len(tiles) > 1:
            raise LayoutError(
                "the installed Triton has scales of two tiles of a warp at most",
                argument="tiles_per_warp",
                expected="at most 2",
                got=parent.tiles_per_warp,
                remedy=f"Use {SCALES_OF_TILES.releases}, or fewer tiles.",
            )
        upper = tiles[0] if tiles else 0
        rest = repeats
    else:
        upper, rest = (rest[0], rest[1:]) if rest else (0, [])
    depth = _DEPTH // factor
    along_k = [1 << bit for bit in range(max(_log2(depth), _log2(columns)))]
    return DistributedLinearLayout(
        reg_bases=[*map(column, along_k), *map(row, rest)],
        lane_bases=[row(1), row(2), row(4), row(8), row(upper)],
        warp_bases=[row(warp) for warp in warps],
        block_bases=blocks,
        shape=[rows, columns],
    )


def _blocks(index: int, parent: AMDWMMALayout, rows: int, columns: int) -> list[list[int]]:
    """Return the split of the scales among blocks of a cluster. Triton before 3.7 and 3.7 itself do not
    split; 3.8 splits them as the accumulator is split, later ones their rows only."""
    cga = parent.cga_layout
    if not Layout.follows(SCALES_SPLIT):
        return []
    split = [[basis[index], 0] for basis in cga] if Layout.follows(SCALES_SPLIT_ROWS) else cga
    counts = [1 << sum(basis[d] > 0 for basis in split) for d in range(2)]
    own = [max(1, size // count) for size, count in zip((rows, columns), counts)]
    return [[value * own[d] for d, value in enumerate(basis)] for basis in split]


@compile_time
def make_partitioned_dot_layouts(
    block_m: Const[int],
    block_n: Const[int],
    original_layout_a: Union[PaddedSharedLayout, tl.constexpr],
    original_layout_b: Union[PaddedSharedLayout, tl.constexpr],
    num_warps: Const[int],
    instr_shape: Shape,
    a_transposed: Const[bool] = False,
    b_transposed: Const[bool] = False,
    slice_m: Optional[Const[int]] = None,
    slice_n: Optional[Const[int]] = None,
    transposed: Const[bool] = True,
) -> tuple[PartitionedSharedLayout, PartitionedSharedLayout, AMDWMMALayout]:
    """Layouts of the operands of a matrix product in LDS whose partitions are read at once.

    Each operand is cut into slices, every other one in the other of two partitions. Warp 1 starts
    one slice of A and one of B further on than warp 0, so that the two read from different
    partitions.

    Args:
        block_m, block_n: rows and columns of the accumulator.
        original_layout_a: PaddedSharedLayout of A, [block_m, K].
        original_layout_b: PaddedSharedLayout of B, [K, block_n].
        num_warps: 4 or 8.
        instr_shape: [M, N, K] of the WMMA instruction.
        a_transposed, b_transposed: A is stored as [K, block_m], B as [block_n, K].
        slice_m, slice_n: rows and columns that the warps compute before they go on, block_m and
            block_n by default (with Triton 3.8, which never has more, four instructions by two);
            both partitions hold half of them each.
        transposed: of the accumulator, see AMDWMMALayout.

    Returns:
        (layout of A, layout of B, layout of the accumulator).

    Raises:
        LayoutError: no padded layouts, or not of the blocks' shapes.
        ShapeError: slices that are too small, or do not divide the block.
        ArgumentError: another number of warps.
        CapabilityError: before Triton 3.8.

    ISA: gfx1250.
    """
    Layout.require_followed(PARTITIONED, "make_partitioned_dot_layouts")
    m, n = Layout.check_int(block_m, "block_m", 1), Layout.check_int(block_n, "block_n", 1)
    instr = Layout.check_ints(instr_shape, "instr_shape", 3)
    is_transposed = Layout.check_bool(transposed, "transposed")
    warps = unwrap(num_warps)
    if warps not in (4, 8):
        raise ArgumentError(
            "needs 4 or 8 warps", argument="num_warps", expected="4 or 8", got=warps
        )
    slices = [unwrap(slice_m), unwrap(slice_n)]
    # The instruction's tall side is along the columns of a transposed accumulator.
    unit = [instr[1], instr[0]] if is_transposed else instr[:2]
    if not Layout.follows(PARTITIONED_WHOLE) and slices == [None, None] and is_transposed:
        unit, slices = instr[:2], [4 * instr[0], 2 * instr[1]]
        if m < slices[0] or n < slices[1]:
            raise ShapeError(
                "smaller than the slices",
                argument="block_m, block_n",
                expected=f"at least {slices}",
                got=[m, n],
            )
    sizes = [own or whole for own, whole in zip(slices, (m, n))]
    for name, size, whole, least in zip(
        ("slice_m", "slice_n"), sizes, (m, n), (4 * unit[0], 2 * unit[1])
    ):
        if not Layout.is_power_of_two(size) or size < least or whole % size:
            raise ShapeError(
                "no slice of the block",
                argument=name,
                expected=f"a power of two from {least} on that divides {whole}",
                got=size,
            )
    half = [size // 2 for size in sizes]
    layouts = [
        _partitioned(name, layout, (m, n)[i], half[i], i ^ bool(unwrap(flag)))
        for i, (name, layout, flag) in enumerate(
            (("a", original_layout_a, a_transposed), ("b", original_layout_b, b_transposed))
        )
    ]
    rows, columns = half[0] // unit[0], half[1] // unit[1]
    warp_bases, last = [[rows, columns], [rows // 2, 0]], [rows, 0]
    reg_bases = [[0, 1 << bit] for bit in range(_log2(columns))]
    reg_bases += [[1 << bit, 0] for bit in range(_log2(rows // 2))]
    (warp_bases if warps == 8 else reg_bases).append(last)
    return (*layouts, AMDWMMALayout(3, is_transposed, warp_bases, reg_bases, instr))  # type: ignore[return-value]


def _partitioned(
    name: str, original: Union[PaddedSharedLayout, tl.constexpr], whole: int, size: int, dim: int
) -> PartitionedSharedLayout:
    """`original`, cut along `dim` into slices of `size` in two partitions."""
    original = unwrap(original)
    argument = f"original_layout_{name}"
    if not isinstance(original, PaddedSharedLayout) or original.rank != 2:
        raise LayoutError(
            "not the layout of an operand",
            argument=argument,
            expected="PaddedSharedLayout of a matrix",
            got=repr(original),
        )
    if original.shape[dim] != whole:
        raise LayoutError(
            "not of the block's shape",
            argument=argument,
            expected=f"{whole} along dimension {dim}",
            got=original.shape,
        )
    shape = list(original.shape)
    shape[dim] = size
    inner = PaddedSharedLayout.with_identity_for(original.interval_padding_pairs, shape, [1, 0])
    return PartitionedSharedLayout(2, whole // size // 2, dim, inner)
