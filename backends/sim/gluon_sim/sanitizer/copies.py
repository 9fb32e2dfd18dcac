"""Values that several threads load from one address, and what each of them does with its copy.

All threads load a scalar, and threads of several warps load an element where a layout gives it to them. As long as the one
that stores it uses its copy alone, the others may load whatever they find there. Where the value reaches a
store of a tensor whose elements other warps store, or decides whether such a store happens, those warps use the copies that they have loaded,
and so do all warps at a store to shared memory, where each stores its copy.
"""

from __future__ import annotations

from typing import Callable, Iterator, NamedTuple, Optional

import numpy as np

from gluon_core.layouts import Layout
from gluon_sim.sanitizer.access import holders
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.ir import Op, Value
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.types import Type
from gluon_sim.tracing.uses import users_in

__all__ = ["Copies", "Owners", "only_decide", "used_elsewhere"]

# The thread that stores each element of a tensor; None where it is not known.
Owners = Callable[[Layout, tuple[int, ...]], Optional[np.ndarray]]
# For each dimension of a value the one of the loaded tensor; None for one along which it repeats.
_Axes = tuple[Optional[int], ...]

_CASTS = frozenset(
    "bitcast int_cast fp_to_fp fp_ext fp_trunc fp_to_si fp_to_ui si_to_fp ui_to_fp addptr clampf".split()
)
_STORES = frozenset("store masked_store atomic_rmw".split())
_LOCAL = frozenset("local_store local_alloc".split())  # every thread stores its copy


class Copies(NamedTuple):
    """The elements of a load whose copies other warps use than that of their owner.

    Args:
        used: by element.
        decide: the copies decide about stores, and no store takes them.
    """

    used: np.ndarray
    decide: bool


def only_decide(program: Program, op: Op) -> bool:
    """Return True for a load of `used_elsewhere` whose copies only decide about stores."""
    copies: Optional[Copies] = program.findings.copies.get(id(op))
    return copies is not None and copies.decide


def _dims(type: Type) -> tuple[int, ...]:
    return tuple(getattr(type, "dims", ()))


def used_elsewhere(program: Program, op: Op, owners: Owners, lanes: int) -> Optional[Copies]:
    """Return which elements of a load other warps use than the one that counts as their owner; None for none.

    Args:
        lanes: threads of a warp.
    """
    known = program.findings.copies
    if id(op) not in known:
        known[id(op)] = _followed(program, op, owners, lanes)
    copies: Optional[Copies] = known[id(op)]
    return copies


def _owning(type: Type, owners: Owners) -> Optional[np.ndarray]:
    dims = _dims(type)
    return owners(type.layout, dims) if dims else np.zeros((), np.int32)


def _followed(program: Program, op: Op, owners: Owners, lanes: int) -> Optional[Copies]:
    if not op.results:
        return None
    loaded = op.results[0]
    dims, mine = _dims(loaded.type), _owning(loaded.type, owners)
    if mine is None:
        return None
    users = users_in(program)
    used, decided = np.zeros(dims, bool), np.zeros(dims, bool)
    # Values with a copy, and the array that notes a store of theirs.
    left: list[tuple[Value, _Axes, np.ndarray]] = [(loaded, tuple(range(len(dims))), used)]
    seen: set[tuple[int, _Axes, int]] = set()
    while left:
        value, axes, noted = left.pop()
        if (id(value), axes, id(noted)) in seen:
            continue
        seen.add((id(value), axes, id(noted)))
        for user in users.get(id(value), ()):
            if user.name in _STORES or user.name in _LOCAL:
                theirs = _owning(value.type, owners)
                if theirs is None:
                    continue
                noted |= _apart(mine // lanes, theirs // lanes, axes)
                if user.name in _LOCAL:
                    noted |= _of_loaded(_repeated(value.type), axes, mine.shape)
                continue
            controlled = _controlled(user, value)
            if controlled is not None:
                for inner in _inside(controlled):
                    address = next(iter(inner.operands())).type if inner.name in _STORES else None
                    theirs = None if address is None else _owning(address, owners)
                    if theirs is not None:
                        decided |= _apart(mine // lanes, theirs // lanes, (None,) * theirs.ndim)
                left += [(one, (None,) * len(_dims(one.type)), decided) for one in controlled.results]  # fmt: skip
                continue
            after = _after(user, value, axes)
            if after is not None:
                left += [(result, after, noted) for result in user.results]
    either = used | decided
    return Copies(either, not used.any()) if either.any() else None


def _controlled(op: Op, value: Value) -> Optional[Op]:
    """Return the branch or loop that executes as `value` says; None where `op` takes the value for something else."""
    decides = op.args[:3] if op.name == "for" else op.args[:1]
    if not any(isinstance(one, Value) and one.resolve() is value for one in decides):
        return None
    if op.name == "condition_op":
        region = op.block.region if op.block is not None else None
        return region.owner if region is not None and isinstance(region.owner, Op) else None
    return op if op.name in ("if", "for") else None


def _inside(op: Op) -> Iterator[Op]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                yield inner
                yield from _inside(inner)


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


def _repeated(type: Type) -> np.ndarray:
    """Return which elements several warps hold."""
    dims = _dims(type)
    held = holders(type.layout, dims)
    if held is None:
        return np.zeros(dims, bool)
    warps = np.zeros((held.index.shape[0], int(np.prod(dims))), bool)
    for warp, index in enumerate(held.index):
        warps[warp, index.ravel()] = True
    return np.asarray(warps.sum(0) > 1).reshape(dims)


def _of_loaded(flags: np.ndarray, axes: _Axes, shape: tuple[int, ...]) -> np.ndarray:
    """Return the loaded elements of which any copy in a value has its flag."""
    gone = tuple(i for i, axis in enumerate(axes) if axis is None)
    kept = [axis for axis in axes if axis is not None]
    flags = np.asarray(flags.any(axis=gone))
    return flags.reshape(shape) if kept == sorted(kept) and flags.size == int(np.prod(shape)) else np.zeros(shape, bool)  # fmt: skip


def _apart(mine: np.ndarray, theirs: np.ndarray, axes: _Axes) -> np.ndarray:
    """Return of which loaded elements another warp stores a value than their own."""
    kept = [axis for axis in axes if axis is not None]
    gone = tuple(i for i, axis in enumerate(axes) if axis is None)
    shape = [1 if axis is None else theirs.shape[i] for i, axis in enumerate(axes)]
    if int(np.prod(shape)) != mine.size or kept != sorted(kept):
        return np.zeros(mine.shape, bool)
    return np.asarray((theirs != mine.reshape(shape)).any(axis=gone)).reshape(mine.shape)
