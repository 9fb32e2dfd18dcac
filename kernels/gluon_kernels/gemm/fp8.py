"""Products of 8-bit floats with scales of the tensors, or of rows and columns."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import DtypeError, ShapeError
from gluon_kernels.gemm.call import Call, result_shape
from gluon_kernels.gemm.ops import matmul
from gluon_kernels.plans import Plans, current_target

__all__ = ["matmul_fp8"]

is_plain, signature, is_compiling = (
    gluon.torch.is_plain,
    gluon.torch.signature,
    torch.compiler.is_compiling,
)
_EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
_OUT = (torch.bfloat16, torch.float16, torch.float32)


def _checked(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> tuple[int, ...]:  # fmt: skip
    shape = result_shape(a, b, "matmul_fp8")
    if a.ndim != 2:
        raise ShapeError("matmul_fp8 multiplies matrices", argument="a", expected="[M, K]", got=list(a.shape))  # fmt: skip
    if a.dtype not in _EIGHT or b.dtype != a.dtype:
        raise DtypeError(
            "matmul_fp8 takes two operands of the same 8-bit float",
            argument="a, b",
            expected="float8_e4m3fn or float8_e5m2",
            got=f"{a.dtype} and {b.dtype}",
        )
    for name, scale, extent in (("a_scale", a_scale, shape[0]), ("b_scale", b_scale, shape[1])):
        if scale.dtype != torch.float32:
            raise DtypeError("not a scale", argument=name, expected="float32", got=str(scale.dtype))
        if scale.numel() != 1 and tuple(scale.shape) != (extent,):
            raise ShapeError(
                "a scale belongs to the whole tensor or to each row of a and column of b",
                argument=name,
                expected=f"1 number or [{extent}]",
                got=list(scale.shape),
            )
    if out_dtype not in _OUT:
        raise DtypeError(
            "no such result",
            argument="out_dtype",
            expected="bfloat16, float16 or float32",
            got=str(out_dtype),
        )
    return shape


def _build(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype
) -> Callable[..., Tensor]:
    (m, n), k = _checked(a, b, a_scale, b_scale, out_dtype), a.shape[1]
    if min(m, n, k) == 0 or not current_target().has("nvidia.wgmma"):
        return _by_sixteen(out_dtype)
    from gluon_kernels.gemm import launches

    # The matrix unit reads 8-bit operands along K only.
    copied = a.stride(1) != 1, b.stride(0) != 1
    x, y = _along_k(a, b, copied)
    scales = _scales(a_scale, b_scale, m, n)
    plan = launches.plan(Call(x, y, None, None, out_dtype, 1, m, n, k, scales), None)

    def run(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
        x, y = _along_k(a, b, copied)
        result: Tensor = plan(x, y, None, None, *_scales(a_scale, b_scale, m, n))
        return result

    return run


def _along_k(a: Tensor, b: Tensor, copied: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    return a.contiguous() if copied[0] else a, b.mT.contiguous().mT if copied[1] else b


def _scales(a_scale: Tensor, b_scale: Tensor, m: int, n: int) -> tuple[Tensor, Tensor]:
    """Return a number for each row and for each column."""
    return (
        a_scale if a_scale.shape == (m,) else a_scale.reshape(1).expand(m).contiguous(),
        b_scale if b_scale.shape == (n,) else b_scale.reshape(1).expand(n).contiguous(),
    )


def _by_sixteen(out_dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return the plan where no matrix unit takes 8 bits: bfloat16 holds them exactly."""

    def run(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
        result = matmul(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
        return (result * a_scale.reshape(-1, 1) * b_scale.reshape(1, -1)).to(out_dtype)

    return run


plans = Plans(_build)


def _run(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> Tensor:
    known_by = (signature(a, b, a_scale, b_scale), out_dtype)
    result: Tensor = plans.find(known_by, a, b, a_scale, b_scale, out_dtype)(a, b, a_scale, b_scale)
    return result


def _fake(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> Tensor:
    return a.new_empty(_checked(a, b, a_scale, b_scale, out_dtype), dtype=out_dtype)


@gluon.torch.op("gluon_kernels::matmul_fp8", fake=_fake)
def _matmul_fp8(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype
) -> Tensor:
    return _run(a, b, a_scale, b_scale, out_dtype)


def matmul_fp8(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    *,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Multiply 8-bit floats: `(a @ b) * a_scale * b_scale`.

    On Hopper the matrix unit adds up products with about 14 bits, as with `use_fast_accum` of torch. Elsewhere the operands are
    converted to bfloat16, which is exact.

    Args:
        a: [M, K], float8_e4m3fn or float8_e5m2.
        b: [K, N] of the same dtype; stored as [N, K], such as `weight.mT`, it is read without a copy.
        a_scale: float32, one number, or [M].
        b_scale: float32, one number, or [N].
        out_dtype: bfloat16 by default, float16 or float32.

    Returns:
        [M, N].

    Raises:
        ShapeError, DtypeError: the arguments do not fit each other.
    """
    dtype = torch.bfloat16 if out_dtype is None else out_dtype
    if not is_compiling() and is_plain(a, b, a_scale, b_scale):
        return _run(a, b, a_scale, b_scale, dtype)
    result: Any = _matmul_fp8.overload(a, b, a_scale, b_scale, dtype)
    return result
