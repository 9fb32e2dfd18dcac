"""Share the parts of scaled MFMA and scaled WMMA: `acc + (a * a_scale) @ (b * b_scale)`, emitted as
`tt.dot_scaled`."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

from gluon_amd.features import SCALES_OF_16
from gluon_core.errors import ArgumentError, DtypeError, ShapeError, refuse
from gluon_core.layouts.base import DistributedLayout
from gluon_core.plugin.ops import semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Operand

__all__ = ["FORMATS", "emit_scaled"]

# Format -> the dtypes that hold it; e2m1 is packed, two along K in a byte.
FORMATS: dict[str, tuple[tl.dtype, ...]] = {
    "e2m1": (tl.uint8, tl.int8),
    "e4m3": (tl.float8e4nv, tl.uint8, tl.int8),
    "e5m2": (tl.float8e5, tl.uint8, tl.int8),
}
_BYTES = (tl.int8, tl.uint8)
_ONE = 127  # 2 ** 0 as an E8M0 exponent

ScaleLayout = Callable[[Any, list[int]], DistributedLayout]


def emit_scaled(
    unit: str,
    semantic: SemanticLayer,
    operands: Sequence[tuple[str, tl.tensor, Optional[Operand], Const[str]]],
    acc: tl.tensor,
    factor: int,
    scale_dtypes: Sequence[tl.dtype],
    scale_layout: ScaleLayout,
    check_layouts: bool = True,
    least: int = 1,
) -> tl.tensor:
    """Check the operands and emit the product; gives a tensor like `acc`.

    Args:
        unit: its name, for the errors.
        operands: for a and b: (name, tensor, scale, format). A scale is a tensor, a scalar for
            all blocks, or None, which is 1.
        factor: elements along K that share a scale.
        scale_dtypes: of tensors of scales.
        scale_layout: (operand's layout, shape of the scales) -> layout, for scales that are not
            tensors.
        least: elements along K that one instruction takes.
        check_layouts: the operands have acc's layout as their parent; False where the caller knows
            better.
    """
    if acc.dtype != tl.float32:
        raise DtypeError(
            f"{unit} accumulates in float32", argument="acc", expected="fp32", got=acc.dtype
        )
    (_, a, _, _), (_, b, _, _) = operands
    formats = [_format(f"{name}_format", value) for name, _, _, value in operands]
    for (name, value, _, _), format in zip(operands, formats):
        _check_operand(semantic, name, value, format)
    shapes = [semantic.shape_of(value) for value in (a, b)]
    depths = [
        shape[axis] * (2 if format == "e2m1" else 1)
        for shape, axis, format in zip(shapes, (-1, -2), formats)
    ]
    _check_shapes(shapes, depths, semantic.shape_of(acc))
    if check_layouts:
        semantic.check_dot_operands(a, b, acc)
    if depths[0] < least:
        raise ShapeError(
            "K is shorter than the instruction's",
            argument="a",
            expected=f"{least} or more",
            got=depths[0],
        )
    scales = []
    for i, (name, value, scale, _) in enumerate(operands):
        *batch, rows, columns = shapes[i]
        wanted = [*batch, rows if i == 0 else columns, depths[i] // factor]
        if depths[i] % factor:
            raise ShapeError(
                "K is not made of whole blocks",
                argument=name,
                expected=f"a multiple of {factor} elements",
                got=depths[i],
            )
        argument = f"{name}_scale"
        scale = _scale(semantic, argument, scale, wanted, scale_dtypes, value, scale_layout)
        scales.append(scale)
    handles = []
    for (_, value, _, _), format in zip(operands, formats):
        if format != "e2m1" and value.dtype in _BYTES:
            value = semantic.bitcast(value, FORMATS[format][0])
        handles.append(value.handle)
    kinds = [semantic.scale_format(format) for format in formats]
    handle = semantic.builder.create_dot_scaled(
        handles[0],
        scales[0].handle,
        kinds[0],
        handles[1],
        scales[1].handle,
        kinds[1],
        False,  # fast math
        True,  # e2m1 is packed along K
        True,
        acc.handle,
    )
    return semantic.make_tensor(handle, acc.type)


def _format(argument: str, value: Const[str]) -> str:
    return semantic_layer().one_of(argument, unwrap(value), tuple(FORMATS))


def _check_operand(semantic: SemanticLayer, name: str, value: tl.tensor, format: str) -> None:
    semantic.require_distributed(value, name)
    if value.dtype not in FORMATS[format]:
        raise DtypeError(
            f"does not hold {format}",
            argument=name,
            expected=", ".join(map(str, FORMATS[format])),
            got=value.dtype,
        )


def _check_shapes(shapes: list[list[int]], depths: list[int], result: list[int]) -> None:
    (*batch_a, m, _), (*batch_b, _, n) = shapes
    if batch_a != batch_b or depths[0] != depths[1] or result != [*batch_a, m, n]:
        raise ShapeError(
            "the shapes do not multiply",
            expected="a [M, K], b [K, N], acc [M, N], where e2m1 counts double along K",
            got=f"{shapes[0]}, {shapes[1]}, {result}",
        )


def _scale(
    semantic: SemanticLayer,
    argument: str,
    scale: Optional[Operand],
    shape: list[int],
    dtypes: Sequence[tl.dtype],
    operand: tl.tensor,
    layout: ScaleLayout,
) -> tl.tensor:
    scale = unwrap(scale)
    if isinstance(scale, tl.tensor) and scale.type.is_block():
        if scale.dtype not in dtypes:
            raise DtypeError(
                "scales are E8M0 exponents",
                argument=argument,
                expected=", ".join(map(str, dtypes)),
                got=scale.dtype,
            )
        if semantic.shape_of(scale) != shape:
            raise ShapeError(
                "not the scales of the operand's blocks",
                argument=argument,
                expected=shape,
                got=semantic.shape_of(scale),
            )
        result: tl.tensor = scale
        return result
    scale = _ONE if scale is None else scale
    if isinstance(scale, int):
        if not 0 <= scale <= 255:
            refuse(
                ArgumentError(
                    "not an E8M0 exponent", argument=argument, expected="0 to 255", got=scale
                )
            )
        scale = int(scale) & 255
    elif not isinstance(scale, tl.tensor) or not (
        scale.dtype in dtypes or scale.dtype.is_int() or _casts_floats(scale)
    ):
        refuse(
            DtypeError(
                "scales are E8M0 exponents",
                argument=argument,
                expected="a tensor of uint8 or int8, an integer, or None for 1",
                got=semantic.describe(scale),
            )
        )
    element = tl.uint8
    if isinstance(scale, tl.tensor) and scale.dtype in dtypes and scale.dtype.is_floating():
        element = scale.dtype
    return semantic.full(shape, scale, element, layout(operand.type.layout, shape))


def _casts_floats(scale: tl.tensor) -> bool:
    """Earlier releases cast a scalar of any dtype to an exponent."""
    return scale.dtype.is_floating() and not semantic_layer().has(SCALES_OF_16)
