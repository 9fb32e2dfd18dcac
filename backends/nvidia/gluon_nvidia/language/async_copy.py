"""Asynchronous copies from global to shared memory: `cp.async` (sm_80)."""

from __future__ import annotations

from typing import Optional

from gluon_core import errors
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.typing import Const, Operand
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.features import COPIES_VERIFIED
from gluon_nvidia.language.cache import CacheHint
from gluon_nvidia.language.mbarrier import check_mbarrier

__all__ = [
    "async_copy_global_to_shared",
    "async_load",
    "commit_group",
    "mbarrier_arrive",
    "wait_group",
]

_LEAST_BYTES = 4


@builtin(
    requires=("nvidia.cp_async",),
    name="gl.nvidia.ampere.async_copy.async_load",
    instead="gl.portable.async_copy",
)
def async_load(
    smem: shared_memory_descriptor,
    pointer: tl.tensor,
    mask: Optional[Operand] = None,
    cache_modifier: Optional[Const[str]] = None,
    eviction_policy: Optional[Const[str]] = None,
    volatile: Const[bool] = False,
    cache_policy: Optional[CacheHint] = None,
) -> None:
    """Start copying from `pointer` into `smem`; where `mask` is false, `smem` gets 0.

    The copy belongs to the group that the thread's next `commit_group` closes; `smem` may be read
    after `wait_group` and a barrier.

    Args:
        smem: view of shared memory, of `pointer`'s shape and element type.
        pointer: tensor of pointers. Its layout says which thread copies which elements; each thread
        must
            hold 4, 8 or 16 consecutive bytes that are also consecutive in `smem`.
        mask: int1, broadcast to the pointers.
        cache_modifier: `".ca"`, `".cg"`, `".cs"` or `".cv"`: a hint, for the compiler copies 16 bytes
            of a thread past L1 (`.cg`), and fewer through it (`.ca`), whatever it says.
        eviction_policy: `"evict_normal"`, `"evict_first"` or `"evict_last"`.
        volatile: keep the copy even where the compiler finds it redundant.
        cache_policy: `CachePolicy(...)` in place of the two strings; Triton 3.9.

    Raises:
        DtypeError: `smem` is no shared memory, `pointer` holds no pointers, the element types
            differ, or the mask is not boolean.
        ShapeError: the shapes differ.
        LayoutError: a thread's consecutive elements make less than 4 bytes, or `smem` is padded.
        ArgumentError: no such hint, or `cache_policy` together with the strings that it replaces.
        CapabilityError: `cache_policy` with an older Triton.

    ISA: PTX 9.7.9.25.3.1, cp.async.
    """
    semantic = semantic_layer()
    smem = semantic.shared_memory(smem, "smem")
    pointer = semantic.check_pointer(pointer)
    pointer = semantic.require_distributed(pointer, "pointer")
    _check_destination(smem, pointer)
    mask, _ = semantic.masked(pointer, smem.dtype, mask)
    hints = semantic.cache_operands(cache_modifier, eviction_policy, cache_policy)
    semantic.builder.create_async_copy_global_to_local(
        smem.handle,
        pointer.handle,
        semantic.handle_or_absent(mask),
        semantic.handle_or_absent(None),
        *hints,
        bool(unwrap(volatile)),
    )


async_copy_global_to_shared = async_load  # the older name


@builtin(requires=("nvidia.cp_async",), name="gl.nvidia.ampere.async_copy.commit_group")
def commit_group() -> None:
    """Close the group of the thread's copies since the last `commit_group`; it may be empty.

    ISA: PTX 9.7.9.25.3.2, cp.async.commit_group.
    """
    semantic_layer().builder.create_async_commit_group()


@builtin(requires=("nvidia.cp_async",), name="gl.nvidia.ampere.async_copy.wait_group")
def wait_group(num_outstanding: Const[int] = 0) -> None:
    """Wait until at most `num_outstanding` of the thread's most recent groups are still copying.

    Args:
        num_outstanding: compile-time integer; 0 waits for all.

    Raises:
        ArgumentError: not a compile-time integer >= 0.

    ISA: PTX 9.7.9.25.3.3, cp.async.wait_group.
    """
    semantic = semantic_layer()
    count = semantic.compile_time_int(num_outstanding, "num_outstanding", 0, loose=True)
    semantic.builder.create_async_wait_group(count)


@builtin(
    requires=("nvidia.cp_async", "nvidia.mbarrier"),
    name="gl.nvidia.ampere.async_copy.mbarrier_arrive",
)
def mbarrier_arrive(
    mbarrier: shared_memory_descriptor, increment_count: Const[bool] = True
) -> None:
    """Arrive at `mbarrier` once all copies that the thread has started so far are done.

    Args:
        mbarrier: an initialized barrier.
        increment_count: first count this arrival as one more that the phase waits for, so that the
            barrier's count need not include it.

    Raises:
        ArgumentError: `increment_count` is no compile-time boolean.
        DtypeError, LayoutError, ShapeError: `mbarrier` is no barrier.

    ISA: PTX 9.7.13.15.16, cp.async.mbarrier.arrive.
    """
    semantic = semantic_layer()
    mbarrier = check_mbarrier(mbarrier)
    increment = semantic.compile_time_bool(increment_count, "increment_count")
    semantic.builder.create_async_copy_mbarrier_arrive(mbarrier.handle, increment)


def _check_destination(smem: shared_memory_descriptor, pointer: tl.tensor) -> None:
    semantic = semantic_layer()
    element = pointer.dtype.element_ty
    semantic.check_copied(smem, pointer, element, "smem", bits=not semantic.has(COPIES_VERIFIED))
    if getattr(smem.layout, "interval_padding_pairs", None):
        raise errors.LayoutError(
            "cp.async does not write padded buffers",
            argument="smem",
            expected="SwizzledSharedLayout or NVMMASharedLayout",
            got=repr(smem.layout),
        )
    layout = pointer.type.layout
    if semantic.is_placeholder(layout):
        return
    held = semantic.consecutive_elements(layout, smem.layout, semantic.shape_of(pointer))
    if held is not None and held * element.primitive_bitwidth < 8 * _LEAST_BYTES:
        least = 8 * _LEAST_BYTES // element.primitive_bitwidth
        raise errors.LayoutError(
            f"cp.async copies 4, 8 or 16 bytes, and a thread holds fewer consecutive bytes of {element}",
            argument="pointer",
            expected=f"at least {least} consecutive elements per thread, also consecutive in smem",
            got=f"{held}: {layout} into {smem.layout}",
            remedy=f"Give the layout size_per_thread >= {least} along the fastest dimension of smem.",
        )
