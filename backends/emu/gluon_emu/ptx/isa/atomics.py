"""The updates of atomics: one thread after the other, or all at once where the order does not matter."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.ptx.floats import pick_extreme
from gluon_emu.ptx.numbers import decode, encode, flushed, rounded, sum_to_odd, uint
from gluon_emu.ptx.program import Type, lanes_of, packed

__all__ = ["at_once", "update_of"]


def update_of(call: Any, kind: str, type: Type, space: str) -> Callable[..., np.ndarray]:
    """Return `f(old, values)`, the new elements; all as unsigned integers."""
    bits = type.bits
    raw = uint(bits)
    if kind == "exch":
        return lambda old, values: values[0]
    if kind == "cas":
        return lambda old, values: np.where(old == values[0], values[1], old)
    if kind in ("and", "or", "xor"):
        bitwise = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[kind]
        return lambda old, values: bitwise(old, values[0])
    if kind == "inc":
        return lambda old, values: np.where(old >= values[0], old.dtype.type(0), old + raw.type(1))
    if kind == "dec":
        return lambda old, values: np.where(
            (old == 0) | (old > values[0]), values[0], old - raw.type(1)
        )
    if type.kind in "us":
        fn: Any = {"add": np.add, "min": np.minimum, "max": np.maximum}[kind]
        dtype = type.dtype
        return lambda old, values: fn(old.view(dtype), values[0].view(dtype)).view(raw)
    if type.kind not in "fh":
        raise call.unknown_type(type)
    return lambda old, values: _floats(kind, type, space, old, values[0])


def _floats(kind: str, type: Type, space: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    element = type.element
    if type.name == "f32" and kind == "add":
        x, y = a.view(np.float32), b.view(np.float32)
        if space == "global":  # subnormal numbers are zeros there
            x, y = (flushed(v, 2.0**-126).astype(np.float32) for v in (x, y))
        total = (x + y).astype(np.float32)
        if space == "global":
            total = flushed(total, 2.0**-126).astype(np.float32)
        bits = total.view(np.uint32)
        return np.where(np.isnan(total), np.uint32(0x7FFFFFFF), bits)
    if type.name == "f64" and kind == "add":
        return np.asarray((a.view(np.float64) + b.view(np.float64)).view(np.uint64))
    lanes = []
    for x, y in zip(lanes_of(a, type), lanes_of(b, type)):
        p, q = decode(x, element), decode(y, element)
        if kind == "add":
            value = rounded(sum_to_odd(p, q), element)
        else:
            value = pick_extreme(p, q, kind == "min", False)
        lanes.append(encode(value, element))
    return packed(lanes, type)


def at_once(kind: str, type: Type, returns: bool) -> Optional[Callable[..., Optional[np.ndarray]]]:
    """Return `f(view, index, values)`, which updates all threads at once; None where there is no such way.

    Integers add, and take extremes, in any order; floats in that of the threads.
    """
    ufunc: Any = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
        "or": np.bitwise_or, "xor": np.bitwise_xor,
    }.get(kind)  # fmt: skip
    if kind == "cas" or ufunc is None or type.kind in "fhp" and type.name != "f64":
        return None
    dtype = type.dtype

    def run(view: np.ndarray, index: np.ndarray, values: list[np.ndarray]) -> Optional[np.ndarray]:
        # On a copy of the few elements: `ufunc.at` may copy all of an array, and this one has gaps.
        places, of = np.unique(index, return_inverse=True)
        typed, new = view[places].view(dtype), values[0].view(dtype)
        if index.size > places.size and returns:
            if kind != "add" or type.kind == "f":
                return None
            before = typed[of] + _sums_before(of, new)
        else:
            before = typed[of]
        ufunc.at(typed, of, new)
        view[places] = typed.view(view.dtype)
        return np.asarray(before.view(view.dtype))

    return run


def _sums_before(index: np.ndarray, amounts: np.ndarray) -> np.ndarray:
    """Return the sum of the amounts that come before each with the same index."""
    order = np.argsort(index, kind="stable")
    ordered, sizes = index[order], amounts[order]
    totals = np.cumsum(sizes, dtype=sizes.dtype) - sizes
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    base = np.repeat(totals[starts], np.diff(np.r_[starts, ordered.size]))
    before = np.empty_like(amounts)
    before[order] = totals - base
    return before
