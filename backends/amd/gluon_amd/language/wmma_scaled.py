"""Matrix multiplication of narrow floats with block scales: scaled WMMA (gfx1250)."""

from __future__ import annotations

from typing import Any, Optional

from gluon_amd.features import SCALES_OF_16
from gluon_amd.language.scaled_dot import emit_scaled
from gluon_amd.language.wmma_layouts import get_wmma_scale_layout
from gluon_amd.layouts import AMDWMMALayout
from gluon_core.errors import LayoutError, refuse
from gluon_core.layouts import DotOperandLayout
from gluon_core.layouts.base import DistributedLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.typing import Const, Operand

__all__ = ["wmma_scaled"]

_NAME = "gl.amd.gfx1250.wmma_scaled"
_DEPTH = 128
_WIDTH, _WIDTHS = 16, (8, 16)
_E8M0 = (tl.uint8, tl.int8)


@builtin(
    requires=("amd.wmma_scaled",),
    name=_NAME,
    instead="gl.amd.cdna4.mfma_scaled, or wmma on operands that scaled_upcast made",
)
def wmma_scaled(
    a: tl.tensor,
    a_scale: Optional[Operand],
    a_format: Const[str],
    b: tl.tensor,
    b_scale: Optional[Operand],
    b_format: Const[str],
    acc: tl.tensor,
) -> tl.tensor:
    """`acc + (a * a_scale) @ (b * b_scale)` on the matrix unit, with a scale for each 32 (or 16)
    elements along K.

    Args:
        a: [M, K] tensor with `DotOperandLayout(0, layout, 16)`, where `layout` is acc's; [M, K / 2]
            for "e2m1", with `layout` that of acc but for 64 as its instruction's K, where the low
            half of each byte comes first along K.
        a_scale: [M, K / 32] tensor of uint8 or int8, E8M0 exponents (`2 ** (x - 127)`), with
            `get_wmma_scale_layout(a.layout, ...)`; or one such number for all blocks; or None, 1.
            With Triton 3.8 also [M, K / 16], and float8e4nv scales of two "e2m1" operands.
        a_format: "e2m1" (in uint8 or int8), "e4m3" or "e5m2" (in float8e4nv or float8e5, or their
            bytes).
        b: [K, N] tensor with `DotOperandLayout(1, layout, 16)`; [K / 2, N] for "e2m1".
        b_scale: [N, K / 32], as `a_scale`: its rows are the columns of b.
        b_format: of b; the formats may differ.
        acc: [M, N] float32 tensor with `AMDWMMALayout(3, ..., instr_shape=[16, 16, 128])`, or
            [32, 16, 128] for two "e2m1" operands.

    Returns:
        A tensor like `acc`.

    Raises:
        ArgumentError: no such format, or a scale that is no exponent.
        DtypeError: an operand does not hold its format, or acc is not float32.
        ShapeError: the shapes do not multiply, or the scales do not fit them.
        LayoutError: the layouts do not belong together.
        CapabilityError: the target does not have it.

    ISA: gfx1250, v_wmma_scale_f32_16x16x128_f8f6f4, v_wmma_scale16_f32_16x16x128_f8f6f4 and
    v_wmma_scale_f32_32x16x128_f4.
    """
    semantic = semantic_layer()
    for name, value in (("a", a), ("b", b), ("acc", acc)):
        semantic.require_distributed(value, name)
    layout = acc.type.layout
    if not isinstance(layout, AMDWMMALayout) or layout.version != 3 or layout.rank != 2:
        raise LayoutError(
            "not the accumulator of scaled WMMA",
            argument="acc",
            expected="AMDWMMALayout(3, ..., instr_shape=[16, 16, 128])",
            got=repr(layout),
        )
    if layout.instr_shape[2] != _DEPTH:
        raise LayoutError(
            "scaled WMMA has K = 128",
            argument="instr_shape",
            expected="[16, 16, 128] or [32, 16, 128]",
            got=layout.instr_shape,
        )
    formats = [unwrap(a_format), unwrap(b_format)]
    if layout.instr_shape[0] == 32 and formats != ["e2m1", "e2m1"]:
        raise LayoutError(
            "the instruction of 32 rows multiplies e2m1 only",
            argument="instr_shape",
            expected="[16, 16, 128]",
            got=layout.instr_shape,
        )
    for index, (name, value, format) in enumerate((("a", a, formats[0]), ("b", b, formats[1]))):
        _check_layout(name, index, value.type.layout, layout, format)
    factor = _factor(a, a_scale, formats[0])
    dtypes: tuple[Any, ...] = _E8M0
    if semantic.has(SCALES_OF_16) and formats == ["e2m1", "e2m1"]:
        dtypes = (*_E8M0, tl.float8e4nv)
    return emit_scaled(
        "scaled WMMA",
        semantic,
        (("a", a, a_scale, a_format), ("b", b, b_scale, b_format)),
        acc,
        factor=factor,
        scale_dtypes=dtypes,
        scale_layout=lambda operand, shape: get_wmma_scale_layout(operand, shape, factor),
        check_layouts=False,
    )


def _check_layout(
    name: str, index: int, layout: DistributedLayout, acc: AMDWMMALayout, format: str
) -> None:
    """Check that an operand has the accumulator's layout; packed along K, that of half the K."""
    depth = _DEPTH // 2 if format == "e2m1" else _DEPTH
    wanted = AMDWMMALayout(
        acc.version,
        acc.transposed,
        acc.warp_bases,
        acc.reg_bases,
        [*acc.instr_shape[:2], depth],
        acc.cga_layout,
        acc.rank,
    )
    width = getattr(layout, "k_width", _WIDTH)
    expected = DotOperandLayout(index, wanted, width if width in _WIDTHS else _WIDTH)
    if layout != expected:
        refuse(
            LayoutError(
                "not the layout of an operand",
                argument=name,
                expected=repr(expected),
                got=repr(layout),
            )
        )


def _factor(a: tl.tensor, scale: Optional[Operand], format: str) -> int:
    """Return the number of elements along K that share a scale: 32, or 16 by the scales of a."""
    semantic = semantic_layer()
    scale = unwrap(scale)
    if (
        not isinstance(scale, tl.tensor)
        or not scale.type.is_block()
        or not semantic.shape_of(scale)
    ):
        return 32
    depth = semantic.shape_of(a)[-1] * (2 if format == "e2m1" else 1)
    if semantic.shape_of(scale)[-1] * 16 == depth:
        semantic_layer().require(SCALES_OF_16, f"{_NAME} with blocks of 16")
        return 16
    return 32
