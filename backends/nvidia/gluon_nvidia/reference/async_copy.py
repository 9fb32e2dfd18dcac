"""cp.async (sm_80), PTX ISA 9.7.9.25.3."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_core.plugin.reference import Machine, SharedBuffer

__all__ = [
    "async_commit_group",
    "async_copy_global_to_local",
    "async_copy_mbarrier_arrive",
    "async_wait_group",
]

_COPIES = "cp.async"


def async_copy_global_to_local(
    machine: Machine,
    smem: SharedBuffer,
    pointer: np.ndarray,
    mask: Any = None,
    other: Any = None,
    *policy: Any,
    **named: Any,
) -> None:
    """Global to shared memory, past the registers; `other` (or zero) where masked off."""

    def perform() -> None:
        values = machine.load_global(pointer, smem.dtype, mask, other)
        machine.store_shared(smem, values)

    machine.issue(_COPIES, perform)


def async_commit_group(machine: Machine) -> None:
    machine.commit(_COPIES)


def async_wait_group(machine: Machine, pending: int) -> None:
    machine.wait_groups(_COPIES, pending)


def async_copy_mbarrier_arrive(
    machine: Machine, barrier: SharedBuffer, increment_count: bool
) -> None:
    """Arrive, each thread once its earlier copies are done.

    With `increment_count` each thread first raises the count it then lowers, so the phase only
    waits for the copies; without, the barrier's count must include the threads.
    """
    threads = machine.num_warps * machine.target.warp_size
    if increment_count:
        machine.barrier_raise(barrier, threads)
    machine.issue(
        _COPIES,
        lambda: None,
        lambda: machine.barrier_arrive(barrier, threads),
        barrier=barrier,
        after=True,
    )
