"""Clusters of blocks (sm_90): their barrier, and stores into another block's shared memory."""

from __future__ import annotations

from typing import Any

from gluon_core import _triton
from gluon_core.builtin import builtin
from gluon_core.errors import CapabilityError
from gluon_core.semantic.operands import compile_time_bool, shared_memory
from gluon_nvidia.language.mbarrier import check_mbarrier

__all__ = ["arrive", "async_store", "barrier", "wait"]

_REQUIRES = ("nvidia.clusters",)
_NAME = "gl.nvidia.hopper.cluster"


def _halves(public: str) -> None:
    """The two halves of the barrier exist in Triton 3.7 and 3.8 only."""
    _triton.require((3, 7), public)
    if _triton.at_least(3, 9):
        raise CapabilityError(
            f"{public} exists with Triton 3.7 and 3.8, found {_triton.VERSION_TEXT}",
            remedy=f"Use {_NAME}.barrier(), which is both halves.",
        )


@builtin(requires=_REQUIRES, name=f"{_NAME}.arrive")
def arrive(relaxed: Any = False, _semantic: Any = None) -> None:
    """The first half of the cluster's barrier: this block has come. Triton 3.7 and 3.8.

    Args:
        relaxed: compile-time boolean; orders no memory.

    Raises:
        ArgumentError: `relaxed` is no compile-time boolean.
        CapabilityError: another Triton.

    ISA: PTX 9.7.13.3, barrier.cluster.arrive.
    """
    _halves(f"{_NAME}.arrive")
    _semantic.builder.create_cluster_arrive(compile_time_bool(relaxed, "relaxed"))


@builtin(requires=_REQUIRES, name=f"{_NAME}.wait")
def wait(_semantic: Any = None) -> None:
    """The second half: wait until every block of the cluster has come. Triton 3.7 and 3.8.

    Raises:
        CapabilityError: another Triton.

    ISA: PTX 9.7.13.3, barrier.cluster.wait.
    """
    _halves(f"{_NAME}.wait")
    _semantic.builder.create_cluster_wait()


@builtin(requires=_REQUIRES, since=(3, 7), name=f"{_NAME}.barrier")
def barrier(relaxed: Any = False, _semantic: Any = None) -> None:
    """Wait until every block of the cluster has come here.

    Args:
        relaxed: compile-time boolean; orders no memory.

    Raises:
        ArgumentError: `relaxed` is no compile-time boolean.

    ISA: PTX 9.7.13.3, barrier.cluster.arrive and .wait.
    """
    relaxed = compile_time_bool(relaxed, "relaxed")
    if _triton.at_least(3, 8):
        _semantic.builder.create_cluster_barrier(relaxed)
    else:
        _semantic.builder.create_cluster_arrive(relaxed)
        _semantic.builder.create_cluster_wait()


@builtin(requires=_REQUIRES, since=(3, 8), name="gl.nvidia.hopper.async_store")
def async_store(dst: Any, value: Any, mbarrier: Any, _semantic: Any = None) -> None:
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
    dst = shared_memory(dst, "dst")
    _semantic.require_distributed(value, "value")
    mbarrier = check_mbarrier(mbarrier)
    _semantic._require_unbatched(dst)
    _semantic._check_stored(dst.type, value)
    _semantic.builder.create_async_shared_store(dst.handle, value.handle, mbarrier.handle)
