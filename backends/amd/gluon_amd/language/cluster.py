"""Barriers between the workgroups of a cluster (gfx1250)."""

from __future__ import annotations

from gluon_amd.features import CLUSTER_HALVES
from gluon_core.errors import ArgumentError
from gluon_core.plugin.ops import (
    builtin,
    semantic_layer,
)
from gluon_core.plugin.semantic import SemanticLayer

__all__ = ["arrive", "wait"]

_REQUIRES = ("amd.clusters",)
_NAME = "gl.amd.gfx1250.cluster"


@builtin(requires=_REQUIRES, since=CLUSTER_HALVES, name=f"{_NAME}.arrive")
def arrive() -> None:
    """Tell the other workgroups of the cluster that this one has come here; do not wait for them.

    Raises:
        ArgumentError: the cluster has one workgroup only.

    ISA: gfx1250, s_barrier_signal -3.
    """
    semantic = semantic_layer()
    _check_cluster(semantic)
    semantic.builder.create_amd_cluster_arrive()


@builtin(requires=_REQUIRES, since=CLUSTER_HALVES, name=f"{_NAME}.wait")
def wait() -> None:
    """Wait until every workgroup of the cluster has arrived. Each `arrive` needs one `wait`.

    Raises:
        ArgumentError: the cluster has one workgroup only.

    ISA: gfx1250, s_barrier_wait -3.
    """
    semantic = semantic_layer()
    _check_cluster(semantic)
    semantic.builder.create_amd_cluster_wait()


def _check_cluster(semantic: SemanticLayer) -> None:
    if semantic.num_ctas < 2:
        raise ArgumentError(
            "a cluster barrier needs several workgroups",
            argument="num_ctas",
            expected="at least 2",
            got=semantic.num_ctas,
            remedy="Launch with num_ctas=2 or more; gl.barrier() is for one workgroup.",
        )
