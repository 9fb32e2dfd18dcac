"""Asynchronous copies between global memory and LDS, both ways, lane by lane (gfx1250)."""

from __future__ import annotations

from typing import Optional

from gluon_amd.features import SHARED_TO_GLOBAL
from gluon_amd.language.mbarrier import check_mbarrier
from gluon_core.errors import DtypeError, LayoutError
from gluon_core.layouts.base import DistributedLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Operand
from gluon_core.values import shared_memory_descriptor

__all__ = [
    "LEAST_BITS",
    "commit_group",
    "global_to_shared",
    "mbarrier_arrive",
    "shared_to_global",
    "wait_group",
]

_REQUIRES = ("amd.async_lds",)
_NAME = "gl.amd.gfx1250.async_copy"
LEAST_BITS = 32  # that one lane copies; there is an instruction for 8, which is not emitted


@builtin(requires=_REQUIRES, name=f"{_NAME}.global_to_shared", instead="gl.portable.async_copy")
def global_to_shared(
    smem: shared_memory_descriptor,
    pointer: tl.tensor,
    mask: Optional[Operand] = None,
    other: Optional[Operand] = None,
    cache_modifier: Optional[Const[str]] = "",
) -> None:
    """Start copying from `pointer` into `smem`.

    The copy belongs to the group that the next `commit_group` closes; `smem` may be read after
    `wait_group`.

    Args:
        smem: view of shared memory, of `pointer`'s shape and element type.
        pointer: tensor of pointers. Its layout says which lane copies which elements; each lane must
        hold 4,
            8 or 16 bytes that are consecutive in memory and in `smem`.
        mask: int1, broadcast to the pointers.
        other: value of `smem` where `mask` is false, a scalar or a tensor; without it `smem` keeps its
            elements there.
        cache_modifier: `".ca"`, `".cg"`, `".cs"` or `".cv"`.

    Raises:
        DtypeError: `smem` is no shared memory, `pointer` holds no pointers, the element types
            differ, or the mask is not boolean.
        ShapeError: the shapes differ, or mask or other do not fit.
        LayoutError: a lane holds less than 4 consecutive bytes.
        ArgumentError: `other` without a mask, or no such cache modifier.

    ISA: gfx1250, global_load_async_to_lds_b32/b64/b128.
    """
    semantic = semantic_layer()
    smem, pointer = _operands(semantic, smem, pointer)
    hints = semantic.cache_operands(cache_modifier)
    mask, other = semantic.masked(pointer, smem.dtype, mask, other, other_alone=True)
    semantic.builder.create_async_copy_global_to_local(
        smem.handle,
        pointer.handle,
        semantic.handle_or_absent(mask),
        semantic.handle_or_absent(other),
        *hints,
        False,
    )


@builtin(requires=_REQUIRES, since=SHARED_TO_GLOBAL, name=f"{_NAME}.shared_to_global")
def shared_to_global(
    pointer: tl.tensor,
    smem: shared_memory_descriptor,
    mask: Optional[Operand] = None,
    cache_modifier: Optional[Const[str]] = "",
) -> None:
    """Start copying `smem` to where `pointer` points.

    The copy belongs to the group that the next `commit_group` closes; `smem` may be written, and
    the kernel may end, after `wait_group`.

    Args:
        pointer: tensor of pointers. Its layout says which lane copies which elements, as in
            `global_to_shared`.
        smem: view of shared memory, of `pointer`'s shape and element type.
        mask: int1, broadcast to the pointers; where false nothing is written.
        cache_modifier: `".wb"`, `".cg"`, `".cs"` or `".wt"`.

    Raises:
        DtypeError: `smem` is no shared memory, `pointer` holds no pointers or const ones, the
            element types differ, or the mask is not boolean.
        ShapeError: the shapes differ, or the mask does not fit.
        LayoutError: a lane holds less than 4 consecutive bytes.
        ArgumentError: no such cache modifier.

    ISA: gfx1250, global_store_async_from_lds_b32/b64/b128.
    """
    semantic = semantic_layer()
    smem, pointer = _operands(semantic, smem, pointer)
    if pointer.type.scalar.is_const():
        raise DtypeError(
            "cannot write through a const pointer",
            argument="pointer",
            got=semantic.describe(pointer),
        )
    hints = semantic.cache_operands(cache_modifier, store=True)
    mask, _ = semantic.masked(pointer, smem.dtype, mask)
    semantic.builder.create_async_copy_local_to_global(
        smem.handle,
        pointer.handle,
        semantic.handle_or_absent(mask),
        *hints,
    )


@builtin(requires=_REQUIRES, name=f"{_NAME}.commit_group")
def commit_group() -> None:
    """Close the group of the copies since the last `commit_group`; it may be empty.

    ISA: none. The compiler counts the instructions of a group for `wait_group`.
    """
    semantic_layer().builder.create_async_commit_group()


@builtin(requires=_REQUIRES, name=f"{_NAME}.wait_group")
def wait_group(num_outstanding: Const[int] = 0) -> None:
    """Wait until at most `num_outstanding` of the most recent groups are still copying.

    Args:
        num_outstanding: compile-time integer; 0 waits for all.

    Raises:
        ArgumentError: not a compile-time integer >= 0.

    ISA: gfx1250, s_wait_asynccnt.
    """
    semantic = semantic_layer()
    count = semantic.compile_time_int(num_outstanding, "num_outstanding", 0, loose=True)
    semantic.builder.create_async_wait_group(count)


@builtin(requires=(*_REQUIRES, "amd.mbarrier"), name=f"{_NAME}.mbarrier_arrive")
def mbarrier_arrive(mbarrier: shared_memory_descriptor) -> None:
    """Arrive at `mbarrier`, each thread once all copies that it has started so far are done.

    The count that the barrier was initialized with must include the threads.

    Args:
        mbarrier: an initialized barrier.

    Raises:
        DtypeError, LayoutError, ShapeError: `mbarrier` is no barrier.

    ISA: gfx1250, ds_atomic_async_barrier_arrive_b64.
    """
    mbarrier = check_mbarrier(mbarrier)
    semantic_layer().builder.create_async_copy_lds_barrier_arrive(mbarrier.handle)


# -- operands ------------------------------------------------------------------------------------


def _operands(
    semantic: SemanticLayer, smem: shared_memory_descriptor, pointer: tl.tensor
) -> tuple[shared_memory_descriptor, tl.tensor]:
    smem = semantic.shared_memory(smem, "smem")
    pointer = semantic.check_pointer(pointer)
    pointer = semantic.require_distributed(pointer, "pointer")
    element = pointer.dtype.element_ty
    semantic.check_copied(smem, pointer, element, "smem")
    semantic.require_unbatched(smem)
    _check_width(pointer.type.layout, smem, element.primitive_bitwidth)
    return smem, pointer


def _check_width(layout: DistributedLayout, smem: shared_memory_descriptor, bits: int) -> None:
    semantic = semantic_layer()
    if semantic.is_placeholder(layout):
        return
    held = semantic.consecutive_elements(layout, smem.layout, smem.shape)
    if held is not None and bits * held < LEAST_BITS:
        least = LEAST_BITS // bits
        raise LayoutError(
            f"a lane copies 4, 8 or 16 bytes, and holds fewer consecutive bytes of {smem.dtype}",
            argument="pointer",
            expected=f"at least {least} consecutive elements per thread, also consecutive in smem",
            got=f"{held}: {layout} and {smem.layout}",
            remedy=f"Give the layout size_per_thread >= {least} along the fastest dimension of smem.",
        )
