"""Checks of the operands of `tcgen05`; each raises before the builder can abort."""

from __future__ import annotations

from typing import Any, Sequence, Union

from gluon_core import errors, features
from gluon_core.layouts.shared import SharedLinearLayout
from gluon_core.plugin.ops import semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.features import COMMIT_TO_EACH_BLOCK, MMA_INT8, MMA_NARROW_PLAIN, MMA_SHORT_ROWS
from gluon_nvidia.language.mbarrier import MBarrierLayout, check_mbarrier
from gluon_nvidia.language.tensor_memory import tensor_memory, tensor_memory_descriptor
from gluon_nvidia.layouts import NVMMASharedLayout
from gluon_nvidia.tensor_memory import TensorMemoryLayout, TensorMemoryScalesLayout, block_shape

__all__ = [
    "FORMATS",
    "Matrix",
    "check_accumulator",
    "check_copied",
    "check_depth",
    "check_dtypes",
    "check_operand",
    "check_padding",
    "check_scales",
    "check_shapes",
    "completion_barrier",
    "control_operands",
    "format_of",
    "matrices",
    "multicast_flag",
]

# Operand dtypes of the unit: one operand in either memory.
Matrix = Union[shared_memory_descriptor, tensor_memory_descriptor]

_SPACE = "gl.nvidia.blackwell."
_FP8 = (tl.float8e5, tl.float8e4nv)
_INT8 = (tl.int8, tl.uint8)
# Dtypes that multiply with each other -> accumulators (PTX 9.7.16.2.1, kinds and shapes).
_KINDS: tuple[tuple[tuple[tl.dtype, ...], tuple[tl.dtype, ...], tuple[str, ...]], ...] = (
    ((tl.float16,), (tl.float32, tl.float16), ()),
    ((tl.float16, tl.bfloat16), (tl.float32,), ()),
    ((tl.float32,), (tl.float32,), ()),
    (_FP8, (tl.float32, tl.float16), ()),
    (_INT8, (tl.int32,), ("nvidia.tcgen05_i8",)),
)
# Formats of a scaled operand -> its dtypes (PTX 9.7.16.10.7, block scaling).
FORMATS = {
    "e2m1": _INT8,
    "e4m3": (*_INT8, tl.float8e4nv),
    "e5m2": (*_INT8, tl.float8e5),
}
_INSTRUCTION_BYTES = 32  # of K
_CORE_BYTES = 16  # of a row of the smallest matrix that the unit reads


def matrices(
    a: Matrix, b: shared_memory_descriptor, acc: tensor_memory_descriptor
) -> tuple[Matrix, shared_memory_descriptor, tensor_memory_descriptor]:
    """Return the operands of a multiplication, if each is a matrix in the memory that it may lie in."""
    semantic = semantic_layer()
    a = unwrap(a)
    if isinstance(a, tensor_memory_descriptor):
        a = tensor_memory(a, "a")
    else:
        a = semantic.shared_memory(a, "a")
    b, acc = semantic.shared_memory(b, "b"), tensor_memory(acc, "acc")
    for value, argument in ((a, "a"), (b, "b")):
        if len(value.shape) != 2:
            raise errors.ShapeError("must be a matrix", argument=argument, got=list(value.shape))
    return a, b, acc


def check_shapes(a: Sequence[int], b: Sequence[int], acc: tensor_memory_descriptor) -> None:
    """Raise ShapeError unless [M, K] @ [K, N] is of the accumulator's shape."""
    (m, k), (rows, n) = a, b
    if rows != k or list(acc.shape) != [m, n]:
        raise errors.ShapeError(
            "the shapes do not multiply",
            expected="a [M, K], b [K, N], acc [M, N]",
            got=f"{list(a)}, {list(b)}, {list(acc.shape)}",
        )


def check_dtypes(
    semantic: SemanticLayer, a: Matrix, b: shared_memory_descriptor, acc: tensor_memory_descriptor
) -> None:
    """Raise unless the unit combines the dtypes, and the target and Triton have the kind."""
    for operands, accumulators, requires in _KINDS:
        if a.dtype not in operands or b.dtype not in operands:
            continue
        semantic.check_capabilities(f"{_SPACE}tcgen05_mma of {a.dtype}", requires)
        if a.dtype in _INT8:
            semantic.require(MMA_INT8, f"{_SPACE}tcgen05_mma of {a.dtype}")
        if acc.dtype not in accumulators:
            raise errors.DtypeError(
                f"tcgen05.mma does not accumulate {a.dtype} in this dtype",
                argument="acc",
                expected=" or ".join(map(str, accumulators)),
                got=acc.dtype,
            )
        return
    known = sorted({str(dtype) for operands, _, _ in _KINDS for dtype in operands})
    raise errors.DtypeError(
        "tcgen05.mma does not multiply these dtypes",
        argument="b",
        expected=f"a and b of one kind, of {', '.join(known)}",
        got=f"{a.dtype} and {b.dtype}",
    )


def check_operand(value: Matrix, argument: str) -> None:
    """Return the layout of `a` or `b`."""
    layout = value.layout
    if isinstance(value, tensor_memory_descriptor):
        if not isinstance(layout, TensorMemoryLayout) or layout.col_stride != 1:
            raise errors.LayoutError(
                "an operand in tensor memory is packed",
                argument=argument,
                expected="TensorMemoryLayout([M, K], col_stride=1)",
                got=repr(layout),
            )
        return
    if isinstance(layout, SharedLinearLayout):
        return
    if not isinstance(layout, NVMMASharedLayout) or layout.rank != 2:
        raise errors.LayoutError(
            "tcgen05.mma does not read this layout",
            argument=argument,
            expected="NVMMASharedLayout of rank 2",
            got=repr(layout),
            remedy="NVMMASharedLayout.get_default_for makes one that fits.",
        )
    bits = value.dtype.primitive_bitwidth
    # Without a swizzle rows lie as they come, whatever the width.
    if layout.swizzle_byte_width and layout.element_bitwidth != bits:
        raise errors.LayoutError(
            "the layout is for elements of a different width",
            argument=argument,
            expected=f"element_bitwidth={bits}",
            got=repr(layout),
        )
    fast = 1 if argument == "a" else 0
    if value.dtype == tl.float32 and layout.transposed == (fast == 1):
        raise errors.LayoutError(
            "operands of float32 lie with K contiguous",
            argument=argument,
            expected=f"transposed={fast == 0}",
            got=repr(layout),
            remedy="Store it the other way around, and permute([1, 0]).",
        )
    rows = value.shape[0 if layout.transposed else 1] * value.dtype.primitive_bitwidth // 8
    narrow = rows <= _INSTRUCTION_BYTES and semantic_layer().has(MMA_NARROW_PLAIN)
    if semantic_layer().has(MMA_SHORT_ROWS):  # whether transposed or not
        narrow = value.shape[1] * value.dtype.primitive_bitwidth // 8 == _CORE_BYTES
    if not layout.swizzle_byte_width and not narrow:
        raise errors.LayoutError(
            "a buffer that is not swizzled is as wide as one instruction",
            argument=argument,
            expected=f"a swizzle, or rows of {_INSTRUCTION_BYTES} bytes and {MMA_NARROW_PLAIN.releases}, "
            f"of {_CORE_BYTES} before",
            got=repr(layout),
            remedy="NVMMASharedLayout.get_default_for makes one that fits.",
        )


def check_accumulator(acc: tensor_memory_descriptor, a: Matrix) -> None:
    """Raise unless the unit accumulates in `acc` with this `a`."""
    layout = acc.layout
    stride = 32 // acc.dtype.primitive_bitwidth
    if not isinstance(layout, TensorMemoryLayout) or layout.col_stride != stride:
        raise errors.LayoutError(
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
        errors.refuse(
            errors.ShapeError(
                "not the N of an instruction",
                argument="acc",
                expected=f"blocks of [{m}, {least} to 256]",
                got=layout.block,
            )
        )
    if isinstance(a, tensor_memory_descriptor) and a.layout.block[0] != m:
        raise errors.LayoutError(
            "an operand in tensor memory has the accumulator's rows",
            argument="a",
            expected=f"blocks of {m} rows",
            got=repr(a.layout),
        )


def check_depth(nbytes: int, a: Matrix) -> None:
    """Raise ShapeError where K, in bytes, is smaller than one instruction's."""
    if nbytes < _INSTRUCTION_BYTES:
        raise errors.ShapeError(
            "K is smaller than that of one instruction",
            argument="a",
            expected=f"at least {_INSTRUCTION_BYTES} bytes along K",
            got=f"{nbytes} bytes, {list(a.shape)} {a.dtype}",
            remedy="Pad the tile with zeros.",
        )


def multicast_flag(value: Const[bool], name: str, since: features.Feature) -> bool:
    """Return a compile-time boolean that, if true, needs that Triton."""
    spread = semantic_layer().compile_time_bool(value, "multicast")
    if spread:
        semantic_layer().require(since, f"{_SPACE}{name}(multicast=True)")
    return spread


def control_operands(
    semantic: SemanticLayer,
    use_acc: Scalar[bool],
    pred: Scalar[bool],
    mbarriers: object,
    mbarrier_preds: object,
) -> tuple[Any, Any, list[Any], list[Any]]:
    """Return handles of `use_acc` and `pred`, and of the barriers and their predicates."""
    use = semantic.predicate(use_acc, "use_acc")
    run = semantic.predicate(pred, "pred")
    if isinstance(mbarriers, shared_memory_descriptor):
        raise errors.ArgumentError(
            "takes a list of barriers",
            argument="mbarriers",
            expected="a list or tuple",
            got="one barrier",
            remedy="Put it in brackets: mbarriers=[bar].",
        )
    barriers = [
        completion_barrier(semantic, item, "mbarriers") for item in semantic.items_of(mbarriers)
    ]
    predicates = semantic.items_of(mbarrier_preds)
    if predicates and len(predicates) != len(barriers):
        raise errors.ArgumentError(
            "needs one for each barrier",
            argument="mbarrier_preds",
            expected=f"{len(barriers)} scalars",
            got=len(predicates),
        )
    preds = [
        semantic.predicate(item, "mbarrier_preds") for item in predicates or [True] * len(barriers)
    ]
    return (
        use.handle,
        run.handle,
        [item.handle for item in barriers],
        [item.handle for item in preds],
    )


def completion_barrier(
    semantic: SemanticLayer, barrier: shared_memory_descriptor, argument: str
) -> shared_memory_descriptor:
    """Return `barrier` if a commit can arrive at it: from Triton 3.8 one for each block, in pairs, too."""
    barrier = check_mbarrier(barrier, argument)
    wanted = MBarrierLayout.multicta(semantic.num_ctas)
    if semantic.has(COMMIT_TO_EACH_BLOCK) and barrier.layout.cga_layout != wanted.cga_layout:
        raise errors.LayoutError(
            "a commit arrives at one barrier for each block of the cluster",
            argument=argument,
            expected=repr(wanted),
            got=repr(barrier.layout),
            remedy="mbarrier.allocate_mbarrier() makes them.",
        )
    return barrier


def format_of(value: Const[str], argument: str) -> str:
    """Return the name of a scaled operand's format."""
    return semantic_layer().one_of(argument, value, tuple(FORMATS))


def check_padding(a: Matrix, b: shared_memory_descriptor, formats: list[str]) -> None:
    """Check that bytes of fp4 next to fp8 are padded to twice their size, and others are not."""
    mixed = len({kind == "e2m1" for kind in formats}) == 2
    for value, kind, argument in zip((a, b), formats, ("a", "b")):
        wanted = mixed and kind == "e2m1"
        padded = getattr(value.layout, "fp4_padded", None)
        if padded is not None and padded != wanted:
            errors.refuse(
                errors.LayoutError(
                    "fp4 is padded next to fp8, and only there",
                    argument=argument,
                    expected=f"fp4_padded={wanted}",
                    got=repr(value.layout),
                )
            )


def check_scales(
    scales: Sequence[tensor_memory_descriptor],
    formats: list[str],
    shapes: Sequence[Sequence[int]],
    acc: tensor_memory_descriptor,
) -> None:
    """Dtypes, layouts and shapes of the scales."""
    runs = []
    k = shapes[0][1]
    for scale, size, argument in zip(scales, acc.shape, ("a_scale", "b_scale")):
        if not isinstance(scale.layout, TensorMemoryScalesLayout):
            raise errors.LayoutError(
                "not the layout of scales",
                argument=argument,
                expected="TensorMemoryScalesLayout()",
                got=repr(scale.layout),
            )
        fine = scale.dtype == tl.float8e4nv
        if not fine and scale.dtype not in _INT8:
            errors.refuse(
                errors.DtypeError(
                    "not the dtype of scales",
                    argument=argument,
                    expected="int8 or uint8 (e8m0), or float8e4nv",
                    got=scale.dtype,
                )
            )
        order = getattr(scale.layout, "block_rep_order", "mnThenK")
        if order != "mnThenK" and not (fine and argument == "a_scale"):
            raise errors.LayoutError(
                "not the order of these scales",
                argument=argument,
                expected="block_rep_order='mnThenK'; another for a_scale of float8e4nv only",
                got=repr(scale.layout),
            )
        run = 16 if fine else 32
        if fine and formats != ["e2m1", "e2m1"]:
            errors.refuse(
                errors.DtypeError(
                    "scales of float8e4nv are for fp4",
                    argument=argument,
                    expected="int8 or uint8 with " + " and ".join(formats),
                    got=scale.dtype,
                )
            )
        wanted = [size, k // run]
        if list(scale.shape) != wanted:
            errors.refuse(
                errors.ShapeError(
                    f"not one scale for {run} elements of K",
                    argument=argument,
                    expected=wanted,
                    got=list(scale.shape),
                )
            )
        runs.append(run)
    if runs[0] != runs[1]:
        raise errors.DtypeError(
            "both operands must have scales of one kind",
            argument="b_scale",
            expected=scales[0].dtype,
            got=scales[1].dtype,
        )


def check_copied(src: shared_memory_descriptor, dst: tensor_memory_descriptor) -> None:
    """Raise unless tcgen05.cp copies between these two."""
    tiled = isinstance(src.layout, NVMMASharedLayout)
    plain = tiled and not src.layout.transposed and not src.layout.fp4_padded
    if isinstance(dst.layout, TensorMemoryScalesLayout):
        if tiled and (src.layout.swizzle_byte_width or not plain):
            raise errors.LayoutError(
                "scales are copied from where they lie in order",
                argument="src",
                expected="swizzle_byte_width=0, neither transposed nor padded",
                got=repr(src.layout),
            )
        return
    if dst.dtype.primitive_bitwidth != 32 or dst.layout.block[0] != 128:
        raise errors.LayoutError(
            "tcgen05.cp of a matrix moves blocks of 128 rows of 32-bit elements",
            argument="dst",
            expected="TensorMemoryLayout([128, N], 1) of 32 bits",
            got=str(dst.type),
        )
    if tiled and not (plain and src.layout.swizzle_byte_width):
        raise errors.LayoutError(
            "tcgen05.cp does not read this layout",
            argument="src",
            expected="NVMMASharedLayout with a swizzle, neither transposed nor padded",
            got=repr(src.layout),
        )
