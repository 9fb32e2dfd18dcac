"""Matrix multiplication on register operands: MFMA, the matrix unit of CDNA."""

from __future__ import annotations

from typing import Any, Optional

from gluon_amd.arch import matrix_version
from gluon_amd.features import CD_REGCLASS
from gluon_amd.language.operands import check_matmul
from gluon_amd.layouts import AMDMFMALayout
from gluon_core.errors import ArgumentError, CapabilityError, LayoutError
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const

__all__ = ["attach_regclass", "check_regclass", "mfma"]

_NAME = "gl.amd.cdna3.mfma"
_FNUZ = (tl.float8e4b8, tl.float8e5b16)
_OCP = (tl.float8e4nv, tl.float8e5)

# Operand dtype -> accumulator dtype, capabilities.
_DTYPES: dict[Any, tuple[Any, tuple[str, ...]]] = {
    tl.float16: (tl.float32, ()),
    tl.bfloat16: (tl.float32, ()),
    tl.float32: (tl.float32, ()),
    tl.float64: (tl.float64, ("amd.mfma_f64",)),
    tl.int8: (tl.int32, ()),
    **{dtype: (tl.float32, ("amd.mfma_fp8", "amd.fp8_fnuz")) for dtype in _FNUZ},
    **{dtype: (tl.float32, ("amd.mfma_fp8", "amd.fp8_ocp")) for dtype in _OCP},
}

# (rows, columns) of the tile -> its K, by operand dtype and layout version. The tiles of 64x4 and
# 4x64 are sixteen blocks of 4x4, summed up.
_Depths = dict[tuple[int, int], tuple[int, ...]]
_HALF: _Depths = {(32, 32): (8,), (16, 16): (16,), (64, 4): (64,), (4, 64): (64,)}
_SINGLE: _Depths = {(32, 32): (2,), (16, 16): (4,), (64, 4): (16,), (4, 64): (16,)}
_DOUBLE: _Depths = {(16, 16): (4,)}
_OLD_BYTE: _Depths = {(32, 32): (8,), (16, 16): (16,), (64, 4): (64,), (4, 64): (64,)}
_FP8: _Depths = {(32, 32): (16,), (16, 16): (32,)}
_BYTE: _Depths = {**_OLD_BYTE, **_FP8}
_WIDE_HALF: _Depths = {**_HALF, (32, 32): (16, 8), (16, 16): (32, 16)}
_WIDE_BYTE: _Depths = {**_BYTE, (32, 32): (32, 16), (16, 16): (64, 32)}
_DEPTHS: dict[int, dict[Any, _Depths]] = {
    1: {
        tl.float16: _HALF,
        tl.bfloat16: {(32, 32): (4,), (16, 16): (8,)},
        tl.float32: _SINGLE,
        tl.int8: _OLD_BYTE,
    },
    2: {
        tl.float16: _HALF,
        tl.bfloat16: _HALF,
        tl.float32: _SINGLE,
        tl.float64: _DOUBLE,
        tl.int8: _OLD_BYTE,
    },
    3: {
        tl.float16: _HALF,
        tl.bfloat16: _HALF,
        tl.float32: _SINGLE,
        tl.float64: _DOUBLE,
        tl.int8: _BYTE,
        **{dtype: _FP8 for dtype in _FNUZ},
    },
    4: {
        tl.float16: _WIDE_HALF,
        tl.bfloat16: _WIDE_HALF,
        tl.float32: _SINGLE,
        tl.float64: _DOUBLE,
        tl.int8: _WIDE_BYTE,
        **{dtype: _FP8 for dtype in _OCP},
    },
}


@builtin(requires=("amd.mfma",), name=_NAME, instead="gl.amd.rdna3.wmma, or gl.portable.mma")
def mfma(
    a: tl.tensor, b: tl.tensor, acc: tl.tensor, cd_regclass: Optional[Const[str]] = None
) -> tl.tensor:
    """`acc + a @ b` on the matrix cores.

    Args:
        a: [M, K] tensor with `DotOperandLayout(0, acc.layout, k_width)`.
        b: [K, N] tensor with `DotOperandLayout(1, acc.layout, k_width)`.
        acc: [M, N] tensor with an `AMDMFMALayout`.
        cd_regclass: registers for the accumulator: "a" (accumulation), "v" (vector), or None for
            the compiler's choice; Triton 3.9.

    The K of `instr_shape` follows from its M x N:

    | a, b | acc | 32x32 | 16x16 | 64x4, 4x64 |
    |---|---|---|---|---|
    | float16, bfloat16 | float32 | 8; gfx950 also 16 | 16; gfx950 also 32 | 64 |
    | bfloat16 on gfx908 | float32 | 4 | 8 | - |
    | float32 | float32 | 2 | 4 | 16 |
    | float64 (from gfx90a) | float64 | - | 4 | - |
    | int8 | int32 | 16; gfx950 also 32 | 32; gfx950 also 64 | 64 |
    | int8 before gfx942 | int32 | 8 | 16 | 64 |
    | float8e4b8, float8e5b16, also mixed (gfx942) | float32 | 16 | 32 | - |
    | float8e4nv, float8e5, also mixed (gfx950) | float32 | 16 | 32 | - |

    gfx950 multiplies float8e4b8 and float8e5b16 as float16, with a `KernelWarning`.

    Returns:
        A tensor like `acc`.

    Raises:
        DtypeError: dtypes that the unit does not combine.
        ShapeError: the shapes do not multiply.
        LayoutError: the layouts do not belong together, or no such instruction exists.
        ArgumentError: no such registers.
        CapabilityError: the target does not have it, or the installed Triton no `cd_regclass`.

    ISA: CDNA3 7, Matrix Arithmetic Instructions, v_mfma_*.
    """
    semantic = semantic_layer()
    regclass = check_regclass(_NAME, cd_regclass)
    for name, value in (("a", a), ("b", b), ("acc", acc)):
        semantic.require_distributed(value, name)
    layout = acc.type.layout
    if not isinstance(layout, AMDMFMALayout):
        raise LayoutError(
            "not the accumulator of MFMA",
            argument="acc",
            expected="AMDMFMALayout(...)",
            got=repr(layout),
        )
    _check_version(semantic, layout)
    if {a.dtype, b.dtype} & {*_FNUZ} and semantic.target.has("amd.fp8_ocp"):
        semantic.warn(
            f"{_NAME} of {a.dtype} and {b.dtype}: {semantic.target} has fp8 of the OCP kind, and multiplies these as float16. "
            "Use float8e4nv or float8e5."
        )
        a, b = (semantic.cast(value, tl.float16) for value in (a, b))
    _check_dtypes(semantic, a, b, acc)
    _check_instruction(layout, a.dtype)
    _check_kept(semantic, layout, a.dtype)
    check_matmul(semantic, a, b, acc)
    precision = semantic.dot_precision("ieee")
    handle = semantic.builder.create_dot(a.handle, b.handle, acc.handle, precision, 0)
    return attach_regclass(semantic, semantic.make_tensor(handle, acc.type), regclass)


def check_regclass(name: str, value: Optional[Const[str]]) -> Optional[str]:
    regclass: Optional[str] = unwrap(value)
    if regclass is None:
        return None
    semantic_layer().require(CD_REGCLASS, f"{name}(cd_regclass=...)")
    if regclass not in ("a", "v"):
        raise ArgumentError(
            "unsupported number of registers",
            argument="cd_regclass",
            expected="None, 'a' or 'v'",
            got=repr(regclass),
        )
    return regclass


def attach_regclass(
    semantic: SemanticLayer, result: tl.tensor, regclass: Optional[str]
) -> tl.tensor:
    """Return `result`, with the wish for the registers of its accumulator."""
    if regclass is not None:
        attribute = semantic.builder.get_string_attr(regclass)
        result.handle.set_attr("amdg.cd_regclass", attribute)
    return result


def _check_version(semantic: SemanticLayer, layout: AMDMFMALayout) -> None:
    newest = matrix_version(semantic.target.architecture) or 0
    if layout.version > newest:
        raise CapabilityError(
            f"MFMA version {layout.version} is not that of {semantic.target}",
            argument="acc",
            expected=f"version={newest}",
            got=f"version={layout.version}",
        )


def _check_dtypes(semantic: SemanticLayer, a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> None:
    accumulators = {operand: (kind,) for operand, (kind, _) in _DTYPES.items()}
    semantic.check_matmul_dtypes("MFMA", a.dtype, b.dtype, acc.dtype, accumulators, (_FNUZ, _OCP))
    wanted, needs = _DTYPES[a.dtype]
    semantic.check_capabilities(f"{_NAME} of {a.dtype}", needs)
    bits = acc.type.layout.element_bitwidth
    if bits != wanted.primitive_bitwidth:
        raise LayoutError(
            "the layout belongs to a different accumulator",
            argument="acc",
            expected=f"element_bitwidth={wanted.primitive_bitwidth}",
            got=bits,
        )


def _check_kept(semantic: SemanticLayer, layout: AMDMFMALayout, dtype: tl.dtype) -> None:
    """Instructions of older generations that newer ones do not have."""
    version = matrix_version(semantic.target.architecture) or 0
    rows, columns = layout.instr_shape[:2]
    if dtype == tl.int8 and layout.version < 3 <= version and rows == columns:
        raise CapabilityError(
            f"{semantic.target} has no longer the int8 instructions of MFMA version {layout.version}",
            argument="acc",
            expected=f"version={version}",
            got=f"version={layout.version}",
        )


def _check_instruction(layout: AMDMFMALayout, dtype: tl.dtype) -> None:
    rows, columns, *depths = layout.instr_shape
    depth = depths[0] if depths else None
    if rows == 4 and layout.transposed:
        raise LayoutError(
            "4x64 transposed is 64x4 with its operands exchanged",
            argument="acc",
            expected="transposed=False",
            got=True,
        )
    shapes = _DEPTHS.get(layout.version, {}).get(dtype, {})
    if depth not in shapes.get((rows, columns), ()):
        known = [[*tile, k] for tile, depths in shapes.items() for k in depths]
        raise LayoutError(
            f"MFMA version {layout.version} has no such instruction for {dtype}",
            argument="instr_shape",
            expected=" or ".join(map(str, known)) or "another dtype",
            got=layout.instr_shape,
        )
