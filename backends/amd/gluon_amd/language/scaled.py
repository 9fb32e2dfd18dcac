"""Conversions between narrow floats with block scales and wider ones (Triton 3.8, 3.9)."""

from __future__ import annotations

from typing import Any, Optional

from gluon_amd.features import (
    SCALED_DOWNCAST,
    SCALED_UPCAST,
    SCALED_UPCAST_LAYOUT,
    SCALES_ARE_FLOATS,
)
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const

__all__ = ["get_scaled_upcast_fp4_scale_layout", "scaled_downcast", "scaled_upcast"]

_FP8 = (tl.float8e4nv, tl.float8e5)
_BYTES = (tl.int8, tl.uint8)
# Every AMD target upcasts, those without an instruction for it by arithmetic.
_ANY_AMD = ("amd.buffer_ops",)
_RESULTS = (tl.float16, tl.bfloat16)
_WIDE = (tl.float16, tl.bfloat16, tl.float32)
_FORMATS = {"e4m3": tl.float8e4nv, "e5m2": tl.float8e5, "e2m1": tl.uint8}
# Elements that one conversion takes, with one scale.
_GROUP = 8


@builtin(requires=_ANY_AMD, since=SCALED_UPCAST, name="gl.amd.cdna3.scaled_upcast")
def scaled_upcast(
    src: tl.tensor, scale: tl.tensor, elem_type: Const[tl.dtype], axis: Optional[Const[int]] = None
) -> tl.tensor:
    """`src` times `2 ** (scale - 127)`, as a 16-bit float.

    Args:
        src: tensor of float8e4nv or float8e5; or of int8 or uint8, two fp4 (e2m1) in each, the
            first in the low half.
        scale: int8 or uint8 holding E8M0 exponents, one for each element of the result, in the
            result's shape and layout.
        elem_type: float16 or bfloat16.
        axis: of packed fp4, the dimension along which two elements share a byte.

    Returns:
        A tensor of `elem_type`: in `src`'s shape and layout for fp8, twice as long along `axis`
        for fp4.

    Raises:
        DtypeError: another dtype.
        ShapeError: the scales do not fit, or no such axis.
        LayoutError: the scales are laid out differently.
        ArgumentError: fp4 without an axis.

    ISA: CDNA4, v_cvt_scalef32_pk_*; gfx1250, v_cvt_scale_pk8_*; elsewhere arithmetic.
    """
    semantic = semantic_layer()
    src = semantic.require_distributed(src, "src")
    scale = semantic.require_distributed(scale, "scale")
    element = _result_type(elem_type)
    if scale.dtype not in _BYTES:
        raise DtypeError(
            "scales are E8M0 exponents",
            argument="scale",
            expected="int8 or uint8",
            got=scale.dtype,
        )
    builder = semantic.builder
    if src.dtype in _FP8:
        _check_scale_shape(scale, semantic.shape_of(src))
        semantic.unify_layouts(src, scale)
        scale = _as_compiled(semantic, scale)
        result = src.type.with_element_ty(element)
        handle = builder.create_scaled_upcast_fp8(result.to_ir(builder), src.handle, scale.handle)
        return semantic.make_tensor(handle, result)
    shape, axis = _unpacked(semantic, src, axis)
    _check_scale_shape(scale, shape)
    _check_scale_layout(src, scale, axis, shape)
    scale = _as_compiled(semantic, scale)
    handle = builder.create_scaled_upcast_fp4(
        src.handle, scale.handle, element.to_ir(builder), axis
    )
    return semantic.wrap_inferred(handle, element, shape)


def _as_compiled(semantic: SemanticLayer, scale: tl.tensor) -> tl.tensor:
    """Return the scales as the installed compiler lowers them: one that multiplies by them wants the
    floats of which they are the exponents, and aborts on bytes."""
    if not semantic.has(SCALES_ARE_FLOATS) or semantic.target.has("amd.wmma_v3"):
        return scale
    exponents = semantic.cast(semantic.bitcast(scale, tl.uint8), tl.int16)
    return semantic.bitcast(
        semantic.shl(exponents, semantic.scalar_constant(7, tl.int16)), tl.bfloat16
    )


@builtin(
    requires=_ANY_AMD,
    since=SCALED_UPCAST_LAYOUT,
    name="gl.amd.cdna3.get_scaled_upcast_fp4_scale_layout",
)
def get_scaled_upcast_fp4_scale_layout(
    src: tl.tensor, scale_factor: Const[int], elem_type: Const[tl.dtype], axis: Const[int]
) -> tl.constexpr:
    """Return the layout in which to load the scales of packed fp4, before they are broadcast.

    Args:
        src: tensor of int8 or uint8, two fp4 in each.
        scale_factor: elements that share a scale, such as 32.
        elem_type: float16 or bfloat16, the dtype of `scaled_upcast`'s result.
        axis: the dimension along which two elements share a byte.

    Returns:
        A compile-time layout for a tensor of the result's shape with `axis` divided by
        `scale_factor`.

    Raises:
        DtypeError, ShapeError: as `scaled_upcast`.
        LayoutError: no layout of the scales fits.

    ISA: none; a layout, known while compiling.
    """
    semantic = semantic_layer()
    src = semantic.require_distributed(src, "src")
    element = _result_type(elem_type)
    shape, axis = _unpacked(semantic, src, axis)
    factor = semantic.compile_time_int(scale_factor, "scale_factor", 1)
    if shape[axis] % factor or factor & (factor - 1):
        raise ShapeError(
            "does not divide the dimension",
            argument="scale_factor",
            expected=f"a power of two that divides {shape[axis]}",
            got=factor,
        )
    builder = semantic.builder
    try:
        layout = builder.get_scaled_upcast_fp4_scale_layout(
            src.handle, shape[axis] // factor, element.to_ir(builder), axis
        )
    except (RuntimeError, ValueError) as error:
        raise LayoutError(
            f"no layout of the scales fits: {error}", argument="src", got=repr(src.type.layout)
        ) from None
    return tl.constexpr(semantic.translate_layout(layout))


@builtin(
    requires=("amd.scaled_convert",), since=SCALED_DOWNCAST, name="gl.amd.cdna4.scaled_downcast"
)
def scaled_downcast(
    input: tl.tensor, scale: tl.tensor, format: Const[str], axis: Const[int] = -1
) -> tl.tensor:
    """`input` divided by `2 ** (scale - 127)`, as a narrow float.

    Args:
        input: tensor of float16, bfloat16 or float32.
        scale: int8 or uint8 holding E8M0 exponents, one for each block of elements along `axis`:
            `input`'s shape with `axis` divided by the block, in the layout that follows from
            `input`'s by that division.
        format: "e4m3", "e5m2", or "e2m1", which is packed, two along `axis` in a byte, the first
            in the low half.
        axis: the dimension of the blocks.

    Returns:
        A tensor of float8e4nv or float8e5 in `input`'s shape and layout; for "e2m1" of uint8, half
        as long along `axis`.

    Raises:
        ArgumentError: no such format.
        DtypeError: another dtype.
        ShapeError: the scales are not one for each block, or no such axis.
        LayoutError: the scales are not in the threads of their blocks, or a thread's groups of 8
            elements do not share a scale.

    ISA: CDNA4 6, V_CVT_SCALEF32_PK_*; gfx1250 V_CVT_SCALEF32_PK8_*.
    """
    semantic = semantic_layer()
    source = semantic.require_distributed(input, "input")
    scale = semantic.require_distributed(scale, "scale")
    kind = semantic.one_of("format", unwrap(format), tuple(_FORMATS))
    if source.dtype not in _WIDE:
        raise DtypeError(
            "is not narrowed",
            argument="input",
            expected=", ".join(map(str, _WIDE)),
            got=source.dtype,
        )
    if scale.dtype not in _BYTES:
        raise DtypeError(
            "scales are E8M0 exponents",
            argument="scale",
            expected="int8 or uint8",
            got=scale.dtype,
        )
    shape = semantic.shape_of(source)
    axis = semantic.wrap_axis(axis, len(shape))
    _check_block_scales(source, scale, axis)
    builder, element = semantic.builder, _FORMATS[kind]
    if kind != "e2m1":
        handle = builder.create_scaled_downcast_fp8(
            source.handle, scale.handle, element.to_ir(builder), axis
        )
        return semantic.make_tensor(handle, source.type.with_element_ty(element))
    handle = builder.create_scaled_downcast_fp4(source.handle, scale.handle, axis)
    shape[axis] //= 2
    return semantic.wrap_inferred(handle, element, shape)


def _check_block_scales(source: tl.tensor, scale: tl.tensor, axis: int) -> None:
    semantic = semantic_layer()
    shape, blocks = semantic.shape_of(source), semantic.shape_of(scale)
    others = len(shape) == len(blocks) and all(
        n == m for d, (n, m) in enumerate(zip(shape, blocks)) if d != axis
    )
    factor = shape[axis] // blocks[axis] if others else 0
    if not others or factor < 2:
        raise ShapeError(
            "there must be one scale for each block",
            argument="scale",
            expected=f"{shape}, with dimension {axis} divided by the elements of a block",
            got=blocks,
        )
    for argument, value in (("input", source), ("scale", scale)):
        _check_known(argument, value.type.layout)
    layout = source.type.layout
    have, want = scale.type.layout.to_linear(blocks).bases, {}
    for name, rows in layout.to_linear(shape).bases.items():
        want[name] = [[v // factor if d == axis else v for d, v in enumerate(r)] for r in rows]
    group = want["register"][: _GROUP.bit_length() - 1]
    if len(group) < _GROUP.bit_length() - 1 or any(map(any, group)):
        raise LayoutError(
            f"{_GROUP} consecutive elements of a thread are converted with one scale",
            argument="input",
            expected=f"{_GROUP} elements of one block along dimension {axis} in each thread",
            got=repr(layout),
        )
    want["register"] = [row for row in want["register"] if any(row)]
    have["register"] = [row for row in have["register"] if any(row)]
    if have != want:
        raise LayoutError(
            "the scales are not in the threads of their blocks",
            argument="scale",
            expected=f"{layout}, with dimension {axis} divided by {factor}",
            got=repr(scale.type.layout),
            remedy="convert_layout the scales first.",
        )


def _check_known(argument: str, layout: Any) -> None:
    if semantic_layer().is_placeholder(layout):
        raise LayoutError(
            "the compiler needs a known layout",
            argument=argument,
            expected="a tensor with a layout",
            got=repr(layout),
            remedy="Give it a layout, use gl.set_auto_layout, or mark the kernel layouts='auto'.",
        )


def _result_type(elem_type: Const[tl.dtype]) -> tl.dtype:
    element = unwrap(elem_type)
    if element not in _RESULTS:
        raise DtypeError(
            "scaled_upcast makes a 16-bit float",
            argument="elem_type",
            expected="float16 or bfloat16",
            got=element,
        )
    result: tl.dtype = element
    return result


def _unpacked(
    semantic: SemanticLayer, src: tl.tensor, axis: Optional[Const[int]]
) -> tuple[list[int], int]:
    """Shape of the fp4 elements, and the checked axis."""
    if src.dtype not in _BYTES:
        raise DtypeError(
            "not a narrow float",
            argument="src",
            expected="float8e4nv, float8e5, or fp4 packed in int8 or uint8",
            got=src.dtype,
        )
    if unwrap(axis) is None:
        raise ArgumentError(
            "packed fp4 needs it", argument="axis", expected="the dimension of the pairs"
        )
    shape = semantic.shape_of(src)
    axis = semantic.wrap_axis(axis, len(shape))
    shape[axis] *= 2
    return shape, axis


def _check_scale_shape(scale: tl.tensor, shape: list[int]) -> None:
    semantic = semantic_layer()
    if semantic.shape_of(scale) != shape:
        raise ShapeError(
            "there must be one scale for each element",
            argument="scale",
            expected=shape,
            got=semantic.shape_of(scale),
            remedy="Broadcast the scales of the blocks to the elements first.",
        )


def _check_scale_layout(src: tl.tensor, scale: tl.tensor, axis: int, shape: list[int]) -> None:
    """Check that the scales are in the threads where the unpacked elements will be; the order of
    registers is for the compiler to compare."""
    layouts = src.type.layout, scale.type.layout
    for argument, layout in zip(("src", "scale"), layouts):
        _check_known(argument, layout)
    have = layouts[1].to_linear(shape).bases
    want = {}
    for name, rows in layouts[0].to_linear(semantic_layer().shape_of(src)).bases.items():
        want[name] = [[v << (d == axis) for d, v in enumerate(row)] for row in rows]
    want["register"].insert(0, [int(d == axis) for d in range(len(shape))])
    have["register"], want["register"] = sorted(have["register"]), sorted(want["register"])
    if have != want:
        raise LayoutError(
            "the scales are not laid out as the elements",
            argument="scale",
            expected=f"{layouts[0]}, with pairs of elements of dimension {axis} in one thread",
            got=repr(layouts[1]),
            remedy="convert_layout the scales first.",
        )
