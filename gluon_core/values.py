"""Types and values of kernels: distributed tensors and shared-memory descriptors.

Scalars, pointers, tuples and constexprs are Triton's own classes, re-exported by
`gluon_core._triton`, because Triton's code generator asks for them by class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import base_type, base_value, block_type, unwrap
from gluon_core.builtin import builtin
from gluon_core.errors import ArgumentError, LayoutError, ShapeError, did_you_mean
from gluon_core.layouts import AutoLayout, CoalescedLayout
from gluon_core.layouts import base as layouts_base
from gluon_core.layouts.base import DistributedLayout, SharedLayout

__all__ = [
    "CachePolicy",
    "distributed_type",
    "handle_value",
    "memory_descriptor",
    "memory_descriptor_type",
    "shared_memory_descriptor",
    "shared_memory_descriptor_type",
    "unwrap_shape",
]

layouts_base.set_type_factory(_triton.constexpr_type)


def unwrap_shape(shape: Any, argument: str = "shape") -> list[int]:
    """A list of Python ints from a (constexpr) int or a sequence of them.

    Raises:
        ShapeError: an entry is not a compile-time integer.
    """
    shape = unwrap(shape)
    if isinstance(shape, int):
        shape = [shape]
    result = []
    for item in shape:
        item = unwrap(item)
        if isinstance(item, bool) or not isinstance(item, int):
            raise ShapeError(
                "every dimension must be a compile-time integer", argument=argument, got=repr(item)
            )
        result.append(item)
    return result


def check_block_shape(shape: Sequence[int], what: str) -> None:
    for dim, size in enumerate(shape):
        if size < 1 or size & (size - 1):
            raise ShapeError(
                f"{what} must have power-of-two dimensions",
                argument="shape",
                got=f"{list(shape)} (dimension {dim} is {size})",
                remedy=f"Round up to {1 << max(size - 1, 0).bit_length()} and mask the rest.",
            )


CACHE_MODIFIERS = ("none", "ca", "cg", "cs", "cv", "wb", "wt")
EVICTION_POLICIES = ("evict_normal", "evict_first", "evict_last")


def _check_choice(argument: str, value: Any, choices: Sequence[str]) -> None:
    plain = value.lstrip(".") if isinstance(value, str) else value
    if plain not in choices:
        raise ArgumentError(
            "no such choice",
            argument=argument,
            expected=", ".join(map(repr, choices)),
            got=repr(value),
            remedy=did_you_mean(str(value), choices),
        )


@dataclass(frozen=True)
class CachePolicy:
    """How a load or store treats the caches; Triton 3.9 and later.

    Args:
        cache_modifier: `"none"`, `"ca"`, `"cg"`, `"cs"`, `"cv"`, `"wb"` or `"wt"`, with or without
            the leading dot (PTX ISA, cache operators).
        eviction_policy: `"evict_normal"`, `"evict_first"` or `"evict_last"`.
    """

    cache_modifier: Optional[str] = "none"
    eviction_policy: Optional[str] = "evict_normal"

    def __post_init__(self) -> None:
        modifier = unwrap(self.cache_modifier) or "none"
        eviction = unwrap(self.eviction_policy) or "evict_normal"
        _check_choice("cache_modifier", modifier, CACHE_MODIFIERS)
        _check_choice("eviction_policy", eviction, EVICTION_POLICIES)
        object.__setattr__(self, "cache_modifier", modifier.lstrip("."))
        object.__setattr__(self, "eviction_policy", eviction)

    @property
    def type(self) -> Any:
        return _triton.constexpr_type(self)

    def _to_ir(self, builder: Any) -> Any:
        return builder.get_cache_policy(self.cache_modifier, self.eviction_policy)

    def mangle(self) -> str:
        return f"CP_{self.cache_modifier}_{self.eviction_policy}_CP"


class distributed_type(block_type):
    """Type of a tensor whose elements are spread over the threads of a block by `layout`."""

    def __init__(self, element_ty: Any, shape: Sequence[int], layout: Any):
        shape = unwrap_shape(shape)
        layout = unwrap(layout)
        if not isinstance(layout, DistributedLayout):
            raise LayoutError(
                "not a layout for tensors in registers",
                argument="layout",
                expected="a distributed layout such as BlockedLayout",
                got=repr(layout),
            )
        check_block_shape(shape, "a tensor")
        super().__init__(element_ty, shape)
        self.layout = layout
        self.name = f"<{self.shape}, {self.element_ty}, {self.layout}>"
        if isinstance(layout, (AutoLayout, CoalescedLayout)):
            return
        if layout.rank != len(self.shape):
            raise LayoutError(
                "the rank of the layout is not that of the tensor",
                argument="layout",
                expected=f"rank {len(self.shape)} for shape {list(self.shape)}",
                got=f"rank {layout.rank}: {layout}",
            )

    def to_ir(self, builder: Any) -> Any:
        element = self.element_ty.to_ir(builder)
        return builder.get_distributed_ty(element, list(self.shape), self.layout._to_ir(builder))

    def mangle(self) -> str:
        shape = "_".join(map(str, self.shape))
        return f"{self.scalar.mangle()}S{shape}SL{self.layout.mangle()}L"

    def with_element_ty(self, scalar_ty: Any) -> "distributed_type":
        return distributed_type(scalar_ty, self.shape, self.layout)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, distributed_type):
            return False
        return super().__eq__(other) and self.layout == other.layout

    def __hash__(self) -> int:
        return hash((str(self.element_ty), tuple(self.shape), self.layout))


class handle_value(base_value):
    """A value that is one handle of the builder."""

    handle: Any
    type: Any

    def _flatten_ir(self, handles: list) -> None:
        handles.append(self.handle)

    def _set_name(self, builder: Any, name: str) -> None:
        self.handle.set_loc(builder.create_name_loc(name, self.handle.get_loc()))

    def __str__(self) -> str:
        return str(self.type)


class memory_descriptor_type(base_type):
    """Type of a view of on-chip memory.

    Args:
        element_ty: dtype of the elements.
        shape: shape of the view.
        layout: of the view.
        alloc_shape: shape of the allocation that the view is part of.
    """

    def __init__(self, element_ty: Any, shape: Any, layout: Any, alloc_shape: Any):
        self.element_ty = unwrap(element_ty)
        self.shape = unwrap_shape(shape)
        self.layout = unwrap(layout)
        self.alloc_shape = unwrap_shape(alloc_shape)

    def _value(self, handle: Any) -> Any:
        """The value of this type that is `handle`."""
        raise NotImplementedError

    def _flatten_ir_types(self, builder: Any, out: list) -> None:
        out.append(self.to_ir(builder))

    def _unflatten_ir(self, handles: Sequence[Any], cursor: int) -> tuple[Any, int]:
        return self._value(handles[cursor]), cursor + 1

    def _parts(self) -> tuple[Any, list[int], Any, list[int]]:
        return self.element_ty, self.shape, self.layout, self.alloc_shape

    def __str__(self) -> str:
        name = type(self).__name__.removesuffix("_type")
        return f"{name}<{self.element_ty}, {self.shape}, {self.layout}>"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, memory_descriptor_type)
            and self._parts() == other._parts()
        )

    def __hash__(self) -> int:
        return hash((str(self.element_ty), tuple(self.shape), self.layout, tuple(self.alloc_shape)))

    def _mangled_alloc(self) -> str:
        return str(self.alloc_shape)

    def mangle(self) -> str:
        shape = "_".join(map(str, self.shape))
        layout, alloc = self.layout.mangle(), self._mangled_alloc()
        return f"MD{self.element_ty.mangle()}S{shape}SL{layout}LAS{alloc}ASMD"


class memory_descriptor(handle_value):
    """A view of on-chip memory."""

    @property
    def dtype(self) -> Any:
        """dtype of the elements."""
        return self.type.element_ty

    @property
    def shape(self) -> list[int]:
        """Shape of the view."""
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements of the view."""
        return math.prod(self.shape)

    @property
    def layout(self) -> Any:
        return self.type.layout


class shared_memory_descriptor_type(memory_descriptor_type):
    """Type of a view of shared memory.

    Args:
        element_ty: dtype of the elements.
        shape: shape of the view.
        layout: a shared layout.
        alloc_shape: shape of the allocation that the view is part of.
    """

    def __init__(self, element_ty: Any, shape: Any, layout: Any, alloc_shape: Any):
        super().__init__(element_ty, shape, layout, alloc_shape)
        if not isinstance(self.layout, SharedLayout):
            raise LayoutError(
                "not a layout for shared memory",
                argument="layout",
                expected="a shared layout such as SwizzledSharedLayout",
                got=repr(self.layout),
            )

    @property
    def nbytes_per_cta(self) -> int:
        """Bytes of one block's part of the view."""
        bases = getattr(self.layout, "cga_layout", None) or []
        parts = 2 ** sum(any(basis) for basis in bases)  # the other blocks have the same
        bits = math.prod(self.shape) * self.element_ty.primitive_bitwidth
        return max(1, bits // 8 // parts)

    def to_ir(self, builder: Any) -> Any:
        return builder.get_shared_mem_desc_ty(
            self.element_ty.to_ir(builder), self.shape, self.layout._to_ir(builder), self.alloc_shape
        )

    def _value(self, handle: Any) -> "shared_memory_descriptor":
        return shared_memory_descriptor(handle, *self._parts())

    def _mangled_alloc(self) -> str:
        if _triton.at_least(3, 7):
            return "_".join(map(str, self.alloc_shape))
        return super()._mangled_alloc()


class shared_memory_descriptor(memory_descriptor):
    """A view of shared memory: what `allocate_shared_memory` returns and its methods re-shape."""

    def __init__(self, handle: Any, element_ty: Any, shape: Any, layout: Any, alloc_shape: Any):
        self.handle = handle
        self.type = shared_memory_descriptor_type(element_ty, shape, layout, alloc_shape)

    @property
    def nbytes_per_cta(self) -> int:
        """Bytes of one block's part of the view."""
        return self.type.nbytes_per_cta

    @builtin(name="shared_memory_descriptor.load")
    def load(self, layout: Any, _semantic: Any = None) -> Any:
        """Read the whole view into a tensor with `layout`."""
        return _semantic.shared_load(self, unwrap(layout))

    @builtin(name="shared_memory_descriptor.store")
    def store(self, value: Any, _semantic: Any = None) -> None:
        """Write `value`, a tensor of the view's shape and dtype.

        Raises:
            ShapeError: the shapes differ.
            DtypeError: the dtypes differ.
        """
        return _semantic.shared_store(self, value)

    @builtin(name="shared_memory_descriptor.slice")
    def slice(self, start: Any, length: Any, dim: Any = 0, _semantic: Any = None) -> Any:
        """The sub-view `[start, start + length)` of dimension `dim`; both are compile-time integers."""
        return _semantic.memdesc_slice(self, unwrap(start), unwrap(length), unwrap(dim))

    @builtin(name="shared_memory_descriptor.index")
    def index(self, index: Any, _semantic: Any = None) -> Any:
        """The view at `index` (a run-time int32 or a constant) of the leading dimension."""
        return _semantic.memdesc_index(self, unwrap(index))

    @builtin(name="shared_memory_descriptor.permute")
    def permute(self, order: Any, _semantic: Any = None) -> Any:
        """The view with its dimensions in `order`; no data moves."""
        return _semantic.memdesc_permute(self, unwrap_shape(order, "order"))

    @builtin(name="shared_memory_descriptor.reshape")
    def reshape(self, shape: Any, _semantic: Any = None) -> Any:
        """The view with another shape of the same number of elements; no data moves."""
        return _semantic.memdesc_reshape(self, unwrap_shape(shape))

    @builtin(name="shared_memory_descriptor.reinterpret")
    def reinterpret(
        self, dtype: Any = None, shape: Any = None, layout: Any = None, _semantic: Any = None
    ) -> Any:
        """The same bytes seen with another dtype, shape or layout.

        What is left out stays as it is. From Triton 3.9 `shape` and `layout` may be left out.
        """
        return _semantic.memdesc_reinterpret(
            self,
            unwrap(dtype) if unwrap(dtype) is not None else self.dtype,
            unwrap_shape(shape) if unwrap(shape) is not None else list(self.shape),
            unwrap(layout) if unwrap(layout) is not None else self.layout,
        )

    _reinterpret = reinterpret

    @builtin(name="shared_memory_descriptor._keep_alive")
    def _keep_alive(self, _semantic: Any = None) -> None:
        """Keep the allocation alive up to here."""
        return _semantic.shared_dealloc(self)

    @builtin(name="shared_memory_descriptor.gather", since=(3, 7))
    def gather(self, indices: Any, axis: Any, _semantic: Any = None) -> Any:
        """A tensor of `indices`' shape and layout: `result[i..] = self[.., indices[i..], ..]` along `axis`."""
        return _semantic.shared_gather(self, indices, unwrap(axis))

    @builtin(name="shared_memory_descriptor.scatter", since=(3, 7))
    def scatter(self, values: Any, indices: Any, axis: Any, _semantic: Any = None) -> None:
        """`self[.., indices[i..], ..] = values[i..]` along `axis`."""
        return _semantic.shared_scatter(self, values, indices, unwrap(axis))

    def _atomic_scatter(
        self, op: str, values: Any, indices: Any, axis: Any, mask: Any, semantic: Any
    ) -> Any:
        return semantic.shared_atomic_scatter(op, self, values, indices, unwrap(axis), unwrap(mask))


def _atomic_scatter_method(op: str) -> Any:
    public = f"shared_memory_descriptor.atomic_scatter_{op}"

    def method(
        self: Any, values: Any, indices: Any, axis: Any, mask: Any = None, _semantic: Any = None
    ) -> Any:
        return self._atomic_scatter(op, values, indices, axis, mask, _semantic)

    method.__name__ = f"atomic_scatter_{op}"
    method.__qualname__ = public
    method.__doc__ = (
        f"Atomic {op} of `values` into `self[.., indices, ..]` along `axis`; returns the old values."
    )
    return builtin(method, since=(3, 8), name=public)


for _op in ("add", "and", "max", "min", "or", "xchg", "xor"):
    setattr(shared_memory_descriptor, f"atomic_scatter_{_op}", _atomic_scatter_method(_op))


def layout_of(value: Any) -> Optional[Any]:
    """The layout of a tensor or descriptor value, None for scalars."""
    return getattr(value.type, "layout", None)
