"""Copies from global memory into LDS past the registers (gfx942, gfx950).

Each lane of a warp reads its own address; the values arrive in LDS in the order of the lanes. So a
warp's elements must be consecutive in the buffer, in the order of the lanes.
"""

from __future__ import annotations

from typing import Optional, Union

from gluon_amd.features import BUFFER_COPY_OTHER
from gluon_amd.language.buffer import check_address
from gluon_core.errors import CapabilityError, LayoutError, refuse
from gluon_core.layouts.base import DistributedLayout
from gluon_core.layouts.cost import copied_bits
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Operand
from gluon_core.values import shared_memory_descriptor

__all__ = [
    "buffer_load_to_shared",
    "commit_group",
    "global_load_to_shared",
    "load_shared_relaxed",
    "wait_group",
]

_NAME = "gl.amd.cdna4.async_copy"


@builtin(
    requires=("amd.global_load_to_lds",),
    name=f"{_NAME}.global_load_to_shared",
    instead="gl.portable.async_copy",
)
def global_load_to_shared(
    dest: shared_memory_descriptor,
    ptr: tl.tensor,
    mask: Optional[Operand] = None,
    other: Optional[Operand] = None,
    cache_modifier: Optional[Const[str]] = "",
) -> None:
    """Start copying from `ptr` into `dest`.

    The copy belongs to the group that the next `commit_group` closes; `dest` may be read after
    `wait_group`.

    Args:
        dest: view of shared memory, of `ptr`'s shape and element type.
        ptr: tensor of pointers. Its layout says which lane copies which elements: each lane 4 bytes, on
            gfx950 also 12 or 16, consecutive in memory and in `dest`, and the lanes of a warp one
            after the other. A swizzle of `dest` does not count: the lanes then exchange addresses.
        mask: int1, broadcast to the pointers.
        other: value of `dest` where `mask` is false, a scalar or a tensor; without it `dest` keeps its
            elements there.
        cache_modifier: `".ca"`, `".cg"`, `".cs"` or `".cv"`.

    Raises:
        DtypeError: `dest` is no shared memory, `ptr` holds no pointers, the element types differ,
            or the mask is not boolean.
        ShapeError: the shapes differ, or mask or other do not fit.
        LayoutError: the layouts do not let the lanes write one after the other.
        ArgumentError: no such cache modifier.
        CapabilityError: the target does not have it.

    ISA: CDNA3 9.3, global_load_lds_dword; CDNA4 adds dwordx3 and dwordx4.
    """
    semantic = semantic_layer()
    ptr = semantic.check_pointer(ptr, "ptr")
    ptr = semantic.require_distributed(ptr, "ptr")
    element = ptr.dtype.element_ty
    _check_destination(semantic, dest, ptr, element)
    mask, other = semantic.masked(ptr, element, mask, other, other_alone=True)
    hints = semantic.cache_operands(cache_modifier)
    semantic.builder.create_async_copy_global_to_local(
        dest.handle,
        ptr.handle,
        semantic.handle_or_absent(mask),
        semantic.handle_or_absent(other),
        *hints,
        False,
    )


@builtin(
    requires=("amd.buffer_load_to_lds",),
    name=f"{_NAME}.buffer_load_to_shared",
    instead="gl.portable.async_copy",
)
def buffer_load_to_shared(
    dest: shared_memory_descriptor,
    ptr: tl.tensor,
    offsets: tl.tensor,
    mask: Optional[Operand] = None,
    other: Optional[Operand] = None,
    cache_modifier: Optional[Const[str]] = "",
) -> None:
    """Start copying `ptr + offsets` into `dest`, as `global_load_to_shared` does from pointers.

    Args:
        dest: view of shared memory, of `offsets`' shape and the pointed-to type.
        ptr: scalar pointer.
        offsets: tensor of int32 or uint32, in elements, not negative; its layout says which lane copies
            which elements.
        mask: int1, broadcast to the offsets; where false nothing is read.
        other: value of `dest` where `mask` is false, a scalar or a tensor; 0 by default. The code of
            Triton before 3.8 leaves `dest` there as it was, of which the kernel is warned.
        cache_modifier: `".ca"`, `".cg"`, `".cs"` or `".cv"`.

    Raises:
        DtypeError: `dest` is no shared memory or of another dtype, `ptr` no scalar pointer, other
            offsets, or the mask is not boolean.
        ShapeError, LayoutError, ArgumentError, CapabilityError: as `global_load_to_shared`.

    ISA: CDNA3 9.1.9, buffer_load_dword ... lds; CDNA4 adds dwordx3 and dwordx4.
    """
    semantic = semantic_layer()
    if not semantic.target.has("amd.global_load_to_lds"):  # the generations before CDNA3
        raise CapabilityError(
            f"no compiler makes copies from buffers into LDS for {semantic.target}",
            remedy="Use gl.portable.async_copy.",
        )
    check_address(semantic, ptr, offsets)
    element = ptr.dtype.element_ty
    _check_destination(semantic, dest, offsets, element)
    mask, other = semantic.masked(offsets, element, mask, other, "offsets")
    if other is not None and not semantic.has(BUFFER_COPY_OTHER):
        semantic.warn(
            "buffer_load_to_shared: Triton before 3.8 makes code that does not write `other`; `dest` "
            "keeps its elements where the mask is false. Leave `other` out for zeros, or copy with "
            "global_load_to_shared."
        )
    modifier = semantic.cache_modifier(cache_modifier)
    semantic.builder.create_buffer_load_to_local(
        dest.handle,
        ptr.handle,
        offsets.handle,
        semantic.handle_or_absent(mask),
        semantic.handle_or_absent(other),
        semantic.handle_or_absent(None),  # the stride, for swizzling by the cache
        modifier,
    )


@builtin(requires=("amd.buffer_load_to_lds",), name=f"{_NAME}.commit_group")
def commit_group() -> None:
    """Close the group of the copies since the last `commit_group`; it may be empty.

    ISA: none. The compiler counts the instructions of a group for `wait_group`.
    """
    semantic_layer().builder.create_async_commit_group()


@builtin(requires=("amd.buffer_load_to_lds",), name=f"{_NAME}.wait_group")
def wait_group(num_outstanding: Const[int] = 0) -> None:
    """Wait until at most `num_outstanding` of the most recent groups are still copying.

    Args:
        num_outstanding: compile-time integer; 0 waits for all.

    Raises:
        ArgumentError: not a compile-time integer >= 0.

    ISA: CDNA3 4.4, s_waitcnt vmcnt.
    """
    semantic = semantic_layer()
    count = semantic.compile_time_int(num_outstanding, "num_outstanding", 0, loose=True)
    semantic.builder.create_async_wait_group(count)


@builtin(requires=("amd.buffer_load_to_lds",), name=f"{_NAME}.load_shared_relaxed")
def load_shared_relaxed(
    smem: shared_memory_descriptor, layout: Union[DistributedLayout, tl.constexpr]
) -> tl.tensor:
    """Load asynchronously copied elements that have been waited for, as `smem.load(layout)`.

    The attribute says that `wait_group` already orders the copy before this load, and adds no
    wait of its own for copies that are still under way to other buffers.

    Args:
        smem: view of shared memory.
        layout: of the result.

    Returns:
        A tensor of `smem`'s shape and dtype.

    Raises:
        DtypeError: `smem` is no shared memory.
        LayoutError, ShapeError: as `smem.load`.

    ISA: CDNA3 11, LDS, ds_read_*, without an s_waitcnt of its own.
    """
    semantic = semantic_layer()
    smem = semantic.shared_memory(smem, "smem")
    result = semantic.shared_load(smem, unwrap(layout))
    flag = semantic.builder.get_bool_attr(True)
    result.handle.set_attr("ttg.amdg.syncedViaAsyncWait", flag)
    return result


# -- operands ------------------------------------------------------------------------------------


def _check_destination(
    semantic: SemanticLayer, dest: shared_memory_descriptor, source: tl.tensor, element: tl.dtype
) -> None:
    dest = semantic.shared_memory(dest, "dest")
    semantic.check_copied(dest, source, element, "dest")
    semantic.require_unbatched(dest)
    if semantic.is_placeholder(source.type.layout):
        return
    wide = semantic.target.has("amd.direct_to_lds_128")
    widths = (128, 96, 32) if wide else (32,)
    layout, bits = source.type.layout, element.primitive_bitwidth
    if copied_bits(layout, dest.layout, dest.shape, bits, widths) is None:
        refuse(
            LayoutError(
                "the lanes of a warp write to LDS side by side, "
                + ("4, 12 or 16 bytes each" if wide else "4 bytes each"),
                argument="dest",
                expected="a warp's elements, lane by lane, consecutive in the buffer",
                got=f"{layout} into {dest.layout}",
                remedy="Let the layout's lanes run along dest's fastest dimension with one of these "
                "widths per thread, and give dest no swizzle or padding inside the writes of a warp.",
            )
        )
