"""Tensor memory (sm_100): buffers of 128 rows by up to 512 columns of 32 bits, beside the registers.

`tcgen05_mma` accumulates there. Warps reach it with loads and stores only, each warp of a group of
four its own 32 rows; so the layout of what is loaded follows from the buffer's layout, and
`get_reg_layout` tells it.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from gluon_core import vendor
from gluon_core.errors import (
    ArgumentError,
    DtypeError,
    LayoutError,
    LimitError,
    NotInKernelError,
    ShapeError,
    refuse,
)
from gluon_core.layouts import DistributedLinearLayout
from gluon_core.layouts.base import DistributedLayout
from gluon_core.values import (
    check_block_shape,
    memory_descriptor,
    memory_descriptor_type,
    unwrap_shape,
)
from gluon_core.values.typing import ConstBool, ConstInt, ConstStr, Dtype, Int, Predicate, Shape
from gluon_core.vendor import (
    builtin,
    check_view_size,
    compile_time,
    compile_time_int,
    constexpr,
    describe,
    dtype,
    predicate,
    semantic_layer,
    tensor,
    tl,
    unwrap,
    view_index,
)
from gluon_nvidia.features import (
    TMEM_ALIGNED_SLICES,
    TMEM_CLUSTERS,
    TMEM_LD_RED,
    TMEM_NARROW_SLICES,
    TMEM_ROW_SLICES,
    TMEM_VIEWS_CHECKED,
)
from gluon_nvidia.language.tensor_memory_access import (
    load_reduced,
    loaded_type,
    stored_value,
    warn_in_flight,
)
from gluon_nvidia.tensor_memory import (
    COLUMNS,
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    columns_of,
    rows_of,
)
from gluon_nvidia.tensor_memory_registers import register_layout

__all__ = [
    "allocate_tensor_memory",
    "get_tmem_reg_layout",
    "tensor_memory",
    "tensor_memory_descriptor",
    "tensor_memory_descriptor_type",
]

_REQUIRES = ("nvidia.tcgen05",)
_INSTEAD = "gl.allocate_shared_memory, or accumulators in registers"
_CLASS = "tensor_memory_descriptor"
_BITS = (8, 16, 32)

AnyTensorMemoryLayout = Union[TensorMemoryLayout, TensorMemoryScalesLayout, constexpr]


def _check_dtype(dtype: dtype, layout: object) -> None:
    bits = dtype.primitive_bitwidth if isinstance(dtype, tl.dtype) else 0
    if bits not in _BITS or dtype.is_ptr():
        raise DtypeError(
            "no element of tensor memory",
            argument="element_ty",
            expected="a dtype of 8, 16 or 32 bits",
            got=describe(dtype),
        )
    if isinstance(layout, TensorMemoryScalesLayout) and bits != 8:
        raise DtypeError(
            "scales have 8 bits", argument="element_ty", expected="int8 or uint8", got=dtype
        )
    stride = getattr(layout, "col_stride", 1) * (2 if getattr(layout, "fp4_padded", False) else 1)
    if stride * bits > 32:
        raise LayoutError(
            "the stride leaves the 32-bit column",
            argument="layout",
            expected=f"col_stride <= {32 // bits} for {dtype}",
            got=repr(layout),
        )


def _check_buffer(
    semantic: Any, dtype: dtype, shape: list[int], layout: object, alloc: list[int]
) -> int:
    """The 32-bit columns that a buffer takes; raises where none can be like this."""
    if not isinstance(layout, (TensorMemoryLayout, TensorMemoryScalesLayout)):
        raise LayoutError(
            "not a layout for tensor memory",
            argument="layout",
            expected="TensorMemoryLayout or TensorMemoryScalesLayout",
            got=repr(layout),
        )
    semantic.session.check_layout(layout)
    _check_dtype(dtype, layout)
    if len(shape) not in (2, 3):
        raise ShapeError(
            "a buffer has two dimensions, or a third that counts copies",
            argument="shape",
            expected="[M, N] or [copies, M, N]",
            got=shape,
        )
    if len(shape) == 3 and isinstance(layout, TensorMemoryScalesLayout):
        raise ShapeError(
            "scales have no copies",
            argument="shape",
            expected=shape[1:],
            got=shape,
            remedy="One buffer does: tcgen05 copies and multiplies in the order of issue.",
        )
    check_block_shape(shape[-2:], "a buffer in tensor memory")
    if shape[0] < 1:
        raise ShapeError("must be positive", argument="shape", got=shape)
    blocks = 1 << len(layout.cga_layout)
    # Before Triton 3.8 what is not split is the same in all blocks; later this is said, too.
    partly = not vendor.has(TMEM_CLUSTERS) and blocks < semantic.num_ctas
    if blocks != semantic.num_ctas and not partly:
        raise LayoutError(
            "the layout's blocks are not those of the cluster",
            argument="layout",
            expected=f"num_ctas={semantic.num_ctas}: a basis of cga_layout for each of its bits",
            got=f"{blocks}: {layout}",
        )
    return columns_of(layout, shape, dtype.primitive_bitwidth)


class tensor_memory_descriptor_type(memory_descriptor_type):
    """Type of a view of tensor memory.

    Args:
        element_ty: dtype of the elements, 8, 16 or 32 bits.
        shape: of the view, [M, N] or [copies, M, N].
        layout: `TensorMemoryLayout` or `TensorMemoryScalesLayout`.
        alloc_shape: of the allocation that the view is part of.
    """

    def to_ir(self, builder: Any) -> Any:
        return builder.get_tensor_mem_desc_ty(
            self.element_ty.to_ir(builder),
            self.shape,
            self.layout._to_ir(builder),
            self.alloc_shape,
        )

    def _value(self, handle: Any) -> "tensor_memory_descriptor":
        return tensor_memory_descriptor(handle, *self._parts())

    @builtin(name=f"{_CLASS}_type.get_reg_layout", host=True)
    def get_reg_layout(
        self, num_warps: Optional[ConstInt] = None, instr_variant: ConstStr = "32x32b"
    ) -> DistributedLinearLayout:
        """The layout of a tensor that is loaded from such a view, or stored to it.

        Args:
            num_warps: 4, 8, 16 or 32; as many as run, if left out.
            instr_variant: the tile of one instruction: "32x32b", "16x64b", "16x128b", "16x256b", or
                "32x32b_splitn", whose last register bit tells the halves of the columns apart.

        Returns:
            A `DistributedLinearLayout`.

        Raises:
            ArgumentError: outside a kernel, without `num_warps`.
            LayoutError: no such tile for this view.
            ShapeError: the view counts copies.

        ISA: PTX 9.7.16.8, tcgen05.ld and tcgen05.st.
        """
        warps = unwrap(num_warps)
        if warps is None:
            try:
                warps = semantic_layer().num_warps
            except NotInKernelError:
                raise ArgumentError(
                    "needed outside a kernel", argument="num_warps", got=None
                ) from None
        self.check_matrix()
        return register_layout(
            self.layout,
            self.shape,
            self.element_ty.primitive_bitwidth,
            warps,
            unwrap(instr_variant),
            alloc_shape=self.alloc_shape,
        )

    def check_matrix(self) -> None:
        """Raise unless the view is one matrix."""
        if len(self.shape) != 2:
            raise ShapeError(
                "the view counts copies",
                argument="self",
                expected="two dimensions",
                got=self.shape,
                remedy="Pick a copy first: index(i).",
            )


class tensor_memory_descriptor(memory_descriptor):
    """A view of tensor memory: what `allocate_tensor_memory` returns and its methods narrow."""

    type: tensor_memory_descriptor_type

    def __init__(
        self,
        handle: Any,
        element_ty: dtype,
        shape: Shape,
        layout: AnyTensorMemoryLayout,
        alloc_shape: Shape,
    ):
        self.handle = handle
        self.type = tensor_memory_descriptor_type(element_ty, shape, layout, alloc_shape)

    @builtin(name=f"{_CLASS}.get_reg_layout")
    def get_reg_layout(
        self, num_warps: Optional[ConstInt] = None, instr_variant: ConstStr = "32x32b"
    ) -> constexpr:
        """The layout of a tensor that `load` brings, or `store` takes, as a constexpr.

        Args:
            num_warps, instr_variant: as in `tensor_memory_descriptor_type.get_reg_layout`.

        Raises:
            LayoutError: no such tile for this view.
            ShapeError: the view counts copies.

        ISA: PTX 9.7.16.8, tcgen05.ld and tcgen05.st.
        """
        return vendor.constexpr(self.type.get_reg_layout(num_warps, instr_variant))

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.load")
    def load(self, layout: Optional[Union[DistributedLayout, constexpr]] = None) -> tensor:
        """Read the view into a tensor; the warps wait until it is there.

        Args:
            layout: of the tensor, one of `get_reg_layout`'s; the default is that of "32x32b".

        Returns:
            A tensor [M, N] of the view's dtype.

        Raises:
            LayoutError: a layout in which some warp holds rows that it cannot reach, a view of
                scales, or warps that are no multiple of four.
            ShapeError: the view counts copies.

        ISA: PTX 9.7.16.8.3, tcgen05.ld; 9.7.16.8.5, tcgen05.wait.
        """
        semantic = semantic_layer()
        warn_in_flight(semantic, self)
        result = loaded_type(semantic, self, layout)
        handle = semantic.builder.create_tmem_load(result.to_ir(semantic.builder), self.handle)
        return semantic.make_tensor(handle, result)

    @builtin(requires=_REQUIRES, since=TMEM_LD_RED, name=f"{_CLASS}.load_min")
    def load_min(
        self,
        layout: Optional[Union[DistributedLayout, constexpr]] = None,
        abs: ConstBool = False,
        propagate_nan: Optional[Union[tl.PropagateNan, constexpr]] = None,
    ) -> tuple[tensor, tensor]:
        """Read the view, and the least element of each row.

        Args:
            layout: as in `load`; a lane must hold whole rows.
            abs: of the absolute values (float32).
            propagate_nan: `triton.language.PropagateNan.ALL`: NaN if one is among them (float32).

        Returns:
            The tensor [M, N], and a tensor [M].

        Raises:
            ArgumentError: no such choice of NaN, or `abs` is no compile-time boolean.
            DtypeError: not float32.
            LayoutError, ShapeError: as `load`; or a lane does not hold whole rows.
            CapabilityError: the target has no such instruction; when it is compiled.

        ISA: PTX 9.7.16.8.3, tcgen05.ld.red (sm_103).
        """
        return load_reduced(semantic_layer(), self, layout, "MIN", abs, propagate_nan)

    @builtin(requires=_REQUIRES, since=TMEM_LD_RED, name=f"{_CLASS}.load_max")
    def load_max(
        self,
        layout: Optional[Union[DistributedLayout, constexpr]] = None,
        abs: ConstBool = False,
        propagate_nan: Optional[Union[tl.PropagateNan, constexpr]] = None,
    ) -> tuple[tensor, tensor]:
        """Read the view, and the greatest element of each row.

        Args:
            layout, abs, propagate_nan: as in `load_min`.

        Returns:
            The tensor [M, N], and a tensor [M].

        Raises:
            ArgumentError, DtypeError, LayoutError, ShapeError, CapabilityError: as `load_min`.

        ISA: PTX 9.7.16.8.3, tcgen05.ld.red (sm_103).
        """
        return load_reduced(semantic_layer(), self, layout, "MAX", abs, propagate_nan)

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.store")
    def store(self, value: tensor, pred: Predicate = True) -> None:
        """Write `value`, a tensor of the view's shape and dtype; the warps wait until it is there.

        Args:
            value: with one of `get_reg_layout`'s layouts.
            pred: int1 scalar; where false, do not write.

        Raises:
            ShapeError, DtypeError: not those of the view; or the view counts copies.
            LayoutError: a layout in which some warp holds rows that it cannot reach.

        ISA: PTX 9.7.16.8.4, tcgen05.st; 9.7.16.8.5, tcgen05.wait.
        """
        semantic = semantic_layer()
        self.type.check_matrix()
        value = stored_value(semantic, self.type, value)
        pred = predicate(semantic, pred)
        semantic.builder.create_tmem_store(self.handle, value.handle, pred.handle)

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.slice")
    def slice(
        self, start: ConstInt, length: ConstInt, dim: ConstInt = 1
    ) -> "tensor_memory_descriptor":
        """The view of `length` columns from `start` on.

        Args:
            start: the first column, a compile-time integer. It is a multiple of `length`; in a view
                no wider than a block of its layout, one of 32 bits is enough (not for Triton 3.8).
            length: compile-time integer, a power of two.
            dim: 1; or 0 for rows; of a view [copies, M, N], 0 for copies, whose start and length
                are any, or 2 for columns, which nothing reads yet (0 and 2: Triton 3.9).

        Returns:
            A view [M, length], or [length, N] of rows, or [length, M, N] of copies.

        Raises:
            ArgumentError, ShapeError: not a part of the view that starts with a block of its layout.
            CapabilityError: rows, or scales, with a Triton older than 3.9.
        """
        return _sliced(semantic_layer(), self, unwrap(start), unwrap(length), unwrap(dim))

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.index")
    def index(self, index: Int) -> "tensor_memory_descriptor":
        """The copy `index` of a view [copies, M, N].

        Args:
            index: int32 scalar, or a compile-time integer, 0 to copies - 1.

        Returns:
            A view [M, N].

        Raises:
            ShapeError: the view counts no copies, or not so many.
            DtypeError: `index` is no integer.
        """
        semantic = semantic_layer()
        if self.rank != 3:
            raise ShapeError(
                "the view counts no copies",
                argument="self",
                expected="[copies, M, N]",
                got=self.shape,
            )
        if self.shape[2] != self.type.alloc_shape[-1]:
            raise ShapeError(
                "some columns of copies cannot be picked from",
                argument="self",
                expected=f"copies of {self.type.alloc_shape[-1]} columns",
                got=self.shape,
                remedy="Pick the copy first: index(i).slice(start, length).",
            )
        plain = unwrap(index)
        if isinstance(plain, int) and not 0 <= plain < self.shape[0]:
            raise ShapeError(
                "no such copy", argument="index", expected=f"0 to {self.shape[0] - 1}", got=plain
            )
        index = view_index(semantic, index)
        shape = self.shape[1:]
        result = tensor_memory_descriptor(None, self.dtype, shape, self.layout, shape)
        result.handle = semantic.builder.create_memdesc_index(
            result.type.to_ir(semantic.builder), self.handle, index.handle
        )
        return result

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.reinterpret")
    def reinterpret(
        self,
        dtype: Optional[Dtype] = None,
        shape: Optional[Shape] = None,
        layout: Optional[AnyTensorMemoryLayout] = None,
    ) -> "tensor_memory_descriptor":
        """The same columns seen with another dtype, shape or layout; what is left out stays.

        Args:
            dtype: of 8, 16 or 32 bits.
            shape: [M, N], or [copies, M, N]; no more columns than the view has.
            layout: `TensorMemoryLayout`, or `TensorMemoryScalesLayout` for int8 or uint8.

        Returns:
            A view of that dtype, shape and layout.

        Raises:
            ShapeError: more columns or rows than the view has.
            DtypeError, LayoutError: no buffer of tensor memory is like this.
        """
        semantic = semantic_layer()
        new_type = self.dtype if unwrap(dtype) is None else unwrap(dtype)
        new_shape = list(self.shape) if unwrap(shape) is None else unwrap_shape(shape)
        new_layout = self.layout if unwrap(layout) is None else unwrap(layout)
        wanted = _check_buffer(semantic, new_type, new_shape, new_layout, new_shape)
        have = columns_of(self.layout, self.shape, self.dtype.primitive_bitwidth)
        check_view_size(have, wanted, "columns of tensor memory", self)
        rows, more = rows_of(self.layout, self.shape), rows_of(new_layout, new_shape)
        if more > rows and vendor.has(TMEM_VIEWS_CHECKED):
            raise ShapeError(
                "the new view has more rows of tensor memory than the old one",
                argument="shape",
                expected=f"at most {rows}",
                got=f"{more}: {new_layout!r}",
            )
        result = tensor_memory_descriptor(None, new_type, new_shape, new_layout, new_shape)
        result.handle = semantic.builder.create_memdesc_reinterpret(
            result.type.to_ir(semantic.builder), self.handle
        )
        return result

    _reinterpret = reinterpret


def tensor_memory(value: object, argument: str) -> tensor_memory_descriptor:
    """`value` if it is a view of one matrix in tensor memory.

    Raises:
        DtypeError: something else.
        ShapeError: several matrices.
    """
    value = unwrap(value)
    if not isinstance(value, tensor_memory_descriptor):
        raise DtypeError(
            "not tensor memory",
            argument=argument,
            expected="a tensor_memory_descriptor",
            got=describe(value),
        )
    if value.rank != 2:
        raise ShapeError(
            "several matrices",
            argument=argument,
            expected="[M, N]",
            got=value.shape,
            remedy="Pick one with .index(i).",
        )
    return value


@builtin(requires=_REQUIRES, name="gl.nvidia.blackwell.allocate_tensor_memory", instead=_INSTEAD)
def allocate_tensor_memory(
    element_ty: Dtype, shape: Shape, layout: AnyTensorMemoryLayout, value: Optional[tensor] = None
) -> tensor_memory_descriptor:
    """Allocate a buffer in tensor memory, for as long as it is used.

    Args:
        element_ty: dtype of 8, 16 or 32 bits.
        shape: [M, N], or [copies, M, N] to pick from with `index`, but not of scales; of all blocks
            of a cluster.
        layout: `TensorMemoryLayout`, or `TensorMemoryScalesLayout` for int8 or uint8.
        value: a tensor to store at once, with a layout as in `store`; integers may be of the other sign.

    Returns:
        A `tensor_memory_descriptor`.

    Raises:
        LimitError: more than the 512 columns that a block has.
        ShapeError, DtypeError, LayoutError: no buffer is like this.

    ISA: PTX 9.7.16.7.1, tcgen05.alloc.
    """
    semantic = semantic_layer()
    dtype, layout, value = unwrap(element_ty), unwrap(layout), unwrap(value)
    shape = unwrap_shape(shape)
    columns = _check_buffer(semantic, dtype, shape, layout, shape)
    limit = min(COLUMNS, semantic.target.limits.tensor_memory_columns)
    if columns > limit:
        refuse(
            LimitError(
                f"one allocation needs {columns} columns of tensor memory",
                argument="shape",
                expected=f"at most {limit} columns of 32 bits on {semantic.target}",
                got=f"{shape} {dtype} with {layout}",
                remedy="Use a smaller tile or fewer copies.",
            )
        )
    result = tensor_memory_descriptor(None, dtype, shape, layout, shape)
    handle = None
    if value is not None:
        result.type.check_matrix()
        handle = stored_value(semantic, result.type, value, first=True).handle
    type_ir = result.type.to_ir(semantic.builder)
    result.handle = semantic.builder.create_tmem_alloc(type_ir, handle)
    return result


@compile_time
def get_tmem_reg_layout(
    element_ty: Dtype,
    shape: Shape,
    layout: AnyTensorMemoryLayout,
    num_warps: ConstInt,
    instr_variant: ConstStr = "32x32b",
    cga_layout: Sequence[Sequence[int]] = (),
) -> DistributedLinearLayout:
    """The layout of a tensor that is loaded from a buffer in tensor memory, or stored to it.

    Args:
        element_ty, shape, layout: of the buffer.
        num_warps, instr_variant: as in `tensor_memory_descriptor_type.get_reg_layout`.
        cga_layout: how the blocks of a cluster split the tensor, if not as the buffer's layout.

    Returns:
        A `DistributedLinearLayout`.

    Raises:
        LayoutError: no such tile for this buffer.
    """
    dtype, layout = unwrap(element_ty), unwrap(layout)
    if not isinstance(layout, (TensorMemoryLayout, TensorMemoryScalesLayout)):
        raise LayoutError("not a layout for tensor memory", argument="layout", got=repr(layout))
    _check_dtype(dtype, layout)
    return register_layout(
        layout,
        unwrap_shape(shape),
        dtype.primitive_bitwidth,
        num_warps,
        unwrap(instr_variant),
        unwrap(cga_layout) or None,
    )


# -- loads and stores -----------------------------------------------------------------------------


def _sliced(
    semantic: Any, memory: tensor_memory_descriptor, start: Any, length: Any, dim: Any
) -> tensor_memory_descriptor:
    start = compile_time_int(start, "start")
    length, dim = compile_time_int(length, "length"), compile_time_int(dim, "dim")
    layout = memory.layout
    if not isinstance(layout, TensorMemoryLayout):
        vendor.require(TMEM_ROW_SLICES, f"{_CLASS}.slice of scales")
        if dim not in (0, 1):
            raise ShapeError("no such dimension", argument="dim", expected="0 or 1", got=dim)
        return _part(semantic, memory, start, length, dim)
    if memory.rank == 3 and dim == 0 and vendor.has(TMEM_ROW_SLICES):
        return _copies(semantic, memory, start, length)
    if memory.rank == 3 and dim == 2 and vendor.has(TMEM_ROW_SLICES):
        return _part(semantic, memory, start, length, dim)  # a view that nothing reads yet
    memory.type.check_matrix()
    if dim not in (0, 1):
        raise ShapeError("no such dimension", argument="dim", expected="0 or 1", got=dim)
    if dim == 0:
        vendor.require(TMEM_ROW_SLICES, f"{_CLASS}.slice(dim=0)")
    size = memory.shape[dim]
    if length < 1 or length & (length - 1) or length > size:
        raise ShapeError(
            "must be a power of two", argument="length", expected=f"1 to {size}", got=length
        )
    # Within one block the columns follow each other; further blocks lie in further places.
    step = length
    if dim == 1 and size <= layout.block[1] and not vendor.has(TMEM_ALIGNED_SLICES):
        step = max(1, 32 // (memory.dtype.primitive_bitwidth * layout.col_stride))
    if start < 0 or start + length > size or start % step:
        raise ShapeError(
            f"the slice is no part of dimension {dim}",
            argument="start",
            expected=f"a multiple of {step} from 0 to {size - length}",
            got=start,
        )
    shape = list(memory.shape)
    shape[dim] = length
    if dim == 1 and not vendor.has(TMEM_NARROW_SLICES):
        fields = dict(layout._fields(), block=[layout.block[0], min(layout.block[1], length)])
        layout = TensorMemoryLayout(**fields)
    columns_of(layout, shape, memory.dtype.primitive_bitwidth)  # raises where there is no such view
    result = tensor_memory_descriptor(None, memory.dtype, shape, layout, memory.type.alloc_shape)
    where = (start, dim) if vendor.has(TMEM_ROW_SLICES) else (start,)
    result.handle = semantic.builder.create_tmem_subslice(
        result.type.to_ir(semantic.builder), memory.handle, *where
    )
    return result


def _copies(
    semantic: Any, memory: tensor_memory_descriptor, start: int, length: int
) -> tensor_memory_descriptor:
    """Some of the copies that a view counts."""
    count = memory.shape[0]
    if start < 0 or length < 1 or start + length > count:
        raise ShapeError(
            "the slice leaves the copies",
            argument="length",
            expected=f"at most {count} copies in all",
            got=f"{length} from {start} on",
        )
    return _view(semantic, memory, start, length, 0)


def _part(
    semantic: Any, memory: tensor_memory_descriptor, start: int, length: int, dim: int
) -> tensor_memory_descriptor:
    """Return a part of a dimension, in the layout of the whole."""
    size = memory.shape[dim]
    if length < 1 or length & (length - 1) or start < 0 or start + length > size:
        raise ShapeError(
            f"the slice is no part of dimension {dim}",
            argument="length",
            expected=f"a power of two, at most {size} in all",
            got=f"{length} from {start} on",
        )
    return _view(semantic, memory, start, length, dim)


def _view(
    semantic: Any, memory: tensor_memory_descriptor, start: int, length: int, dim: int
) -> tensor_memory_descriptor:
    shape = list(memory.shape)
    shape[dim] = length
    result = tensor_memory_descriptor(
        None, memory.dtype, shape, memory.layout, memory.type.alloc_shape
    )
    result.handle = semantic.builder.create_tmem_subslice(
        result.type.to_ir(semantic.builder), memory.handle, start, dim
    )
    return result
