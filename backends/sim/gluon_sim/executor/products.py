"""Matrix products whose bits do not depend on the BLAS that computes them.

A BLAS adds the terms of each element in an order of its own, which may follow from the element's row or column, from the number of
rows, and from the CPU: OpenBLAS's kernels for Haswell and Zen treat rows 6 to 11 of a product otherwise than rows 0 to 5. So
products are summed in float64, where the terms are exact, and rounded to float32 once.

Terms of narrow operands have at most 22 bits: of the 53 there is room for terms that are 2**31 times as small as their sum, so that
sums are exact and have no order. Sums of float32 operands are not exact, but their error has a bound that holds for every order. An
element is settled where both ends of that range round to one number; the few others are summed again exactly. Sums of integers are
often exactly halfway between two float32 numbers, so the boundary of the rounding is set off from there, by far less than the
last bit.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from gluon_sim.tracing.dtypes import cast_float, compute, finish, round_tf32

__all__ = ["matmul", "ordered", "rounded"]

_EPSILON = 2.0**-53
_AWAY = 1 + 2.0**-30  # halves are rounded away from zero
_AT_ONCE = 4096  # elements to sum again in one step
_ROOM = 1 << 16  # elements of a buffer


def rounded(a: np.ndarray, b: np.ndarray, acc: np.ndarray, narrow: bool) -> np.ndarray:
    """Return `acc + a @ b` over the last two dims, summed in float64 or exactly and rounded to float32.

    Args:
        a, b: of a type that float32 holds.
        acc: float32; the three broadcast.
        narrow: the elements of `a` and `b` have at most 11 significant bits.
    """
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], acc.shape[:-2])
    out = np.empty((*lead, a.shape[-2], b.shape[-1]), np.float32)
    # Work in pieces that fit the buffers: fresh memory of this size costs more than the product.
    step = max(1, _ROOM * len(out) // max(out.size, 1))
    for start in range(0, len(out), step):
        some = slice(start, start + step)
        left, right, added = (x if len(x) == 1 else x[some] for x in (a, b, acc))
        _round(left, right, added, out[some], narrow)
    return out


def _round(a: np.ndarray, b: np.ndarray, acc: np.ndarray, out: np.ndarray, narrow: bool) -> None:
    a, b = (_copied(name, x) for name, x in (("a", a), ("b", b)))
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.matmul(a, b, out=_buffer("total", out.shape))
        total += acc
        if narrow:
            out[...] = total
            return
        total *= _AWAY
        error = _error(a.shape[-1], _largest(a) * _largest(b), _largest(acc))
        low, edge = _buffer("low", out.shape, np.float32), _buffer("edge", out.shape)
        low[...] = np.subtract(total, error, out=edge)
        out[...] = np.add(total, error, out=edge)
        unsure = low.view(np.int32) != out.view(np.int32)  # never where the total is not finite
        if unsure.any():
            _settle(a, b, acc, out, unsure)


class _Buffers(threading.local):
    """Scratch memory for products, one per thread."""

    def __init__(self) -> None:
        self.named: dict[tuple[str, Any], np.ndarray] = {}


_buffers = _Buffers()


def _buffer(name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    size = math.prod(shape)
    if size > _ROOM:
        return np.empty(shape, dtype)
    buffer = _buffers.named.get((name, dtype))
    if buffer is None:
        buffer = _buffers.named[name, dtype] = np.empty(_ROOM, dtype)
    return buffer[:size].reshape(shape)


def _copied(name: str, x: np.ndarray) -> np.ndarray:
    copy = _buffer(name, x.shape)
    np.copyto(copy, x)
    return copy


def _largest(x: np.ndarray) -> float:
    """Return the largest finite magnitude."""
    if not x.size:
        return 0.0
    top = max(float(x.max()), -float(x.min()))
    if math.isfinite(top):
        return top
    magnitudes = np.abs(x)
    return float(magnitudes.max(where=np.isfinite(magnitudes), initial=0.0))


def _error(size: int, terms: Any, added: Any) -> Any:
    """Return a bound on the error of `size` terms up to `terms`, and `added`, summed in any order."""
    return 2 * (size + 1) * _EPSILON * (size * terms + added)


def _settle(
    a: np.ndarray, b: np.ndarray, acc: np.ndarray, out: np.ndarray, unsure: np.ndarray
) -> None:
    """Write the elements of the result that are `unsure`."""
    lead = out.shape[:-2]
    a = np.broadcast_to(a, (*lead, *a.shape[-2:]))
    b = np.broadcast_to(b, (*lead, *b.shape[-2:])).swapaxes(-1, -2)
    acc = np.broadcast_to(acc, out.shape)
    places = _indices(unsure)
    if len(places[0]) > _AT_ONCE // 16:
        # Nothing is added to the accumulator in rows and columns that a mask left out.
        rows_used, columns_used = np.asarray(a.any(-1)), np.asarray(b.any(-1))
        nothing = unsure & ~(rows_used[..., :, None] & columns_used[..., None, :])
        np.copyto(out, acc + np.float32(0), where=nothing)  # adding 0 makes zeros positive
        places = _indices(unsure & ~nothing)
    for start in range(0, len(places[0]), _AT_ONCE):
        *batch, rows, columns = some = tuple(index[start : start + _AT_ONCE] for index in places)
        where = tuple(batch)
        terms = a[where + (rows,)] * b[where + (columns,)]
        out[some] = (_sums(terms) + acc[some]) * _AWAY


def _indices(mask: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the indices of true elements: `nonzero`, faster where there are few."""
    return np.unravel_index(np.flatnonzero(mask), mask.shape)


def _sums(terms: np.ndarray) -> np.ndarray:
    """Return the exact sums of the rows, rounded to float64."""
    sums: np.ndarray = terms.sum(-1)
    # Multiples of a unit, 2**52 of which exceed all magnitudes together, add exactly in every order.
    _, exponents = np.frexp(np.abs(terms).sum(-1))
    counts = np.ldexp(terms, 52 - exponents[:, None])
    for index in np.nonzero((counts != np.rint(counts)).any(-1))[0]:
        sums[index] = math.fsum(terms[index].tolist())
    return sums


def ordered(a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    """Return `acc + a @ b` over the last two dims in float64, the products added one by one along K.

    The leading dims broadcast, and all dims of `acc`, as in `rounded`.
    """
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], acc.shape[:-2])
    out = np.zeros((*lead, a.shape[-2], b.shape[-1]))
    product = np.empty_like(out)
    for k in range(a.shape[-1]):
        np.multiply(a[..., :, k, None], b[..., k, None, :], out=product)
        out += product
    out += acc
    return out


def matmul(a: np.ndarray, b: np.ndarray, acc: np.ndarray, precision: Any = None) -> np.ndarray:
    """Return acc + a @ b over the last two dims, summed in float64 and rounded once.

    Args:
        precision: for float32 operands: "tf32" drops the low 13 mantissa bits of both, as the
            tensor cores do; "tf32x3" and "ieee" multiply in full.
    """
    kind = str(getattr(precision, "name", precision)).lower()
    out: np.ndarray
    if acc.dtype.kind == "i":
        # float64 holds every sum of 8-bit products exactly; only the wrap is left to do.
        product = np.matmul(a.astype(np.float64), b.astype(np.float64))
        out = acc + product.astype(np.int64).astype(acc.dtype)
        return out
    if acc.dtype == np.float64:
        return ordered(a.astype(np.float64), b.astype(np.float64), acc)
    narrow = a.dtype.itemsize < 4 and b.dtype.itemsize < 4
    if a.dtype == np.float32 and kind == "tf32":
        a, b, narrow = round_tf32(a), round_tf32(b), True
    total = rounded(_widen(a), _widen(b), compute(acc).astype(np.float32, copy=False), narrow)
    return finish(total, acc.dtype)


def _widen(x: np.ndarray) -> np.ndarray:
    """Cast to a type that NumPy casts to float64 fast."""
    return cast_float(x, "bf16", "fp32") if x.dtype.name == "bfloat16" else compute(x)
