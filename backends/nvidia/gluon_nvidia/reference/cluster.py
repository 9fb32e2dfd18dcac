"""Clusters of blocks (sm_90), PTX ISA 9.7.13.3 and 9.7.9.12.

The blocks of a cluster run as one program, in step: a tensor or buffer has all blocks' elements, a
barrier stands for those of all blocks. So the cluster's barrier has nothing to wait for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_core.layouts.dialect import follows
from gluon_core.plugin.reference import Machine, SharedBuffer
from gluon_nvidia.features import SHARED_STORE_WAITS

__all__ = [
    "async_shared_store",
    "cluster_arrive",
    "cluster_wait",
    "fence_mbarrier_init_release_cluster",
]


def async_shared_store(
    machine: Machine, dst: SharedBuffer, value: np.ndarray, barrier: SharedBuffer
) -> None:
    """st.async: each block's part counts its bytes at the barrier of that block.

    From Triton 3.9 the compiler itself lets the blocks wait for each other's barriers first.
    """
    if not follows(SHARED_STORE_WAITS):
        machine.barrier_remote(barrier)
    split = sum(any(basis) for basis in machine.operand_types()[0].layout.cga_layout)
    size = int(np.prod(dst.shape)) * dst.dtype.itemsize >> split
    machine.issue(
        "st.async",
        lambda: machine.store_shared(dst, value),
        lambda: machine.barrier_complete(barrier, size),
        barrier=barrier,
        remote=True,
    )


def fence_mbarrier_init_release_cluster(machine: Machine, *rest: Any) -> None:
    """Enough for a relaxed barrier of the cluster."""
    machine.cluster_release()


def cluster_arrive(machine: Machine, relaxed: bool = False) -> None:
    """barrier.cluster.arrive: releases earlier accesses, unless it is relaxed."""
    if not relaxed:
        machine.cluster_release()


def cluster_wait(machine: Machine) -> None:
    """barrier.cluster.wait."""
    machine.cluster_acquire()
