"""Define views of on-chip memory: their types, and the methods for kernels."""

from __future__ import annotations

import math
from typing import Any, Optional, Protocol, TypeAlias, TypeVar, cast

from gluon_core import _triton
from gluon_core._triton import tensor, unwrap
from gluon_core.errors import LayoutError
from gluon_core.features import ALLOC_SHAPE_JOINED, SHARED_ATOMICS, SHARED_GATHER
from gluon_core.layouts.base import Layout, SharedLayout
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.typing import (
    BufferLayout,
    Const,
    Dtype,
    Operand,
    RegisterLayout,
    Scalar,
    Shape,
)
from gluon_core.values.tensors import handle_value, unwrap_shape

__all__ = [
    "memory_descriptor",
    "memory_descriptor_type",
    "shared_memory_descriptor",
    "shared_memory_descriptor_type",
]

V = TypeVar("V")


class _Views(Protocol):
    """The methods of the semantic layer behind those of a view; an op calls the view's."""

    def memdesc_slice(self, mem: V, start: Any, length: Any, dim: Any) -> V: ...
    def memdesc_permute(self, mem: V, order: list[int]) -> V: ...
    def memdesc_reshape(self, mem: V, shape: list[int]) -> V: ...
    def memdesc_reinterpret(self, mem: V, dtype: Any, shape: list[int], layout: Any) -> V: ...
    def shared_dealloc(self, mem: Any) -> None: ...
    def shared_gather(self, mem: Any, indices: tensor, axis: Any) -> tensor: ...
    def shared_scatter(self, mem: Any, values: tensor, indices: tensor, axis: Any) -> None: ...
    def shared_atomic_scatter(
        self, op: str, mem: Any, values: tensor, indices: tensor, axis: Any, mask: Any
    ) -> tensor: ...


def _views() -> _Views:
    return cast(_Views, semantic_layer())


class memory_descriptor_type(handle_value.Type):
    """Type of a view of on-chip memory.

    Args:
        element_ty: dtype of the elements.
        shape: shape of the view.
        layout: of the view.
        alloc_shape: shape of the allocation that the view is part of.
    """

    def __init__(self, element_ty: Dtype, shape: Shape, layout: Any, alloc_shape: Shape):
        self.element_ty = unwrap(element_ty)
        self.shape = unwrap_shape(shape)
        self.layout = unwrap(layout)
        self.alloc_shape = unwrap_shape(alloc_shape)
        if isinstance(self.layout, Layout):
            self.layout.check()

    def _parts(self) -> tuple[Any, list[int], Any, list[int]]:
        return self.element_ty, self.shape, self.layout, self.alloc_shape

    def __str__(self) -> str:
        name = type(self).__name__.removesuffix("_type")
        return f"{name}<{self.element_ty}, {self.shape}, {self.layout}>"

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

    Type: TypeAlias = memory_descriptor_type
    type: memory_descriptor_type

    @property
    def dtype(self) -> _triton.dtype:
        """dtype of the elements."""
        result: _triton.dtype = self.type.element_ty
        return result

    @property
    def shape(self) -> list[int]:
        """Shape of the view."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """Number of dimensions of the view."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements of the view."""
        return math.prod(self.shape)

    @property
    def layout(self) -> Any:
        """Layout of the view."""
        return self.type.layout


class shared_memory_descriptor_type(memory_descriptor_type):
    """Type of a view of shared memory.

    Args:
        element_ty: dtype of the elements.
        shape: shape of the view.
        layout: a shared layout.
        alloc_shape: shape of the allocation that the view is part of.
    """

    def __init__(self, element_ty: Dtype, shape: Shape, layout: BufferLayout, alloc_shape: Shape):
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
        result: int = max(1, bits // 8 // parts)
        return result

    def to_ir(self, builder: Any) -> Any:
        return builder.get_shared_mem_desc_ty(
            self.element_ty.to_ir(builder),
            self.shape,
            self.layout._to_ir(builder),
            self.alloc_shape,
        )

    def _value(self, handle: Any) -> "shared_memory_descriptor":
        return shared_memory_descriptor(handle, *self._parts())

    def _mangled_alloc(self) -> str:
        if _triton.has(ALLOC_SHAPE_JOINED):
            return "_".join(map(str, self.alloc_shape))
        return super()._mangled_alloc()


class shared_memory_descriptor(memory_descriptor):
    """A view of shared memory: the result of `allocate_shared_memory`, which its methods re-shape."""

    type: shared_memory_descriptor_type

    def __init__(
        self,
        handle: Any,
        element_ty: Dtype,
        shape: Shape,
        layout: BufferLayout,
        alloc_shape: Shape,
    ):
        self.handle = handle
        self.type = shared_memory_descriptor_type(element_ty, shape, layout, alloc_shape)

    @property
    def nbytes_per_cta(self) -> int:
        """Bytes of one block's part of the view."""
        return self.type.nbytes_per_cta

    @builtin(name="shared_memory_descriptor.load")
    def load(self, layout: RegisterLayout) -> tensor:
        """Read the whole view into a tensor with `layout`."""
        return semantic_layer().shared_load(self, unwrap(layout))

    @builtin(name="shared_memory_descriptor.store")
    def store(self, value: tensor) -> None:
        """Write `value`, a tensor of the view's shape and dtype.

        Raises:
            ShapeError: the shapes differ.
            DtypeError: the dtypes differ.
        """
        semantic_layer().shared_store(self, value)

    @builtin(name="shared_memory_descriptor.slice")
    def slice(
        self, start: Const[int], length: Const[int], dim: Const[int] = 0
    ) -> shared_memory_descriptor:
        """Return the sub-view `[start, start + length)` of dimension `dim`; both are compile-time integers."""
        return _views().memdesc_slice(self, unwrap(start), unwrap(length), unwrap(dim))

    @builtin(name="shared_memory_descriptor.index")
    def index(self, index: Scalar[int]) -> shared_memory_descriptor:
        """Return the view at `index` (a run-time int32 or a constant) of the leading dimension."""
        return semantic_layer().memdesc_index(self, unwrap(index))

    @builtin(name="shared_memory_descriptor.permute")
    def permute(self, order: Shape) -> shared_memory_descriptor:
        """Return the view with its dimensions in `order`; no data moves."""
        return _views().memdesc_permute(self, unwrap_shape(order, "order"))

    @builtin(name="shared_memory_descriptor.reshape")
    def reshape(self, shape: Shape) -> shared_memory_descriptor:
        """Return the view with another shape of the same number of elements; no data moves."""
        return _views().memdesc_reshape(self, unwrap_shape(shape))

    @builtin(name="shared_memory_descriptor.reinterpret")
    def reinterpret(
        self,
        dtype: Optional[Dtype] = None,
        shape: Optional[Shape] = None,
        layout: Optional[BufferLayout] = None,
    ) -> shared_memory_descriptor:
        """Return the same bytes seen with another dtype, shape or layout.

        Omitted arguments stay as they are. From Triton 3.9 `shape` and `layout` may be left out.
        """
        return _views().memdesc_reinterpret(
            self,
            unwrap(dtype) if unwrap(dtype) is not None else self.dtype,
            unwrap_shape(shape) if unwrap(shape) is not None else list(self.shape),
            unwrap(layout) if unwrap(layout) is not None else self.layout,
        )

    _reinterpret = reinterpret

    @builtin(name="shared_memory_descriptor._keep_alive")
    def _keep_alive(self) -> None:
        """Keep the allocation alive up to here."""
        _views().shared_dealloc(self)

    @builtin(name="shared_memory_descriptor.gather", since=SHARED_GATHER)
    def gather(self, indices: tensor, axis: Const[int]) -> tensor:
        """Return a tensor of `indices`' shape and layout: `result[i..] = self[.., indices[i..], ..]`
        along `axis`."""
        return _views().shared_gather(self, indices, unwrap(axis))

    @builtin(name="shared_memory_descriptor.scatter", since=SHARED_GATHER)
    def scatter(self, values: tensor, indices: tensor, axis: Const[int]) -> None:
        """`self[.., indices[i..], ..] = values[i..]` along `axis`."""
        _views().shared_scatter(self, values, indices, unwrap(axis))

    @builtin(name="shared_memory_descriptor.atomic_scatter_add", since=SHARED_ATOMICS)
    def atomic_scatter_add(
        self, values: tensor, indices: tensor, axis: Const[int], mask: Optional[Operand] = None
    ) -> tensor:
        """Atomic add of `values` into `self[.., indices, ..]` along `axis`; returns the old values."""
        return self._atomic_scatter("add", values, indices, axis, mask)

    @builtin(name="shared_memory_descriptor.atomic_scatter_and", since=SHARED_ATOMICS)
    def atomic_scatter_and(
        self, values: tensor, indices: tensor, axis: Const[int], mask: Optional[Operand] = None
    ) -> tensor:
        """Atomic and of `values` into `self[.., indices, ..]` along `axis`; returns the old values."""
        return self._atomic_scatter("and", values, indices, axis, mask)

    @builtin(name="shared_memory_descriptor.atomic_scatter_max", since=SHARED_ATOMICS)
    def atomic_scatter_max(
        self, values: tensor, indices: tensor, axis: Const[int], mask: Optional[Operand] = None
    ) -> tensor:
        """Atomic max of `values` into `self[.., indices, ..]` along `axis`; returns the old values."""
        return self._atomic_scatter("max", values, indices, axis, mask)

    @builtin(name="shared_memory_descriptor.atomic_scatter_min", since=SHARED_ATOMICS)
    def atomic_scatter_min(
        self, values: tensor, indices: tensor, axis: Const[int], mask: Optional[Operand] = None
    ) -> tensor:
        """Atomic min of `values` into `self[.., indices, ..]` along `axis`; returns the old values."""
        return self._atomic_scatter("min", values, indices, axis, mask)

    @builtin(name="shared_memory_descriptor.atomic_scatter_or", since=SHARED_ATOMICS)
    def atomic_scatter_or(
        self, values: tensor, indices: tensor, axis: Const[int], mask: Optional[Operand] = None
    ) -> tensor:
        """Atomic or of `values` into `self[.., indices, ..]` along `axis`; returns the old values."""
        return self._atomic_scatter("or", values, indices, axis, mask)

    @builtin(name="shared_memory_descriptor.atomic_scatter_xchg", since=SHARED_ATOMICS)
    def atomic_scatter_xchg(
        self, values: tensor, indices: tensor, axis: Const[int], mask: Optional[Operand] = None
    ) -> tensor:
        """Atomic xchg of `values` into `self[.., indices, ..]` along `axis`; returns the old values."""
        return self._atomic_scatter("xchg", values, indices, axis, mask)

    @builtin(name="shared_memory_descriptor.atomic_scatter_xor", since=SHARED_ATOMICS)
    def atomic_scatter_xor(
        self, values: tensor, indices: tensor, axis: Const[int], mask: Optional[Operand] = None
    ) -> tensor:
        """Atomic xor of `values` into `self[.., indices, ..]` along `axis`; returns the old values."""
        return self._atomic_scatter("xor", values, indices, axis, mask)

    def _atomic_scatter(
        self, op: str, values: tensor, indices: tensor, axis: Const[int], mask: Optional[Operand]
    ) -> tensor:
        return _views().shared_atomic_scatter(op, self, values, indices, unwrap(axis), unwrap(mask))
