"""Asynchronous copies from global to shared memory: `cp.async` (sm_80)."""

from __future__ import annotations

from typing import Any

from gluon_core._triton import unwrap
from gluon_core.builtin import builtin
from gluon_core.errors import LayoutError
from gluon_core.layouts import PaddedSharedLayout
from gluon_core.semantic.base import is_placeholder, shape_of
from gluon_core.semantic.copies import (
    cache_operands,
    check_copied,
    consecutive_elements,
    masked,
)
from gluon_core.semantic.operands import (
    compile_time_bool,
    compile_time_int,
    handle_or_absent,
    shared_memory,
)
from gluon_nvidia.language.mbarrier import check_mbarrier

__all__ = [
    "async_copy_global_to_shared",
    "async_load",
    "commit_group",
    "mbarrier_arrive",
    "wait_group",
]

_CACHE = ("", ".ca", ".cg")
_LEAST_BYTES = 4


@builtin(
    requires=("nvidia.cp_async",),
    name="gl.nvidia.ampere.async_copy.async_load",
    instead="gl.portable.async_copy",
)
def async_load(
    smem: Any,
    pointer: Any,
    mask: Any = None,
    cache_modifier: Any = None,
    eviction_policy: Any = None,
    volatile: Any = False,
    cache_policy: Any = None,
    _semantic: Any = None,
) -> None:
    """Start copying what `pointer` points to into `smem`; where `mask` is false, `smem` gets 0.

    The copy belongs to the group that the thread's next `commit_group` closes; `smem` may be read
    after `wait_group` and a barrier.

    Args:
        smem: view of shared memory, of `pointer`'s shape and element type.
        pointer: tensor of pointers. Its layout says which thread copies what; each thread must
            hold 4, 8 or 16 consecutive bytes that are also consecutive in `smem`.
        mask: int1, broadcast to the pointers.
        cache_modifier: `".ca"` or `".cg"` (past L1; 16 bytes per thread only).
        eviction_policy: `"evict_normal"`, `"evict_first"` or `"evict_last"`.
        volatile: keep the copy even where the compiler finds it redundant.
        cache_policy: `CachePolicy(...)` in place of the two strings; Triton 3.9.

    Raises:
        DtypeError: `smem` is no shared memory, `pointer` holds no pointers, the element types
            differ, or the mask is not boolean.
        ShapeError: the shapes differ.
        LayoutError: a thread's consecutive elements make less than 4 bytes.

    ISA: PTX 9.7.9.25.3.1, cp.async.
    """
    smem = shared_memory(smem, "smem")
    pointer = _semantic.check_pointer(pointer)
    pointer = _semantic.require_distributed(pointer, "pointer")
    _check_destination(smem, pointer)
    mask, _ = masked(_semantic, pointer, smem.dtype, mask)
    hints = _semantic._hints(cache_modifier, eviction_policy, cache_policy, _CACHE)
    _semantic.builder.create_async_copy_global_to_local(
        smem.handle,
        pointer.handle,
        handle_or_absent(_semantic, mask),
        handle_or_absent(_semantic, None),
        *cache_operands(_semantic, hints),
        bool(unwrap(volatile)),
    )


@builtin(
    requires=("nvidia.cp_async",),
    name="gl.nvidia.ampere.async_copy.async_copy_global_to_shared",
    instead="gl.portable.async_copy",
)
def async_copy_global_to_shared(
    smem: Any,
    pointer: Any,
    mask: Any = None,
    cache_modifier: Any = None,
    eviction_policy: Any = None,
    volatile: Any = False,
    cache_policy: Any = None,
    _semantic: Any = None,
) -> None:
    """The older name of `async_load`; the same operation, with every Triton."""
    async_load(
        smem,
        pointer,
        mask,
        cache_modifier,
        eviction_policy,
        volatile,
        cache_policy,
        _semantic=_semantic,
    )


@builtin(requires=("nvidia.cp_async",), name="gl.nvidia.ampere.async_copy.commit_group")
def commit_group(_semantic: Any = None) -> None:
    """Close the group of the thread's copies since the last `commit_group`; it may be empty.

    ISA: PTX 9.7.9.25.3.2, cp.async.commit_group.
    """
    _semantic.builder.create_async_commit_group()


@builtin(requires=("nvidia.cp_async",), name="gl.nvidia.ampere.async_copy.wait_group")
def wait_group(num_outstanding: Any = 0, _semantic: Any = None) -> None:
    """Wait until at most `num_outstanding` of the thread's most recent groups are still copying.

    Args:
        num_outstanding: compile-time integer; 0 waits for all.

    Raises:
        ArgumentError: not a compile-time integer >= 0.

    ISA: PTX 9.7.9.25.3.3, cp.async.wait_group.
    """
    count = compile_time_int(num_outstanding, "num_outstanding", 0)
    _semantic.builder.create_async_wait_group(count)


@builtin(
    requires=("nvidia.cp_async", "nvidia.mbarrier"),
    name="gl.nvidia.ampere.async_copy.mbarrier_arrive",
)
def mbarrier_arrive(mbarrier: Any, increment_count: Any = True, _semantic: Any = None) -> None:
    """Arrive at `mbarrier` once all copies that the thread has started so far are done.

    Args:
        mbarrier: an initialized barrier.
        increment_count: first count this arrival as one more that the phase waits for, so that the
            barrier's count need not include it.

    Raises:
        DtypeError, LayoutError, ShapeError: `mbarrier` is no barrier.

    ISA: PTX 9.7.13.15.16, cp.async.mbarrier.arrive.
    """
    mbarrier = check_mbarrier(mbarrier)
    increment = compile_time_bool(increment_count, "increment_count")
    _semantic.builder.create_async_copy_mbarrier_arrive(mbarrier.handle, increment)


def _check_destination(smem: Any, pointer: Any) -> None:
    element = pointer.dtype.element_ty
    check_copied(smem, pointer, element, "smem")
    if isinstance(smem.layout, PaddedSharedLayout):
        raise LayoutError(
            "cp.async does not write padded buffers",
            argument="smem",
            expected="SwizzledSharedLayout or NVMMASharedLayout",
            got=repr(smem.layout),
        )
    layout = pointer.type.layout
    if is_placeholder(layout):
        return
    held = consecutive_elements(layout, smem.layout, shape_of(pointer))
    if held is not None and held * element.primitive_bitwidth < 8 * _LEAST_BYTES:
        least = 8 * _LEAST_BYTES // element.primitive_bitwidth
        raise LayoutError(
            f"cp.async copies 4, 8 or 16 bytes, and a thread holds fewer consecutive bytes of {element}",
            argument="pointer",
            expected=f"at least {least} consecutive elements per thread, also consecutive in smem",
            got=f"{held}: {layout} into {smem.layout}",
            remedy=f"Give the layout size_per_thread >= {least} along the fastest dimension of smem.",
        )
