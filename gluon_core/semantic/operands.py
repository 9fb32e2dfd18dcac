"""Checks of single operands that vendors' ops share; each raises before a builder can abort."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import dtype, ir, tensor, tl, tl_tuple, unwrap
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError, refuse
from gluon_core.features import UNEVEN_VIEWS
from gluon_core.layouts import SwizzledSharedLayout
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.semantic.base import shape_of
from gluon_core.values import distributed_type, shared_memory_descriptor
from gluon_core.values.tensors import describe

__all__ = [
    "check_barrier",
    "check_even",
    "check_k_width",
    "check_matmul_dtypes",
    "check_matmul_shapes",
    "check_stored",
    "compile_time_bool",
    "compile_time_int",
    "handle_or_absent",
    "items_of",
    "predicate",
    "same_bits",
    "scalar_int32",
    "shared_memory",
    "view_index",
    "wrap_axis",
]


def handle_or_absent(semantic: SemanticLayer, value: Any) -> Any:
    """Return the handle of an optional operand. Triton's builder wants an empty value for an absent one."""
    if value is not None:
        return value.handle
    return ir.value() if isinstance(semantic.builder, ir.builder) else None


def shared_memory(value: Any, argument: str) -> shared_memory_descriptor:
    """`value` if it is a view of shared memory."""
    value = unwrap(value)
    if not isinstance(value, shared_memory_descriptor):
        raise DtypeError(
            "not shared memory",
            argument=argument,
            expected="a shared_memory_descriptor",
            got=describe(value),
            remedy="Store it first: buffer = gl.allocate_shared_memory(x.dtype, x.shape, layout, x)."
            if isinstance(value, tensor) and value.type.is_block()
            else None,
        )
    check_even(value, argument)
    return value


def check_even(memory: Any, argument: str) -> None:
    """Refuse to use a buffer whose first extent is no power of two: compilers take memory for it,
    and place no elements in it. Before Triton 3.8 other views of it do.

    Raises:
        ShapeError: it is such a buffer.
    """
    first = memory.shape[0] if memory.rank and memory.rank == memory.layout.rank else 1
    if first & (first - 1):
        remedy = f"Allocate {1 << first.bit_length()}."
        if _triton.has(UNEVEN_VIEWS):
            remedy = f"{remedy[:-1]}, or make a view: reinterpret(dtype, shape, layout)."
        raise ShapeError(
            "the buffer takes up memory and cannot be used",
            argument=argument,
            expected="power-of-two dimensions",
            got=f"{memory.shape} (dimension 0 is {first})",
            remedy=remedy,
        )


def items_of(values: Any) -> list[Any]:
    """Return the items of a kernel's tuple or list; a single value alone, and nothing for None."""
    # Triton's own `unwrap` also unwraps the items of a tuple, and fails at strings.
    if isinstance(values, tl.constexpr):
        values = values.value
    if isinstance(values, tl_tuple):
        return list(values.values)
    if isinstance(values, (list, tuple)):
        return list(values)
    return [] if values is None else [values]


def compile_time_int(
    value: Any,
    argument: str,
    low: Optional[int] = None,
    high: Optional[int] = None,
    loose: bool = False,
) -> int:
    """Return a compile-time integer of `low` to `high`; where these are left out, any one.

    Args:
        loose: take others, too, where the kernel is not strict; see `errors.refuse`.
    """
    value = unwrap(value)
    if not isinstance(value, int):  # True is 1, as Triton has it
        raise ArgumentError(
            "must be a compile-time integer", argument=argument, got=describe(value)
        )
    if (low is not None and value < low) or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"{low} to {high}"
        error = ArgumentError("out of range", argument=argument, expected=wanted, got=value)
        if not loose:
            raise error
        refuse(error)
    return int(value)


def wrap_axis(axis: Any, rank: int) -> int:
    """Return a compile-time axis of -rank to rank - 1, counted from the front."""
    axis = unwrap(axis)
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise ShapeError(
            "the axis is out of range",
            argument="axis",
            expected=f"{-rank} to {rank - 1}",
            got=describe(axis),
        )
    return axis % rank


def compile_time_bool(value: Any, argument: str) -> bool:
    """Return a compile-time boolean, or 0, 1 or None, which is false."""
    value = unwrap(value)
    if value is None:
        return False
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise ArgumentError(
            "must be a compile-time boolean", argument=argument, got=describe(value)
        )
    return bool(value)


def scalar_int32(semantic: SemanticLayer, value: Any, argument: str) -> tensor:
    """Return a run-time or compile-time integer scalar as int32."""
    value = _scalar(semantic, value, argument)
    if not value.dtype.is_int():
        raise DtypeError("must be an integer", argument=argument, expected="int32", got=value.dtype)
    return value if value.dtype in (tl.int32, tl.uint32) else semantic.cast(value, tl.int32)


def view_index(semantic: SemanticLayer, value: Any) -> tensor:
    """Return the index of a view, a scalar integer of up to 32 bits, as int32.

    Raises:
        ShapeError: not a scalar.
        DtypeError: not an integer, or one of 64 bits, as only 32 reach the address.
    """
    index = _scalar(semantic, value, "index")
    if not index.dtype.is_int() or index.dtype.primitive_bitwidth > 32:
        raise DtypeError(
            "must be a scalar integer of up to 32 bits",
            argument="index",
            expected="int32",
            got=describe(index),
            remedy="Convert it: index.to(gl.int32)." if index.dtype.is_int() else None,
        )
    return scalar_int32(semantic, index, "index")


def predicate(semantic: SemanticLayer, value: Any, argument: str = "pred") -> tensor:
    """Return a boolean scalar."""
    value = _scalar(semantic, value, argument)
    if value.dtype != tl.int1:
        raise DtypeError("must be boolean", argument=argument, expected="int1", got=value.dtype)
    checked: tensor = value
    return checked


def _scalar(semantic: SemanticLayer, value: Any, argument: str) -> tensor:
    value = unwrap(value)
    if not isinstance(value, (bool, int, tl.tensor)):
        raise DtypeError("not a scalar", argument=argument, got=describe(value))
    value = semantic.to_tensor(value)
    if value.type.is_block():
        raise ShapeError("must be a scalar", argument=argument, got=describe(value))
    checked: tensor = value
    return checked


def check_barrier(
    value: Any, argument: str, remedy: str, seen: Optional[int] = None
) -> shared_memory_descriptor:
    """`value` if it is a barrier in shared memory.

    Args:
        value: the argument's value.
        argument: its name.
        remedy: how such a barrier is allocated.
        seen: how many barriers of a cluster its shape counts; those of its layout by default.

    Raises:
        DtypeError: no shared memory, or not of 64-bit integers.
        LayoutError: not the layout of a barrier.
        ShapeError: not one barrier per block.
    """
    view = shared_memory(value, argument)
    if view.dtype not in (tl.int64, tl.uint64):
        refuse(
            DtypeError(
                "a barrier is a 64-bit integer",
                argument=argument,
                expected="int64",
                got=view.dtype,
                remedy=remedy,
            )
        )
    layout = view.layout
    if not isinstance(layout, SwizzledSharedLayout) or layout.rank != 1:
        refuse(
            LayoutError(
                "not the layout of a barrier",
                argument=argument,
                expected="MBarrierLayout()",
                got=repr(layout),
                remedy=remedy,
            )
        )
    wanted = seen or 1 << sum(any(basis) for basis in layout.cga_layout)
    if list(view.shape) != [wanted]:
        refuse(
            ShapeError(
                "not one barrier",
                argument=argument,
                expected=[wanted],
                got=list(view.shape),
                remedy="Pick one of several with .index(i).",
            )
        )
    return view


def check_matmul_shapes(
    a: Sequence[int], b: Sequence[int], acc: Sequence[int], batches: bool = True
) -> None:
    """Raise ShapeError unless the shapes multiply; with `batches` all may have one dimension more."""
    shapes = [list(shape) for shape in (a, b, acc)]
    ranks = (2, 3) if batches else (2,)
    for name, shape in zip(("a", "b", "acc"), shapes):
        if len(shape) not in ranks or len(shape) != len(shapes[2]):
            wanted = "a matrix, or a batch of them as acc is" if batches else "a matrix"
            raise ShapeError(f"must be {wanted}", argument=name, got=shape)
    (*batch_a, m, k), (*batch_b, rows, n), result = shapes
    if rows != k or batch_a != batch_b or result != [*batch_a, m, n]:
        raise ShapeError(
            "the shapes do not multiply",
            expected="a [M, K], b [K, N], acc [M, N]",
            got=", ".join(map(str, shapes)),
        )


def check_matmul_dtypes(
    unit: str,
    a: dtype,
    b: dtype,
    acc: dtype,
    accumulators: Mapping[dtype, Sequence[dtype]],
    families: Sequence[Sequence[dtype]] = (),
    isa: str = "",
) -> None:
    """Raise DtypeError unless a matrix unit multiplies `a` by `b` and adds up in `acc`.

    Args:
        unit: its name.
        accumulators: for each dtype of operands, those of accumulators.
        families: dtypes of which the two operands may be any.
        isa: where the manual says so.
    """
    where = f" ({isa})" if isa else ""
    wanted = accumulators.get(a)
    if wanted is None:
        raise DtypeError(
            f"{unit} does not take this dtype{where}",
            argument="a",
            expected=", ".join(map(str, accumulators)),
            got=a,
        )
    wider = a.primitive_bitwidth > b.primitive_bitwidth
    if a != b and not any(a in family and b in family for family in families):
        raise DtypeError(
            f"both operands must have one dtype{where}",
            argument="b",
            expected=a,
            got=b,
            remedy=f"Convert one, such as {'a' if wider else 'b'}.to({b if wider else a}).",
        )
    if acc not in wanted:
        raise DtypeError(
            f"{unit} does not accumulate {a} in this dtype{where}",
            argument="acc",
            expected=" or ".join(map(str, wanted)),
            got=acc,
        )


def check_k_width(a: tensor, b: tensor, least: int = 1) -> None:
    """Raise LayoutError unless both operands' layouts have one k_width, of `least` or more."""
    widths = a.type.layout.k_width, b.type.layout.k_width
    if widths[0] != widths[1] or widths[0] < least:
        bound = f", at least {least} for {a.dtype}" if least > 1 else ""
        raise LayoutError(
            "the operands' k_width does not fit",
            argument="k_width",
            expected=f"one width for both{bound}",
            got=f"{widths[0]} and {widths[1]}",
        )


def same_bits(one: Any, other: Any) -> bool:
    """Are the dtypes the same, or integers that differ in their sign alone?"""
    if one == other:
        return True
    integers = one.is_int() and other.is_int()
    return bool(integers and one.primitive_bitwidth == other.primitive_bitwidth)


def check_stored(memory: Any, value: Any, first: bool = False) -> None:
    """Raise unless `value` is a tensor of the shape and dtype of `memory`, a type of buffers.

    Args:
        first: the value initializes an allocation; integers may be of the other sign.

    Raises:
        ShapeError: no tensor, or of another shape.
        DtypeError: of another dtype.
    """
    if not isinstance(value, tl.tensor) or not isinstance(value.type, distributed_type):
        raise ShapeError(
            "not a tensor",
            argument="value",
            expected=f"a tensor {list(memory.shape)} of {memory.element_ty}",
            got=describe(value),
            remedy=getattr(type(value), "how_to_tensor", None),
        )
    if shape_of(value) != list(memory.shape):
        raise ShapeError(
            "the value does not have the buffer's shape",
            argument="value",
            expected=list(memory.shape),
            got=shape_of(value),
        )
    if value.dtype != memory.element_ty and not (
        first and same_bits(value.dtype, memory.element_ty)
    ):
        raise DtypeError(
            "the value does not have the buffer's dtype",
            argument="value",
            expected=memory.element_ty,
            got=value.dtype,
            remedy="Cast it with value.to(...).",
        )
