"""Shared memory: allocation, loads and stores, views, gathers and scatters."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Optional, TypeVar

from gluon_core import _triton
from gluon_core._triton import ir, tl, unwrap
from gluon_core.errors import DtypeError, LayoutError, ShapeError, refuse
from gluon_core.features import (
    HOLES_SLICED,
    INTERLEAVED_BUFFERS,
    SLICED_COPIES,
    UNEVEN_BUFFERS,
    UNEVEN_VIEWS,
)
from gluon_core.layouts import infer
from gluon_core.layouts.base import SharedLayout
from gluon_core.layouts.cost import bank_conflicts
from gluon_core.layouts.linear import another_blocks
from gluon_core.semantic.base import SemanticBase, is_placeholder, shape_of
from gluon_core.semantic.copies import like
from gluon_core.semantic.operands import (
    check_even,
    check_stored,
    compile_time_int,
    view_index,
    wrap_axis,
)
from gluon_core.semantic.views import check_slice, check_view_place, check_view_size
from gluon_core.values import (
    check_block_shape,
    distributed_type,
    memory_descriptor,
    shared_memory_descriptor,
    shared_memory_descriptor_type,
    unwrap_shape,
)
from gluon_core.values.tensors import describe

__all__ = ["SharedOps"]

M = TypeVar("M", bound=memory_descriptor)

_RMW = {
    "add": "ADD",
    "and": "AND",
    "max": "MAX",
    "min": "MIN",
    "or": "OR",
    "xchg": "XCHG",
    "xor": "XOR",
}


def _to_index(mem: Any) -> str:
    """Return the remedy where a buffer was meant to be one of several."""
    rank = mem.rank - 1
    if rank < 1:
        return "Use slice, or allocate with one dimension more."
    return (
        f"For {mem.shape[0]} buffers of {list(mem.shape[1:])} the layout is one of {rank} "
        f"dimension{'s' if rank > 1 else ''}; for parts of one buffer use slice."
    )


class SharedOps(SemanticBase):
    # -- allocation and whole-view access -------------------------------------------------------

    def allocate_shared(self, element_ty: Any, shape: Any, layout: Any, value: Any = None) -> Any:
        element_ty, layout, value = unwrap(element_ty), unwrap(layout), unwrap(value)
        shape = unwrap_shape(shape)
        if not isinstance(element_ty, tl.dtype) or element_ty.is_ptr():
            raise DtypeError("not a dtype", argument="element_ty", got=describe(element_ty))
        _check_bytes(element_ty, "element_ty")
        self.check_shared_layout(layout, shape, batched=True, uneven=value is None)
        memdesc_type = shared_memory_descriptor_type(element_ty, shape, layout, shape)
        self.session.count_shared(memdesc_type.nbytes_per_cta)
        type_ir = memdesc_type.to_ir(self.builder)
        if value is None:
            handle = self.builder.create_local_alloc(type_ir)
        else:
            check_stored(memdesc_type, value, first=True)
            self._check_own(memdesc_type, value.type.layout, "value")
            handle = self.builder.create_local_alloc(type_ir, value.handle)
        return shared_memory_descriptor(handle, element_ty, shape, layout, shape)

    def check_shared_layout(
        self, layout: Any, shape: list[int], batched: bool, uneven: bool = False
    ) -> None:
        if not isinstance(layout, SharedLayout):
            raise LayoutError(
                "not a layout for shared memory",
                argument="layout",
                expected="a shared layout such as SwizzledSharedLayout",
                got=repr(layout),
            )
        self.session.check_layout(layout)
        rank = layout.rank
        allowed = (rank, rank + 1) if batched else (rank,)
        if rank is not None and len(shape) not in allowed:
            raise LayoutError(
                "the rank of the layout is not that of the buffer",
                argument="layout",
                expected=f"rank {len(shape)}"
                + (f" or {len(shape) - 1}" if batched else "")
                + f" for shape {shape}",
                got=f"rank {rank}: {layout}",
            )
        inner = shape[len(shape) - rank :] if rank else shape
        if uneven and len(inner) == len(shape) and _triton.has(UNEVEN_BUFFERS):
            inner = _rounded(layout, inner)
        check_block_shape(inner, "a shared-memory buffer")
        if any(size < 1 for size in shape):
            raise ShapeError("must be positive", argument="shape", got=shape)
        layout.to_linear(inner)  # raises where the layout cannot hold the shape

    def shared_load(self, mem: Any, layout: Any) -> Any:
        self.require_unbatched(mem)
        layout = self.check_layout(layout, mem.shape)
        self._check_own(mem.type, layout, "layout")
        result_type = distributed_type(mem.dtype, mem.shape, layout)
        handle = self.builder.create_local_load(result_type.to_ir(self.builder), mem.handle)
        self._note_access(mem, layout)
        return self.make_tensor(handle, result_type)

    def shared_store(self, mem: Any, value: Any) -> None:
        self.require_unbatched(mem)
        check_stored(mem.type, value)
        self._check_own(mem.type, value.type.layout, "value")
        self.builder.create_local_store(mem.handle, value.handle)
        self._note_access(mem, value.type.layout)

    def _check_own(self, memory: Any, layout: Any, argument: str) -> None:
        """Check that each block of a cluster has its operands in its own memory, where it must."""
        shape = list(memory.shape)
        whole = (
            shape == memory.alloc_shape[-len(shape) :]
        )  # of a slice, the type does not say where
        if whole and not is_placeholder(layout):
            self.check_blocks(
                lambda: another_blocks(memory.layout.to_linear(shape), layout.to_linear(shape)),
                "the access", argument, f"{layout} and {memory.layout}",
            )  # fmt: skip

    def _note_access(self, mem: Any, layout: Any) -> None:
        """Keep how to count the bank conflicts of an access, for who asks after the trace."""
        self.session.shared_accesses.append(partial(self._conflicts, mem, layout))

    def _conflicts(self, mem: Any, layout: Any) -> int:
        bits, banks = mem.dtype.primitive_bitwidth, self.target.architecture.banks
        return bank_conflicts(layout, mem.layout, mem.shape, bits, banks)

    def deferred_store(self, mem: Any, value: Any, ptr: Any, offsets: Any, mask: Any) -> None:
        """Record a copy of loaded values, `value`, that is done at once here, and elsewhere after a
        wait, so that the recorder may check that order."""
        self.require_unbatched(mem)
        check_stored(mem.type, value)
        store = getattr(self.builder, "deferred_store", None)
        if store is None:
            self.builder.create_local_store(mem.handle, value.handle)
            return
        pointers = self.add(ptr, offsets, True)
        if mask is not None:
            pointers, mask = self.broadcast_impl_value(pointers, self.to_tensor(mask))
        store(mem.handle, value.handle, pointers.handle, mask.handle if mask is not None else None)

    def record(self, event: str, *values: Any) -> None:
        """Pass an event to a builder that records the kernel; others have no method of that name."""
        note = getattr(self.builder, event, None)
        if note is not None:
            note(*map(_handles, values))

    def shared_dealloc(self, mem: Any) -> None:
        self.builder.create_local_dealloc(mem.handle)

    # -- views ----------------------------------------------------------------------------------

    def _view(self, handle: Any, mem: Any, shape: Any, layout: Any, alloc_shape: Any) -> Any:
        return shared_memory_descriptor(handle, mem.dtype, shape, layout, alloc_shape)

    @staticmethod
    def require_unbatched(mem: Any) -> None:
        """Check that the layout describes every dimension: there is no leading one that counts copies."""
        if mem.layout.rank is not None and mem.layout.rank != mem.rank:
            raise LayoutError(
                "the layout describes one of several copies",
                argument="self",
                got=f"{mem.shape} with {mem.layout}",
                remedy="Pick a copy first: index(i).",
            )
        check_even(mem, "self")

    def memdesc_slice(self, mem: Any, start: Any, length: Any, dim: Any) -> Any:
        start = compile_time_int(start, "start")
        length, dim = compile_time_int(length, "length"), compile_time_int(dim, "dim")
        if not -mem.rank <= dim < mem.rank:
            raise ShapeError(
                "the dimension is out of range",
                argument="dim",
                expected=f"0 to {mem.rank - 1}",
                got=dim,
            )
        dim %= mem.rank
        check_even(mem, "self")
        copies = mem.rank - (mem.layout.rank or mem.rank)  # dimensions in front: whole buffers
        if copies and (start, length) != (0, mem.shape[dim]):
            _triton.require(SLICED_COPIES, "slicing a view of several buffers")
        if length < 1 or dim >= copies and length & (length - 1):
            raise ShapeError("must be a power of two", argument="length", got=length)
        if start < 0 or start + length > mem.shape[dim]:
            refuse(
                ShapeError(
                    f"the slice leaves dimension {dim}",
                    argument="start",
                    expected=f"within 0 to {mem.shape[dim]}",
                    got=f"{start} to {start + length}",
                )
            )
        elif dim >= copies and start % length:
            raise ShapeError(
                "must be a multiple of the length",
                argument="start",
                expected=f"a multiple of {length}",
                got=start,
            )
        holes = not all(map(any, getattr(mem.layout, "offset_bases", ())))
        if holes and length != mem.shape[dim] and not _triton.has(HOLES_SLICED):
            raise LayoutError(
                "the installed Triton slices no buffer that has unused places",
                argument="self",
                expected="a layout without bases of zeros",
                got=repr(mem.layout),
                remedy="Use a newer Triton, or leave those bases out.",
            )
        check_slice(mem, dim, length)
        offsets = [0] * mem.rank
        offsets[dim] = start
        shape = list(mem.shape)
        shape[dim] = length
        result = shared_memory_descriptor_type(mem.dtype, shape, mem.layout, mem.type.alloc_shape)
        handle = self.builder.create_memdesc_subslice(
            result.to_ir(self.builder), mem.handle, offsets
        )
        return self._view(handle, mem, shape, mem.layout, mem.type.alloc_shape)

    def memdesc_index(self, mem: M, index: Any, remedy: Optional[str] = None) -> M:
        if mem.rank < 2 or mem.layout.rank is not None and mem.layout.rank >= mem.rank:
            raise ShapeError(
                "the view has no leading dimension besides those of its layout to index",
                argument="self",
                got=f"{mem.shape} with {mem.layout}",
                remedy=remedy or _to_index(mem),
            )
        if list(mem.shape[1:]) != list(mem.type.alloc_shape)[1 - mem.rank :]:
            raise ShapeError(
                "a part of each buffer cannot be indexed",
                argument="self",
                expected=f"a view of whole buffers, of {mem.type.alloc_shape}",
                got=mem.shape,
                remedy="Index first, then slice.",
            )
        index = unwrap(index)
        if isinstance(index, int) and not 0 <= index < mem.shape[0]:
            raise ShapeError(
                "the index leaves the leading dimension",
                argument="index",
                expected=f"0 to {mem.shape[0] - 1}",
                got=index,
            )
        index = view_index(self, index)
        shape = list(mem.shape[1:])
        view: Any = type(mem)  # each class of views is made of these
        result: M = view(None, mem.dtype, shape, mem.layout, shape)
        result.handle = self.builder.create_memdesc_index(
            result.type.to_ir(self.builder), mem.handle, index.handle
        )
        return result

    def memdesc_permute(self, mem: Any, order: list[int]) -> Any:
        if sorted(order) != list(range(mem.rank)):
            raise ShapeError(
                "must be a permutation of the dimensions",
                argument="order",
                expected=f"each of 0..{mem.rank - 1} once",
                got=order,
            )
        if mem.rank > 1:  # of one dimension there is nothing to change
            self.require_unbatched(mem)
        infer.memdesc_permute(mem.layout, mem.shape, order)  # raises where the builder aborts
        alloc = mem.type.alloc_shape
        extra = len(alloc) - mem.rank
        new_alloc = alloc[:extra] + [alloc[extra:][d] for d in order]
        handle = self.builder.create_memdesc_trans(mem.handle, order)
        layout = self.layout_of_memdesc(handle)
        return self._view(handle, mem, [mem.shape[d] for d in order], layout, new_alloc)

    def memdesc_reshape(self, mem: Any, shape: list[int]) -> Any:
        if math.prod(shape) != mem.numel:
            raise ShapeError(
                "reshape cannot change the number of elements",
                argument="shape",
                expected=f"{mem.numel} elements, as in {mem.shape}",
                got=f"{math.prod(shape)} in {shape}",
            )
        alloc = mem.type.alloc_shape
        if list(alloc[len(alloc) - mem.rank :]) != list(mem.shape):
            raise ShapeError(
                "a slice cannot be reshaped",
                argument="self",
                got=f"{mem.shape} of {alloc}",
                remedy="Reshape the whole buffer first, then slice it.",
            )
        check_block_shape(shape, "a shared-memory view")
        self.require_unbatched(mem)
        infer.memdesc_reshape(mem.layout, mem.shape, shape)
        handle = self.builder.create_memdesc_reshape(mem.handle, shape)
        layout = self.layout_of_memdesc(handle)
        prefix = alloc[: len(alloc) - mem.rank]
        return self._view(handle, mem, shape, layout, prefix + shape)

    def memdesc_reinterpret(self, mem: Any, dtype: Any, shape: list[int], layout: Any) -> Any:
        if not isinstance(dtype, tl.dtype):
            raise DtypeError("not a dtype", argument="dtype", got=describe(dtype))
        _check_bytes(dtype, "dtype")
        uneven = _triton.has(UNEVEN_VIEWS)
        if not uneven:
            check_even(mem, "self")
        self.check_shared_layout(layout, shape, batched=True, uneven=uneven)
        have = mem.numel * mem.dtype.primitive_bitwidth
        want = math.prod(shape) * dtype.primitive_bitwidth
        check_view_size(have // 8, want // 8, "bytes", mem)
        result = shared_memory_descriptor_type(dtype, shape, layout, shape)
        check_view_place(mem, result)
        handle = self.builder.create_memdesc_reinterpret(result.to_ir(self.builder), mem.handle)
        return shared_memory_descriptor(handle, dtype, shape, layout, shape)

    # -- element access -------------------------------------------------------------------------

    def _check_indexed(self, mem: Any, indices: Any, axis: Any) -> int:
        self.require_unbatched(mem)
        self.require_distributed(indices, "indices")
        if not indices.dtype.is_int():
            raise DtypeError("must be integers", argument="indices", got=indices.dtype)
        shape = shape_of(indices)
        if len(shape) != mem.rank:
            raise ShapeError(
                "must have the buffer's rank", argument="indices", expected=mem.rank, got=len(shape)
            )
        dimension: int = wrap_axis(axis, mem.rank)
        for dim, (want, have) in enumerate(zip(shape, mem.shape)):
            if dim != dimension and want > have:
                raise ShapeError(
                    f"dimension {dim} exceeds the buffer's",
                    argument="indices",
                    expected=mem.shape,
                    got=shape,
                )
        return dimension

    def _element_values(
        self, mem: Any, values: Any, indices: Any, axis: Any
    ) -> tuple[Any, Any, int]:
        """Values and indices of one shape and layout, and the dimension that the indices count."""
        dimension = self._check_indexed(mem, indices, axis)
        self.require_tensor(values, "values")
        if values.dtype != mem.dtype:
            raise DtypeError(
                "must have the buffer's dtype",
                argument="values",
                expected=mem.dtype,
                got=values.dtype,
            )
        if values.type.is_block():
            have, want = shape_of(values), shape_of(indices)
            if len(have) != len(want) or any(
                h != w and 1 not in (h, w) for h, w in zip(have, want)
            ):
                raise ShapeError(
                    "does not match the indices", argument="values", expected=want, got=have
                )
        values, indices = self.broadcast_impl_value(values, indices)
        self._check_indexed(mem, indices, axis)
        return values, indices, dimension

    def shared_gather(self, mem: Any, indices: Any, axis: Any) -> Any:
        axis = self._check_indexed(mem, indices, axis)
        result_type = indices.type.with_element_ty(mem.dtype)
        handle = self.builder.create_local_gather(
            result_type.to_ir(self.builder), mem.handle, indices.handle, axis
        )
        return self.make_tensor(handle, result_type)

    def shared_scatter(self, mem: Any, values: Any, indices: Any, axis: Any) -> None:
        values, indices, axis = self._element_values(mem, values, indices, axis)
        self.builder.create_local_scatter(mem.handle, values.handle, indices.handle, axis)

    def shared_atomic_scatter(
        self, op: str, mem: Any, values: Any, indices: Any, axis: Any, mask: Any
    ) -> Any:
        values, indices, axis = self._element_values(mem, values, indices, axis)
        kind = self._shared_rmw(op, mem.dtype)
        if mask is not None:
            mask = self.to_tensor(mask)
            if not mask.dtype.is_bool():
                raise DtypeError("must be boolean", argument="mask", got=mask.dtype)
            if mask.type.is_block() and len(shape_of(mask)) == mem.rank:
                values, mask = self.broadcast_impl_value(values, mask)
                indices, mask = self.broadcast_impl_value(indices, mask)
                values, indices = self.broadcast_impl_value(values, indices)
                self._check_indexed(mem, indices, axis)
            mask = like(self, indices, mask, "mask", "indices")
        handle = self.builder.create_local_atomic_scatter_rmw(
            kind,
            mem.handle,
            values.handle,
            indices.handle,
            None if mask is None else mask.handle,
            axis,
        )
        return self.make_tensor(handle, values.type)

    @staticmethod
    def _shared_rmw(op: str, dtype: Any) -> Any:
        floating = dtype.is_floating()
        if floating and op not in ("add", "xchg"):
            raise DtypeError(f"atomic {op} works on integers", argument="values", got=dtype)
        name = _RMW[op]
        if floating and op == "add":
            name = "FADD"
        elif op in ("max", "min") and dtype.is_int_unsigned():
            name = f"U{name}"
        return getattr(ir.ATOMIC_OP, name)

    def bank_conflicts(self, distr_ty: Any, shared_ty: Any) -> Any:
        """Extra shared-memory transactions of one access; see `gl.bank_conflicts`."""
        distr_ty, shared_ty = unwrap(distr_ty), unwrap(shared_ty)
        if not isinstance(distr_ty, distributed_type) or distr_ty.element_ty.is_ptr():
            raise DtypeError("not a tensor type", argument="distr_ty", got=describe(distr_ty))
        if not isinstance(shared_ty, shared_memory_descriptor_type):
            raise DtypeError(
                "not a shared-memory type", argument="shared_ty", got=describe(shared_ty)
            )
        return _triton.constexpr(
            bank_conflicts(
                distr_ty.layout,
                shared_ty.layout,
                list(distr_ty.shape),
                distr_ty.element_ty.primitive_bitwidth,
                banks=self.target.architecture.banks,
            )
        )


def _check_bytes(element_ty: Any, argument: str) -> None:
    if element_ty.primitive_bitwidth % 8:
        raise DtypeError(
            "shared memory holds whole bytes",
            argument=argument,
            got=element_ty,
            remedy="Store int8 and compare with zero after loading.",
        )


def _rounded(layout: Any, shape: list[int]) -> list[int]:
    """Return the shape of the buffer that a layout has to fit where the first extent may be any: memory
    is taken for the extent, and nothing is placed in it."""
    fixed = hasattr(layout, "offset_bases") and _triton.has(INTERLEAVED_BUFFERS)
    if fixed or shape[0] < 1 or any(any(row) for row in layout.cga_layout):
        return shape
    return [1 << (shape[0] - 1).bit_length(), *shape[1:]]


def _handles(value: Any) -> Any:
    """Return the handles of values, and anything else as it is."""
    return [*map(_handles, value)] if isinstance(value, list) else getattr(value, "handle", value)
