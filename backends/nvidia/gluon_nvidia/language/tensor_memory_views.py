"""Views of tensor memory: which buffers there are, and their parts."""

from __future__ import annotations

from typing import Any, Sequence, TypeVar

from gluon_core import errors
from gluon_core.plugin.ops import tl
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.values import memory_descriptor
from gluon_nvidia.features import (
    TMEM_ALIGNED_SLICES,
    TMEM_CLUSTERS,
    TMEM_NARROW_SLICES,
    TMEM_ROW_SLICES,
)
from gluon_nvidia.tensor_memory import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    columns_of,
)

__all__ = ["check_buffer", "check_dtype", "check_matrix", "sliced"]

_BITS = (8, 16, 32)
_SLICE = "tensor_memory_descriptor.slice"

M = TypeVar("M", bound=memory_descriptor)


def check_dtype(dtype: tl.dtype, layout: object) -> None:
    bits = dtype.primitive_bitwidth if isinstance(dtype, tl.dtype) else 0
    if bits not in _BITS or dtype.is_ptr():
        raise errors.DtypeError(
            "not an element type of tensor memory",
            argument="element_ty",
            expected="a dtype of 8, 16 or 32 bits",
            got=repr(dtype),
        )
    if isinstance(layout, TensorMemoryScalesLayout) and bits != 8:
        raise errors.DtypeError(
            "scales have 8 bits", argument="element_ty", expected="int8 or uint8", got=dtype
        )
    stride = getattr(layout, "col_stride", 1) * (2 if getattr(layout, "fp4_padded", False) else 1)
    if stride * bits > 32:
        raise errors.LayoutError(
            "the stride leaves the 32-bit column",
            argument="layout",
            expected=f"col_stride <= {32 // bits} for {dtype}",
            got=repr(layout),
        )


def check_buffer(
    semantic: SemanticLayer, dtype: tl.dtype, shape: list[int], layout: object, alloc: list[int]
) -> int:
    """Return the 32-bit columns that a buffer takes; raises where none can be like this."""
    if not isinstance(layout, (TensorMemoryLayout, TensorMemoryScalesLayout)):
        raise errors.LayoutError(
            "not a layout for tensor memory",
            argument="layout",
            expected="TensorMemoryLayout or TensorMemoryScalesLayout",
            got=repr(layout),
        )
    semantic.check_available(layout)
    check_dtype(dtype, layout)
    if len(shape) not in (2, 3):
        raise errors.ShapeError(
            "a buffer has two dimensions, or three if the first counts copies",
            argument="shape",
            expected="[M, N] or [copies, M, N]",
            got=shape,
        )
    if len(shape) == 3 and isinstance(layout, TensorMemoryScalesLayout):
        raise errors.ShapeError(
            "scales have no copies",
            argument="shape",
            expected=shape[1:],
            got=shape,
            remedy="One buffer does: tcgen05 copies and multiplies in the order of issue.",
        )
    semantic.check_block_shape(shape[-2:], "a buffer in tensor memory")
    if shape[0] < 1:
        raise errors.ShapeError("must be positive", argument="shape", got=shape)
    blocks = 1 << len(layout.cga_layout)
    # Before Triton 3.8 an unsplit dimension is the same in all blocks; later releases state it.
    partly = not semantic.has(TMEM_CLUSTERS) and blocks < semantic.num_ctas
    if blocks != semantic.num_ctas and not partly:
        raise errors.LayoutError(
            "the layout's blocks are not those of the cluster",
            argument="layout",
            expected=f"num_ctas={semantic.num_ctas}: a basis of cga_layout for each of its bits",
            got=f"{blocks}: {layout}",
        )
    return columns_of(layout, shape, dtype.primitive_bitwidth)


def check_matrix(shape: Sequence[int]) -> None:
    """Raise ShapeError unless a view of `shape` is one matrix."""
    if len(shape) != 2:
        raise errors.ShapeError(
            "the view counts copies",
            argument="self",
            expected="two dimensions",
            got=list(shape),
            remedy="Pick a copy first: index(i).",
        )


def sliced(semantic: SemanticLayer, memory: M, start: Any, length: Any, dim: Any) -> M:
    start = semantic.compile_time_int(start, "start")
    length, dim = semantic.compile_time_int(length, "length"), semantic.compile_time_int(dim, "dim")
    layout = memory.layout
    if not isinstance(layout, TensorMemoryLayout):
        semantic.require(TMEM_ROW_SLICES, f"{_SLICE} of scales")
        if dim not in (0, 1):
            raise errors.ShapeError(
                "the dimension is out of range", argument="dim", expected="0 or 1", got=dim
            )
        return _part(semantic, memory, start, length, dim)
    if memory.rank == 3 and dim == 0 and semantic.has(TMEM_ROW_SLICES):
        return _copies(semantic, memory, start, length)
    if memory.rank == 3 and dim == 2 and semantic.has(TMEM_ROW_SLICES):
        return _part(semantic, memory, start, length, dim)  # a view that nothing reads yet
    check_matrix(memory.shape)
    if dim not in (0, 1):
        raise errors.ShapeError(
            "the dimension is out of range", argument="dim", expected="0 or 1", got=dim
        )
    if dim == 0:
        semantic.require(TMEM_ROW_SLICES, f"{_SLICE}(dim=0)")
    size = memory.shape[dim]
    if length < 1 or length & (length - 1) or length > size:
        raise errors.ShapeError(
            "must be a power of two", argument="length", expected=f"1 to {size}", got=length
        )
    # Within one block the columns follow each other; further blocks lie in further places.
    step = length
    if dim == 1 and size <= layout.block[1] and not semantic.has(TMEM_ALIGNED_SLICES):
        step = max(1, 32 // (memory.dtype.primitive_bitwidth * layout.col_stride))
    if start < 0 or start + length > size or start % step:
        raise errors.ShapeError(
            f"the slice is no part of dimension {dim}",
            argument="start",
            expected=f"a multiple of {step} from 0 to {size - length}",
            got=start,
        )
    shape = list(memory.shape)
    shape[dim] = length
    if dim == 1 and not semantic.has(TMEM_NARROW_SLICES):
        fields = dict(layout._fields(), block=[layout.block[0], min(layout.block[1], length)])
        layout = TensorMemoryLayout(**fields)
    columns_of(layout, shape, memory.dtype.primitive_bitwidth)  # raises where there is no such view
    where = (start, dim) if semantic.has(TMEM_ROW_SLICES) else (start,)
    return _view(semantic, memory, shape, layout, where)


def _copies(semantic: SemanticLayer, memory: M, start: int, length: int) -> M:
    """Return some of the copies that a view counts."""
    count = memory.shape[0]
    if start < 0 or length < 1 or start + length > count:
        raise errors.ShapeError(
            "the slice leaves the copies",
            argument="length",
            expected=f"at most {count} copies in all",
            got=f"{length} from {start} on",
        )
    return _view(semantic, memory, [length, *memory.shape[1:]], memory.layout, (start, 0))


def _part(semantic: SemanticLayer, memory: M, start: int, length: int, dim: int) -> M:
    """Return a part of a dimension, in the layout of the whole."""
    size = memory.shape[dim]
    if length < 1 or length & (length - 1) or start < 0 or start + length > size:
        raise errors.ShapeError(
            f"the slice is no part of dimension {dim}",
            argument="length",
            expected=f"a power of two, at most {size} in all",
            got=f"{length} from {start} on",
        )
    shape = list(memory.shape)
    shape[dim] = length
    return _view(semantic, memory, shape, memory.layout, (start, dim))


def _view(
    semantic: SemanticLayer, memory: M, shape: list[int], layout: Any, where: Sequence[int]
) -> M:
    """Return the part of `memory` that begins at `where`, as the builder takes it."""
    view: Any = type(memory)
    result: M = view(None, memory.dtype, shape, layout, memory.type.alloc_shape)
    result.handle = semantic.builder.create_tmem_subslice(
        result.type.to_ir(semantic.builder), memory.handle, *where
    )
    return result
