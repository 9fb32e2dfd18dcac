"""Tensor memory (sm_100): buffers of 128 rows by up to 512 columns of 32 bits, beside the registers.

`tcgen05_mma` accumulates there. Warps reach it with loads and stores only, each warp of a group of
four its own 32 rows; so the layout of what is loaded follows from the buffer's layout, and
`get_reg_layout` tells it.
"""

from __future__ import annotations

from typing import Any

from gluon_core import _triton
from gluon_core._triton import ir, tl, unwrap
from gluon_core.builtin import builtin, compile_time
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    LayoutError,
    LimitError,
    ShapeError,
)
from gluon_core.semantic.base import describe, is_placeholder, shape_of
from gluon_core.semantic.operands import compile_time_bool, predicate, scalar_int32
from gluon_core.values import (
    check_block_shape,
    distributed_type,
    memory_descriptor,
    memory_descriptor_type,
    unwrap_shape,
)
from gluon_nvidia.tensor_memory import (
    COLUMNS,
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    columns_of,
)
from gluon_nvidia.tensor_memory_registers import fits_registers, register_layout

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


def _check_dtype(dtype: Any, layout: Any) -> None:
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


def _check_buffer(semantic: Any, dtype: Any, shape: list[int], layout: Any, alloc: Any) -> int:
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
    partly = not _triton.at_least(3, 8) and blocks < semantic.num_ctas
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

    def get_reg_layout(
        self, num_warps: Any = None, instr_variant: Any = "32x32b", _semantic: Any = None
    ) -> Any:
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
            if _semantic is None:
                raise ArgumentError("needed outside a kernel", argument="num_warps", got=None)
            warps = _semantic.num_warps
        self.check_matrix()
        return register_layout(
            self.layout,
            self.shape,
            self.element_ty.primitive_bitwidth,
            warps,
            unwrap(instr_variant),
            alloc_shape=self.alloc_shape,
        )

    # What the code generator gives its semantic layer to.
    get_reg_layout.__triton_builtin__ = True  # type: ignore[attr-defined]

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

    def __init__(self, handle: Any, element_ty: Any, shape: Any, layout: Any, alloc_shape: Any):
        self.handle = handle
        self.type = tensor_memory_descriptor_type(element_ty, shape, layout, alloc_shape)

    @builtin(name=f"{_CLASS}.get_reg_layout")
    def get_reg_layout(
        self, num_warps: Any = None, instr_variant: Any = "32x32b", _semantic: Any = None
    ) -> Any:
        """See `tensor_memory_descriptor_type.get_reg_layout`."""
        found = self.type.get_reg_layout(num_warps, instr_variant, _semantic=_semantic)
        return _triton.constexpr(found)

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.load")
    def load(self, layout: Any = None, _semantic: Any = None) -> Any:
        """Read the view into a tensor; the warps wait until it is there.

        Args:
            layout: of the tensor, one of `get_reg_layout`'s; the default is that of "32x32b".

        Raises:
            LayoutError: a layout in which some warp holds rows that it cannot reach.
            ShapeError: the view counts copies.

        ISA: PTX 9.7.16.8.3, tcgen05.ld; 9.7.16.8.5, tcgen05.wait.
        """
        result = _loaded_type(_semantic, self, layout)
        handle = _semantic.builder.create_tmem_load(result.to_ir(_semantic.builder), self.handle)
        return _semantic.make_tensor(handle, result)

    @builtin(requires=("nvidia.tcgen05_ld_red",), since=(3, 7), name=f"{_CLASS}.load_min")
    def load_min(
        self,
        layout: Any = None,
        abs: Any = False,
        propagate_nan: Any = None,
        _semantic: Any = None,
    ) -> Any:
        """Read the view, and the least element of each row.

        Args:
            layout: as in `load`; a lane must hold whole rows.
            abs: of the absolute values (float32).
            propagate_nan: `gl.PropagateNan.ALL`: NaN if one is among them (float32).

        Returns:
            The tensor [M, N], and a tensor [M].

        Raises:
            DtypeError: not float32.
            LayoutError, ShapeError: as `load`.

        ISA: PTX 9.7.16.8.3, tcgen05.ld.red (sm_103).
        """
        return _load_reduced(_semantic, self, layout, "MIN", abs, propagate_nan)

    @builtin(requires=("nvidia.tcgen05_ld_red",), since=(3, 7), name=f"{_CLASS}.load_max")
    def load_max(
        self,
        layout: Any = None,
        abs: Any = False,
        propagate_nan: Any = None,
        _semantic: Any = None,
    ) -> Any:
        """Read the view, and the greatest element of each row. See `load_min`."""
        return _load_reduced(_semantic, self, layout, "MAX", abs, propagate_nan)

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.store")
    def store(self, value: Any, pred: Any = True, _semantic: Any = None) -> None:
        """Write `value`, a tensor of the view's shape and dtype; the warps wait until it is there.

        Args:
            value: with one of `get_reg_layout`'s layouts.
            pred: int1 scalar; where false, do not write.

        Raises:
            ShapeError, DtypeError: not those of the view.
            LayoutError: a layout in which some warp holds rows that it cannot reach.

        ISA: PTX 9.7.16.8.4, tcgen05.st; 9.7.16.8.5, tcgen05.wait.
        """
        self.type.check_matrix()
        value = _check_stored(_semantic, self.type, value)
        pred = predicate(_semantic, pred)
        _semantic.builder.create_tmem_store(self.handle, value.handle, pred.handle)

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.slice")
    def slice(self, start: Any, length: Any, dim: Any = 1, _semantic: Any = None) -> Any:
        """The view of `length` columns from `start` on; both are compile-time integers.

        Args:
            dim: 1; or 0 for rows (Triton 3.9).

        Raises:
            ArgumentError, ShapeError: not a part of the view that starts with a block of its layout.
            LayoutError: the view holds scales.
            CapabilityError: rows, with an older Triton.
        """
        return _sliced(_semantic, self, unwrap(start), unwrap(length), unwrap(dim))

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.index")
    def index(self, index: Any, _semantic: Any = None) -> Any:
        """The copy `index` (a run-time int32 or a constant) of a view [copies, M, N].

        Raises:
            ShapeError: the view counts no copies, or not so many.
        """
        if self.rank != 3:
            raise ShapeError(
                "the view counts no copies",
                argument="self",
                expected="[copies, M, N]",
                got=self.shape,
            )
        plain = unwrap(index)
        if isinstance(plain, int) and not 0 <= plain < self.shape[0]:
            raise ShapeError(
                "no such copy", argument="index", expected=f"0 to {self.shape[0] - 1}", got=plain
            )
        index = scalar_int32(_semantic, index, "index")
        shape = self.shape[1:]
        result = tensor_memory_descriptor(None, self.dtype, shape, self.layout, shape)
        result.handle = _semantic.builder.create_memdesc_index(
            result.type.to_ir(_semantic.builder), self.handle, index.handle
        )
        return result

    @builtin(requires=_REQUIRES, name=f"{_CLASS}.reinterpret")
    def reinterpret(
        self, dtype: Any = None, shape: Any = None, layout: Any = None, _semantic: Any = None
    ) -> Any:
        """The same columns seen with another dtype, shape or layout; what is left out stays.

        Raises:
            ShapeError: more columns than the view has.
            DtypeError, LayoutError: no buffer of tensor memory is like this.
        """
        new_type = self.dtype if unwrap(dtype) is None else unwrap(dtype)
        new_shape = list(self.shape) if unwrap(shape) is None else unwrap_shape(shape)
        new_layout = self.layout if unwrap(layout) is None else unwrap(layout)
        wanted = _check_buffer(_semantic, new_type, new_shape, new_layout, new_shape)
        have = columns_of(self.layout, self.shape, self.dtype.primitive_bitwidth)
        if wanted > have:
            raise ShapeError(
                "the new view is larger than the old one",
                argument="shape",
                expected=f"at most {have} columns of tensor memory",
                got=f"{wanted} of {new_shape} {new_type}",
            )
        result = tensor_memory_descriptor(None, new_type, new_shape, new_layout, new_shape)
        result.handle = _semantic.builder.create_memdesc_reinterpret(
            result.type.to_ir(_semantic.builder), self.handle
        )
        return result

    _reinterpret = reinterpret


def tensor_memory(value: Any, argument: str) -> Any:
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
    element_ty: Any, shape: Any, layout: Any, value: Any = None, _semantic: Any = None
) -> Any:
    """Allocate a buffer in tensor memory, for as long as it is used.

    Args:
        element_ty: dtype of 8, 16 or 32 bits.
        shape: [M, N], or [copies, M, N] to pick from with `index`, but not of scales; of all blocks
            of a cluster.
        layout: `TensorMemoryLayout`, or `TensorMemoryScalesLayout` for int8 or uint8.
        value: a tensor to store at once, with a layout as in `store`.

    Returns:
        A `tensor_memory_descriptor`.

    Raises:
        LimitError: more than the 512 columns that a block has.
        ShapeError, DtypeError, LayoutError: no buffer is like this.

    ISA: PTX 9.7.16.7.1, tcgen05.alloc.
    """
    dtype, layout, value = unwrap(element_ty), unwrap(layout), unwrap(value)
    shape = unwrap_shape(shape)
    columns = _check_buffer(_semantic, dtype, shape, layout, shape)
    limit = min(COLUMNS, _semantic.target.limits.tensor_memory_columns)
    if columns > limit:
        raise LimitError(
            f"one allocation needs {columns} columns of tensor memory",
            argument="shape",
            expected=f"at most {limit} columns of 32 bits on {_semantic.target}",
            got=f"{shape} {dtype} with {layout}",
            remedy="Use a smaller tile or fewer copies.",
        )
    result = tensor_memory_descriptor(None, dtype, shape, layout, shape)
    handle = None
    if value is not None:
        result.type.check_matrix()
        handle = _check_stored(_semantic, result.type, value).handle
    type_ir = result.type.to_ir(_semantic.builder)
    result.handle = _semantic.builder.create_tmem_alloc(type_ir, handle)
    return result


@compile_time
def get_tmem_reg_layout(
    element_ty: Any,
    shape: Any,
    layout: Any,
    num_warps: Any,
    instr_variant: Any = "32x32b",
    cga_layout: Any = (),
) -> Any:
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


def _check_warps(semantic: Any) -> None:
    if semantic.num_warps % 4:
        raise LayoutError(
            "tensor memory is reached by groups of four warps",
            argument="num_warps",
            expected="a multiple of 4",
            got=semantic.num_warps,
        )


def _check_reach(kind: tensor_memory_descriptor_type, layout: Any, semantic: Any) -> None:
    """Raise where a warp would hold what it cannot reach."""
    bits = kind.element_ty.primitive_bitwidth
    if not fits_registers(kind.layout, kind.shape, bits, layout, kind.alloc_shape):
        raise LayoutError(
            "no instruction moves tensor memory to and from this layout",
            argument="layout",
            expected=f"e.g. {kind.get_reg_layout(semantic.num_warps)}",
            got=repr(layout),
            remedy="Take the layout from get_reg_layout(), then gl.convert_layout.",
        )


def _loaded_type(semantic: Any, memory: Any, layout: Any) -> distributed_type:
    memory.type.check_matrix()
    if not isinstance(memory.layout, TensorMemoryLayout):
        raise LayoutError(
            "Triton does not load scales",
            argument="self",
            expected="a view with TensorMemoryLayout",
            got=str(memory.type),
        )
    _check_warps(semantic)
    layout = unwrap(layout)
    if layout is None:
        layout = memory.type.get_reg_layout(semantic.num_warps)
    layout = semantic.check_layout(layout, memory.shape)
    if is_placeholder(layout):
        raise LayoutError(
            "the layout of what is loaded must be known",
            argument="layout",
            expected="none, or one of get_reg_layout()",
            got=repr(layout),
        )
    _check_reach(memory.type, layout, semantic)
    return distributed_type(memory.dtype, memory.shape, layout)


def _check_stored(semantic: Any, kind: tensor_memory_descriptor_type, value: Any) -> Any:
    _check_warps(semantic)
    value = unwrap(value)
    if not isinstance(value, tl.tensor) or not isinstance(value.type, distributed_type):
        raise ShapeError("not a tensor", argument="value", expected=str(kind), got=describe(value))
    if shape_of(value) != kind.shape:
        raise ShapeError(
            "the value does not have the buffer's shape",
            argument="value",
            expected=kind.shape,
            got=shape_of(value),
        )
    if value.dtype != kind.element_ty:
        raise DtypeError(
            "the value does not have the buffer's dtype",
            argument="value",
            expected=kind.element_ty,
            got=value.dtype,
            remedy="Cast it with value.to(...).",
        )
    layout = value.type.layout
    if is_placeholder(layout):
        raise LayoutError(
            "the layout of what is stored must be known",
            argument="value",
            got=repr(layout),
            remedy="Use gl.convert_layout or gl.set_auto_layout first.",
        )
    _check_reach(kind, layout, semantic)
    return value


def _load_reduced(
    semantic: Any, memory: Any, layout: Any, op: str, absolute: Any, propagate_nan: Any
) -> tuple:
    result = _loaded_type(semantic, memory, layout)
    absolute = compile_time_bool(absolute, "abs")
    nan = unwrap(propagate_nan)
    nan = ir.PROPAGATE_NAN.NONE if nan is None else nan
    if not isinstance(nan, ir.PROPAGATE_NAN):
        raise ArgumentError(
            "no such choice",
            argument="propagate_nan",
            expected="gl.PropagateNan.NONE or gl.PropagateNan.ALL",
            got=describe(nan),
        )
    if memory.dtype != tl.float32:
        raise DtypeError(
            "tcgen05.ld.red compares float32",
            argument="self",
            expected="float32",
            got=memory.dtype,
            remedy="Load, then gl.max or gl.min.",
        )
    bases = result.layout.to_linear(memory.shape).bases
    spread = [name for name in ("lane", "warp") if any(row[1] for row in bases[name])]
    if spread or any(row[0] for row in bases["register"]):
        raise LayoutError(
            "a lane must hold one row, and all of it",
            argument="layout",
            expected="get_reg_layout() of a [128, N] block with four warps",
            got=repr(result.layout),
        )
    kind = getattr(_triton.gluon_ir.TMEM_LOAD_REDUCE_MODIFIER, op)
    # Triton's builder adds the layout of the second.
    values, reduced, *_ = semantic.builder.create_tmem_load(
        result.to_ir(semantic.builder), memory.handle, kind, absolute, nan
    )
    rows = semantic.wrap_inferred(reduced, memory.dtype, memory.shape[:1])
    return semantic.make_tensor(values, result), rows


# -- views ----------------------------------------------------------------------------------------


def _sliced(semantic: Any, memory: Any, start: Any, length: Any, dim: Any) -> Any:
    for argument, given in (("start", start), ("length", length), ("dim", dim)):
        if isinstance(given, bool) or not isinstance(given, int):
            raise ArgumentError(
                "must be a compile-time integer", argument=argument, got=describe(given)
            )
    layout = memory.layout
    if not isinstance(layout, TensorMemoryLayout):
        raise LayoutError("scales cannot be sliced", argument="self", got=str(memory.type))
    memory.type.check_matrix()
    if dim not in (0, 1):
        raise ShapeError("no such dimension", argument="dim", expected="0 or 1", got=dim)
    if dim == 0 and not _triton.at_least(3, 9):
        raise CapabilityError(
            f"{_CLASS}.slice(dim=0) needs Triton >= 3.9, found {_triton.VERSION_TEXT}"
        )
    size = memory.shape[dim]
    if length < 1 or length & (length - 1) or length > size:
        raise ShapeError(
            "must be a power of two", argument="length", expected=f"1 to {size}", got=length
        )
    # Within one block the columns follow each other; further blocks lie in further places.
    step = length
    if dim == 1 and size <= layout.block[1] and _triton.VERSION != (3, 8):  # it wants multiples
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
    if dim == 1 and not _triton.at_least(3, 8):
        fields = dict(layout._fields(), block=[layout.block[0], min(layout.block[1], length)])
        layout = TensorMemoryLayout(**fields)
    columns_of(layout, shape, memory.dtype.primitive_bitwidth)  # raises where there is no such view
    result = tensor_memory_descriptor(None, memory.dtype, shape, layout, memory.type.alloc_shape)
    where = (start, dim) if _triton.at_least(3, 9) else (start,)
    result.handle = semantic.builder.create_tmem_subslice(
        result.type.to_ir(semantic.builder), memory.handle, *where
    )
    return result
