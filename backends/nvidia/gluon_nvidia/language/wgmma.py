"""The matrix unit of Hopper: `wgmma` (sm_90a), which reads shared memory on its own.

Four warps, a warpgroup, multiply together: each of them holds 16 rows of the accumulator.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, Sequence, Union, overload

from gluon_core import errors
from gluon_core.layouts import DotOperandLayout
from gluon_core.layouts.base import DistributedLayout
from gluon_core.layouts.shared import SharedLinearLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.values import distributed_type, handle_value, shared_memory_descriptor
from gluon_nvidia.language.mma import check_precision
from gluon_nvidia.language.wgmma_unfinished import issued, maybe_unfinished, raw_handle, waited
from gluon_nvidia.layouts import NVMMADistributedLayout, NVMMASharedLayout

__all__ = [
    "warpgroup_mma",
    "warpgroup_mma_accumulator",
    "warpgroup_mma_accumulator_type",
    "warpgroup_mma_init",
    "warpgroup_mma_wait",
]

_REQUIRES = ("nvidia.wgmma",)
_NAME = "gl.nvidia.hopper.warpgroup_mma"
_INSTEAD = "gl.nvidia.blackwell.tcgen05_mma, gl.nvidia.ampere.mma_v2, or gl.portable.mma"
_WARPGROUP = 4
_MOST_PENDING = 2**31 - 1

_FP8 = (tl.float8e5, tl.float8e4nv)
# Operand dtype -> accumulator dtypes (PTX 9.7.15.2, table of matrix element types).
_DTYPES: dict[tl.dtype, tuple[tl.dtype, ...]] = {
    tl.float16: (tl.float32, tl.float16),
    tl.bfloat16: (tl.float32,),
    tl.float32: (tl.float32,),
    tl.int8: (tl.int32,),
    tl.float8e5: (tl.float32, tl.float16),
    tl.float8e4nv: (tl.float32, tl.float16),
}


class warpgroup_mma_accumulator_type(handle_value.Type):
    """Type of an accumulator that a multiplication may still be writing.

    Args:
        tensor_type: type of the tensor that it becomes once it was waited for.
    """

    def __init__(self, tensor_type: distributed_type):
        self.tensor_type = unwrap(tensor_type)
        if not isinstance(self.tensor_type, distributed_type):
            raise errors.DtypeError(
                "not the type of a tensor", argument="tensor_type", got=repr(tensor_type)
            )

    def to_ir(self, builder: Any) -> Any:
        return self.tensor_type.to_ir(builder)

    def _value(self, handle: Any) -> Any:
        return warpgroup_mma_accumulator(handle, self.tensor_type)

    def _parts(self) -> tuple[Any, ...]:
        return (self.tensor_type,)

    def mangle(self) -> str:
        return f"FT{self.tensor_type.mangle()}FT"

    def __str__(self) -> str:
        return f"warpgroup_mma_accumulator<{self.tensor_type}>"


class warpgroup_mma_accumulator(handle_value):
    """An accumulator that a multiplication may still be writing: hand it to `warpgroup_mma` again,
    or to `warpgroup_mma_wait`, which returns the tensor."""

    how_to_tensor = "Wait for it: x = warpgroup_mma_wait(0, deps=(x,))."
    how_to_begin = "Start with warpgroup_mma_init(tensor), or wait in the loop."

    def __init__(self, handle: Any, tensor_type: distributed_type):
        self.handle = handle
        self.type = warpgroup_mma_accumulator_type(tensor_type)


# Buffers that a multiplication may still write, or read.
Waited = Union[tl.tensor, warpgroup_mma_accumulator, shared_memory_descriptor]


@builtin(requires=_REQUIRES, name=f"{_NAME}_init", instead=_INSTEAD)
def warpgroup_mma_init(
    value: Union[tl.tensor, warpgroup_mma_accumulator],
) -> warpgroup_mma_accumulator:
    """Return a tensor as the first accumulator of a chain of multiplications that nobody waits for.

    A loop that hands an accumulator from round to round needs one type for it from the start.

    Args:
        value: tensor with the layout of an accumulator of `wgmma`.

    Returns:
        A warpgroup_mma_accumulator.

    Raises:
        DtypeError: not a tensor.
        LayoutError: another layout.

    ISA: none; it gives the registers another type.
    """
    if isinstance(value, warpgroup_mma_accumulator):
        return value
    semantic_layer().require_distributed(value, "value")
    _accumulator_layout(value.type.layout, "value")
    return warpgroup_mma_accumulator(raw_handle(value), value.type)


@overload
def warpgroup_mma(
    a: Union[tl.tensor, shared_memory_descriptor],
    b: shared_memory_descriptor,
    acc: Union[tl.tensor, warpgroup_mma_accumulator],
    *,
    use_acc: Scalar[bool] = ...,
    precision: Optional[Const[str]] = ...,
    max_num_imprecise_acc: Optional[Const[int]] = ...,
    columns: Optional[Const[int]] = ...,
    is_async: Literal[False] = ...,
) -> tl.tensor: ...


@overload
def warpgroup_mma(
    a: Union[tl.tensor, shared_memory_descriptor],
    b: shared_memory_descriptor,
    acc: Union[tl.tensor, warpgroup_mma_accumulator],
    *,
    use_acc: Scalar[bool] = ...,
    precision: Optional[Const[str]] = ...,
    max_num_imprecise_acc: Optional[Const[int]] = ...,
    columns: Optional[Const[int]] = ...,
    is_async: Literal[True],
) -> warpgroup_mma_accumulator: ...


@overload
def warpgroup_mma(
    a: Union[tl.tensor, shared_memory_descriptor],
    b: shared_memory_descriptor,
    acc: Union[tl.tensor, warpgroup_mma_accumulator],
    *,
    use_acc: Scalar[bool] = ...,
    precision: Optional[Const[str]] = ...,
    max_num_imprecise_acc: Optional[Const[int]] = ...,
    columns: Optional[Const[int]] = ...,
    is_async: Const[bool],
) -> Union[tl.tensor, warpgroup_mma_accumulator]: ...


@builtin(requires=_REQUIRES, name=_NAME, instead=_INSTEAD)
def warpgroup_mma(
    a: Union[tl.tensor, shared_memory_descriptor],
    b: shared_memory_descriptor,
    acc: Union[tl.tensor, warpgroup_mma_accumulator],
    *,
    use_acc: Scalar[bool] = True,
    precision: Optional[Const[str]] = None,
    max_num_imprecise_acc: Optional[Const[int]] = None,
    columns: Optional[Const[int]] = None,
    is_async: Const[bool] = False,
) -> Union[tl.tensor, warpgroup_mma_accumulator]:
    """`acc + a @ b` on the tensor cores; the operands in shared memory are read asynchronously.

    Ordinary stores to the operands need a `fence_async_shared()` before; tiles that TMA brought and a
    barrier announced need none.

    Args:
        a: [M, K] in shared memory with `NVMMASharedLayout`, or a tensor with
            `DotOperandLayout(0, acc's layout, k_width)`, k_width of 32 bits.
        b: [K, N] in shared memory with `NVMMASharedLayout`, of `a`'s dtype (or both fp8).
        acc: [M, N] tensor with `NVMMADistributedLayout([3, 0], ...)`, or the result of an asynchronous
            `warpgroup_mma` or `warpgroup_mma_init`.
        use_acc: int1 scalar; where false, `a @ b` alone.
        precision: of float32 operands: "tf32" (10 bits of mantissa), the only one that the unit has
            and the default.
        max_num_imprecise_acc: of fp8 operands: how many products along K the unit may add up in its
            own narrower sum (about 14 bits) before they join the float32 accumulator. By default, or
            below zero, as many as there are; at least 32 for float32, at most K.
        columns: how many of the first columns are needed, a multiple of 8, of an accumulator that one instruction covers: the unit
            takes as long as for so many. The others are unspecified. All by default.
        is_async: compile-time boolean; do not wait. The operands must stay as they are, and the
            accumulator's value is there, once `warpgroup_mma_wait` waited for it.

    | a, b | acc | operands that may be transposed |
    |---|---|---|
    | float16 | float32, float16 | both |
    | bfloat16 | float32 | both |
    | float32 (as tf32) | float32 | none: K must be contiguous |
    | float8e4nv, float8e5 | float32, float16 | none |
    | int8 | int32 | none |

    M is a multiple of 64 in each block, K of 32 bytes, and N of the instruction's N.

    Returns:
        A tensor like `acc`; with `is_async` a warpgroup_mma_accumulator.

    Raises:
        DtypeError: dtypes that the unit does not combine.
        ShapeError: the shapes do not multiply, or are smaller than one instruction's.
        LayoutError: a layout that the unit does not read.
        ArgumentError: another argument is illegal, or the warps are not a multiple of four.

    ISA: PTX 9.7.15.5, wgmma.mma_async; with is_async=False also wgmma.wait_group 0.
    """
    semantic = semantic_layer()
    _check_warps(semantic)
    tensor_type = _check_accumulator(semantic, acc)
    in_registers = isinstance(a, tl.tensor)
    if in_registers:
        semantic.require_distributed(a, "a")
    else:
        a = semantic.shared_memory(a, "a")
    b = semantic.shared_memory(b, "b")
    layout = tensor_type.layout
    semantic.check_matmul_shapes(
        semantic.shape_of(a), semantic.shape_of(b), _dims(tensor_type), batches=False
    )
    kinds = _signed(a.dtype, b.dtype)
    semantic.check_matmul_dtypes(
        "wgmma", *kinds, tensor_type.element_ty, _DTYPES, (_FP8,), "PTX 9.7.15.2"
    )
    _check_instruction(semantic, a, tensor_type)
    if in_registers:
        _check_registers(a, layout)
    else:
        _check_shared(a, "a", fast=1)
    _check_shared(b, "b", fast=0)
    for value, argument, d in ((a, "a", 0), (b, "b", 1)):
        if not isinstance(value, tl.tensor):
            _check_blocks(value, argument, d, layout)
    precision = _precision(semantic, unwrap(precision), a.dtype)
    asynchronous = semantic.compile_time_bool(is_async, "is_async")
    needed = _needed(semantic, unwrap(columns), tensor_type)
    _mark(semantic, needed, "begin")
    handle = semantic.builder.create_warpgroup_mma(
        a.handle,
        b.handle,
        raw_handle(acc),
        semantic.predicate(use_acc, "use_acc").handle,
        semantic.dot_precision(precision),
        _imprecise(semantic, unwrap(max_num_imprecise_acc), a, tensor_type),
        asynchronous,
    )
    _mark(semantic, needed, "end")
    issued(semantic, handle, asynchronous)
    if asynchronous:
        return warpgroup_mma_accumulator(handle, tensor_type)
    return semantic.make_tensor(handle, tensor_type)


@builtin(requires=_REQUIRES, name=f"{_NAME}_wait", instead=_INSTEAD)
def warpgroup_mma_wait(
    num_outstanding: Const[int] = 0, deps: Optional[Union[Waited, Sequence[Waited]]] = None
) -> Any:
    """Wait until at most `num_outstanding` of the asynchronous multiplications are unfinished.

    They end in the order in which they were issued. Use the result instead of `deps`: do not read those
    before, and the compiler must not move them.

    Args:
        num_outstanding: compile-time integer from 0 on; more than the hardware tells apart wait for more.
        deps: the accumulators that are waited for, in a sequence; also tensors and buffers in shared
            memory that the multiplications read.

    Returns:
        The tensor of the one accumulator in `deps`, or a tuple of all of `deps`, with the
        accumulators as tensors.

    Raises:
        ArgumentError: no `deps`, or not a number.
        DtypeError: something else in `deps`.

    ISA: PTX 9.7.15.7, wgmma.wait_group.
    """
    semantic = semantic_layer()
    pending = semantic.compile_time_int(num_outstanding, "num_outstanding", 0, _MOST_PENDING)
    deps = unwrap(deps)
    items = semantic.items_of(deps)
    if not items:
        raise errors.ArgumentError(
            "nothing to wait for",
            argument="deps",
            expected="the accumulators, such as deps=[acc]",
            got=repr(deps),
        )
    kinds = []
    for item in items:
        if isinstance(item, warpgroup_mma_accumulator):
            kinds.append(item.type.tensor_type)
        elif isinstance(item, shared_memory_descriptor) or (
            isinstance(item, tl.tensor) and isinstance(item.type, distributed_type)
        ):
            kinds.append(item.type)
        else:
            raise errors.DtypeError(
                "not an accumulator",
                argument="deps",
                expected="accumulators, tensors, or buffers in shared memory",
                got=semantic.describe(item),
            )
    inputs = [raw_handle(item) for item in items]
    left = waited(semantic, pending)
    handles = semantic.builder.create_warpgroup_mma_wait(inputs, pending)
    if not isinstance(handles, (list, tuple)):
        handles = [handles]  # a recorder hands out a single result as it is
    results = [
        kind._unflatten_ir([handle], 0)[0]
        if not isinstance(kind, distributed_type)
        else maybe_unfinished(semantic, handle, kind, before, left)
        for handle, kind, before in zip(handles, kinds, inputs)
    ]
    return results[0] if len(results) == 1 else tl.tuple(results)


def _mark(semantic: SemanticLayer, columns: Optional[int], place: str) -> None:
    """Leave a mark where machine code is written; simulators multiply all columns."""
    builder = semantic.builder
    if columns is not None and hasattr(type(builder), "mark_columns"):
        builder.mark_columns(columns, place)


# -- checks ---------------------------------------------------------------------------------------


def _needed(semantic: SemanticLayer, columns: Any, tensor_type: distributed_type) -> Optional[int]:
    """Return how many columns an instruction multiplies; None for all."""
    if columns is None:
        return None
    count = semantic.compile_time_int(columns, "columns", 8)
    layout: Any = tensor_type.layout
    across = layout.instr_shape[1]
    if count % 8 or count > across or across < _dims(tensor_type)[1]:
        raise errors.ArgumentError(
            "an instruction multiplies multiples of 8 columns, and covers the accumulator",
            argument="columns",
            expected=f"a multiple of 8 up to {across}, of an accumulator of {across} columns",
            got=f"{count} of {_dims(tensor_type)[1]}",
        )
    return None if count == across else count


def _check_warps(semantic: SemanticLayer) -> None:
    if semantic.num_warps % _WARPGROUP:
        raise errors.ArgumentError(
            "wgmma runs on warpgroups, four warps each (PTX 9.7.15)",
            argument="num_warps",
            expected="a multiple of 4",
            got=semantic.num_warps,
            remedy="Launch with more warps, or give the partition more in worker_num_warps.",
        )


def _accumulator_layout(layout: object, argument: str, wanted: str = "...") -> None:
    if not isinstance(layout, NVMMADistributedLayout) or layout.version[0] != 3:
        raise errors.LayoutError(
            "not the accumulator of wgmma",
            argument=argument,
            expected=f"NVMMADistributedLayout(version=[3, 0], {wanted})",
            got=repr(layout),
        )
    layout.check_wgmma()


def _check_accumulator(
    semantic: SemanticLayer, acc: Union[tl.tensor, warpgroup_mma_accumulator]
) -> distributed_type:
    """Return the tensor type of an accumulator."""
    if isinstance(acc, warpgroup_mma_accumulator):
        tensor_type: distributed_type = acc.type.tensor_type
    else:
        tensor_type = semantic.require_distributed(acc, "acc").type
    columns = min(_dims(tensor_type)[-1], 256)
    wanted = f"warps_per_cta=[{semantic.num_warps}, 1], instr_shape=[16, {columns}, K of 32 bytes]"
    _accumulator_layout(tensor_type.layout, "acc", wanted)
    semantic.check_layout(tensor_type.layout, _dims(tensor_type), "acc")
    return tensor_type


def _dims(tensor_type: distributed_type) -> list[int]:
    return [int(unwrap(size)) for size in tensor_type.shape]


def _signed(a: tl.dtype, b: tl.dtype) -> tuple[tl.dtype, tl.dtype]:
    """Return the dtypes that the compiler multiplies; it takes unsigned bytes for signed ones."""
    if tl.uint8 not in (a, b) or {a, b} - {tl.int8, tl.uint8}:
        return a, b
    errors.refuse(
        errors.DtypeError(
            "compilers multiply unsigned bytes as signed ones: from 128 on they are negative",
            argument="a" if a == tl.uint8 else "b",
            expected="int8",
            got="uint8",
            remedy="Convert them with .to(gl.int8), or multiply as float16.",
        )
    )
    return tl.int8, tl.int8


def _check_instruction(
    semantic: SemanticLayer,
    a: Union[tl.tensor, shared_memory_descriptor],
    tensor_type: distributed_type,
) -> None:
    """Return the instruction's tile; raise unless it fits into one block's part of the matrices."""
    layout: Any = tensor_type.layout
    depth = 256 // a.dtype.primitive_bitwidth
    _, n, *k = layout.instr_shape
    if k != [depth]:
        raise errors.LayoutError(
            f"the K of one instruction on {a.dtype} is {depth}, 32 bytes (PTX 9.7.15.1)",
            argument="acc",
            expected=f"instr_shape=[16, {n}, {depth}]",
            got=f"instr_shape={layout.instr_shape}",
        )
    blocks = [1, 1]
    for basis in layout.cga_layout:
        for d, step in enumerate(basis):
            blocks[d] *= 2 if step else 1
    rows, columns = (max(1, s // c) for s, c in zip(_dims(tensor_type), blocks))
    least = (64, n, depth)
    for dimension, size, unit in zip("MNK", (rows, columns, semantic.shape_of(a)[1]), least):
        if size % unit:
            raise errors.ShapeError(
                f"the {dimension} of one block is smaller than one instruction's (PTX 9.7.15.1)",
                argument="b" if dimension == "N" else "a",
                expected=f"{dimension} >= {unit}",
                got=f"{dimension} = {size}",
                remedy="Choose another instr_shape or warps_per_cta, or pad the tile.",
            )


def _check_registers(a: Any, layout: DistributedLayout) -> None:
    a_layout = a.type.layout
    width = 32 // a.dtype.primitive_bitwidth
    matches = isinstance(a_layout, DotOperandLayout) and a_layout.operand_index == 0
    if not matches or a_layout.parent != layout or a_layout.k_width != width:
        raise errors.LayoutError(
            "not the register operand of the accumulator (PTX 9.7.15.5.1)",
            argument="a",
            expected=f"DotOperandLayout(0, {layout}, {width})",
            got=repr(a_layout),
            remedy="convert_layout the operand first.",
        )


def _check_shared(value: Any, argument: str, fast: int) -> None:
    """Return a matrix in shared memory as the unit reads it; `fast` is the dimension of K."""
    layout = value.layout
    bits = value.dtype.primitive_bitwidth
    if isinstance(layout, SharedLinearLayout):
        return
    if not isinstance(layout, NVMMASharedLayout) or layout.rank != 2 or layout.fp4_padded:
        raise errors.LayoutError(
            "not a matrix in shared memory that wgmma reads (PTX 9.7.15.5.1)",
            argument=argument,
            expected=f"NVMMASharedLayout(swizzle, {bits}, rank=2)",
            got=repr(layout),
            remedy=f"gl.NVMMASharedLayout.get_default_for({list(value.shape)}, dtype) is one.",
        )
    # Without a swizzle rows lie as they come, whatever the width.
    if layout.swizzle_byte_width and layout.element_bitwidth != bits:
        raise errors.LayoutError(
            "the layout is for elements of a different width",
            argument=argument,
            expected=f"element_bitwidth={bits} for {value.dtype}",
            got=layout.element_bitwidth,
            remedy=f"gl.NVMMASharedLayout.get_default_for({list(value.shape)}, dtype) is one for it.",
        )
    width = value.shape[0 if layout.transposed else 1] * bits // 8
    if not layout.swizzle_byte_width and width != 16:
        raise errors.LayoutError(
            "without swizzle wgmma reads rows of 16 bytes (PTX 9.7.15.5.1)",
            argument=argument,
            expected="swizzle_byte_width=32, 64 or 128",
            got=f"swizzle_byte_width=0 with rows of {width} bytes",
            remedy="NVMMASharedLayout.get_default_for picks the widest that fits.",
        )
    if bits != 16 and layout.transposed != (fast == 0):
        stored = "[M, K]" if argument == "a" else "[K, N] stored as [N, K]"
        raise errors.LayoutError(
            f"wgmma transposes 16-bit operands only; K must be contiguous for {value.dtype} "
            "(PTX 9.7.15.5.1)",
            argument=argument,
            expected=f"transposed={fast == 0}: {stored}",
            got=f"transposed={layout.transposed}",
            remedy="Store it the other way round, and hand over .permute((1, 0)).",
        )


def _check_blocks(value: Any, argument: str, d: int, acc: DistributedLayout) -> None:
    """Check that each block of a cluster multiplies the content of its own shared memory."""
    wanted = [[step if i == d else 0 for i, step in enumerate(basis)] for basis in acc.cga_layout]
    cga = getattr(value.layout, "cga_layout", wanted)
    if cga != wanted:
        raise errors.LayoutError(
            "a block of the cluster lacks the operand of its part of the accumulator",
            argument=argument,
            expected=f"cga_layout={wanted} for an accumulator of {acc.cga_layout}",
            got=f"cga_layout={cga}",
        )


def _precision(semantic: SemanticLayer, precision: Optional[str], dtype: tl.dtype) -> str:
    if precision is None:
        default: str = getattr(semantic.options, "default_dot_input_precision", None) or "tf32"
        return default
    return check_precision(precision, dtype, "precision", "wgmma")


def _imprecise(
    semantic: SemanticLayer,
    requested: Optional[int],
    a: Union[tl.tensor, shared_memory_descriptor],
    tensor_type: distributed_type,
) -> int:
    fp8 = a.dtype in _FP8
    if requested is None:
        default = getattr(semantic.options, "max_num_imprecise_acc_default", None) or 0
        return default if fp8 else 0
    if isinstance(requested, int) and requested < 0:  # unsigned in the module: as many as there are
        return requested
    # With fewer the unit would have to add to a float32 accumulator within one instruction.
    least = 32 if fp8 and tensor_type.element_ty == tl.float32 else 0
    most = semantic.shape_of(a)[1] if fp8 else None
    return semantic.compile_time_int(requested, "max_num_imprecise_acc", least, most)
