"""Barriers in LDS (gfx1250).

A barrier is an int64 in LDS that counts arrivals. A phase ends when the barrier's count of arrivals
has come; `wait` with parity 0 passes once the first phase has ended, with parity 1 the second, and
so on.
"""

from __future__ import annotations

from gluon_core.plugin.ops import builtin, semantic_layer, tl
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.values import MBarrierLayout, shared_memory_descriptor

__all__ = ["MBarrierLayout", "arrive", "check_mbarrier", "init", "wait"]

_REQUIRES = ("amd.mbarrier",)
_NAME = "gl.amd.gfx1250.mbarrier"
# The barrier word holds the pending and the initial count, each in 29 bits.
_MAX_COUNT = (1 << 29) - 1


def check_mbarrier(
    value: shared_memory_descriptor, argument: str = "mbarrier"
) -> shared_memory_descriptor:
    """`value` if it is a barrier.

    Raises:
        DtypeError: no shared memory, or not of 64-bit integers.
        LayoutError: not the layout of a barrier.
        ShapeError: not one barrier per block.
    """
    remedy = "gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout()) makes one."
    return semantic_layer().check_barrier(value, argument, remedy)


@builtin(requires=_REQUIRES, name=f"{_NAME}.init")
def init(mbarrier: shared_memory_descriptor, count: Const[int]) -> None:
    """Initialize a barrier: each phase waits for `count` arrivals. One thread does it.

    Args:
        mbarrier: a barrier that is not in use.
        count: compile-time integer, 1 to 2**29 - 1.

    Raises:
        ArgumentError: an illegal count.
        DtypeError, LayoutError, ShapeError: `mbarrier` is no barrier.

    ISA: gfx1250, ds_store_b64 of the barrier's state.
    """
    semantic = semantic_layer()
    mbarrier = check_mbarrier(mbarrier)
    count = semantic.compile_time_int(count, "count", 1, _MAX_COUNT)
    semantic.builder.create_lds_barrier_init(mbarrier.handle, count)


@builtin(requires=_REQUIRES, name=f"{_NAME}.wait")
def wait(mbarrier: shared_memory_descriptor, phase: Scalar[int]) -> None:
    """Wait until the phase of parity `phase` has ended.

    Args:
        mbarrier: an initialized barrier.
        phase: integer scalar, of which the lowest bit counts.

    Raises:
        DtypeError, LayoutError, ShapeError: an operand of another kind.

    ISA: gfx1250, a loop of ds_load_b64 and s_sleep.
    """
    semantic = semantic_layer()
    mbarrier = check_mbarrier(mbarrier)
    phase = semantic.scalar_int32(phase, "phase")
    semantic.builder.create_lds_barrier_wait(mbarrier.handle, phase.handle)


@builtin(requires=_REQUIRES, name=f"{_NAME}.arrive")
def arrive(mbarrier: shared_memory_descriptor, *, count: Const[int] = 1) -> tl.tensor:
    """Arrive, every thread `count` times; earlier writes become visible to waiting threads.

    The count that the barrier was initialized with must include all of them: 128 for the threads of
    four warps.

    Args:
        mbarrier: an initialized barrier.
        count: compile-time integer, 1 to 2**29 - 1; arrivals of each thread.

    Returns:
        int32: the parity of the phase that the barrier was in before.

    Raises:
        ArgumentError: an illegal count.
        DtypeError, LayoutError, ShapeError: `mbarrier` is no barrier.

    ISA: gfx1250, ds_atomic_barrier_arrive_rtn_b64.
    """
    semantic = semantic_layer()
    mbarrier = check_mbarrier(mbarrier)
    count = semantic.compile_time_int(count, "count", 1, _MAX_COUNT)
    handle = semantic.builder.create_lds_barrier_arrive(mbarrier.handle, count)
    return semantic.make_tensor(handle, tl.int32)
