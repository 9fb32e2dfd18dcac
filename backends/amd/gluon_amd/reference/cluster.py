"""Clusters of workgroups (gfx1250).

The workgroups of a cluster run as one program, in step: a tensor or buffer has the elements of all,
a barrier in LDS stands for those of all. So the cluster's barrier has nothing to wait for.
"""

from __future__ import annotations

from gluon_core.plugin.reference import Machine

__all__ = [
    "amd_cluster_arrive",
    "amd_cluster_wait",
]


def amd_cluster_arrive(machine: Machine) -> None:
    """Order the accesses of the workgroups before and after."""
    machine.cluster_release()


def amd_cluster_wait(machine: Machine) -> None:
    """Record that all have arrived."""
    machine.cluster_acquire()
