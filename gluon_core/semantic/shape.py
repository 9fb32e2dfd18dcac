"""Creating tensors, changing shapes, broadcasting, converting layouts."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import tl, unwrap
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.features import (
    CLUSTERED_CONVERSIONS,
    CLUSTERED_JOINS,
    DROPS_REGISTER_COPIES,
    INTERLEAVED_SPLITS,
    SPLIT_BEFORE_LAYOUT,
)
from gluon_core.layouts import (
    AutoLayout,
    BlockedLayout,
    DistributedLinearLayout,
    SharedLinearLayout,
    SliceLayout,
)
from gluon_core.layouts.base import DistributedLayout, SharedLayout
from gluon_core.layouts.linear import another_blocks
from gluon_core.semantic.base import SemanticBase, is_placeholder, shape_of
from gluon_core.semantic.operands import compile_time_int, same_bits, wrap_axis
from gluon_core.values import distributed_type, unwrap_shape
from gluon_core.values.tensors import describe

__all__ = ["ShapeOps"]

_MAX_INT32 = 2**31 - 1


class ShapeOps(SemanticBase):
    # -- creation -----------------------------------------------------------------------------

    def arange(self, start: Any, end: Any, layout: Any = None, *, ret_ty: Any = None) -> Any:
        start = compile_time_int(start, "start", 0, _MAX_INT32)
        end = compile_time_int(end, "end", 0, _MAX_INT32)
        size = end - start
        if size <= 0 or size & (size - 1):
            raise ShapeError(
                "arange needs a positive power-of-two number of elements",
                argument="end",
                got=f"{end} - {start} = {size}",
                remedy="Round up to a power of two and mask the rest.",
            )
        result_type = ret_ty or self.tensor_type(tl.int32, [size], layout)
        handle = self.builder.create_make_range(result_type.to_ir(self.builder), start, end)
        return self.make_tensor(handle, result_type)

    def splat(self, value: Any, shape: Sequence[int], layout: Any = None) -> Any:
        if value.type.is_block():
            raise ShapeError(
                "only a scalar can be spread over a shape", argument="value", got=describe(value)
            )
        shape = unwrap_shape(shape)
        if not shape:
            return value
        result_type = self.tensor_type(value.dtype, shape, layout)
        handle = self.builder.create_splat(result_type.to_ir(self.builder), value.handle)
        return self.make_tensor(handle, result_type)

    def full(self, shape: Sequence[int], value: Any, dtype: Any, layout: Any = None) -> Any:
        dtype = unwrap(dtype)
        if dtype is None and isinstance(value, tl.tensor):
            dtype = value.dtype
        return self.splat(self.make_scalar(unwrap(value), dtype), shape, layout)

    # -- promises to the compiler -------------------------------------------------------------

    def multiple_of(self, x: Any, values: Sequence[int]) -> Any:
        return self._promise(x, "tt.divisibility", values, max(1, len(x.shape)))

    def max_contiguous(self, x: Any, values: Sequence[int]) -> Any:
        return self._promise(x, "tt.contiguity", values, len(x.shape))

    def max_constancy(self, x: Any, values: Sequence[int]) -> Any:
        return self._promise(x, "tt.constancy", values, len(x.shape))

    def _promise(self, x: Any, name: str, values: Sequence[int], count: int) -> Any:
        if len(values) != count:
            raise ShapeError(
                "needs one number per dimension",
                argument="values",
                expected=count,
                got=f"{len(values)}: {list(values)}",
            )
        # A builder that makes no MLIR keeps the numbers themselves.
        hint = getattr(self.builder, "hint", None)
        if hint is None:
            attribute = _triton.ir.make_attr(list(values), x.handle.get_context())
        else:
            attribute = hint(values)
        x.handle.set_attr(name, attribute)
        return x

    def make_scalar(self, value: Any, dtype: Any) -> Any:
        if isinstance(value, tl.tensor):
            if math.prod(shape_of(value)) != 1:
                raise ShapeError(
                    "only a value with one element can become a scalar",
                    argument="value",
                    got=describe(value),
                )
            return self.cast(value, dtype)
        self._check_constant(value, dtype)
        return self.scalar_constant(value, dtype)

    @staticmethod
    def _check_constant(value: Any, dtype: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            if not isinstance(value, bool):
                raise DtypeError("not a number", argument="value", got=describe(value))
            return
        if not isinstance(dtype, tl.dtype) or dtype.is_ptr():
            raise DtypeError("not a dtype", argument="dtype", got=describe(dtype))
        if not dtype.is_int() or dtype.is_bool():
            return
        low, high = dtype.get_int_min_value(), dtype.get_int_max_value()
        if not low <= value <= high or value != int(value):
            raise DtypeError(
                f"{dtype} cannot hold it", argument="value", expected=f"{low} to {high}", got=value
            )

    # -- layouts ------------------------------------------------------------------------------

    def convert_layout(self, value: Any, layout: Any, assert_trivial: Any = False) -> Any:
        value = self.require_distributed(value, "value")
        if unwrap(layout) is None:
            raise LayoutError(
                "not a layout", argument="layout", expected="one such as BlockedLayout", got="None"
            )
        layout = self.check_layout(layout, shape_of(value))
        result_type = distributed_type(value.type.scalar, shape_of(value), layout)
        result_ir = result_type.to_ir(self.builder)
        if unwrap(assert_trivial) and not self._is_trivial(value, layout, result_ir):
            shape = shape_of(value)
            raise LayoutError(
                "the conversion moves data although assert_trivial is set",
                argument="layout",
                expected=self._linear_text(value.type.layout, shape),
                got=self._linear_text(layout, shape),
                remedy="Use an equivalent layout, or drop assert_trivial.",
            )
        here = _triton.has(CLUSTERED_CONVERSIONS)
        if not here and _crosses_blocks(value.type.layout, layout, shape_of(value)):
            _triton.require(
                CLUSTERED_CONVERSIONS,
                "a conversion that moves data between the blocks of a cluster",
                "Store it to global memory, or keep the cga_layout.",
            )
        self._check_conversion(value.type.layout, layout, shape_of(value))
        handle = self.builder.create_convert_layout(result_ir, value.handle)
        return self.make_tensor(handle, result_type)

    def _check_conversion(self, before: Any, after: Any, shape: list[int]) -> None:
        if before != after and any(getattr(one, "repeats", False) for one in (before, after)):
            raise LayoutError(
                "compilers hang when they convert a layout in which two places hold one element",
                argument="layout",
                expected="a zero basis for hardware that holds copies",
                got=f"{before} to {after}",
            )
        if not (is_placeholder(before) or is_placeholder(after)):
            self.check_blocks(
                lambda: another_blocks(before.to_linear(shape), after.to_linear(shape)),
                "the conversion", "layout", f"{before} to {after}",
            )  # fmt: skip

    def _is_trivial(self, value: Any, layout: Any, result_ir: Any) -> bool:
        if is_placeholder(layout) or is_placeholder(value.type.layout):
            return bool(layout == value.type.layout)  # nothing else is known; the builder aborts
        return bool(self.builder.is_convert_layout_trivial(result_ir, value.handle))

    @staticmethod
    def _linear_text(layout: Any, shape: Sequence[int]) -> str:
        return repr(layout) if is_placeholder(layout) else str(layout.to_linear(shape))

    def set_auto_layout(self, value: Any, layout: Any) -> Any:
        value = self.require_distributed(value, "value")
        if not isinstance(value.type.layout, AutoLayout):
            raise LayoutError(
                "the value already has a layout",
                argument="value",
                expected="AutoLayout()",
                got=repr(value.type.layout),
                remedy="Use convert_layout.",
            )
        layout = self.check_layout(layout, shape_of(value))
        if isinstance(layout, AutoLayout):
            raise LayoutError("must be a resolved layout", argument="layout", got=repr(layout))
        handle = self.builder.create_set_auto_layout(layout._to_ir(self.builder), value.handle)
        return self.make_tensor(
            handle, distributed_type(value.type.scalar, shape_of(value), layout)
        )

    # -- shapes -------------------------------------------------------------------------------

    def reshape(self, input: Any, dst_shape: Sequence[int], can_reorder: Any = False) -> Any:
        input = self.require_tensor(input, "input")
        if unwrap(can_reorder):
            raise ArgumentError(
                "layouts are explicit, so a reshape keeps the order of the elements",
                argument="can_reorder",
                expected=False,
                got=True,
                remedy="Leave it out; x.reshape(...) in place of x.view(...).",
            )
        shape = unwrap_shape(dst_shape)
        if math.prod(shape_of(input)) != math.prod(shape):
            raise ShapeError(
                "reshape cannot change the number of elements",
                argument="shape",
                expected=f"{math.prod(shape_of(input))} elements, as in {shape_of(input)}",
                got=f"{math.prod(shape)} in {shape}",
            )
        if not input.type.is_block():
            return self.splat(input, shape) if shape else input
        if not shape:
            return self.unsplat(input)
        distributed_type(input.type.scalar, shape, AutoLayout())  # shape check before the builder's
        handle = self.builder.create_reshape(input.handle, shape, False)
        return self.wrap_inferred(handle, input.type.scalar, shape)

    def unsplat(self, value: Any) -> Any:
        if math.prod(shape_of(value)) != 1:
            raise ShapeError(
                "only a tensor with one element can become a scalar",
                argument="value",
                got=describe(value),
            )
        return self.make_tensor(self.builder.create_unsplat(value.handle), value.dtype)

    def expand_dims(self, input: Any, axis: int) -> Any:
        input = self.require_tensor(input, "input")
        shape = shape_of(input)
        axis = wrap_axis(axis, len(shape) + 1)
        shape.insert(axis, 1)
        if not input.type.is_block():
            return self.splat(input, shape)
        layout = input.type.layout
        if not isinstance(layout, SliceLayout) and not is_placeholder(layout):
            raise LayoutError(
                "a dimension can be added only to a tensor with a SliceLayout",
                argument="input",
                expected=f"SliceLayout(dim={axis}, parent=...)",
                got=repr(layout),
                remedy="Make the operand with such a layout, or convert_layout to one.",
            )
        if isinstance(layout, SliceLayout) and layout.dim != axis:
            raise LayoutError(
                "the axis to add is not the dimension of the SliceLayout",
                argument="axis",
                expected=f"{layout.dim}, the dim of {layout}",
                got=axis,
                remedy=f"Make the operand with dim={axis}, or add its dimension at {layout.dim}.",
            )
        handle = self.builder.create_expand_dims(input.handle, axis)
        if isinstance(layout, SliceLayout):  # as the builder infers, too
            result_type = distributed_type(input.type.scalar, shape, layout.parent)
            return self.make_tensor(handle, result_type)
        return self.wrap_inferred(handle, input.type.scalar, shape)

    def permute(self, input: Any, dims: Sequence[int]) -> Any:
        input = self.require_distributed(input, "input")
        shape = shape_of(input)
        order = unwrap_shape(dims, "dims")
        if sorted(order) != list(range(len(shape))):
            raise ShapeError(
                "must be a permutation of the dimensions",
                argument="dims",
                expected=f"each of 0..{len(shape) - 1} once",
                got=order,
            )
        handle = self.builder.create_trans(input.handle, order)
        return self.wrap_inferred(handle, input.type.scalar, [shape[d] for d in order])

    def split_columns(self, value: Any, width: int) -> list[Any]:
        """Return the parts of `width` columns of a tensor, left to right."""
        *rows, columns = shape_of(value)
        if columns == width:
            return [value]
        rank = len(rows) + 1
        halves = self.reshape(value, [*rows, 2, columns // 2])
        left, right = self.split(self.permute(halves, [*range(rank - 1), rank, rank - 1]))
        return [*self.split_columns(left, width), *self.split_columns(right, width)]

    def moved_right(self, place: Sequence[Any], columns: int) -> list[Any]:
        """Return coordinates `columns` further to the right."""
        if not columns:
            return list(place)
        *rows, column = place
        return [*rows, self.add(column, self.scalar_constant(columns, tl.int32), True)]

    def join(self, a: Any, b: Any) -> Any:
        a, b = self.broadcast_impl_value(self.require_tensor(a, "a"), self.require_tensor(b, "b"))
        if a.dtype != b.dtype and not same_bits(a.dtype, b.dtype):
            raise DtypeError(
                "both operands must have one dtype", argument="b", expected=a.dtype, got=b.dtype
            )
        if not a.type.is_block():
            raise ShapeError("join needs tensors", argument="a", got=describe(a))
        if isinstance(a.type.layout, BlockedLayout) and a.type.layout.cga_layout:
            _triton.require(CLUSTERED_JOINS, "gl.join of tensors that blocks of a cluster share")
        handle = self.builder.create_join(a.handle, b.handle)
        return self.wrap_inferred(handle, a.type.scalar, [*shape_of(a), 2])

    def split(self, a: Any) -> Any:
        a = self.require_distributed(a, "a")
        shape = shape_of(a)
        if shape[-1] != 2:
            raise ShapeError(
                "the last dimension must be 2", argument="a", expected="[..., 2]", got=shape
            )
        if len(shape) == 1:  # two scalars
            first, second = self.split(self.expand_dims(a, 0))
            return self.unsplat(first), self.unsplat(second)
        self._check_split(a, shape)
        first, second = self.builder.create_split(a.handle)
        return (
            self.wrap_inferred(first, a.type.scalar, shape[:-1]),
            self.wrap_inferred(second, a.type.scalar, shape[:-1]),
        )

    def _check_split(self, a: Any, shape: list[int]) -> None:
        layout = a.type.layout
        if is_placeholder(layout):
            _triton.require(
                SPLIT_BEFORE_LAYOUT, f"gl.split of a tensor with {type(layout).__name__}"
            )
            return
        linear = layout.to_linear(shape)
        last = f"dim{len(shape) - 1}"
        column = list(linear.out_dims).index(last)
        in_registers = any(basis[column] for basis in linear.bases["register"])
        if not in_registers:
            raise LayoutError(
                "both halves must sit in one thread",
                argument="a",
                expected="a layout that holds the last dimension in registers",
                got=repr(layout),
                remedy="convert_layout to one with size_per_thread 2 in the last dimension.",
            )
        if not _triton.has(INTERLEAVED_SPLITS):
            SliceLayout(len(shape) - 1, layout).check_compiler()

    # -- broadcasting -------------------------------------------------------------------------

    def broadcast_impl_shape(self, input: Any, shape: Sequence[int]) -> Any:
        shape = unwrap_shape(shape)
        if not input.type.is_block():
            return self.splat(input, shape)
        source = shape_of(input)
        if len(source) != len(shape):
            raise ShapeError(
                "cannot broadcast to another rank",
                argument="shape",
                expected=f"rank {len(source)}",
                got=shape,
            )
        if source == shape:
            return input
        for dim, (have, want) in enumerate(zip(source, shape)):
            if have not in (1, want):
                raise ShapeError(
                    f"cannot broadcast dimension {dim} from {have} to {want}",
                    argument="shape",
                    expected=f"{source} with dimensions of size 1 enlarged",
                    got=shape,
                )
        result_type = distributed_type(input.type.scalar, shape, input.type.layout)
        handle = self.builder.create_broadcast(input.handle, result_type.to_ir(self.builder))
        return self.make_tensor(handle, result_type)

    def _of_rank(self, value: Any, rank: int) -> Any:
        """Return a tensor with leading dimensions of size 1, as far as its layout has them."""
        while len(shape_of(value)) < rank:
            layout = value.type.layout
            sliced = isinstance(layout, SliceLayout) and layout.dim == 0
            if not sliced and not is_placeholder(layout):
                break
            value = self.expand_dims(value, 0)
        return value

    def broadcast_impl_value(self, lhs: Any, rhs: Any) -> Any:
        if not lhs.type.is_block() and not rhs.type.is_block():
            return lhs, rhs
        if not rhs.type.is_block():
            return lhs, self._splat_like(rhs, lhs)
        if not lhs.type.is_block():
            return self._splat_like(lhs, rhs), rhs
        self._require_distributed_pair(lhs, rhs)
        lhs, rhs = self._of_rank(lhs, len(shape_of(rhs))), self._of_rank(rhs, len(shape_of(lhs)))
        left, right = shape_of(lhs), shape_of(rhs)
        if len(left) != len(right):
            raise ShapeError(
                "cannot broadcast tensors of different ranks",
                expected="equal ranks",
                got=f"{left} and {right}",
                remedy="Add dimensions with x[:, None] or expand_dims.",
            )
        shape = []
        for dim, (have, other) in enumerate(zip(left, right)):
            if have != other and 1 not in (have, other):
                raise ShapeError(
                    f"cannot broadcast: dimension {dim} is {have} and {other}",
                    got=f"{left} and {right}",
                )
            shape.append(max(have, other))
        lhs, rhs = self.unify_layouts(lhs, rhs)
        return self.broadcast_impl_shape(lhs, shape), self.broadcast_impl_shape(rhs, shape)

    def _require_distributed_pair(self, lhs: Any, rhs: Any) -> None:
        for value in (lhs, rhs):
            self.require_distributed(value, "operand")

    def _splat_like(self, scalar: Any, tensor: Any) -> Any:
        result_type = tensor.type.with_element_ty(scalar.type.scalar)
        handle = self.builder.create_splat(result_type.to_ir(self.builder), scalar.handle)
        return self.make_tensor(handle, result_type)

    def unify_layouts(self, lhs: Any, rhs: Any) -> Any:
        """Return both values with one layout; an AutoLayout takes the other's.

        Raises:
            LayoutError: the layouts differ; nothing is converted silently.
        """
        left, right = lhs.type.layout, rhs.type.layout
        if left == right:
            return lhs, rhs
        if isinstance(left, AutoLayout):
            return self.set_auto_layout(lhs, right), rhs
        if isinstance(right, AutoLayout):
            return lhs, self.set_auto_layout(rhs, left)
        raise LayoutError(
            "the operands have different layouts",
            expected=f"{left}",
            got=f"{right}",
            remedy="Convert one to the other's with gl.convert_layout.",
        )

    # -- sub-byte floats ------------------------------------------------------------------------

    def fp4_to_fp(self, src: Any, elem_type: Any, axis: Any) -> Any:
        src = self.require_distributed(src, "src")
        elem_type = unwrap(elem_type)
        if src.dtype not in (tl.uint8, tl.int8):
            raise DtypeError(
                "packed fp4 comes two to a byte", argument="src", expected="uint8", got=src.dtype
            )
        if elem_type not in (tl.float16, tl.bfloat16):
            raise DtypeError(
                "fp4 unpacks to a 16-bit float",
                argument="elem_type",
                expected="float16 or bfloat16",
                got=elem_type,
            )
        other = "bfloat16" if elem_type == tl.float16 else "float16"
        self.require_op(
            "fp4_to_fp", elem_type, f"Unpack to {other}, and convert that; it is exact."
        )
        shape = shape_of(src)
        axis = wrap_axis(axis, len(shape))
        _check_packs(src.type.layout, shape)
        shape[axis] *= 2
        handle = self.builder.create_fp4_to_fp(src.handle, elem_type.to_ir(self.builder), axis)
        return self.wrap_inferred(handle, elem_type, shape)

    def to_linear_layout(self, layout: Any, shape: Any) -> Optional[Any]:
        layout, shape = unwrap(layout), unwrap_shape(shape)
        own = getattr(layout, "linear_layout", None)  # of a memory that only a vendor has
        if own is not None:
            return own(shape)
        if isinstance(layout, SharedLayout):
            linear = layout.to_linear(shape)
            return SharedLinearLayout.from_linear(linear, getattr(layout, "alignment", 16))
        if not isinstance(layout, DistributedLayout) or is_placeholder(layout):
            raise LayoutError("has no linear form", argument="layout", got=repr(layout))
        return DistributedLinearLayout.from_linear(layout.to_linear(shape))


def _check_packs(layout: Any, shape: Sequence[int]) -> None:
    """Refuse layouts of fp4 with which compilers abort: left open, or a thread has less than is unpacked at once."""
    if is_placeholder(layout):
        raise LayoutError(
            "is unpacked as a thread holds it, which this layout leaves open; compilers abort",
            argument="src",
            expected="a layout that fixes the place of each element",
            got=repr(layout),
            remedy="Give it one before with gl.set_auto_layout or gl.convert_layout.",
        )
    rows = layout.to_linear(list(shape)).bases.get("register", [])
    if _triton.has(DROPS_REGISTER_COPIES):
        rows = [row for row in rows if any(row)]
    if len(rows) < 2:
        raise LayoutError(
            "fp4 is unpacked four bytes of a thread at a time",
            argument="src",
            expected="a layout in which each thread has 4 elements of src or more",
            got=f"{1 << len(rows)} of {list(shape)} in {layout!r}",
            remedy="Convert it to a BlockedLayout with 4 in size_per_thread first.",
        )


def _crosses_blocks(one: Any, other: Any, shape: Sequence[int]) -> bool:
    """Return True if the blocks of a cluster hold other elements in the one layout than in the other."""
    if is_placeholder(one) or is_placeholder(other) or not (one.cga_layout or other.cga_layout):
        return False
    size = list(shape)
    before, after = (layout.to_linear(size).bases.get("block", []) for layout in (one, other))
    return bool(before != after)
