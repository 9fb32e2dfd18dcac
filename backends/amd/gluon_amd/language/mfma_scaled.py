"""MFMA with block scales (CDNA4)."""

from __future__ import annotations

from typing import Any, Optional

from gluon_amd.language.mfma import attach_regclass, check_regclass
from gluon_amd.language.mfma_layouts import get_mfma_scale_layout
from gluon_amd.language.scaled_dot import emit_scaled
from gluon_amd.layouts import AMDMFMALayout
from gluon_core.errors import CapabilityError, LayoutError, refuse
from gluon_core.layouts import DistributedLinearLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.typing import Const, Operand

__all__ = ["mfma_scaled"]

_NAME = "gl.amd.cdna4.mfma_scaled"
_TILES = ([16, 16], [32, 32])
_FACTOR = 32
_WIDTH = 16


@builtin(requires=("amd.mfma_scaled",), name=_NAME, instead="scaled_upcast and mfma")
def mfma_scaled(
    a: tl.tensor,
    a_scale: Optional[Operand],
    a_format: Const[str],
    b: tl.tensor,
    b_scale: Optional[Operand],
    b_format: Const[str],
    acc: tl.tensor,
    cd_regclass: Optional[Const[str]] = None,
) -> tl.tensor:
    """`acc + (a * a_scale) @ (b * b_scale)` on the matrix cores, with a scale for every 32 elements
    along K.

    Args:
        a: [M, K] tensor with `DotOperandLayout(0, acc.layout, 16)`; [M, K / 2] for "e2m1", where
            the low half of each byte comes first along K.
        a_scale: [M, K / 32] tensor of uint8 or int8, E8M0 exponents (`2 ** (x - 127)`), with
            `get_mfma_scale_layout(a.layout, ...)`; or one such number for all blocks; or None, 1.
        a_format: "e2m1" (in uint8 or int8), "e4m3" or "e5m2" (in float8e4nv or float8e5, or their
            bytes).
        b: [K, N] tensor with `DotOperandLayout(1, acc.layout, 16)`; [K / 2, N] for "e2m1".
        b_scale: [N, K / 32], as `a_scale`: its rows are the columns of b.
        b_format: of b; the formats may differ.
        acc: [M, N] float32 tensor with `AMDMFMALayout(4, [16, 16, 128], ...)` or
            `AMDMFMALayout(4, [32, 32, 64], ...)`.
        cd_regclass: registers for the accumulator: "a" (accumulation), "v" (vector), or None for
            the compiler's choice; Triton 3.9.

    Returns:
        A tensor like `acc`.

    Raises:
        ArgumentError: no such format or registers, or a scale that is no exponent.
        DtypeError: an operand does not hold its format, or acc is not float32.
        ShapeError: the shapes do not multiply, or the scales do not fit them.
        LayoutError: the layouts do not belong together.
        CapabilityError: the target does not have it.

    ISA: CDNA4 7.2, v_mfma_scale_f32_16x16x128_f8f6f4 and v_mfma_scale_f32_32x32x64_f8f6f4.
    """
    semantic = semantic_layer()
    regclass = check_regclass(_NAME, cd_regclass)
    for name, value in (("a", a), ("b", b), ("acc", acc)):
        semantic.require_distributed(value, name)
    layout = acc.type.layout
    if not isinstance(layout, AMDMFMALayout) or layout.instr_shape[:2] not in _TILES:
        raise LayoutError(
            "not the accumulator of scaled MFMA",
            argument="acc",
            expected="AMDMFMALayout(4, [16, 16, 128] or [32, 32, 64], ...)",
            got=repr(layout),
        )
    if layout.version != 4:
        raise CapabilityError(
            f"MFMA version {layout.version} has no block scales",
            argument="acc",
            expected="version=4",
            got=f"version={layout.version}",
        )
    operands = (("a", a, a_scale, a_format), ("b", b, b_scale, b_format))
    for name, value, _, _ in operands:
        width = getattr(value.type.layout, "k_width", _WIDTH)
        if width != _WIDTH:
            refuse(
                LayoutError(
                    "a lane of scaled MFMA holds runs of 16 bytes along K",
                    argument=name,
                    expected=f"k_width={_WIDTH}",
                    got=width,
                )
            )
    result = emit_scaled(
        "scaled MFMA",
        semantic,
        operands,
        acc,
        factor=_FACTOR,
        scale_dtypes=(tl.uint8, tl.int8),
        scale_layout=get_mfma_scale_layout,
        least=layout.instr_shape[-1],
    )
    for name, value, scale, _ in operands:
        scale = unwrap(scale)
        if isinstance(scale, tl.tensor) and scale.type.is_block():
            _check_scale(f"{name}_scale", scale, value)
    return attach_regclass(semantic, result, regclass)


def _check_scale(argument: str, scale: tl.tensor, operand: tl.tensor) -> None:
    semantic = semantic_layer()
    layout: Any = getattr(scale.type, "layout", None)
    if isinstance(layout, DistributedLinearLayout) or semantic.is_placeholder(layout):
        return
    raise LayoutError(
        "not the layout of the operand's scales",
        argument=argument,
        expected=repr(get_mfma_scale_layout(operand.type.layout, semantic.shape_of(scale))),
        got=repr(layout),
        remedy="Convert it with gl.convert_layout to the layout of get_mfma_scale_layout.",
    )
