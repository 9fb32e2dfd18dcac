"""Clusters of workgroups (gfx1250)."""

from __future__ import annotations

from gluon_core.reference import Machine

__all__ = [
    "amd_cluster_arrive",
    "amd_cluster_wait",
]


def amd_cluster_arrive(machine: Machine) -> None:
    """One workgroup is a cluster of one."""


def amd_cluster_wait(machine: Machine) -> None:
    """One workgroup is a cluster of one."""
