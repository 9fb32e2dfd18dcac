"""Barriers in shared memory: `mbarrier` (sm_80), with counts of bytes and clusters (sm_90).

A barrier is an int64 in shared memory. A phase ends when the barrier's count of arrivals has come;
`wait` with parity 0 passes once the first phase has ended, with parity 1 the second, and so on.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from gluon_core import errors
from gluon_core.plugin.ops import (
    builtin,
    semantic_layer,
    tl,
    unwrap,
)
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.values import MBarrierLayout, memory_descriptor, shared_memory_descriptor
from gluon_nvidia.features import (
    ARRIVE_MASK_FIRST,
    ARRIVE_MULTICAST,
    CLUSTER_WIDE_BARRIERS,
    FROM_CTA,
    INIT_FENCE,
)

__all__ = [
    "MBarrierLayout",
    "allocate_mbarrier",
    "arrive",
    "check_mbarrier",
    "emit_arrive",
    "expect",
    "fence_init_release_cluster",
    "init",
    "invalidate",
    "sync_cluster_init",
    "wait",
]

_REQUIRES = ("nvidia.mbarrier",)
_BYTES = ("nvidia.mbarrier_tx",)
_CLUSTERS = ("nvidia.clusters",)
_MULTICAST = ("nvidia.mbarrier_multicast",)
_MAX_COUNT = (1 << 20) - 1
_HOPPER = "gl.nvidia.hopper.mbarrier"
_IMPLIED = "Later releases need none: the cluster knows of initialized barriers."


def check_mbarrier(
    value: shared_memory_descriptor, argument: str = "mbarrier"
) -> shared_memory_descriptor:
    """`value` if it is a barrier.

    Raises:
        DtypeError: no shared memory, or not of 64-bit integers.
        LayoutError: not the layout of a barrier.
        ShapeError: not one barrier per block.
    """
    remedy = "Allocate it with gl.nvidia.ampere.mbarrier.allocate_mbarrier()."
    return semantic_layer().check_barrier(
        value, argument, remedy, None if semantic_layer().has(CLUSTER_WIDE_BARRIERS) else 1
    )


def _per_cluster(barriers: int) -> int:
    """Return the extent of a barrier's memory, which may be the one of each block only."""
    return barriers if semantic_layer().has(CLUSTER_WIDE_BARRIERS) else 1


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.allocate_mbarrier")
def allocate_mbarrier(
    batch: Optional[Const[int]] = None, two_ctas: Const[bool] = False
) -> shared_memory_descriptor:
    """Allocate a barrier in shared memory for each block of the cluster; not initialized.

    Args:
        batch: allocate that many; pick one with `.index(i)`.
        two_ctas: one barrier for each pair of blocks, in the even one.

    Returns:
        A shared_memory_descriptor of int64, of shape [n] or [batch, n], where n is 1, or the
        number of blocks (pairs) of the cluster.

    Raises:
        ArgumentError: `batch` is not a positive compile-time integer, or pairs of a single block.

    ISA: none; the compiler lays out shared memory.
    """
    semantic = semantic_layer()
    pairs = unwrap(two_ctas)
    if pairs and semantic.num_ctas < 2:
        raise errors.ArgumentError(
            "needs a cluster", argument="two_ctas", expected="num_ctas >= 2", got=semantic.num_ctas
        )
    layout = MBarrierLayout.multicta(semantic.num_ctas, pairs)
    shape = [_per_cluster(semantic.num_ctas // (2 if pairs else 1))]
    if unwrap(batch) is not None:
        shape.insert(0, semantic.compile_time_int(batch, "batch", 1))
    barriers: shared_memory_descriptor = semantic.allocate_shared(tl.int64, shape, layout)
    return barriers


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.init")
def init(mbarrier: shared_memory_descriptor, count: Const[int]) -> None:
    """Initialize a barrier: each phase waits for `count` arrivals. One thread does it.

    Args:
        mbarrier: a barrier that is not in use.
        count: compile-time integer, 1 to 2**20 - 1.

    Raises:
        ArgumentError: an illegal count.
        DtypeError, LayoutError, ShapeError: `mbarrier` is no barrier.

    ISA: PTX 9.7.13.15.9, mbarrier.init.
    """
    semantic = semantic_layer()
    mbarrier = check_mbarrier(mbarrier)
    count = semantic.compile_time_int(count, "count", 1, _MAX_COUNT)
    semantic.builder.create_mbarrier_init(mbarrier.handle, count)


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.invalidate")
def invalidate(mbarrier: shared_memory_descriptor) -> None:
    """End the use of a barrier, so that its memory may serve for something else.

    Args:
        mbarrier: an initialized barrier, at which nobody waits.

    Raises:
        DtypeError, LayoutError, ShapeError: `mbarrier` is no barrier.

    ISA: PTX 9.7.13.15.10, mbarrier.inval.
    """
    semantic_layer().builder.create_mbarrier_inval(check_mbarrier(mbarrier).handle)


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.wait")
def wait(
    mbarrier: shared_memory_descriptor,
    phase: Scalar[int],
    pred: Scalar[bool] = True,
    deps: Union[memory_descriptor, Sequence[memory_descriptor]] = (),
) -> None:
    """Wait until the phase of parity `phase` has ended.

    Args:
        mbarrier: an initialized barrier.
        phase: integer scalar, of which the lowest bit counts.
        pred: int1 scalar; where false, do not wait.
        deps: memory descriptors that the barrier guards and that must stay allocated until here.

    Raises:
        DtypeError, LayoutError, ShapeError: an operand of another kind.

    ISA: PTX 9.7.13.15.17, mbarrier.try_wait.
    """
    semantic = semantic_layer()
    mbarrier = check_mbarrier(mbarrier)
    phase = semantic.scalar_int32(phase, "phase")
    pred = semantic.predicate(pred)
    handles = [_memory_handle(item) for item in semantic.items_of(deps)]
    semantic.builder.create_mbarrier_wait(mbarrier.handle, phase.handle, pred.handle, handles)
    semantic.passed += 1


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.arrive")
def arrive(
    mbarrier: shared_memory_descriptor,
    *,
    pred: Scalar[bool] = True,
    from_cta: Optional[Const[int]] = None,
) -> None:
    """Count one arrival; earlier writes become visible to waiting threads.

    Args:
        mbarrier: an initialized barrier.
        pred: int1 scalar; where false, do not arrive.
        from_cta: compile-time index of the one block of the cluster that arrives; Triton 3.9.

    Raises:
        ArgumentError: `from_cta` is no block of the cluster.
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: `from_cta` with an older Triton.

    ISA: PTX 9.7.13.15.13, mbarrier.arrive.
    """
    emit_arrive(semantic_layer(), mbarrier, 1, pred, from_cta, "gl.nvidia.ampere.mbarrier.arrive")


def emit_arrive(
    semantic: SemanticLayer,
    mbarrier: shared_memory_descriptor,
    count: Const[int],
    pred: Scalar[bool],
    from_cta: Optional[Const[int]],
    public: str,
    multicast: Const[int] = 0,
) -> None:
    """`arrive` of every generation."""
    mbarrier = check_mbarrier(mbarrier)
    count = semantic.compile_time_int(count, "count", 1, _MAX_COUNT)
    mask = semantic.compile_time_int(multicast, "multicast_cta", 0, semantic.num_ctas - 1)
    pred = semantic.predicate(pred)
    create = semantic.builder.create_mbarrier_arrive
    block = _block(semantic, mbarrier, from_cta, public)
    if mask:
        semantic.require(ARRIVE_MULTICAST, f"{public}(multicast_cta=...)")
        semantic.check_capabilities(f"{public}(multicast_cta=...)", _MULTICAST)
        if block is not None:
            raise errors.ArgumentError(
                "one block alone cannot arrive at the barriers of several",
                argument="multicast_cta",
                expected="0 together with from_cta",
                got=mask,
            )
        _check_one_per_block(semantic, mbarrier, "multicast_cta")
    if semantic.has(ARRIVE_MASK_FIRST):
        create(mbarrier.handle, count, mask, pred.handle)
    elif mask:
        create(mbarrier.handle, count, pred.handle, block, mask)
    elif block is not None:
        create(mbarrier.handle, count, pred.handle, block)
    else:
        create(mbarrier.handle, count, pred.handle)


def _block(
    semantic: SemanticLayer,
    mbarrier: shared_memory_descriptor,
    from_cta: Optional[Const[int]],
    public: str,
) -> Optional[int]:
    """Return the index of the one block that acts, or None for all of them."""
    if unwrap(from_cta) is None:
        return None
    semantic.require(FROM_CTA, f"{public}(from_cta=...)")
    _check_one_per_block(semantic, mbarrier, "from_cta")
    return semantic.compile_time_int(from_cta, "from_cta", 0, semantic.num_ctas - 1)


def _check_one_per_block(
    semantic: SemanticLayer, mbarrier: shared_memory_descriptor, why: str
) -> None:
    own = MBarrierLayout.multicta(semantic.num_ctas).cga_layout
    if mbarrier.layout.cga_layout != own:
        raise errors.LayoutError(
            f"{why} needs one barrier for each block of the cluster",
            argument="mbarrier",
            expected=f"MBarrierLayout({own})",
            got=repr(mbarrier.layout),
        )


@builtin(requires=_BYTES, name=f"{_HOPPER}.expect")
def expect(
    mbarrier: shared_memory_descriptor,
    bytes_per_cta: Optional[Const[int]] = None,
    pred: Scalar[bool] = True,
    *,
    from_cta: Optional[Const[int]] = None,
    bytes: Optional[Const[int]] = None,
) -> None:
    """Make the current phase also wait for bytes of asynchronous copies; arrive once.

    Args:
        mbarrier: an initialized barrier.
        bytes_per_cta: compile-time integer, 0 to 2**20 - 1; bytes for each block's barrier, such as the
            `nbytes_per_cta` of the buffers that are filled.
        pred: int1 scalar; where false, do nothing.
        from_cta: compile-time index of the one block of the cluster that does it; Triton 3.9.
        bytes: the name of `bytes_per_cta` in Triton 3.6.

    Raises:
        ArgumentError: an illegal number of bytes, or none; `from_cta` is no block of the cluster.
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: `from_cta` with an older Triton.

    ISA: PTX 9.7.13.15.13, mbarrier.arrive.expect_tx.
    """
    semantic = semantic_layer()
    mbarrier = check_mbarrier(mbarrier)
    bytes_expected = bytes_per_cta if unwrap(bytes) is None else bytes
    size = semantic.compile_time_int(bytes_expected, "bytes_per_cta", 0, _MAX_COUNT)
    pred = semantic.predicate(pred)
    block = _block(semantic, mbarrier, from_cta, f"{_HOPPER}.expect")
    create = semantic.builder.create_mbarrier_expect
    if block is None:
        create(mbarrier.handle, size, pred.handle)
    else:
        create(mbarrier.handle, size, pred.handle, block)


@builtin(requires=_CLUSTERS, name=f"{_HOPPER}.fence_init_release_cluster")
def fence_init_release_cluster() -> None:
    """Barriers that were initialized before become known to the blocks of the cluster that see a
    later `cluster.arrive` of this one. Triton 3.7 and 3.8.

    Raises:
        CapabilityError: another Triton.

    ISA: PTX 9.7.13.4, fence.mbarrier_init.release.cluster.
    """
    semantic_layer().require(INIT_FENCE, f"{_HOPPER}.fence_init_release_cluster", _IMPLIED)
    semantic_layer().builder.create_fence_mbarrier_init_release_cluster()


@builtin(requires=_CLUSTERS, name=f"{_HOPPER}.sync_cluster_init")
def sync_cluster_init() -> None:
    """Make barriers that were initialized before known to the whole cluster, and wait for it:
    `fence_init_release_cluster`, and both halves of the cluster's barrier. Triton 3.7 and 3.8.

    Raises:
        CapabilityError: another Triton.

    ISA: PTX 9.7.13.4, fence.mbarrier_init.release.cluster; 9.7.13.3, barrier.cluster.
    """
    semantic = semantic_layer()
    semantic.require(INIT_FENCE, f"{_HOPPER}.sync_cluster_init", _IMPLIED)
    semantic.builder.create_fence_mbarrier_init_release_cluster()
    semantic.builder.create_cluster_arrive(True)
    semantic.builder.create_cluster_wait()


def _memory_handle(value: Any) -> Any:
    value = unwrap(value)
    if isinstance(value, tl.tensor) or not hasattr(value, "handle"):
        raise errors.DtypeError(
            "not a memory descriptor",
            argument="deps",
            expected="descriptors of shared or tensor memory",
            got=semantic_layer().describe(value),
        )
    return value.handle
