"""Matrix multiplication on register operands: WMMA, the matrix unit of RDNA and gfx1250."""

from __future__ import annotations

from typing import Any, Callable

from gluon_amd.language.operands import check_matmul
from gluon_amd.layouts import AMDWMMALayout
from gluon_core import _triton
from gluon_core._triton import tl
from gluon_core.builtin import builtin
from gluon_core.errors import DtypeError, LayoutError

__all__ = ["wmma_v1", "wmma_v2", "wmma_v3"]

_FP8 = (tl.float8e4nv, tl.float8e5)

# Version -> operand dtype -> (accumulator dtypes, K of the instruction).
_COMMON: dict[Any, tuple] = {
    tl.float16: ((tl.float32, tl.float16), (16,)),
    tl.bfloat16: ((tl.float32,), (16,)),
    tl.int8: ((tl.int32,), (16,)),
}
_DTYPES: dict[int, dict[Any, tuple]] = {
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


def _wmma(version: int) -> Callable[..., Any]:
    name = f"gl.amd.{_WHERE[version]}.wmma"

    def wmma(a: Any, b: Any, acc: Any, _semantic: Any = None) -> Any:
        for argument, value in (("a", a), ("b", b), ("acc", acc)):
            _semantic.require_distributed(value, argument)
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
            _triton.require((3, 7), f"{name} of int8")
        check_matmul(_semantic, a, b, acc)
        precision = _semantic._str_to_dot_input_precision("ieee")
        handle = _semantic.builder.create_dot(a.handle, b.handle, acc.handle, precision, 0)
        return _semantic.make_tensor(handle, acc.type)

    rows = "\n".join(
        f"    | {dtype} | {', '.join(map(str, accumulators))} | {' or '.join(map(str, depths))} |"
        for dtype, (accumulators, depths) in _DTYPES[version].items()
    )
    wmma.__qualname__ = "wmma"
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
    return builtin(
        wmma,
        requires=("amd.wmma", f"amd.wmma_v{version}"),
        name=name,
        instead="gl.amd.cdna3.mfma, or gl.portable.mma",
    )


def _check_dtypes(version: int, a: Any, b: Any, acc: Any) -> None:
    table = _DTYPES[version]
    if a.dtype not in table:
        raise DtypeError(
            f"WMMA version {version} does not take this dtype",
            argument="a",
            expected=", ".join(map(str, table)),
            got=a.dtype,
        )
    if a.dtype != b.dtype and not (a.dtype in _FP8 and b.dtype in _FP8):
        raise DtypeError(
            "both operands must have one dtype", argument="b", expected=a.dtype, got=b.dtype
        )
    accumulators, depths = table[a.dtype]
    if acc.dtype not in accumulators:
        raise DtypeError(
            f"WMMA does not accumulate {a.dtype} in this dtype",
            argument="acc",
            expected=" or ".join(map(str, accumulators)),
            got=acc.dtype,
        )
    depth = acc.type.layout.instr_shape[2]
    if depth not in depths:
        raise LayoutError(
            f"WMMA version {version} has no such instruction for {a.dtype}",
            argument="instr_shape",
            expected=" or ".join(f"K = {depth}" for depth in depths),
            got=acc.type.layout.instr_shape,
        )


wmma_v1, wmma_v2, wmma_v3 = (_wmma(version) for version in (1, 2, 3))
