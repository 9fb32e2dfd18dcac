"""Rotary embedding of queries or keys (Su et al., arXiv:2104.09864) as an operator of PyTorch, on any device."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ShapeError
from gluon_kernels.checks import (
    check_devices,
    check_dtype,
    check_flags,
)
from gluon_kernels.eager import differentiable, is_compiling, is_plain, wants_gradient
from gluon_kernels.plans import Launch, Plans, allocator, key

__all__ = ["rotary"]


@gluon.jit
def rotate(
    src, cosines, sines, dst, length, heads, half, batch_stride, row_stride, head_stride, INVERSE: gl.constexpr,
    HEADS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Rotate the halves of all heads of one position against each other; `dst` is contiguous."""
    layout: gl.constexpr = gl.portable.blocked_layout([HEADS, BLOCK], src.dtype.element_ty)
    row = gl.program_id(0)
    place = row % length
    head = gl.arange(0, HEADS, gl.SliceLayout(1, layout))
    column = gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    there = column < half
    cosine = gl.load(cosines + place * half + column, mask=there, other=0.0)
    sine = gl.load(sines + place * half + column, mask=there, other=0.0)
    cosine = cosine.to(gl.float32)[None, :]
    sine = sine.to(gl.float32)[None, :]
    if INVERSE:
        sine = -sine
    inside = (head < heads)[:, None] & there[None, :]
    src += (row // length).to(gl.int64) * batch_stride + place.to(gl.int64) * row_stride
    dst += row.to(gl.int64) * heads * (2 * half)
    offsets = head[:, None] * head_stride + column[None, :]
    x = gl.portable.load(src, offsets, inside).to(gl.float32)
    y = gl.portable.load(src, offsets + half, inside).to(gl.float32)
    offsets = head[:, None] * (2 * half) + column[None, :]
    gl.portable.store(dst, offsets, x * cosine - y * sine, inside)
    gl.portable.store(dst, offsets + half, y * cosine + x * sine, inside)


def _check(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    check_dtype("rotary", x)
    if x.ndim != 4 or x.shape[-1] % 2:
        raise ShapeError(
            "rotary takes heads of even width",
            argument="x",
            expected="[batch, length, heads, width]",
            got=list(x.shape),
        )
    for name, angles in (("cos", cos), ("sin", sin)):
        check_dtype("rotary", angles, name)
        wanted = (x.shape[1], x.shape[3] // 2)
        if tuple(angles.shape) != wanted:
            raise ShapeError(
                "expected one angle for each position and pair of elements",
                argument=name,
                expected=list(wanted),
                got=list(angles.shape),
            )
    check_devices(x, cos=cos, sin=sin)


def _build(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Any:
    _check(x, cos, sin)
    batch, length, heads, width = x.shape
    empty = allocator(tuple(x.shape), x.dtype, x.device)
    if not x.numel():
        return lambda x, cos, sin, inverse: empty()
    far = (heads - 1) * x.stride(2) >= 1 << 31  # offsets of heads have 32 bits
    copied = x.stride(-1) != 1 or far
    dense = not (cos.is_contiguous() and sin.is_contiguous())
    src, new = x.contiguous() if copied else x, empty()
    tensors = (src, cos.contiguous(), sin.contiguous(), new)
    half = width // 2
    blocks = (1 << max(heads - 1, 0).bit_length(), 1 << max(half - 1, 0).bit_length())
    launch = Launch(
        rotate,
        (batch * length,),
        (*tensors, length, heads, half, *src.stride()[:3], inverse, *blocks),
        tensors,
        num_warps=4 if blocks[0] * blocks[1] > 512 else 1,
    )

    def run(x: Tensor, cos: Tensor, sin: Tensor, inverse: Any) -> Tensor:
        new = empty()
        if dense:
            cos, sin = cos.contiguous(), sin.contiguous()
        launch(x.contiguous() if copied else x, cos, sin, new)
        return new

    return run


_plans = Plans(_build)


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, cos, sin, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin)


def _gradient(ctx: Any, grad: Tensor) -> Any:
    return _rotary(grad, *ctx.saved_tensors, not ctx.inverse), None, None, None


@gluon.torch.op(
    "gluon_kernels::rotary",
    shape=lambda x, cos, sin, inverse: x.shape,
    backward=_gradient,
    setup_context=_keep,
)
def _rotary(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    result: Tensor = _plans((key(x, cos, sin), inverse), x, cos, sin, inverse)
    return result


_watched = differentiable(_rotary.function, _keep, _gradient, again=True)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate the halves of each head against each other by the angles of its position (RoPE).

    The first half becomes `x1 * cos - x2 * sin`, the second `x2 * cos + x1 * sin`, computed in float32. Gradients flow to
    `x`, not to the angles.

    Args:
        x: [batch, length, heads, width], float16, bfloat16 or float32 of any strides, the width even.
        cos, sin: [length, width / 2], of any of these dtypes.
        inverse: rotate back.

    Returns:
        A contiguous tensor of the shape and dtype of `x`.

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices.
    """
    result: Tensor
    if type(inverse) is not bool:
        check_flags(inverse=inverse)
    if not is_compiling() and is_plain(x, cos, sin):
        result = _plans((key(x, cos, sin), inverse), x, cos, sin, inverse)
        return result
    _check(x, cos, sin)
    result = (_watched if wants_gradient(x, cos, sin) else _rotary)(x, cos, sin, inverse)
    return result
