"""Threads of one program that meet in global memory without a barrier between them.

Warps of a partition run in step here, on a GPU they do not. Within shared memory the compiler puts
the barriers; a store to global memory by one thread and a load by another are ordered only by a barrier
of the program. Only certain races are reported: every op that may hold a barrier counts as one, and of
threads that hold the same element only the first counts, unless stores of others certainly take the values that they have loaded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Optional, Union

import numpy as np

from gluon_core.features import ATOMIC_BARRIERS
from gluon_core.layouts import Layout
from gluon_core.layouts.dialect import follows
from gluon_sim.sanitizer.access import holders
from gluon_sim.sanitizer.agents import Task
from gluon_sim.sanitizer.copies import used_elsewhere
from gluon_sim.sanitizer.program_order import order_of
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.uses import is_used

__all__ = ["Met", "ThreadShadow", "passive"]

SEVERAL = -2
# Ops through which no thread waits for another.
_PASSIVE = frozenset(
    "load store masked_load masked_store get_program_id get_num_programs make_range splat broadcast "
    "expand_dims unsplat join split addptr bitcast int_cast fp_to_fp fp_ext fp_trunc fp_to_si fp_to_ui "
    "si_to_fp ui_to_fp int_to_ptr ptr_to_int clampf if for while call ret branch cond_branch yield_op "
    "condition_op local_alloc memdesc_index memdesc_subslice memdesc_trans memdesc_reshape assume scope".split()
)
_ATOMIC = frozenset({"atomic_rmw", "atomic_cas"})


def passive(op: Op) -> bool:
    """Return True if the op certainly does not wait for other threads."""
    return op.name in _PASSIVE or op.name in ELEMENTWISE or op.name in _ATOMIC and _unanswered(op)


def _unanswered(op: Op) -> bool:
    """For an atomic: does no thread need its result, and has it no barrier around it?"""
    if is_used(op):
        return False
    return order_of(op)[:2] == (False, False) or not follows(ATOMIC_BARRIERS)


@lru_cache(maxsize=512)
def _owners(layout: Layout, dims: tuple[int, ...]) -> Optional[np.ndarray]:
    """Return the thread of each element of a tensor; the first of those that hold it, which stores it."""
    held = holders(layout, dims)
    if held is None:
        return None
    warps, lanes, _ = held.index.shape
    thread = np.arange(warps * lanes, dtype=np.int32).reshape(warps, lanes, 1)
    owners = np.zeros(int(np.prod(dims)), np.int32)
    owners[held.index[held.first]] = np.broadcast_to(thread, held.index.shape)[held.first]
    return owners.reshape(dims)


def by_others(
    task: Task, live: Optional[np.ndarray], shape: tuple[int, ...]
) -> Union[bool, np.ndarray]:
    """Which elements of an access are not by the thread that makes the task's scalar atomics.

    Where warps run in lockstep its whole warp counts as one. Data that hardware moves on its own, or without a layout, counts as that thread's.

    Args:
        live: which elements of `shape` (programs, *dims) are accessed.
    """
    if len(shape) == 1 or (task.agent is not None and task.agent.flight is not None):
        return False
    for value in task.op.operands():
        dims = tuple(getattr(value.type, "dims", ()))
        if len(dims) == len(shape) - 1 and all(s in (1, d) for s, d in zip(shape[1:], dims)):
            break
    else:
        return False
    owners = _owners(value.type.layout, dims)
    if owners is None:
        return False
    for axis, size in enumerate(shape[1:]):
        if size != dims[axis]:
            owners = owners.min(axis=axis, keepdims=True)
    others = owners >= task.machine.in_step
    if not others.any():
        return False
    owner = np.broadcast_to(others, shape)
    return owner if live is None else owner[live]


class Met(NamedTuple):
    """An earlier access, to the element `place`, by another thread.

    Attributes:
        time: when it was.
        blocks: whether the two are of different blocks of a cluster.
    """

    place: int
    kind: str
    time: int
    blocks: bool


class ThreadShadow:
    """The shadow of one allocation that a kernel loads from and stores to; elements of `grain` bytes.

    Per element the last store and the last load: when, and by which thread. Times count accesses
    and barriers of the launch from 1 on. Untouched parts take no memory.
    """

    def __init__(self, nbytes: int, grain: int):
        self.grain = grain
        size = nbytes // grain
        self.times = {kind: np.zeros(size, np.int32) for kind in ("read", "write")}
        self.by = {kind: np.zeros(size, np.int16) for kind in ("read", "write")}

    def touch(
        self,
        task: Task,
        kind: str,
        index: np.ndarray,
        live: Optional[np.ndarray],
        shape: tuple[int, ...],
        now: int,
    ) -> Optional[Met]:
        """Record an access; return an earlier one by another thread, or None."""
        type = next(iter(task.op.operands())).type
        dims = tuple(getattr(type, "dims", ()))
        owners = _owners(type.layout, dims) if dims else np.zeros((), np.int32)
        # An address that repeats along an axis is everybody's; a scalar is the first thread's.
        if owners is None or shape[1:] != dims:
            return None
        if kind == "read":
            program, lanes = task.machine.program.program, task.machine.target.warp_size
            several = used_elsewhere(program, task.op, _owners, lanes)
            if several is not None:
                owners = np.where(several.used, np.int32(SEVERAL), owners)
        whole = np.broadcast_to(owners, shape)
        mine = whole.reshape(index.shape) if live is None else whole[live]
        meeting = None
        for other in ("write",) if kind == "read" else ("write", "read"):
            then = self.times[other].take(index, mode="clip")
            by = self.by[other].take(index, mode="clip")
            bad = (then >= task.since) & (by != mine)
            far = np.False_
            if task.machine.num_ctas > 1:
                block = task.num_warps * task.machine.target.warp_size
                far = (then >= task.together) & (by >= 0) & (by // block != mine // block)
                bad |= far
            if bad.any():
                first = np.unravel_index(int(np.argmax(bad)), bad.shape)
                place = int(np.broadcast_to(index, bad.shape)[first])
                apart = bool(np.broadcast_to(far, bad.shape)[first])
                meeting = Met(place, other, int(then[first]), apart)
                break
        if kind == "read":
            again = self.times["read"].take(index, mode="clip") >= task.since
            same = self.by["read"].take(index, mode="clip") == mine
            mine = np.where(again & ~same, SEVERAL, mine)
        self.times[kind][index] = now
        self.by[kind][index] = mine
        return meeting
