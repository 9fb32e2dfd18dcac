"""Values that several threads load from one address, and what each of them does with its copy.

All threads load a scalar, and threads of several warps load an element where a layout gives it to them. As long as the one
that stores it uses its copy alone, the others may load whatever they find there. Where the value reaches a
store of a tensor whose elements other warps store, those warps use the copies that they have loaded.
"""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np

from gluon_core.layouts import Layout
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.ir import Op, Value
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.types import Type
from gluon_sim.tracing.uses import users_in

__all__ = ["Owners", "used_elsewhere"]

# The thread that stores each element of a tensor; None where it is not known.
Owners = Callable[[Layout, tuple[int, ...]], Optional[np.ndarray]]
# For each dimension of a value the one of the loaded tensor; None for one along which it repeats.
_Axes = tuple[Optional[int], ...]

_CASTS = frozenset(
    "bitcast int_cast fp_to_fp fp_ext fp_trunc fp_to_si fp_to_ui si_to_fp ui_to_fp addptr clampf".split()
)
_STORES = frozenset("store masked_store atomic_rmw".split())


def _dims(type: Type) -> tuple[int, ...]:
    return tuple(getattr(type, "dims", ()))


def used_elsewhere(program: Program, op: Op, owners: Owners, lanes: int) -> Optional[np.ndarray]:
    """Return which elements of a load other warps store than the one that counts as their owner; None for none.

    Args:
        lanes: threads of a warp.
    """
    known = program.found.copies
    if id(op) not in known:
        known[id(op)] = _followed(program, op, owners, lanes)
    return known[id(op)]


def _owning(type: Type, owners: Owners) -> Optional[np.ndarray]:
    dims = _dims(type)
    return owners(type.layout, dims) if dims else np.zeros((), np.int32)


def _followed(program: Program, op: Op, owners: Owners, lanes: int) -> Optional[np.ndarray]:
    if not op.results:
        return None
    loaded = op.results[0]
    dims, mine = _dims(loaded.type), _owning(loaded.type, owners)
    if mine is None:
        return None
    users = users_in(program)
    used = np.zeros(dims, bool)
    left: list[tuple[Value, _Axes]] = [(loaded, tuple(range(len(dims))))]
    seen: set[tuple[int, _Axes]] = set()
    while left:
        value, axes = left.pop()
        if (id(value), axes) in seen:
            continue
        seen.add((id(value), axes))
        for user in users.get(id(value), ()):
            if user.name in _STORES:
                theirs = _owning(value.type, owners)
                if theirs is not None:
                    used |= _apart(mine // lanes, theirs // lanes, axes)
                continue
            after = _after(user, value, axes)
            if after is not None:
                left += [(result, after) for result in user.results]
    return used if used.any() else None


def _after(op: Op, value: Value, axes: _Axes) -> Optional[_Axes]:
    """Return the dimensions of an op's results; None where threads exchange values."""
    if op.name in ELEMENTWISE or op.name in _CASTS:
        return axes
    dims = _dims(op.results[0].type) if op.results else ()
    if op.name == "splat":
        return (None,) * len(dims)
    if op.name == "expand_dims":
        axis = int(op.args[1])
        return (*axes[:axis], None, *axes[axis:])
    if op.name == "broadcast":
        before = _dims(value.type)
        return tuple(a if n == b else None for a, n, b in zip(axes, dims, before))
    return None


def _apart(mine: np.ndarray, theirs: np.ndarray, axes: _Axes) -> np.ndarray:
    """Return of which loaded elements another warp stores a value than their own."""
    kept = [axis for axis in axes if axis is not None]
    gone = tuple(i for i, axis in enumerate(axes) if axis is None)
    shape = [1 if axis is None else theirs.shape[i] for i, axis in enumerate(axes)]
    if int(np.prod(shape)) != mine.size or kept != sorted(kept):
        return np.zeros(mine.shape, bool)
    return np.asarray((theirs != mine.reshape(shape)).any(axis=gone)).reshape(mine.shape)
