"""Numbers of 8 and 16 bits in Triton's interpreter, which holds them as integers.

It adds and multiplies the bits of a bfloat16 as they are. Here each op on them computes in float32
and rounds its result to the nearest even number.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

import numpy as np

from gluon_core._triton import tl

__all__ = ["rounded_arithmetic"]

_NAMES = {
    "bf16": "bfloat16",
    "fp8e5": "float8_e5m2",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
}


def _format(dtype: Any) -> Optional[Any]:
    """Return torch's dtype of a type that the interpreter holds as integers; None for others."""
    scalar = dtype.scalar
    name = _NAMES.get(getattr(scalar, "name", ""))
    if name is None:
        return None
    import torch

    return getattr(torch, name)


def _wide(handle: Any) -> np.ndarray:
    """Return the values of a handle, narrow ones in float32."""
    data: np.ndarray = handle.data
    format = _format(handle.dtype)
    if format is None or data.dtype == np.bool_:  # comparisons keep the type of their operands
        return data
    import torch

    bits = torch.from_numpy(
        np.ascontiguousarray(data).view(np.int8 if data.itemsize == 1 else np.int16)
    )
    values: np.ndarray = bits.view(format).to(torch.float32).numpy()
    return values


def _narrow(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Round `values` to a narrow type; return the integers that the interpreter holds."""
    import torch

    format = _format(dtype)
    wide = torch.from_numpy(np.array(values, dtype=np.float32))
    if format is torch.bfloat16:
        bits: np.ndarray = wide.to(format).view(torch.int16).numpy().view(np.uint16)
        return bits
    most = torch.finfo(format).max
    bits = wide.clamp(-most, most).to(format).view(torch.int8).numpy().view(np.uint8)
    return bits


@contextmanager
def rounded_arithmetic(interpreter: Any) -> Iterator[None]:
    """Let the interpreter's builder compute on narrow numbers as described above."""
    builder = interpreter.interpreter_builder
    handle_class = interpreter.TensorHandle
    kind = type(builder)

    def handle(values: np.ndarray, dtype: Any) -> Any:
        if _format(dtype) is not None and values.dtype.kind == "f":
            values = _narrow(values, dtype)
        return handle_class(values, dtype.scalar)

    def is_narrow(*handles: Any) -> bool:
        return any(_format(one.dtype) is not None for one in handles)

    def binary_op(lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        if not is_narrow(lhs, rhs) or op in (np.bitwise_and, np.bitwise_or, np.bitwise_xor):
            return kind.binary_op(builder, lhs, rhs, op)
        return handle(op(_wide(lhs), _wide(rhs)), lhs.dtype)

    def ternary_op(lhs: Any, rhs: Any, other: Any, op: Callable[..., Any]) -> Any:
        if not is_narrow(lhs, rhs, other):
            return kind.ternary_op(builder, lhs, rhs, other, op)
        return handle(op(_wide(lhs), _wide(rhs), _wide(other)), other.dtype)

    def unary_op(arg: Any, op: Callable[..., Any]) -> Any:
        if not is_narrow(arg):
            return kind.unary_op(builder, arg, op)
        return handle(op(_wide(arg)), arg.dtype)

    def create_fma(x: Any, y: Any, z: Any) -> Any:
        return ternary_op(x, y, z, lambda a, b, c: a * b + c)

    def create_dot(a: Any, b: Any, d: Any, *how: Any) -> Any:
        if not is_narrow(a, b, d):
            return kind.create_dot(builder, a, b, d, *how)
        added = _wide(d)
        return handle(np.matmul(_wide(a), _wide(b), dtype=added.dtype) + added, d.dtype)

    def convert(src: Any, dst_type: Any, *rounding: Any) -> Any:
        toward_zero = rounding and rounding[0] is not None and "RTZ" in str(rounding[0])
        floats = src.dtype.scalar.is_floating() and dst_type.scalar.is_floating()
        fits = all(
            _format(t) is not None or t.scalar.name in ("fp16", "fp32", "fp64")
            for t in (src.dtype, dst_type)
        )
        if not fits or toward_zero:
            if floats and rounding:
                return kind.create_fp_to_fp(builder, src, dst_type, *rounding)
            if _format(src.dtype) is None and _format(dst_type) is None:
                return kind.cast_impl(builder, src, dst_type)
        values = _wide(src)
        if _format(dst_type) is None:
            with np.errstate(all="ignore"):
                values = values.astype(interpreter._get_np_dtype(dst_type))
        else:
            values = _narrow(values, dst_type)
        return handle_class(values, dst_type.scalar)

    def create_atomic_rmw(op: Any, ptr: Any, val: Any, mask: Any, *order: Any) -> Any:
        if not is_narrow(val) or not op.name.endswith("FADD"):
            return kind.create_atomic_rmw(builder, op, ptr, val, mask, *order)
        before = np.zeros_like(val.data)
        for place in np.ndindex(val.data.shape):  # one after the other: addresses may repeat
            one = slice_of(ptr, place), slice_of(val, place), slice_of(mask, place)
            old = builder.create_masked_load(one[0], one[2], None, None, None, False)
            before[place] = old.data[0]
            builder.create_masked_store(one[0], binary_op(old, one[1], np.add), one[2], None, None)
        return handle_class(before, val.dtype.scalar)

    def slice_of(whole: Any, place: tuple[int, ...]) -> Any:
        return handle_class(whole.data[place].reshape(1), whole.dtype)

    own: dict[str, Callable[..., Any]] = {
        "binary_op": binary_op,
        "ternary_op": ternary_op,
        "unary_op": unary_op,
        "create_fma": create_fma,
        "create_dot": create_dot,
        "create_erf": lambda arg: (
            unary_op(arg, np.vectorize(_erf, otypes=[np.float32]))
            if is_narrow(arg)
            else kind.create_erf(builder, arg)
        ),
        "create_rsqrt": lambda arg: unary_op(arg, lambda x: 1 / np.sqrt(x)),
        "cast_impl": convert,
        "create_fp_to_fp": convert,
        "get_bf16": lambda value: handle(np.array([value], np.float32), tl.bfloat16),
        "create_atomic_rmw": create_atomic_rmw,
    }
    vars(builder).update(own)
    reductions: Any = interpreter.ReduceScanOpInterface
    apply = reductions.apply

    def widened(one: Any) -> Any:
        if not isinstance(one, tl.tensor) or not is_narrow(one.handle):
            return one
        kind = one.type.with_element_ty(tl.float32) if one.type.is_block() else tl.float32
        return tl.tensor(handle_class(_wide(one.handle), tl.float32), kind)

    def rounded(one: Any, like: Any) -> Any:
        if one.dtype == like.dtype or _format(like.dtype) is None:
            return one
        kind = one.type.with_element_ty(like.dtype) if one.type.is_block() else like.dtype
        return tl.tensor(handle_class(_narrow(one.handle.data, like.dtype), like.dtype), kind)

    def reduced(self: Any, input: Any) -> Any:
        several = isinstance(input, tuple)
        inputs = input if several else (input,)
        wide = tuple(map(widened, inputs))
        result = apply(self, wide if several else wide[0])
        if isinstance(result, (tuple, list)):
            return type(result)(map(rounded, result, inputs))
        return rounded(result, inputs[0])

    reductions.apply = reduced
    try:
        yield
    finally:
        reductions.apply = apply
        for name in own:
            vars(builder).pop(name, None)


def _erf(value: float) -> float:
    import math

    return math.erf(value)
