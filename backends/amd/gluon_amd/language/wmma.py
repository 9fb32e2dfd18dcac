"""Matrix multiplication on register operands: WMMA, the matrix unit of RDNA and gfx1250."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from gluon_amd.features import WMMA_INT8
from gluon_amd.language.operands import check_matmul
from gluon_amd.layouts import AMDWMMALayout
from gluon_core.errors import LayoutError
from gluon_core.plugin.ops import builtin, semantic_layer, tl
from gluon_core.plugin.semantic import SemanticLayer

__all__ = ["wmma_v1", "wmma_v2", "wmma_v3"]

_FP8 = (tl.float8e4nv, tl.float8e5)

# Version -> operand dtype -> (accumulator dtypes, K of the instruction).
_Forms = dict[tl.dtype, tuple[tuple[tl.dtype, ...], tuple[int, ...]]]
_COMMON: _Forms = {
    tl.float16: ((tl.float32, tl.float16), (16,)),
    tl.bfloat16: ((tl.float32,), (16,)),
    tl.int8: ((tl.int32,), (16,)),
}
_DTYPES: dict[int, _Forms] = {
    1: _COMMON,
    2: {**_COMMON, **{dtype: ((tl.float32,), (16,)) for dtype in _FP8}},
    3: {
        tl.float16: ((tl.float32,), (32,)),
        tl.bfloat16: ((tl.float32,), (32,)),
        tl.float32: ((tl.float32,), (4,)),
        tl.int8: ((tl.int32,), (64,)),
        **{dtype: ((tl.float32,), (64, 128)) for dtype in _FP8},
    },
}
_WHERE = {1: "rdna3", 2: "rdna4", 3: "gfx1250"}
_ISA = {
    1: "RDNA3 7.9, Wave Matrix Multiply Accumulate, v_wmma_*",
    2: "RDNA4 7.9, Wave Matrix Multiply Accumulate, v_wmma_*",
    3: "gfx1250, v_wmma_*",
}


F = TypeVar("F", bound=Callable[..., Any])


def _unit(version: int) -> Callable[[F], F]:
    """Make an op of the function, under the name that kernels have for it, and document it."""

    def declare(wmma: F) -> F:
        rows = "\n".join(
            f"    | {dtype} | {', '.join(map(str, accumulators))} "
            f"| {' or '.join(map(str, depths))} |"
            for dtype, (accumulators, depths) in _DTYPES[version].items()
        )
        wmma.__name__ = wmma.__qualname__ = "wmma"
        wmma.__doc__ = f"""`acc + a @ b` on the matrix unit.

    Args:
        a: [M, K] tensor with `DotOperandLayout(0, acc.layout, k_width)`.
        b: [K, N] tensor with `DotOperandLayout(1, acc.layout, k_width)`.
        acc: [M, N] tensor with `AMDWMMALayout({version}, ...)`.

    | a, b | acc | K of instr_shape |
    |---|---|---|
{rows}

    Returns:
        A tensor like `acc`.

    Raises:
        DtypeError: dtypes that the unit does not combine.
        ShapeError: the shapes do not multiply.
        LayoutError: the layouts do not belong together.
        CapabilityError: the target does not have it.

    ISA: {_ISA[version]}.
    """
        op: F = builtin(
            requires=("amd.wmma", f"amd.wmma_v{version}"),
            name=f"gl.amd.{_WHERE[version]}.wmma",
            instead="gl.amd.cdna3.mfma, or gl.portable.mma",
        )(wmma)
        return op

    return declare


@_unit(1)
def wmma_v1(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    return _emit(semantic_layer(), 1, a, b, acc)


@_unit(2)
def wmma_v2(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    return _emit(semantic_layer(), 2, a, b, acc)


@_unit(3)
def wmma_v3(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    return _emit(semantic_layer(), 3, a, b, acc)


def _emit(
    semantic: SemanticLayer, version: int, a: tl.tensor, b: tl.tensor, acc: tl.tensor
) -> tl.tensor:
    for argument, value in (("a", a), ("b", b), ("acc", acc)):
        semantic.require_distributed(value, argument)
    layout = acc.type.layout
    if not isinstance(layout, AMDWMMALayout) or layout.version != version:
        raise LayoutError(
            "not the accumulator of this WMMA",
            argument="acc",
            expected=f"AMDWMMALayout({version}, ...)",
            got=repr(layout),
        )
    _check_dtypes(version, a, b, acc)
    if version == 3 and a.dtype == tl.int8:
        semantic.require(WMMA_INT8, f"gl.amd.{_WHERE[version]}.wmma of int8")
    check_matmul(semantic, a, b, acc)
    precision = semantic.dot_precision("ieee")
    handle = semantic.builder.create_dot(a.handle, b.handle, acc.handle, precision, 0)
    return semantic.make_tensor(handle, acc.type)


def _check_dtypes(version: int, a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> None:
    table = _DTYPES[version]
    accumulators = {operand: kind for operand, (kind, _) in table.items()}
    semantic_layer().check_matmul_dtypes(
        f"WMMA version {version}", a.dtype, b.dtype, acc.dtype, accumulators, (_FP8,)
    )
    depths = table[a.dtype][1]
    depth = acc.type.layout.instr_shape[2]
    if depth not in depths:
        raise LayoutError(
            f"WMMA version {version} has no such instruction for {a.dtype}",
            argument="instr_shape",
            expected=" or ".join(f"K = {depth}" for depth in depths),
            got=acc.type.layout.instr_shape,
        )
