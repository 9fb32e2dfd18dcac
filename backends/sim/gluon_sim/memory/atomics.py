"""Atomic updates of memory: one element after the other, whatever their addresses."""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np

from gluon_sim.tracing.dtypes import compute, finish, unsigned

__all__ = ["RMW", "apply_atomic"]


def apply_atomic(
    view: np.ndarray,
    index: np.ndarray,
    update: Callable[..., np.ndarray],
    operands: tuple[np.ndarray, ...],
    in_place: Optional[np.ufunc] = None,
) -> tuple[Optional[np.ndarray], bool]:
    """Update `view[index]` one element after the other; (old values, whether anything changed).

    Elements that meet at one address are taken in rounds: the first of each address together,
    then the second of each, and so on. With `in_place`, nobody needs the old values.
    """
    if index.size == 0:
        return np.zeros(0, view.dtype), False
    if index.size == 1:
        old = view[index]
        new = update(old, *operands)
        view[index] = new
        return old, old.tobytes() != np.asarray(new, view.dtype).tobytes()
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    fresh = np.empty(ordered.size, bool)
    fresh[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=fresh[1:])
    if fresh.all():
        old = view[index]
        new = update(old, *operands)
        view[index] = new
        return old, True
    if in_place is not None:
        in_place.at(view, index, operands[0])
        return None, True
    starts = np.flatnonzero(fresh)
    rank = np.arange(ordered.size) - np.repeat(starts, np.diff(np.append(starts, ordered.size)))
    by_round = np.argsort(rank, kind="stable")
    bounds = np.flatnonzero(np.diff(rank[by_round], prepend=-1, append=rank.max() + 1))
    out = np.empty(index.shape, view.dtype)
    for low, high in zip(bounds[:-1], bounds[1:]):
        take = order[by_round[low:high]]
        old = view[index[take]]
        out[take] = old
        view[index[take]] = update(old, *(o[take] for o in operands))
    return out, True


def _float_add(old: np.ndarray, value: np.ndarray) -> np.ndarray:
    return finish(compute(old) + compute(value), old.dtype)


def _on_unsigned(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda old, value: fn(unsigned(old), unsigned(value)).view(old.dtype)


# kind -> (function of old and operand, the ufunc that does it in place)
RMW: dict[str, tuple[Callable[..., np.ndarray], Optional[np.ufunc]]] = {
    "add": (np.add, np.add),
    "fadd": (_float_add, None),
    "max": (np.maximum, np.maximum),
    "min": (np.minimum, np.minimum),
    "umax": (_on_unsigned(np.maximum), None),
    "umin": (_on_unsigned(np.minimum), None),
    "and": (np.bitwise_and, np.bitwise_and),
    "or": (np.bitwise_or, np.bitwise_or),
    "xor": (np.bitwise_xor, np.bitwise_xor),
    "xchg": (lambda old, value: value, None),
    "inc": (
        _on_unsigned(
            lambda old, top: np.where(old >= top, old.dtype.type(0), old + old.dtype.type(1))
        ),
        None,
    ),
    "dec": (
        _on_unsigned(
            lambda old, top: np.where((old == 0) | (old > top), top, old - old.dtype.type(1))
        ),
        None,
    ),
}
