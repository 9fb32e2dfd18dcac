"""The matrix unit of Blackwell: `tcgen05.mma` (sm_100), which accumulates in tensor memory.

One thread issues a multiplication; it runs on its own, reads shared and tensor memory, and tells
the end of itself and of all before it to an mbarrier (`tcgen05_commit`, or `mbarriers=`). Nobody
waits for it otherwise: before its operands are overwritten, or its accumulator is loaded, wait for
such a barrier.
"""

from __future__ import annotations

from typing import Optional, Sequence, Union

from gluon_core import errors
from gluon_core.plugin.ops import builtin, compile_time, semantic_layer, tl, unwrap
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.features import (
    COMMIT_ANY_OPERANDS,
    COMMIT_OPERANDS,
    MMA_MULTICAST,
    SCALED_MMA_CLUSTERS,
)
from gluon_nvidia.language.tcgen05_operands import (
    FORMATS,
    check_accumulator,
    check_copied,
    check_depth,
    check_dtypes,
    check_operand,
    check_padding,
    check_scales,
    check_shapes,
    completion_barrier,
    control_operands,
    format_of,
    matrices,
    multicast_flag,
)
from gluon_nvidia.language.tensor_memory import tensor_memory, tensor_memory_descriptor
from gluon_nvidia.language.tensor_memory_access import multiplies

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


@builtin(requires=_REQUIRES, name=f"{_SPACE}tcgen05_mma", instead=_INSTEAD)
def tcgen05_mma(
    a: Union[shared_memory_descriptor, tensor_memory_descriptor],
    b: shared_memory_descriptor,
    acc: tensor_memory_descriptor,
    *,
    use_acc: Scalar[bool] = True,
    pred: Scalar[bool] = True,
    multicast: Const[bool] = False,
    mbarriers: Optional[Sequence[shared_memory_descriptor]] = None,
    mbarrier_preds: Optional[Union[Scalar[bool], Sequence[Scalar[bool]]]] = None,
) -> None:
    """`acc += a @ b` on the tensor cores, in tensor memory.

    Ordinary stores to the operands in shared memory need a `fence_async_shared()` before.

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
            multicast, so the commit arrives at the barriers of all of them. Triton 3.7.
        mbarriers: barriers that get an arrival when this and all before it is done; in a cluster
            one for each block, of pairs, too.
        mbarrier_preds: an int1 scalar for each of them.

    | a, b | acc |
    |---|---|
    | float16 | float32, float16 |
    | bfloat16, also with float16 | float32 |
    | float32 (as tf32) | float32 |
    | float8e4nv, float8e5, mixed | float32, float16 |
    | int8, uint8, mixed (sm_100, sm_110; Triton 3.8) | int32 |

    M of one block is a multiple of 64 or 128 as the accumulator's block; N of an instruction is the
    width of that block, 8 to 256, at least 16 with 128 rows; K is a multiple of 32 bytes.

    Raises:
        DtypeError: dtypes that the unit does not combine.
        ShapeError: the shapes do not multiply, or are smaller than one instruction's.
        LayoutError: a layout that the unit does not read.
        ArgumentError: another argument is illegal.
        CapabilityError: a form that the target, or the installed Triton, does not have.

    ISA: PTX 9.7.16.10.9.1, tcgen05.mma.
    """
    semantic = semantic_layer()
    a, b, acc = matrices(a, b, acc)
    check_shapes(list(a.shape), list(b.shape), acc)
    check_dtypes(semantic, a, b, acc)
    check_operand(a, "a")
    check_operand(b, "b")
    check_accumulator(acc, a)
    check_depth(a.shape[1] * a.dtype.primitive_bitwidth // 8, a)
    spread = multicast_flag(multicast, "tcgen05_mma", MMA_MULTICAST)
    use, run, barriers, preds = control_operands(semantic, use_acc, pred, mbarriers, mbarrier_preds)
    rest: tuple[bool, ...] = (acc.layout.two_ctas,)
    if semantic.has(MMA_MULTICAST):
        rest = (acc.layout.two_ctas, spread)
    semantic.builder.create_tcgen05_mma(
        a.handle, b.handle, acc.handle, use, run, barriers, preds, *rest
    )
    multiplies(semantic, acc, pred)


@builtin(requires=_REQUIRES, name=f"{_SPACE}tcgen05_mma_scaled", instead=_INSTEAD)
def tcgen05_mma_scaled(
    a: Union[shared_memory_descriptor, tensor_memory_descriptor],
    b: shared_memory_descriptor,
    acc: tensor_memory_descriptor,
    a_scale: tensor_memory_descriptor,
    b_scale: tensor_memory_descriptor,
    a_type: Const[str],
    b_type: Const[str],
    *,
    use_acc: Scalar[bool] = True,
    pred: Scalar[bool] = True,
    multicast: Const[bool] = False,
    mbarriers: Optional[Sequence[shared_memory_descriptor]] = None,
    mbarrier_preds: Optional[Union[Scalar[bool], Sequence[Scalar[bool]]]] = None,
) -> None:
    """`acc += (a * a_scale) @ (b * b_scale)`: a scale for each row of `a`, column of `b` and run of K.

    Args:
        a: [M, K] in shared or tensor memory; with "e2m1" [M, K / 2] bytes of two along K.
        b: [K, N] in shared memory; with "e2m1" [K / 2, N] bytes.
        acc: [M, N] float32 in tensor memory, as in `tcgen05_mma`, of 128 rows.
        a_scale: [M, K / run] in tensor memory with `TensorMemoryScalesLayout`; int8 or uint8 are
            powers of two (e8m0) for runs of 32, float8e4nv is for runs of 16 (nvfp4, of "e2m1").
        b_scale: [N, K / run], alike.
        a_type, b_type: "e2m1", "e4m3" or "e5m2"; fp4 next to fp8 is read padded
            (`NVMMASharedLayout(fp4_padded=True)`).
        use_acc, pred, mbarriers, mbarrier_preds: as in `tcgen05_mma`.
        multicast: as in `tcgen05_mma`; Triton 3.8.

    Raises:
        DtypeError, ShapeError, LayoutError, ArgumentError, CapabilityError: as `tcgen05_mma`.

    ISA: PTX 9.7.16.10.7, block scaling; 9.7.16.10.9.1, kind::mxf8f6f4, mxf4, mxf4nvf4.
    """
    semantic = semantic_layer()
    a, b, acc = matrices(a, b, acc)
    scales = [tensor_memory(a_scale, "a_scale"), tensor_memory(b_scale, "b_scale")]
    formats = [format_of(a_type, "a_type"), format_of(b_type, "b_type")]
    shapes = [list(a.shape), list(b.shape)]
    for value, kind, shape, d, name in zip((a, b), formats, shapes, (1, 0), ("a", "b")):
        if value.dtype.primitive_bitwidth == 8 and value.dtype not in FORMATS[kind]:
            semantic.warn(f"{name}: the bits of {value.dtype} are multiplied as {kind}")
        elif value.dtype not in FORMATS[kind]:
            errors.refuse(
                errors.DtypeError(
                    f"not the dtype of {kind}",
                    argument=name,
                    expected=" or ".join(map(str, FORMATS[kind])),
                    got=value.dtype,
                )
            )
        shape[d] *= 2 if kind == "e2m1" else 1
        check_operand(value, name)
    check_shapes(shapes[0], shapes[1], acc)
    if acc.dtype != tl.float32:
        errors.refuse(
            errors.DtypeError(
                "scaled products are accumulated in float32",
                argument="acc",
                expected="float32",
                got=acc.dtype,
            )
        )
    check_accumulator(acc, a)
    if acc.layout.block[0] != 128:
        errors.refuse(
            errors.LayoutError(
                "scaled products have accumulators of 128 rows",
                argument="acc",
                expected="TensorMemoryLayout([128, N], ...)",
                got=repr(acc.layout),
            )
        )
    check_padding(a, b, formats)
    check_scales(scales, formats, shapes, acc)
    check_depth(shapes[0][1] if formats != ["e2m1"] * 2 else shapes[0][1] // 2, a)
    spread = multicast_flag(multicast, "tcgen05_mma_scaled", SCALED_MMA_CLUSTERS)
    if acc.layout.two_ctas:
        semantic.require(SCALED_MMA_CLUSTERS, f"{_SPACE}tcgen05_mma_scaled of pairs of blocks")
    use, run, barriers, preds = control_operands(semantic, use_acc, pred, mbarriers, mbarrier_preds)
    rest = (acc.layout.two_ctas, spread) if semantic.has(SCALED_MMA_CLUSTERS) else ()
    semantic.builder.create_tcgen05_mma_scaled(
        a.handle,
        b.handle,
        acc.handle,
        *(scale.handle for scale in scales),
        *(semantic.scale_format(kind) for kind in formats),
        use,
        run,
        barriers,
        preds,
        *rest,
    )
    multiplies(semantic, acc, pred)


@builtin(requires=_REQUIRES, name=f"{_SPACE}tcgen05_commit")
def tcgen05_commit(
    barrier: shared_memory_descriptor,
    pred: Scalar[bool] = True,
    descs: Union[shared_memory_descriptor, Sequence[shared_memory_descriptor]] = (),
) -> None:
    """Arrive at `barrier` once every `tcgen05` operation before is done.

    Args:
        barrier: an mbarrier; in a cluster one for each block, of pairs, too.
        pred: int1 scalar; where false, no arrival. Triton 3.7.
        descs: the operands in shared memory that came by a multicast to several blocks of the
            cluster: the barriers of all of them get an arrival. Triton 3.7.

    Raises:
        ArgumentError: more than two `descs`, before Triton 3.9.
        DtypeError, LayoutError, ShapeError: an operand of another kind.
        CapabilityError: `pred` or `descs` with an older Triton.

    ISA: PTX 9.7.16.11.1, tcgen05.commit.
    """
    semantic = semantic_layer()
    barrier = completion_barrier(semantic, barrier, "barrier")
    operands = [semantic.shared_memory(item, "descs") for item in semantic.items_of(descs)]
    if len(operands) > 2 and not semantic.has(COMMIT_ANY_OPERANDS):
        raise errors.ArgumentError(
            "a multiplication takes two operands",
            argument="descs",
            expected=f"at most 2 buffers, or {COMMIT_ANY_OPERANDS.releases}",
            got=len(operands),
        )
    if not semantic.has(COMMIT_OPERANDS):
        if operands:
            semantic.require(COMMIT_OPERANDS, f"{_SPACE}tcgen05_commit(descs=...)")
        if unwrap(pred) is not True:
            semantic.require(COMMIT_OPERANDS, f"{_SPACE}tcgen05_commit(pred=...)")
        semantic.builder.create_tcgen05_commit(barrier.handle)
        return
    handles = [item.handle for item in operands]
    semantic.builder.create_tcgen05_commit(barrier.handle, semantic.predicate(pred).handle, handles)


@builtin(requires=_REQUIRES, name=f"{_SPACE}tcgen05_copy")
def tcgen05_copy(src: shared_memory_descriptor, dst: tensor_memory_descriptor) -> None:
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
    semantic = semantic_layer()
    src, dst = semantic.shared_memory(src, "src"), tensor_memory(dst, "dst")
    if src.dtype.primitive_bitwidth != dst.dtype.primitive_bitwidth:
        raise errors.DtypeError(
            "not the dtype of dst", argument="src", expected=dst.dtype, got=src.dtype
        )
    if list(src.shape) != list(dst.shape):
        raise errors.ShapeError(
            "not the shape of dst", argument="src", expected=list(dst.shape), got=list(src.shape)
        )
    check_copied(src, dst)
    semantic.builder.create_tmem_copy(src.handle, dst.handle)


@compile_time
def tcgen05_mma_barrier_count(
    smems: Union[shared_memory_descriptor, Sequence[shared_memory_descriptor]],
    multicast: Const[bool],
    two_ctas: Const[bool] = False,
) -> int:
    """Return the number of arrivals at one block's barrier by the multiplications of a cluster.

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
    operands = unwrap(smems)
    several = isinstance(operands, (list, tuple, tl.tuple))
    for item in operands if several else [operands]:
        layout = getattr(unwrap(item), "layout", None)
        if layout is None:
            raise errors.LayoutError("has no layout", argument="smems", got=repr(item))
        # Blocks that differ in a bit of basis zero have the same operand.
        shared = [bit for bit, row in enumerate(layout.cga_layout) if not any(row)]
        blocks = {0}
        for bit in shared:
            blocks |= {block | 1 << bit for block in blocks}
        reached |= {block >> pair for block in blocks}
    return len(reached)
