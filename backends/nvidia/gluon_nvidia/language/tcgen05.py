"""The matrix unit of Blackwell: `tcgen05.mma` (sm_100), which accumulates in tensor memory.

One thread issues a multiplication; it runs on its own, reads shared and tensor memory, and tells
the end of itself and of all before it to an mbarrier (`tcgen05_commit`, or `mbarriers=`). Nobody
waits for it otherwise: before its operands are overwritten, or its accumulator is loaded, wait for
such a barrier.
"""

from __future__ import annotations

from typing import Any, Sequence

from gluon_core import _triton
from gluon_core._triton import tl, tl_tuple, unwrap
from gluon_core.builtin import builtin, check_capabilities, compile_time
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError, did_you_mean
from gluon_core.layouts.shared import SharedLinearLayout
from gluon_core.semantic.base import describe
from gluon_core.semantic.operands import compile_time_bool, predicate, shared_memory
from gluon_nvidia.language.mbarrier import MBarrierLayout, check_mbarrier
from gluon_nvidia.language.tensor_memory import (
    tensor_memory,
    tensor_memory_descriptor,
)
from gluon_nvidia.layouts import NVMMASharedLayout
from gluon_nvidia.tensor_memory import TensorMemoryLayout, TensorMemoryScalesLayout, block_shape

__all__ = [
    "tcgen05_commit",
    "tcgen05_copy",
    "tcgen05_mma",
    "tcgen05_mma_barrier_count",
    "tcgen05_mma_scaled",
]

_REQUIRES = ("nvidia.tcgen05",)
_SPACE = "gl.nvidia.blackwell."
_INSTEAD = "gl.nvidia.hopper.warpgroup_mma, gl.nvidia.ampere.mma_v2, or gl.portable.mma"

_FP8 = (tl.float8e5, tl.float8e4nv)
_INT8 = (tl.int8, tl.uint8)
# Dtypes that multiply with each other -> accumulators (PTX 9.7.16.2.1, kinds and shapes).
_KINDS: tuple[tuple[tuple, tuple, tuple], ...] = (
    ((tl.float16,), (tl.float32, tl.float16), ()),
    ((tl.bfloat16,), (tl.float32,), ()),
    ((tl.float32,), (tl.float32,), ()),
    (_FP8, (tl.float32, tl.float16), ()),
    (_INT8, (tl.int32,), ("nvidia.tcgen05_i8",)),
)
# What a scaled operand holds -> its dtypes (PTX 9.7.16.10.7, block scaling).
_FORMATS = {
    "e2m1": _INT8,
    "e4m3": (*_INT8, tl.float8e4nv),
    "e5m2": (*_INT8, tl.float8e5),
}
_INSTRUCTION_BYTES = 32  # of K


@builtin(requires=_REQUIRES, name=f"{_SPACE}tcgen05_mma", instead=_INSTEAD)
def tcgen05_mma(
    a: Any,
    b: Any,
    acc: Any,
    *,
    use_acc: Any = True,
    pred: Any = True,
    multicast: Any = False,
    mbarriers: Any = None,
    mbarrier_preds: Any = None,
    _semantic: Any = None,
) -> None:
    """`acc += a @ b` on the tensor cores, in tensor memory.

    What ordinary stores wrote to shared memory needs a `fence_async_shared()` before.

    Args:
        a: [M, K] in shared memory with `NVMMASharedLayout`, or in tensor memory with
            `TensorMemoryLayout`, packed (col_stride=1).
        b: [K, N] in shared memory with `NVMMASharedLayout`.
        acc: [M, N] in tensor memory with `TensorMemoryLayout`, one element to a 32-bit column.
            With `two_ctas`, a pair of blocks multiplies together: each holds half of `a`'s rows
            and half of `b`'s columns.
        use_acc: int1 scalar; where false, `acc = a @ b`.
        pred: int1 scalar; where false, do nothing.
        multicast: compile-time boolean; the operands came to several blocks of the cluster by a
            multicast, so the end is told to the barriers of all of them. Triton 3.7.
        mbarriers: barriers that get an arrival when this and all before it is done; in a cluster
            one for each block, of pairs, too.
        mbarrier_preds: an int1 scalar for each of them.

    | a, b | acc |
    |---|---|
    | float16 | float32, float16 |
    | bfloat16, float32 (as tf32) | float32 |
    | float8e4nv, float8e5, mixed | float32, float16 |
    | int8, uint8, mixed (sm_100, sm_110; Triton 3.8) | int32 |

    M of one block is a multiple of 64 or 128 as the accumulator's block; N of an instruction is the
    width of that block, 8 to 256, at least 16 with 128 rows; K is a multiple of 32 bytes.

    Raises:
        DtypeError: dtypes that the unit does not combine.
        ShapeError: the shapes do not multiply, or are smaller than one instruction's.
        LayoutError: a layout that the unit does not read.
        ArgumentError: another argument is illegal.

    ISA: PTX 9.7.16.10.9.1, tcgen05.mma.
    """
    a, b, acc = _operands(a, b, acc)
    _check_shapes(list(a.shape), list(b.shape), acc)
    _check_dtypes(_semantic, a, b, acc)
    _check_operand(a, "a")
    _check_operand(b, "b")
    _check_accumulator(acc, a)
    _check_depth(a.shape[1] * a.dtype.primitive_bitwidth // 8, a)
    spread = _multicast(multicast, "tcgen05_mma", (3, 7))
    use, run, barriers, preds = _control(_semantic, use_acc, pred, mbarriers, mbarrier_preds)
    rest: tuple = (acc.layout.two_ctas,)
    if _triton.at_least(3, 7):
        rest = (acc.layout.two_ctas, spread)
    _semantic.builder.create_tcgen05_mma(
        a.handle, b.handle, acc.handle, use, run, barriers, preds, *rest
    )


@builtin(requires=_REQUIRES, name=f"{_SPACE}tcgen05_mma_scaled", instead=_INSTEAD)
def tcgen05_mma_scaled(
    a: Any,
    b: Any,
    acc: Any,
    a_scale: Any,
    b_scale: Any,
    a_type: Any,
    b_type: Any,
    *,
    use_acc: Any = True,
    pred: Any = True,
    multicast: Any = False,
    mbarriers: Any = None,
    mbarrier_preds: Any = None,
    _semantic: Any = None,
) -> None:
    """`acc += (a * a_scale) @ (b * b_scale)`: a scale for each row of `a`, column of `b` and run of K.

    Args:
        a: [M, K] in shared or tensor memory; with "e2m1" [M, K / 2] bytes of two along K.
        b: [K, N] in shared memory; with "e2m1" [K / 2, N] bytes.
        acc: [M, N] float32 in tensor memory, as in `tcgen05_mma`, of 128 rows.
        a_scale: [M, K / run] in tensor memory with `TensorMemoryScalesLayout`; int8 or uint8 are
            powers of two (e8m0) for runs of 32, float8e4nv is for runs of 16 (nvfp4, of "e2m1").
        b_scale: [N, K / run], alike.
        a_type, b_type: "e2m1", "e4m3" or "e5m2"; fp4 beside fp8 is read padded
            (`NVMMASharedLayout(fp4_padded=True)`).
        use_acc, pred, mbarriers, mbarrier_preds: as in `tcgen05_mma`.
        multicast: as in `tcgen05_mma`; Triton 3.8.

    Raises:
        DtypeError, ShapeError, LayoutError, ArgumentError: as `tcgen05_mma`.

    ISA: PTX 9.7.16.10.7, block scaling; 9.7.16.10.9.1, kind::mxf8f6f4, mxf4, mxf4nvf4.
    """
    a, b, acc = _operands(a, b, acc)
    scales = [tensor_memory(a_scale, "a_scale"), tensor_memory(b_scale, "b_scale")]
    formats = [_format(a_type, "a_type"), _format(b_type, "b_type")]
    shapes = [list(a.shape), list(b.shape)]
    for value, kind, shape, d, name in zip((a, b), formats, shapes, (1, 0), ("a", "b")):
        if value.dtype not in _FORMATS[kind]:
            raise DtypeError(
                f"not the dtype of {kind}",
                argument=name,
                expected=" or ".join(map(str, _FORMATS[kind])),
                got=value.dtype,
            )
        shape[d] *= 2 if kind == "e2m1" else 1
        _check_operand(value, name)
    _check_shapes(shapes[0], shapes[1], acc)
    if acc.dtype != tl.float32:
        raise DtypeError(
            "scaled products are accumulated in float32",
            argument="acc",
            expected="float32",
            got=acc.dtype,
        )
    _check_accumulator(acc, a)
    if acc.layout.block[0] != 128:
        raise LayoutError(
            "scaled products have accumulators of 128 rows",
            argument="acc",
            expected="TensorMemoryLayout([128, N], ...)",
            got=repr(acc.layout),
        )
    _check_padding(a, b, formats)
    _check_scales(scales, formats, shapes, acc)
    _check_depth(shapes[0][1] if formats != ["e2m1"] * 2 else shapes[0][1] // 2, a)
    spread = _multicast(multicast, "tcgen05_mma_scaled", (3, 8))
    if acc.layout.two_ctas:
        _triton.require((3, 8), f"{_SPACE}tcgen05_mma_scaled of pairs of blocks")
    use, run, barriers, preds = _control(_semantic, use_acc, pred, mbarriers, mbarrier_preds)
    rest = (acc.layout.two_ctas, spread) if _triton.at_least(3, 8) else ()
    _semantic.builder.create_tcgen05_mma_scaled(
        a.handle,
        b.handle,
        acc.handle,
        *(scale.handle for scale in scales),
        *(_semantic._str_to_fp_type(kind) for kind in formats),
        use,
        run,
        barriers,
        preds,
        *rest,
    )


@builtin(requires=_REQUIRES, name=f"{_SPACE}tcgen05_commit")
def tcgen05_commit(barrier: Any, pred: Any = True, descs: Any = (), _semantic: Any = None) -> None:
    """An arrival at `barrier` once every `tcgen05` operation before is done.

    Args:
        barrier: an mbarrier; in a cluster one for each block, of pairs, too.
        pred: int1 scalar; where false, no arrival. Triton 3.7.
        descs: the operands in shared memory that came by a multicast to several blocks of the
            cluster: the barriers of all of them get an arrival. Triton 3.7.

    Raises:
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: `pred` or `descs` with an older Triton.

    ISA: PTX 9.7.16.11.1, tcgen05.commit.
    """
    barrier = _completion(_semantic, barrier, "barrier")
    operands = [shared_memory(item, "descs") for item in _items(descs)]
    if len(operands) > 2:
        raise ArgumentError(
            "a multiplication has two operands",
            argument="descs",
            expected="at most 2 buffers",
            got=len(operands),
        )
    if not _triton.at_least(3, 7):
        if operands:
            _triton.require((3, 7), f"{_SPACE}tcgen05_commit(descs=...)")
        if unwrap(pred) is not True:
            _triton.require((3, 7), f"{_SPACE}tcgen05_commit(pred=...)")
        _semantic.builder.create_tcgen05_commit(barrier.handle)
        return
    handles = [item.handle for item in operands]
    _semantic.builder.create_tcgen05_commit(
        barrier.handle, predicate(_semantic, pred).handle, handles
    )


@builtin(requires=_REQUIRES, name=f"{_SPACE}tcgen05_copy")
def tcgen05_copy(src: Any, dst: Any, _semantic: Any = None) -> None:
    """Copy a buffer from shared to tensor memory, in order with the multiplications that follow.

    Args:
        src: in shared memory, of `dst`'s shape and width of elements.
        dst: in tensor memory: scales, from a buffer that is not swizzled; or a matrix of 32-bit
            elements in blocks of 128 rows, from one that TMA swizzled and that is not transposed.

    Raises:
        DtypeError, ShapeError: not two such buffers.
        LayoutError: a layout that the unit does not read.

    ISA: PTX 9.7.16.9.1, tcgen05.cp.
    """
    src, dst = shared_memory(src, "src"), tensor_memory(dst, "dst")
    if src.dtype.primitive_bitwidth != dst.dtype.primitive_bitwidth:
        raise DtypeError("not the dtype of dst", argument="src", expected=dst.dtype, got=src.dtype)
    if list(src.shape) != list(dst.shape):
        raise ShapeError(
            "not the shape of dst", argument="src", expected=list(dst.shape), got=list(src.shape)
        )
    _check_copied(src, dst)
    _semantic.builder.create_tmem_copy(src.handle, dst.handle)


@compile_time
def tcgen05_mma_barrier_count(smems: Any, multicast: Any, two_ctas: Any = False) -> int:
    """How many multiplications of a cluster tell one block's barrier that they are done.

    Args:
        smems: the operands in shared memory, or those of them that came by a multicast.
        multicast: whether they did, as given to `tcgen05_mma`.
        two_ctas: whether pairs of blocks multiply together.

    Returns:
        The count to initialize the barrier with: the blocks (pairs) whose operands this block
        shares; 1 without a multicast.

    Raises:
        LayoutError: an operand without a layout.
    """
    if not unwrap(multicast):
        return 1
    pair = 1 if unwrap(two_ctas) else 0
    reached = {0}
    for item in _items(smems):
        layout = getattr(unwrap(item), "layout", None)
        if layout is None:
            raise LayoutError("has no layout", argument="smems", got=describe(item))
        # Blocks that differ in a bit of basis zero have the same operand.
        shared = [bit for bit, row in enumerate(layout.cga_layout) if not any(row)]
        blocks = {0}
        for bit in shared:
            blocks |= {block | 1 << bit for block in blocks}
        reached |= {block >> pair for block in blocks}
    return len(reached)


def _check_copied(src: Any, dst: Any) -> None:
    tiled = isinstance(src.layout, NVMMASharedLayout)
    plain = tiled and not src.layout.transposed and not src.layout.fp4_padded
    if isinstance(dst.layout, TensorMemoryScalesLayout):
        if tiled and (src.layout.swizzle_byte_width or not plain):
            raise LayoutError(
                "scales are copied from where they lie in order",
                argument="src",
                expected="swizzle_byte_width=0, neither transposed nor padded",
                got=repr(src.layout),
            )
        return
    if dst.dtype.primitive_bitwidth != 32 or dst.layout.block[0] != 128:
        raise LayoutError(
            "tcgen05.cp of a matrix moves blocks of 128 rows of 32-bit elements",
            argument="dst",
            expected="TensorMemoryLayout([128, N], 1) of 32 bits",
            got=str(dst.type),
        )
    if tiled and not (plain and src.layout.swizzle_byte_width):
        raise LayoutError(
            "tcgen05.cp does not read this layout",
            argument="src",
            expected="NVMMASharedLayout with a swizzle, neither transposed nor padded",
            got=repr(src.layout),
        )


# -- checks ---------------------------------------------------------------------------------------


def _items(values: Any) -> list:
    values = unwrap(values)
    if values is None:
        return []
    return list(values) if isinstance(values, (list, tuple, tl_tuple)) else [values]


def _operands(a: Any, b: Any, acc: Any) -> tuple[Any, Any, Any]:
    a = unwrap(a)
    if isinstance(a, tensor_memory_descriptor):
        a = tensor_memory(a, "a")
    else:
        a = shared_memory(a, "a")
    b, acc = shared_memory(b, "b"), tensor_memory(acc, "acc")
    for value, argument in ((a, "a"), (b, "b")):
        if len(value.shape) != 2:
            raise ShapeError("must be a matrix", argument=argument, got=list(value.shape))
    return a, b, acc


def _check_shapes(a: Sequence[int], b: Sequence[int], acc: Any) -> None:
    (m, k), (rows, n) = a, b
    if rows != k or list(acc.shape) != [m, n]:
        raise ShapeError(
            "the shapes do not multiply",
            expected="a [M, K], b [K, N], acc [M, N]",
            got=f"{list(a)}, {list(b)}, {list(acc.shape)}",
        )


def _check_dtypes(semantic: Any, a: Any, b: Any, acc: Any) -> None:
    for operands, accumulators, requires in _KINDS:
        if a.dtype not in operands:
            continue
        if b.dtype not in operands:
            break
        check_capabilities(semantic, f"{_SPACE}tcgen05_mma of {a.dtype}", requires)
        if a.dtype in _INT8:
            _triton.require((3, 8), f"{_SPACE}tcgen05_mma of {a.dtype}")
        if acc.dtype not in accumulators:
            raise DtypeError(
                f"tcgen05.mma does not accumulate {a.dtype} in this dtype",
                argument="acc",
                expected=" or ".join(map(str, accumulators)),
                got=acc.dtype,
            )
        return
    known = sorted({str(dtype) for operands, _, _ in _KINDS for dtype in operands})
    raise DtypeError(
        "tcgen05.mma does not multiply these dtypes",
        argument="b",
        expected=f"a and b of one kind, of {', '.join(known)}",
        got=f"{a.dtype} and {b.dtype}",
    )


def _check_operand(value: Any, argument: str) -> None:
    """The layout of `a` or `b`."""
    layout = value.layout
    if isinstance(value, tensor_memory_descriptor):
        if not isinstance(layout, TensorMemoryLayout) or layout.col_stride != 1:
            raise LayoutError(
                "an operand in tensor memory is packed",
                argument=argument,
                expected="TensorMemoryLayout([M, K], col_stride=1)",
                got=repr(layout),
            )
        return
    if isinstance(layout, SharedLinearLayout):
        return
    if not isinstance(layout, NVMMASharedLayout) or layout.rank != 2:
        raise LayoutError(
            "tcgen05.mma does not read this layout",
            argument=argument,
            expected="NVMMASharedLayout of rank 2",
            got=repr(layout),
            remedy="NVMMASharedLayout.get_default_for makes one that fits.",
        )
    if layout.element_bitwidth != value.dtype.primitive_bitwidth:
        raise LayoutError(
            "the layout is for elements of another width",
            argument=argument,
            expected=f"element_bitwidth={value.dtype.primitive_bitwidth}",
            got=repr(layout),
        )
    fast = 1 if argument == "a" else 0
    if value.dtype == tl.float32 and layout.transposed == (fast == 1):
        raise LayoutError(
            "operands of float32 lie with K contiguous",
            argument=argument,
            expected=f"transposed={fast == 0}",
            got=repr(layout),
            remedy="Store it the other way around, and permute([1, 0]).",
        )
    rows = value.shape[0 if layout.transposed else 1] * value.dtype.primitive_bitwidth // 8
    narrow = rows <= _INSTRUCTION_BYTES and _triton.at_least(3, 8)
    if not layout.swizzle_byte_width and not narrow:
        raise LayoutError(
            "a buffer that is not swizzled is as wide as one instruction",
            argument=argument,
            expected=f"a swizzle, or rows of {_INSTRUCTION_BYTES} bytes and Triton 3.8",
            got=repr(layout),
            remedy="NVMMASharedLayout.get_default_for makes one that fits.",
        )


def _check_accumulator(acc: Any, a: Any) -> None:
    layout = acc.layout
    stride = 32 // acc.dtype.primitive_bitwidth
    if not isinstance(layout, TensorMemoryLayout) or layout.col_stride != stride:
        raise LayoutError(
            "not the accumulator of tcgen05.mma",
            argument="acc",
            expected=f"TensorMemoryLayout(..., col_stride={stride}) for {acc.dtype}",
            got=repr(layout),
        )
    m, n = layout.block
    per_block = block_shape(layout, acc.shape)
    n = min(n, per_block[1])
    least = 8 if m == 64 else 16
    if not least <= n <= 256:
        raise ShapeError(
            "not the N of an instruction",
            argument="acc",
            expected=f"blocks of [{m}, {least} to 256]",
            got=layout.block,
        )
    if isinstance(a, tensor_memory_descriptor) and a.layout.block[0] != m:
        raise LayoutError(
            "an operand in tensor memory has the accumulator's rows",
            argument="a",
            expected=f"blocks of {m} rows",
            got=repr(a.layout),
        )


def _check_depth(nbytes: int, a: Any) -> None:
    if nbytes < _INSTRUCTION_BYTES:
        raise ShapeError(
            "K is smaller than that of one instruction",
            argument="a",
            expected=f"at least {_INSTRUCTION_BYTES} bytes along K",
            got=f"{nbytes} bytes, {list(a.shape)} {a.dtype}",
            remedy="Pad the tile with zeros.",
        )


def _multicast(value: Any, name: str, version: tuple[int, int]) -> bool:
    spread = compile_time_bool(value, "multicast")
    if spread:
        _triton.require(version, f"{_SPACE}{name}(multicast=True)")
    return spread


def _control(
    semantic: Any, use_acc: Any, pred: Any, mbarriers: Any, mbarrier_preds: Any
) -> tuple[Any, Any, list, list]:
    use = predicate(semantic, use_acc, "use_acc")
    run = predicate(semantic, pred, "pred")
    barriers = [_completion(semantic, item, "mbarriers") for item in _items(mbarriers)]
    given = _items(mbarrier_preds)
    if given and len(given) != len(barriers):
        raise ArgumentError(
            "not one for each barrier",
            argument="mbarrier_preds",
            expected=f"{len(barriers)} scalars",
            got=len(given),
        )
    preds = [
        predicate(semantic, item, "mbarrier_preds") for item in given or [True] * len(barriers)
    ]
    return (
        use.handle,
        run.handle,
        [item.handle for item in barriers],
        [item.handle for item in preds],
    )


def _completion(semantic: Any, barrier: Any, argument: str) -> Any:
    """`barrier` if it can be told the end: from Triton 3.8 one for each block, in pairs, too."""
    barrier = check_mbarrier(barrier, argument)
    wanted = MBarrierLayout.multicta(semantic.num_ctas)
    if _triton.at_least(3, 8) and barrier.layout.cga_layout != wanted.cga_layout:
        raise LayoutError(
            "the end is told to one barrier for each block of the cluster",
            argument=argument,
            expected=repr(wanted),
            got=repr(barrier.layout),
            remedy="mbarrier.allocate_mbarrier() makes them.",
        )
    return barrier


def _format(value: Any, argument: str) -> str:
    kind = unwrap(value)
    if kind not in _FORMATS:
        raise ArgumentError(
            "no such format",
            argument=argument,
            expected=", ".join(map(repr, _FORMATS)),
            got=repr(kind),
            remedy=did_you_mean(str(kind), _FORMATS),
        )
    return kind


def _check_padding(a: Any, b: Any, formats: list[str]) -> None:
    """Bytes of fp4 beside fp8 are padded to twice their size; among themselves they are not."""
    mixed = len({kind == "e2m1" for kind in formats}) == 2
    for value, kind, argument in zip((a, b), formats, ("a", "b")):
        wanted = mixed and kind == "e2m1"
        padded = getattr(value.layout, "fp4_padded", None)
        if padded is not None and padded != wanted:
            raise LayoutError(
                "fp4 is padded beside fp8, and only there",
                argument=argument,
                expected=f"fp4_padded={wanted}",
                got=repr(value.layout),
            )


def _check_scales(scales: list, formats: list[str], shapes: list, acc: Any) -> None:
    """Dtypes, layouts and shapes of the scales."""
    runs = []
    k = shapes[0][1]
    for scale, size, argument in zip(scales, acc.shape, ("a_scale", "b_scale")):
        if not isinstance(scale.layout, TensorMemoryScalesLayout):
            raise LayoutError(
                "not the layout of scales",
                argument=argument,
                expected="TensorMemoryScalesLayout()",
                got=repr(scale.layout),
            )
        fine = scale.dtype == tl.float8e4nv
        if not fine and scale.dtype not in _INT8:
            raise DtypeError(
                "not the dtype of scales",
                argument=argument,
                expected="int8 or uint8 (e8m0), or float8e4nv",
                got=scale.dtype,
            )
        order = getattr(scale.layout, "block_rep_order", "mnThenK")
        if order != "mnThenK" and not (fine and argument == "a_scale"):
            raise LayoutError(
                "not the order of these scales",
                argument=argument,
                expected="block_rep_order='mnThenK'; another for a_scale of float8e4nv only",
                got=repr(scale.layout),
            )
        run = 16 if fine else 32
        if fine and formats != ["e2m1", "e2m1"]:
            raise DtypeError(
                "scales of float8e4nv are for fp4",
                argument=argument,
                expected="int8 or uint8 with " + " and ".join(formats),
                got=scale.dtype,
            )
        wanted = [size, k // run]
        if list(scale.shape) != wanted:
            raise ShapeError(
                f"not one scale for {run} elements of K",
                argument=argument,
                expected=wanted,
                got=list(scale.shape),
            )
        runs.append(run)
    if runs[0] != runs[1]:
        raise DtypeError(
            "both operands must have scales of one kind",
            argument="b_scale",
            expected=scales[0].dtype,
            got=scales[1].dtype,
        )
