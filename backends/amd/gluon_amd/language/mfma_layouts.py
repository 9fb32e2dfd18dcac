"""Layouts that go with MFMA: of its block scales, and of operands in LDS (CDNA4)."""

from __future__ import annotations

from typing import Optional, Union

from gluon_amd.features import EFFICIENT_PADDING
from gluon_amd.layouts import AMDMFMALayout
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.layouts import DistributedLinearLayout, DotOperandLayout, PaddedSharedLayout
from gluon_core.layouts.base import Layout
from gluon_core.layouts.linear import LinearLayout
from gluon_core.plugin.ops import compile_time, gluon_ir, tl, unwrap
from gluon_core.plugin.typing import Const, Shape

__all__ = ["compute_efficient_padded_shared_layout", "get_mfma_scale_layout", "scale_layout"]

_NAME = "gl.amd.cdna4"
_LANES = 64


@compile_time
def get_mfma_scale_layout(
    dot_operand_layout: Union[DotOperandLayout, tl.constexpr],
    shape: Shape,
    scale_factor: Const[int] = 32,
) -> DistributedLinearLayout:
    """Return the layout in which `mfma_scaled` takes the block scales of an operand.

    A lane holds the scales of the row and of the 32 elements of K that it holds of the operand:
    lane `l` of a 16x16x128 instruction those of row `l % 16` and block `l // 16`, of a 32x32x64
    instruction those of row `l % 32` and block `l // 32`.

    Args:
        dot_operand_layout: the operand's layout, `DotOperandLayout(i, AMDMFMALayout(4, ...), ...)`.
        shape: of the scales, [M or N, K / 32], also for operand 1.
        scale_factor: elements that share a scale; CDNA4 has 32.

    Returns:
        A `DistributedLinearLayout` of `shape`.

    Raises:
        LayoutError: not an operand of MFMA, or of other tiles than 32x32 and 16x16.
        ShapeError: `shape` is no matrix.
        ArgumentError: another scale factor.

    ISA: CDNA4 7.2, Block scaled MFMA, v_mfma_scale_f32_*_f8f6f4.
    """
    index, parent, _ = mfma_operand(dot_operand_layout)
    factor = unwrap(scale_factor)
    if factor != 32:
        raise ArgumentError(
            "CDNA4 scales blocks of 32 elements", argument="scale_factor", expected=32, got=factor
        )
    if parent.instr_shape[:2] not in ([32, 32], [16, 16]):
        raise LayoutError(
            "no instruction of this tile takes scales",
            argument="instr_shape",
            expected="[16, 16, 128] or [32, 32, 64]",
            got=parent.instr_shape,
        )
    return scale_layout(parent, index, shape)


def scale_layout(parent: AMDMFMALayout, index: int, shape: Shape) -> DistributedLinearLayout:
    shape = Layout.check_shape(unwrap(shape), None)
    if len(shape) != 2 or parent.rank != 2:
        raise ShapeError(
            "scales are a matrix", argument="shape", expected="[M or N, K / 32]", got=list(shape)
        )
    rows = parent.instr_shape[index]

    def along(size: int, in_dim: str, dim: str) -> LinearLayout:
        return LinearLayout.identity_1d(size, in_dim, dim)

    layout = LinearLayout({"register": [], "lane": [], "warp": []}, {})
    layout = layout * along(rows, "lane", "dim0") * along(_LANES // rows, "lane", "dim1")
    layout = layout * along(max(1, shape[1] * rows // _LANES), "register", "dim1")
    # All warps along the operand's K hold the same scales.
    assert parent.tiles_per_warp is not None
    for d in (1, 0):
        if d == index:
            layout = layout * along(parent.tiles_per_warp[d], "register", "dim0")
            layout = layout * along(parent.warps_per_cta[d], "warp", "dim0")
        else:
            layout = layout * LinearLayout.zeros_1d(parent.warps_per_cta[d], "warp", "dim0")
    cga = [[basis[index], 0] for basis in parent.cga_layout]
    linear = Layout.combine_with_cga(layout, cga, shape, keep_copies=True)
    bases = [linear.bases.get(name, []) for name in ("register", "lane", "warp", "block")]
    return DistributedLinearLayout(bases[0], bases[1], bases[2], bases[3], list(shape)).check()


@compile_time
def compute_efficient_padded_shared_layout(
    dot_operand_layout: Union[DotOperandLayout, tl.constexpr],
    shape: Shape,
    dtype: Const[tl.dtype],
    is_k_contig: Const[bool] = True,
) -> Optional[PaddedSharedLayout]:
    """Return a padded layout for an MFMA operand in LDS that is written by direct-to-LDS copies of 16
    bytes per lane and read without bank conflicts.

    The choice is not computed here: many layouts are free of conflicts, and which one is taken is
    the compiler's preference alone, which the ISA does not tell. It is asked of the installed Triton
    (3.8 and later), so that buffers are those that upstream's kernels have; that they are free of
    conflicts is checked by `gluon_core.layouts.cost`, in the tests.

    Args:
        dot_operand_layout: in which the operand is read.
        shape: of the operand, [M, K] or [K, N].
        dtype: of its elements.
        is_k_contig: whether K is its fastest dimension in memory.

    Returns:
        A `PaddedSharedLayout`, or None where there is no such layout: elements of more than two
        bytes, or a tile that is too small.

    Raises:
        LayoutError: not an operand of MFMA.
        ShapeError: `shape` is no matrix.
        DtypeError: not a dtype.
        CapabilityError: an older Triton.

    ISA: CDNA4 11, LDS: 64 banks of 4 bytes, ds_read_b128 and ds_read_b64_tr_b16.
    """
    Layout.require_followed(EFFICIENT_PADDING, f"{_NAME}.compute_efficient_padded_shared_layout")
    index, parent, width = mfma_operand(dot_operand_layout)
    shape = Layout.check_shape(unwrap(shape), None)
    dtype = unwrap(dtype)
    if len(shape) != 2 or parent.rank != 2:
        raise ShapeError("must be a matrix", argument="shape", got=list(shape))
    if not isinstance(dtype, tl.dtype) or dtype.is_ptr():
        raise DtypeError("not a dtype", argument="dtype", got=repr(dtype))
    padded = gluon_ir.compute_amd_efficient_padded_shared_layout(
        index,
        width,
        parent.version,
        parent.warps_per_cta,
        parent.instr_shape,
        parent.transposed,
        parent.tiles_per_warp,
        parent.element_bitwidth,
        parent.cga_layout,
        list(shape),
        dtype.primitive_bitwidth,
        bool(unwrap(is_k_contig)),
    )
    if padded is None:
        return None
    return PaddedSharedLayout(
        [list(pair) for pair in padded.interval_padding_pairs],
        padded.offset_bases,
        padded.cga_layout,
        padded.shape,
    )


def mfma_operand(layout: Union[DotOperandLayout, tl.constexpr]) -> tuple[int, AMDMFMALayout, int]:
    """(operand index, accumulator's layout, k_width) of an operand of MFMA."""
    layout = unwrap(layout)
    if not isinstance(layout, DotOperandLayout) or not isinstance(layout.parent, AMDMFMALayout):
        raise LayoutError(
            "not an operand of MFMA",
            argument="dot_operand_layout",
            expected="DotOperandLayout(operand_index, AMDMFMALayout(...), k_width)",
            got=repr(layout),
        )
    return layout.operand_index, layout.parent, layout.k_width
