"""Asynchronous copies between global memory and LDS, lane by lane (gfx1250).

Loads have the builder method that `global_load_lds` has, so their model is in `buffer`, and the
groups are counted there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_amd.reference import buffer
from gluon_core.plugin.reference import Machine, SharedBuffer

__all__ = ["async_copy_lds_barrier_arrive", "async_copy_local_to_global"]

_COPIES = buffer._COPIES


def async_copy_local_to_global(
    machine: Machine, smem: SharedBuffer, pointer: np.ndarray, mask: Any = None, *policy: Any
) -> None:
    """LDS to global memory; nothing where masked off."""

    def perform() -> None:
        machine.store_global(pointer, machine.load_shared(smem), mask)

    machine.issue(_COPIES, perform)


def async_copy_lds_barrier_arrive(machine: Machine, barrier: SharedBuffer) -> None:
    """Arrive, each lane once its earlier copies are done."""
    threads = machine.num_warps * machine.target.warp_size
    machine.issue(
        _COPIES,
        lambda: None,
        lambda: machine.barrier_arrive(barrier, threads),
        barrier=barrier,
        after=True,
    )
