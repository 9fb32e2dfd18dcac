"""Barriers between the workgroups of a cluster (gfx1250)."""

from __future__ import annotations

from typing import Any

from gluon_core.builtin import builtin
from gluon_core.errors import ArgumentError

__all__ = ["arrive", "wait"]

_REQUIRES = ("amd.clusters",)
_NAME = "gl.amd.gfx1250.cluster"


@builtin(requires=_REQUIRES, since=(3, 7), name=f"{_NAME}.arrive")
def arrive(_semantic: Any = None) -> None:
    """Tell the other workgroups of the cluster that this one has come here; do not wait for them.

    Raises:
        ArgumentError: the cluster has one workgroup only.

    ISA: gfx1250, s_barrier_signal -3.
    """
    _check_cluster(_semantic)
    _semantic.builder.create_amd_cluster_arrive()


@builtin(requires=_REQUIRES, since=(3, 7), name=f"{_NAME}.wait")
def wait(_semantic: Any = None) -> None:
    """Wait until every workgroup of the cluster has arrived. Each `arrive` needs one `wait`.

    Raises:
        ArgumentError: the cluster has one workgroup only.

    ISA: gfx1250, s_barrier_wait -3.
    """
    _check_cluster(_semantic)
    _semantic.builder.create_amd_cluster_wait()


def _check_cluster(semantic: Any) -> None:
    if semantic.num_ctas < 2:
        raise ArgumentError(
            "a cluster barrier needs several workgroups",
            argument="num_ctas",
            expected="at least 2",
            got=semantic.num_ctas,
            remedy="Launch with num_ctas=2 or more; gl.barrier() is for one workgroup.",
        )
