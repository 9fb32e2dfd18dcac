"""Barriers in shared memory and fences (sm_80, sm_90), PTX ISA 9.7.13.15."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np

from gluon_core.plugin.reference import Machine, SharedBuffer

__all__ = [
    "fence_async_shared",
    "mbarrier_arrive",
    "mbarrier_expect",
    "mbarrier_init",
    "mbarrier_inval",
    "mbarrier_wait",
]


def mbarrier_init(machine: Machine, barrier: SharedBuffer, count: int) -> None:
    machine.barrier_init(barrier, count)


def mbarrier_inval(machine: Machine, barrier: SharedBuffer) -> None:
    machine.barrier_invalidate(barrier)


def mbarrier_expect(
    machine: Machine, barrier: SharedBuffer, size: int, pred: Any = None, *rest: Any, **named: Any
) -> None:
    """`mbarrier.arrive.expect_tx`: announces `size` bytes and arrives once."""
    machine.barrier_expect(barrier, size, pred)
    machine.barrier_arrive(barrier, 1, pred)


def mbarrier_arrive(
    machine: Machine, barrier: SharedBuffer, count: int, *rest: Any, **named: Any
) -> None:
    """Arrive once with a count of `count`, where the predicate holds; at the barriers of several blocks
    of a cluster for a mask over the bits of a block's index.

    Then blocks arrive at each other's barriers: as they run in step, each barrier gets as many
    arrivals as each block makes. Builders differ in the order of predicate and mask: the predicate
    is an array, the mask and the one block that arrives are plain numbers.
    """
    pred, mask = named.get("pred"), named.get("multicast_cta", 0)
    for i, value in enumerate(rest):
        if isinstance(value, np.ndarray):
            pred = value
        elif i != 1 and value:
            mask = value
    machine.barrier_arrive(barrier, count << bin(mask).count("1"), pred, bool(mask))


def mbarrier_wait(
    machine: Machine, barrier: SharedBuffer, phase: np.ndarray, pred: Any = None, deps: Any = ()
) -> Iterator[Any]:
    """Until the phase of this parity has completed; `deps` only keep buffers alive."""
    yield from machine.barrier_wait(barrier, phase, pred)


def fence_async_shared(machine: Machine, cluster: bool) -> None:
    """Make earlier accesses of the generic proxy visible to the asynchronous one."""
    machine.fence()
