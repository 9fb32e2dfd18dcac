"""Conversions of narrow floats with block scales (Triton 3.8)."""

from __future__ import annotations

from typing import Any

from gluon_core._triton import constexpr, tl, unwrap
from gluon_core.builtin import builtin
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.semantic.base import is_placeholder, shape_of

__all__ = ["get_scaled_upcast_fp4_scale_layout", "scaled_upcast"]

_FP8 = (tl.float8e4nv, tl.float8e5)
_BYTES = (tl.int8, tl.uint8)
_RESULTS = (tl.float16, tl.bfloat16)


@builtin(requires=("amd.mfma",), since=(3, 8), name="gl.amd.cdna3.scaled_upcast")
def scaled_upcast(
    src: Any, scale: Any, elem_type: Any, axis: Any = None, _semantic: Any = None
) -> Any:
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
    """
    src = _semantic.require_distributed(src, "src")
    scale = _semantic.require_distributed(scale, "scale")
    element = _result_type(elem_type)
    if scale.dtype not in _BYTES:
        raise DtypeError(
            "scales are E8M0 exponents",
            argument="scale",
            expected="int8 or uint8",
            got=scale.dtype,
        )
    builder = _semantic.builder
    if src.dtype in _FP8:
        _check_scale_shape(scale, shape_of(src))
        _semantic.unify_layouts(src, scale)
        result = src.type.with_element_ty(element)
        handle = builder.create_scaled_upcast_fp8(result.to_ir(builder), src.handle, scale.handle)
        return _semantic.make_tensor(handle, result)
    shape, axis = _unpacked(_semantic, src, axis)
    _check_scale_shape(scale, shape)
    _check_scale_layout(src, scale, axis, shape)
    handle = builder.create_scaled_upcast_fp4(
        src.handle, scale.handle, element.to_ir(builder), axis
    )
    return _semantic.wrap_inferred(handle, element, shape)


@builtin(
    requires=("amd.mfma",),
    since=(3, 9),
    name="gl.amd.cdna3.get_scaled_upcast_fp4_scale_layout",
)
def get_scaled_upcast_fp4_scale_layout(
    src: Any, scale_factor: Any, elem_type: Any, axis: Any, _semantic: Any = None
) -> Any:
    """The layout in which to load the scales of packed fp4, before they are broadcast.

    Args:
        src: tensor of int8 or uint8, two fp4 in each.
        scale_factor: elements that share a scale, such as 32.
        elem_type: float16 or bfloat16, what `scaled_upcast` will make.
        axis: the dimension along which two elements share a byte.

    Returns:
        A compile-time layout for a tensor of the result's shape with `axis` divided by
        `scale_factor`.

    Raises:
        DtypeError, ShapeError: as `scaled_upcast`.
        LayoutError: no layout of the scales fits.
    """
    src = _semantic.require_distributed(src, "src")
    element = _result_type(elem_type)
    shape, axis = _unpacked(_semantic, src, axis)
    factor = unwrap(scale_factor)
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise ArgumentError(
            "must be a positive compile-time integer", argument="scale_factor", got=repr(factor)
        )
    if shape[axis] % factor or factor & (factor - 1):
        raise ShapeError(
            "does not divide the dimension",
            argument="scale_factor",
            expected=f"a power of two that divides {shape[axis]}",
            got=factor,
        )
    builder = _semantic.builder
    try:
        layout = builder.get_scaled_upcast_fp4_scale_layout(
            src.handle, shape[axis] // factor, element.to_ir(builder), axis
        )
    except (RuntimeError, ValueError) as error:
        raise LayoutError(
            f"no layout of the scales fits: {error}", argument="src", got=repr(src.type.layout)
        ) from None
    return constexpr(_semantic.session.translate_layout(layout))


def _result_type(elem_type: Any) -> Any:
    element = unwrap(elem_type)
    if element not in _RESULTS:
        raise DtypeError(
            "scaled_upcast makes a 16-bit float",
            argument="elem_type",
            expected="float16 or bfloat16",
            got=element,
        )
    return element


def _unpacked(semantic: Any, src: Any, axis: Any) -> tuple[list[int], int]:
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
    shape = shape_of(src)
    axis = semantic._wrap_axis(axis, len(shape))
    shape[axis] *= 2
    return shape, axis


def _check_scale_shape(scale: Any, shape: list[int]) -> None:
    if shape_of(scale) != shape:
        raise ShapeError(
            "there must be one scale for each element",
            argument="scale",
            expected=shape,
            got=shape_of(scale),
            remedy="Broadcast the scales of the blocks to the elements first.",
        )


def _check_scale_layout(src: Any, scale: Any, axis: int, shape: list[int]) -> None:
    """The scales must lie in the threads where the unpacked elements will; the order of registers
    is for the compiler to compare."""
    layouts = src.type.layout, scale.type.layout
    if any(map(is_placeholder, layouts)):
        return
    have = layouts[1].to_linear(shape).bases
    want = {}
    for name, rows in layouts[0].to_linear(shape_of(src)).bases.items():
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
