"""Matrix multiplication on register operands: `mma.sync` (sm_80)."""

from __future__ import annotations

from typing import Optional

from gluon_core import errors
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const
from gluon_nvidia.layouts import NVMMADistributedLayout

__all__ = ["check_precision", "mma_v2"]

_NAME = "gl.nvidia.ampere.mma_v2"
_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")

_FP8 = (tl.float8e5, tl.float8e4nv)

# Operand dtype -> accumulator dtypes (PTX 9.7.14.5, table of mma operands).
_DTYPES: dict[tl.dtype, tuple[tl.dtype, ...]] = {
    tl.float16: (tl.float16, tl.float32),
    tl.bfloat16: (tl.float32,),
    tl.float32: (tl.float32,),
    tl.float64: (tl.float64,),
    tl.int8: (tl.int32,),
    tl.float8e5: (tl.float32, tl.float16),
    tl.float8e4nv: (tl.float32, tl.float16),
}
_REQUIRES = {
    tl.bfloat16: ("nvidia.bf16",),
    tl.float32: ("nvidia.tf32",),
    tl.float64: ("nvidia.fp64_mma",),
    tl.float8e5: ("nvidia.fp8",),
    tl.float8e4nv: ("nvidia.fp8",),
}


@builtin(requires=("nvidia.mma_v2",), name=_NAME, instead="gl.portable.mma or gl.dot_fma")
def mma_v2(
    a: tl.tensor, b: tl.tensor, acc: tl.tensor, input_precision: Optional[Const[str]] = None
) -> tl.tensor:
    """`acc + a @ b` on the tensor cores, synchronously.

    Args:
        a: [M, K] tensor with `DotOperandLayout(0, acc.layout, k_width)`.
        b: [K, N] tensor with `DotOperandLayout(1, acc.layout, k_width)`, of `a`'s dtype (or both fp8).
        acc: [M, N] tensor with `NVMMADistributedLayout([2, 0], ...)`.
        input_precision: of float32 operands: "tf32" (10 bits of mantissa), the only one that the
            unit has and the default.

    | a, b | acc |
    |---|---|
    | float16 | float16, float32 |
    | bfloat16, float32 (as tf32) | float32 |
    | float64 | float64 |
    | int8 | int32 |
    | float8e4nv, float8e5 (sm_89) | float16, float32 |

    Returns:
        A tensor like `acc`.

    Raises:
        DtypeError: dtypes that the unit does not combine.
        ShapeError: the shapes do not multiply, or K is smaller than one instruction's.
        LayoutError: the layouts do not belong together.
        ArgumentError: no such precision, or one that the unit lacks.
        CapabilityError: the target does not have it for this dtype.

    ISA: PTX 9.7.14.5, mma.sync.
    """
    semantic = semantic_layer()
    precision = unwrap(input_precision)
    for name, value in (("a", a), ("b", b), ("acc", acc)):
        semantic.require_distributed(value, name)
    _check_shapes(a, b, acc)
    semantic.check_matmul_dtypes("mma.sync", a.dtype, b.dtype, acc.dtype, _DTYPES, (_FP8,))
    semantic.check_capabilities(f"{_NAME} of {a.dtype}", _REQUIRES.get(a.dtype, ()))
    _check_layouts(semantic, a, b, acc)
    if precision is None:
        default = getattr(semantic.options, "default_dot_input_precision", None) or "tf32"
        precision = "tf32" if a.dtype == tl.float32 else default
    precision = check_precision(precision, a.dtype, "input_precision", "mma.sync")
    handle = semantic.builder.create_dot(
        a.handle,
        b.handle,
        acc.handle,
        semantic.dot_precision(precision),
        _imprecise_accumulations(semantic, a),
    )
    return semantic.make_tensor(handle, acc.type)


def _imprecise_accumulations(semantic: SemanticLayer, a: tl.tensor) -> int:
    """Return the number of fp8 products that may be summed with less precision than float32; a compiler
    option."""
    if not a.dtype.is_fp8():
        return 0
    return getattr(semantic.options, "max_num_imprecise_acc_default", None) or 0


def _check_shapes(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> None:
    semantic = semantic_layer()
    semantic.check_matmul_shapes(semantic.shape_of(a), semantic.shape_of(b), semantic.shape_of(acc))
    k = semantic.shape_of(a)[-1]
    least = 256 // a.dtype.primitive_bitwidth
    # Along M and N the compiler repeats tiles that are smaller than the instruction.
    if k < least:
        raise errors.ShapeError(
            "K is smaller than that of one instruction",
            argument="a",
            expected=f"K >= {least} for {a.dtype}",
            got=f"K = {k}",
            remedy="Pad the tile with zeros, or use gl.dot_fma.",
        )


def _check_layouts(semantic: SemanticLayer, a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> None:
    layout = acc.type.layout
    if not isinstance(layout, NVMMADistributedLayout) or layout.version[0] != 2:
        raise errors.LayoutError(
            "not the accumulator of mma.sync",
            argument="acc",
            expected="NVMMADistributedLayout(version=[2, 0], ...)",
            got=repr(layout),
        )
    semantic.check_dot_operands(a, b, acc)
    tile = [1] * (layout.rank - 2) + [16, 8]
    if layout.instr_shape != tile:
        raise errors.LayoutError(
            "not the tile of mma.sync",
            argument="acc",
            expected=f"instr_shape={tile}",
            got=layout.instr_shape,
        )
    semantic.check_k_width(a, b, max(1, 32 // a.dtype.primitive_bitwidth))


def check_precision(precision: object, dtype: tl.dtype, argument: str, unit: str) -> str:
    """Return `precision`, in any case, as the compiler spells it.

    Raises:
        ArgumentError: the matrix unit does not multiply `dtype` with this precision.
    """
    name = precision.lower() if isinstance(precision, str) else ""
    if name not in _PRECISIONS:
        raise errors.ArgumentError(
            "unsupported precision",
            argument=argument,
            expected=", ".join(map(repr, _PRECISIONS)),
            got=repr(precision),
        )
    if dtype == tl.float32 and name != "tf32":
        raise errors.ArgumentError(
            f"{unit} rounds float32 operands to tf32",
            argument=argument,
            expected="'tf32'",
            got=repr(precision),
            remedy="gl.dot_fma keeps them whole.",
        )
    return name
