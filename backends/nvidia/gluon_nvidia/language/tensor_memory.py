"""Tensor memory (sm_100): buffers of 128 rows by up to 512 columns of 32 bits, next to the registers.

`tcgen05_mma` accumulates there. Warps reach it with loads and stores only, each warp of a group of
four its own 32 rows; so the layout of a loaded tensor follows from the buffer's layout, and
`get_reg_layout` returns it.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from gluon_core import errors
from gluon_core.layouts import DistributedLinearLayout
from gluon_core.layouts.base import DistributedLayout, Layout
from gluon_core.plugin.ops import builtin, compile_time, semantic_layer, tl, unwrap
from gluon_core.plugin.typing import Const, Scalar, Shape
from gluon_core.values import memory_descriptor
from gluon_nvidia.features import (
    TMEM_LD_RED,
    TMEM_VIEWS_CHECKED,
)
from gluon_nvidia.language.tensor_memory_access import (
    load_reduced,
    loaded_type,
    stored_value,
    warn_in_flight,
)
from gluon_nvidia.language.tensor_memory_views import (
    check_buffer,
    check_dtype,
    check_matrix,
    sliced,
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

AnyTensorMemoryLayout = Union[TensorMemoryLayout, TensorMemoryScalesLayout, tl.constexpr]


class tensor_memory_descriptor_type(memory_descriptor.Type):
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
        self, num_warps: Optional[Const[int]] = None, instr_variant: Const[str] = "32x32b"
    ) -> DistributedLinearLayout:
        """Return the layout of a tensor that is loaded from such a view, or stored to it.

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
            except errors.GluonError:  # no kernel is being traced
                raise errors.ArgumentError(
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
        check_matrix(self.shape)


class tensor_memory_descriptor(memory_descriptor):
    """A view of tensor memory: the result of `allocate_tensor_memory`, narrowed by its methods."""

    type: tensor_memory_descriptor_type

    def __init__(
        self,
        handle: Any,
        element_ty: tl.dtype,
        shape: Shape,
        layout: AnyTensorMemoryLayout,
        alloc_shape: Shape,
    ):
        self.handle = handle
        self.type = tensor_memory_descriptor_type(element_ty, shape, layout, alloc_shape)

    @builtin(name=f"{_CLASS}.get_reg_layout")
    def get_reg_layout(
        self, num_warps: Optional[Const[int]] = None, instr_variant: Const[str] = "32x32b"
    ) -> tl.constexpr:
        """Return the layout of a tensor that `load` brings, or `store` takes, as a constexpr.

        Args:
            num_warps, instr_variant: as in `tensor_memory_descriptor_type.get_reg_layout`.

        Raises:
            LayoutError: no such tile for this view.
            ShapeError: the view counts copies.

        ISA: PTX 9.7.16.8, tcgen05.ld and tcgen05.st.
        """
        return tl.constexpr(self.type.get_reg_layout(num_warps, instr_variant))

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.load")
    def load(self, layout: Optional[Union[DistributedLayout, tl.constexpr]] = None) -> tl.tensor:
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
        layout: Optional[Union[DistributedLayout, tl.constexpr]] = None,
        abs: Const[bool] = False,
        propagate_nan: Optional[Union[tl.PropagateNan, tl.constexpr]] = None,
    ) -> tuple[tl.tensor, tl.tensor]:
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
        layout: Optional[Union[DistributedLayout, tl.constexpr]] = None,
        abs: Const[bool] = False,
        propagate_nan: Optional[Union[tl.PropagateNan, tl.constexpr]] = None,
    ) -> tuple[tl.tensor, tl.tensor]:
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
    def store(self, value: tl.tensor, pred: Scalar[bool] = True) -> None:
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
        pred = semantic.predicate(pred)
        semantic.builder.create_tmem_store(self.handle, value.handle, pred.handle)

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.slice")
    def slice(
        self, start: Const[int], length: Const[int], dim: Const[int] = 1
    ) -> "tensor_memory_descriptor":
        """Return the view of `length` columns from `start` on.

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
        return sliced(semantic_layer(), self, unwrap(start), unwrap(length), unwrap(dim))

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.index")
    def index(self, index: Scalar[int]) -> "tensor_memory_descriptor":
        """Return the copy `index` of a view [copies, M, N].

        Args:
            index: int32 scalar, or a compile-time integer, 0 to copies - 1.

        Returns:
            A view [M, N].

        Raises:
            ShapeError: the view counts no copies, or not so many.
            DtypeError: `index` is no integer.
        """
        remedy = "Allocate [copies, M, N], or take a part with slice."
        return semantic_layer().memdesc_index(self, index, remedy)

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.reinterpret")
    def reinterpret(
        self,
        dtype: Optional[Const[tl.dtype]] = None,
        shape: Optional[Shape] = None,
        layout: Optional[AnyTensorMemoryLayout] = None,
    ) -> "tensor_memory_descriptor":
        """Return the same columns seen with another dtype, shape or layout; omitted arguments stay.

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
        new_shape = (
            list(self.shape)
            if shape is None or unwrap(shape) is None
            else semantic.unwrap_shape(shape)
        )
        new_layout = self.layout if unwrap(layout) is None else unwrap(layout)
        wanted = check_buffer(semantic, new_type, new_shape, new_layout, new_shape)
        have = columns_of(self.layout, self.shape, self.dtype.primitive_bitwidth)
        semantic.check_view_size(have, wanted, "columns of tensor memory", self)
        rows, more = rows_of(self.layout, self.shape), rows_of(new_layout, new_shape)
        if more > rows and semantic.has(TMEM_VIEWS_CHECKED):
            raise errors.ShapeError(
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
        raise errors.DtypeError(
            "not tensor memory",
            argument=argument,
            expected="a tensor_memory_descriptor",
            got=semantic_layer().describe(value),
        )
    if value.rank != 2:
        raise errors.ShapeError(
            "several matrices",
            argument=argument,
            expected="[M, N]",
            got=value.shape,
            remedy="Pick one with .index(i).",
        )
    return value


@builtin(requires=_REQUIRES, name="gl.nvidia.blackwell.allocate_tensor_memory", instead=_INSTEAD)
def allocate_tensor_memory(
    element_ty: Const[tl.dtype],
    shape: Shape,
    layout: AnyTensorMemoryLayout,
    value: Optional[tl.tensor] = None,
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
    shape = semantic.unwrap_shape(shape)
    columns = check_buffer(semantic, dtype, shape, layout, shape)
    limit = min(COLUMNS, semantic.target.limits.tensor_memory_columns)
    if columns > limit:
        errors.refuse(
            errors.LimitError(
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
    element_ty: Const[tl.dtype],
    shape: Shape,
    layout: AnyTensorMemoryLayout,
    num_warps: Const[int],
    instr_variant: Const[str] = "32x32b",
    cga_layout: Sequence[Sequence[int]] = (),
) -> DistributedLinearLayout:
    """Return the layout of a tensor that is loaded from a buffer in tensor memory, or stored to it.

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
        raise errors.LayoutError(
            "not a layout for tensor memory", argument="layout", got=repr(layout)
        )
    check_dtype(dtype, layout)
    return register_layout(
        layout,
        Layout.unwrap(shape),
        dtype.primitive_bitwidth,
        num_warps,
        unwrap(instr_variant),
        unwrap(cga_layout) or None,
    )
