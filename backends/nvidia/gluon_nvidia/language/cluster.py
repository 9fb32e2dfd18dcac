"""Clusters of blocks (sm_90): their barrier, and stores into another block's shared memory."""

from __future__ import annotations

from gluon_core import features
from gluon_core.plugin.ops import builtin, semantic_layer, tl
from gluon_core.plugin.typing import Const
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.features import ASYNC_SHARED_STORE, CLUSTER_HALVES
from gluon_nvidia.language.mbarrier import check_mbarrier

__all__ = ["arrive", "async_store", "barrier", "wait"]

_REQUIRES = ("nvidia.clusters",)
_NAME = "gl.nvidia.hopper.cluster"
_WHOLE = f"Use {_NAME}.barrier(), which is both halves."


@builtin(requires=_REQUIRES, name=f"{_NAME}.arrive")
def arrive(relaxed: Const[bool] = False) -> None:
    """Arrive at the cluster's barrier, its first half. Triton 3.7 and 3.8.

    Args:
        relaxed: compile-time boolean; orders no memory.

    Raises:
        ArgumentError: `relaxed` is no compile-time boolean.
        CapabilityError: another Triton.

    ISA: PTX 9.7.13.3, barrier.cluster.arrive.
    """
    semantic = semantic_layer()
    semantic_layer().require(CLUSTER_HALVES, f"{_NAME}.arrive", _WHOLE)
    semantic.builder.create_cluster_arrive(semantic.compile_time_bool(relaxed, "relaxed"))


@builtin(requires=_REQUIRES, name=f"{_NAME}.wait")
def wait() -> None:
    """Wait until every block of the cluster has arrived, the second half. Triton 3.7 and 3.8.

    Raises:
        CapabilityError: another Triton.

    ISA: PTX 9.7.13.3, barrier.cluster.wait.
    """
    semantic_layer().require(CLUSTER_HALVES, f"{_NAME}.wait", _WHOLE)
    semantic_layer().builder.create_cluster_wait()


@builtin(requires=_REQUIRES, since=features.CLUSTER_BARRIER, name=f"{_NAME}.barrier")
def barrier(relaxed: Const[bool] = False) -> None:
    """Wait until every block of the cluster has come here.

    Args:
        relaxed: compile-time boolean; orders no memory.

    Raises:
        ArgumentError: `relaxed` is no compile-time boolean.

    ISA: PTX 9.7.13.3, barrier.cluster.arrive and .wait.
    """
    semantic = semantic_layer()
    relaxed = semantic.compile_time_bool(relaxed, "relaxed")
    if semantic.has(features.CLUSTER_BARRIER_OP):
        semantic.builder.create_cluster_barrier(relaxed)
    else:
        semantic.builder.create_cluster_arrive(relaxed)
        semantic.builder.create_cluster_wait()


@builtin(requires=_REQUIRES, since=ASYNC_SHARED_STORE, name="gl.nvidia.hopper.async_store")
def async_store(
    dst: shared_memory_descriptor, value: tl.tensor, mbarrier: shared_memory_descriptor
) -> None:
    """Store a tensor to shared memory of the cluster's blocks, asynchronously; its bytes count at
    the barrier of the block that they go to.

    Args:
        dst: shared memory; its layout says which part each block of the cluster holds.
        value: a tensor of that shape and dtype; its layout says which block has which element.
        mbarrier: one barrier for each block, that expects the bytes.

    Raises:
        ShapeError, DtypeError: `value` and `dst` differ, or an operand of another kind.
        LayoutError: `mbarrier` is no barrier, or no kernel's cluster.

    ISA: PTX 9.7.9.12, st.async.shared::cluster.mbarrier::complete_tx::bytes.
    """
    semantic = semantic_layer()
    dst = semantic.shared_memory(dst, "dst")
    semantic.require_distributed(value, "value")
    mbarrier = check_mbarrier(mbarrier)
    semantic.require_unbatched(dst)
    semantic.check_stored(dst.type, value)
    semantic.builder.create_async_shared_store(dst.handle, value.handle, mbarrier.handle)
