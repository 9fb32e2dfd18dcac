"""Barriers in shared memory: `mbarrier` (sm_80), with counts of bytes and clusters (sm_90).

A barrier is an int64 in shared memory. A phase ends when the barrier's count of arrivals has come;
`wait` with parity 0 passes once the first phase has ended, with parity 1 the second, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import tl, unwrap
from gluon_core.builtin import builtin, check_capabilities, compile_time
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    LayoutError,
)
from gluon_core.layouts import SwizzledSharedLayout
from gluon_core.layouts.base import check_cga, is_power_of_two
from gluon_core.semantic.base import describe
from gluon_core.semantic.operands import (
    check_barrier,
    compile_time_int,
    predicate,
    scalar_int32,
)

__all__ = [
    "MBarrierLayout",
    "allocate_mbarrier",
    "arrive",
    "arrive_counted",
    "arrive_multicast",
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
_RUBIN = "gl.nvidia.rubin.mbarrier"


@dataclass(frozen=True, init=False)
class MBarrierLayout(SwizzledSharedLayout):
    """The layout of a barrier: one plain int64 per block of the cluster.

    Args:
        cga_layout: which barrier each block of a cluster has; [] for one block.

    Raises:
        LayoutError: an illegal `cga_layout`.
    """

    def __init__(self, cga_layout: Optional[Sequence[Sequence[int]]] = None):
        bases = check_cga(unwrap(cga_layout), 1)
        self._set(vec=1, per_phase=1, max_phase=1, order=[0], cga_layout=bases)

    @staticmethod
    @compile_time
    def multicta(num_ctas: int, two_cta: bool = False) -> "MBarrierLayout":
        """The layout for a cluster: a barrier for each block, or with `two_cta` for each pair.

        Raises:
            LayoutError: not a power of two, or pairs of a single block.
        """
        count, pairs = unwrap(num_ctas), bool(unwrap(two_cta))
        if not is_power_of_two(count) or (pairs and count < 2):
            raise LayoutError(
                "no such cluster",
                argument="num_ctas",
                expected="a power of two" + (", at least 2 with two_cta" if pairs else ""),
                got=repr(count),
            )
        bits = count.bit_length() - 1
        return MBarrierLayout([[1 << bit >> pairs] for bit in range(bits)])


def check_mbarrier(value: Any, argument: str = "mbarrier") -> Any:
    """`value` if it is a barrier.

    Raises:
        DtypeError: no shared memory, or not of 64-bit integers.
        LayoutError: not the layout of a barrier.
        ShapeError: not one barrier per block.
    """
    remedy = "Allocate it with gl.nvidia.ampere.mbarrier.allocate_mbarrier()."
    # Triton 3.6 sees the barrier of each block only.
    return check_barrier(value, argument, remedy, None if _triton.at_least(3, 7) else 1)


def _per_cluster(barriers: int) -> int:
    """The extent of a barrier's memory: Triton 3.6 sees the one of each block only."""
    return barriers if _triton.at_least(3, 7) else 1


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.allocate_mbarrier")
def allocate_mbarrier(batch: Any = None, two_ctas: Any = False, _semantic: Any = None) -> Any:
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
    pairs = unwrap(two_ctas)
    if pairs and _semantic.num_ctas < 2:
        raise ArgumentError(
            "needs a cluster", argument="two_ctas", expected="num_ctas >= 2", got=_semantic.num_ctas
        )
    layout = MBarrierLayout.multicta(_semantic.num_ctas, pairs)
    shape = [_per_cluster(_semantic.num_ctas // (2 if pairs else 1))]
    if unwrap(batch) is not None:
        shape.insert(0, compile_time_int(batch, "batch", 1))
    return _semantic.allocate_shared(tl.int64, shape, layout)


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.init")
def init(mbarrier: Any, count: Any, _semantic: Any = None) -> None:
    """Initialize a barrier: each phase waits for `count` arrivals. One thread does it.

    Args:
        mbarrier: a barrier that is not in use.
        count: compile-time integer, 1 to 2**20 - 1.

    Raises:
        ArgumentError: an illegal count.
        DtypeError, LayoutError, ShapeError: `mbarrier` is no barrier.

    ISA: PTX 9.7.13.15.9, mbarrier.init.
    """
    mbarrier = check_mbarrier(mbarrier)
    count = compile_time_int(count, "count", 1, _MAX_COUNT)
    _semantic.builder.create_mbarrier_init(mbarrier.handle, count)


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.invalidate")
def invalidate(mbarrier: Any, _semantic: Any = None) -> None:
    """End the use of a barrier, so that its memory may serve for something else.

    Args:
        mbarrier: an initialized barrier, at which nobody waits.

    Raises:
        DtypeError, LayoutError, ShapeError: `mbarrier` is no barrier.

    ISA: PTX 9.7.13.15.10, mbarrier.inval.
    """
    _semantic.builder.create_mbarrier_inval(check_mbarrier(mbarrier).handle)


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.wait")
def wait(
    mbarrier: Any, phase: Any, pred: Any = True, deps: Any = (), _semantic: Any = None
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
    mbarrier = check_mbarrier(mbarrier)
    phase = scalar_int32(_semantic, phase, "phase")
    pred = predicate(_semantic, pred)
    handles = [_memory_handle(item) for item in _items(deps)]
    _semantic.builder.create_mbarrier_wait(mbarrier.handle, phase.handle, pred.handle, handles)


@builtin(requires=_REQUIRES, name="gl.nvidia.ampere.mbarrier.arrive")
def arrive(mbarrier: Any, *, pred: Any = True, from_cta: Any = None, _semantic: Any = None) -> None:
    """Count one arrival; what was written before it is visible to those who wait.

    Args:
        mbarrier: an initialized barrier.
        pred: int1 scalar; where false, do not arrive.
        from_cta: compile-time index of the one block of the cluster that arrives; Triton 3.9.

    Raises:
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: `from_cta` with an older Triton.

    ISA: PTX 9.7.13.15.13, mbarrier.arrive.
    """
    emit_arrive(_semantic, mbarrier, 1, pred, from_cta, "gl.nvidia.ampere.mbarrier.arrive")


@builtin(requires=_BYTES, name=f"{_HOPPER}.arrive")
def arrive_counted(
    mbarrier: Any,
    *,
    count: Any = 1,
    pred: Any = True,
    from_cta: Any = None,
    _semantic: Any = None,
) -> None:
    """Count `count` arrivals; what was written before is visible to those who wait.

    Args:
        mbarrier: an initialized barrier.
        count: compile-time integer, 1 to 2**20 - 1.
        pred: int1 scalar; where false, do not arrive.
        from_cta: compile-time index of the one block of the cluster that arrives; Triton 3.9.

    Raises:
        ArgumentError: an illegal count.
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: `from_cta` with an older Triton.

    ISA: PTX 9.7.13.15.13, mbarrier.arrive.
    """
    emit_arrive(_semantic, mbarrier, count, pred, from_cta, f"{_HOPPER}.arrive")


@builtin(requires=_BYTES, name=f"{_RUBIN}.arrive")
def arrive_multicast(
    mbarrier: Any,
    *,
    count: Any = 1,
    pred: Any = True,
    from_cta: Any = None,
    multicast_cta: Any = 0,
    cta_mask: Any = None,
    _semantic: Any = None,
) -> None:
    """As of `gl.nvidia.hopper.mbarrier`, and at the barriers of several blocks at once.

    Args:
        mbarrier, count, pred, from_cta: as there.
        multicast_cta: compile-time mask over the bits of a block's index in the cluster: each block
            arrives at all barriers whose blocks differ from it in these bits only; 0 is the own one.
        cta_mask: the name of `multicast_cta` in Triton 3.8.

    Raises:
        ArgumentError: an illegal count or mask.
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: a mask before Triton 3.8.

    ISA: PTX 9.7.13.15.13, mbarrier.arrive.
    """
    mask = multicast_cta if unwrap(cta_mask) is None else cta_mask
    emit_arrive(_semantic, mbarrier, count, pred, from_cta, f"{_RUBIN}.arrive", mask)


def emit_arrive(
    semantic: Any,
    mbarrier: Any,
    count: Any,
    pred: Any,
    from_cta: Any,
    public: str,
    multicast: Any = 0,
) -> None:
    """`arrive` of every generation."""
    mbarrier = check_mbarrier(mbarrier)
    count = compile_time_int(count, "count", 1, _MAX_COUNT)
    mask = compile_time_int(multicast, "multicast_cta", 0, semantic.num_ctas - 1)
    pred = predicate(semantic, pred)
    create = semantic.builder.create_mbarrier_arrive
    block = _block(semantic, mbarrier, from_cta, public)
    if mask:
        _triton.require((3, 8), f"{public}(multicast_cta=...)")
        check_capabilities(semantic, f"{public}(multicast_cta=...)", _MULTICAST)
        if block is not None:
            raise ArgumentError(
                "one block alone cannot arrive at the barriers of several",
                argument="multicast_cta",
                expected="0 together with from_cta",
                got=mask,
            )
        _check_one_per_block(semantic, mbarrier, "multicast_cta")
    if _triton.VERSION == (3, 8):
        # Only this builder has the blocks to arrive at before the predicate.
        create(mbarrier.handle, count, mask, pred.handle)
    elif mask:
        create(mbarrier.handle, count, pred.handle, block, mask)
    elif block is not None:
        create(mbarrier.handle, count, pred.handle, block)
    else:
        create(mbarrier.handle, count, pred.handle)


def _block(semantic: Any, mbarrier: Any, from_cta: Any, public: str) -> Optional[int]:
    """The index of the one block that acts, or None for all of them."""
    if unwrap(from_cta) is None:
        return None
    _triton.require((3, 9), f"{public}(from_cta=...)")
    _check_one_per_block(semantic, mbarrier, "from_cta")
    return compile_time_int(from_cta, "from_cta", 0, semantic.num_ctas - 1)


def _check_one_per_block(semantic: Any, mbarrier: Any, why: str) -> None:
    own = MBarrierLayout.multicta(semantic.num_ctas).cga_layout
    if mbarrier.layout.cga_layout != own:
        raise LayoutError(
            f"{why} needs one barrier for each block of the cluster",
            argument="mbarrier",
            expected=f"MBarrierLayout({own})",
            got=repr(mbarrier.layout),
        )


@builtin(requires=_BYTES, name=f"{_HOPPER}.expect")
def expect(
    mbarrier: Any,
    bytes_per_cta: Any = None,
    pred: Any = True,
    *,
    from_cta: Any = None,
    bytes: Any = None,
    _semantic: Any = None,
) -> None:
    """The current phase also waits for bytes that asynchronous copies bring; arrive once.

    Args:
        mbarrier: an initialized barrier.
        bytes_per_cta: compile-time integer, 0 to 2**20 - 1; what comes to each block's barrier,
            such as the `nbytes_per_cta` of the buffers that are filled.
        pred: int1 scalar; where false, do nothing.
        from_cta: compile-time index of the one block of the cluster that does it; Triton 3.9.
        bytes: the name of `bytes_per_cta` in Triton 3.6.

    Raises:
        ArgumentError: an illegal number of bytes, or none.
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: `from_cta` with an older Triton.

    ISA: PTX 9.7.13.15.13, mbarrier.arrive.expect_tx.
    """
    mbarrier = check_mbarrier(mbarrier)
    given = bytes_per_cta if unwrap(bytes) is None else bytes
    size = compile_time_int(given, "bytes_per_cta", 0, _MAX_COUNT)
    pred = predicate(_semantic, pred)
    block = _block(_semantic, mbarrier, from_cta, f"{_HOPPER}.expect")
    create = _semantic.builder.create_mbarrier_expect
    if block is None:
        create(mbarrier.handle, size, pred.handle)
    else:
        create(mbarrier.handle, size, pred.handle, block)


def _before_3_9(public: str) -> None:
    _triton.require((3, 7), public)
    if _triton.at_least(3, 9):
        raise CapabilityError(
            f"{public} exists with Triton 3.7 and 3.8, found {_triton.VERSION_TEXT}",
            remedy="Leave it out: the compiler makes initialized barriers known to the cluster.",
        )


@builtin(requires=_CLUSTERS, name=f"{_HOPPER}.fence_init_release_cluster")
def fence_init_release_cluster(_semantic: Any = None) -> None:
    """Barriers that were initialized before become known to the blocks of the cluster that see a
    later `cluster.arrive` of this one. Triton 3.7 and 3.8.

    Raises:
        CapabilityError: another Triton.

    ISA: PTX 9.7.13.4, fence.mbarrier_init.release.cluster.
    """
    _before_3_9(f"{_HOPPER}.fence_init_release_cluster")
    _semantic.builder.create_fence_mbarrier_init_release_cluster()


@builtin(requires=_CLUSTERS, name=f"{_HOPPER}.sync_cluster_init")
def sync_cluster_init(_semantic: Any = None) -> None:
    """Make barriers that were initialized before known to the whole cluster, and wait for it:
    `fence_init_release_cluster`, and both halves of the cluster's barrier. Triton 3.7 and 3.8.

    Raises:
        CapabilityError: another Triton.

    ISA: PTX 9.7.13.4, fence.mbarrier_init.release.cluster; 9.7.13.3, barrier.cluster.
    """
    _before_3_9(f"{_HOPPER}.sync_cluster_init")
    _semantic.builder.create_fence_mbarrier_init_release_cluster()
    _semantic.builder.create_cluster_arrive(True)
    _semantic.builder.create_cluster_wait()


def _items(deps: Any) -> list:
    deps = unwrap(deps)
    if deps is None:
        return []
    return list(deps) if isinstance(deps, (list, tuple, _triton.tl_tuple)) else [deps]


def _memory_handle(value: Any) -> Any:
    value = unwrap(value)
    memory = isinstance(value, _triton.base_value) and not isinstance(value, tl.tensor)
    if not memory or not hasattr(value, "handle"):
        raise DtypeError(
            "not a memory descriptor",
            argument="deps",
            expected="descriptors of shared or tensor memory",
            got=describe(value),
        )
    return value.handle
