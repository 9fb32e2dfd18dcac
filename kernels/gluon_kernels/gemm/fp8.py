"""Products of 8-bit floats with scales of the tensors, of rows and columns, or of blocks."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import DtypeError, ShapeError
from gluon_kernels.checks import (
    check_apart,
    check_devices,
    check_dtypes,
    check_flags,
    check_no_gradients,
    check_out,
    check_tensors,
)
from gluon_kernels.gemm.call import Call, result_shape
from gluon_kernels.gemm.ops import matmul
from gluon_kernels.plans import Plans, current_target

__all__ = ["matmul_fp8"]

is_plain, signature, is_compiling = (
    gluon.torch.is_plain,
    gluon.torch.signature,
    torch.compiler.is_compiling,
)
BLOCK = 128  # elements of K, and rows and columns of b, that share a scale
_EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
_OUT = (torch.bfloat16, torch.float16, torch.float32)


def _blocks(a: Tensor, b: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of scales by block."""
    (m, k), n = a.shape, b.shape[1]
    steps = (k + BLOCK - 1) // BLOCK
    return (m, steps), (steps, (n + BLOCK - 1) // BLOCK)


def _by_block(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> bool:
    if a_scale.ndim != 2 or b_scale.ndim != 2:
        return False
    of_a, of_b = _blocks(a, b)
    return tuple(a_scale.shape) == of_a and tuple(b_scale.shape) == of_b


def _check_scales(a: Tensor, b: Tensor, scales: dict[str, Tensor]) -> None:
    """Check that scales are of tensors or rows, or both of blocks."""
    m, n = a.shape[0], b.shape[1]
    blocks = dict(zip(scales, _blocks(a, b)))
    rows: dict[str, tuple[tuple[int, ...], ...]] = {"a_scale": ((m,), (m, 1)), "b_scale": ((n,), (1, n))}  # fmt: skip
    of_rows = [n for n, s in scales.items() if s.numel() == 1 or tuple(s.shape) in rows[n]]
    of_blocks = [n for n, s in scales.items() if tuple(s.shape) == blocks[n]]
    if len(of_rows) == 2 or len(of_blocks) == 2:
        return
    wrong = [n for n in scales if n not in of_blocks and (of_blocks or n not in of_rows)]
    raise ShapeError(
        "a scale belongs to the whole tensor, to each row of a and column of b, or to 128 elements of "
        "a row of a and a block of 128 x 128 of b",
        argument=wrong[0],
        expected=f"1 number, {list(rows[wrong[0]][0])}, or {list(blocks[wrong[0]])} with scales of blocks for both",
        got=list(scales[wrong[0]].shape),
    )


def _checked(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype,
    out: Optional[Tensor] = None,
) -> tuple[int, ...]:  # fmt: skip
    check_tensors("matmul_fp8", {"out": out}, a=a, b=b, a_scale=a_scale, b_scale=b_scale)
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
    for name, scale in (("a_scale", a_scale), ("b_scale", b_scale)):
        if scale.dtype != torch.float32:
            raise DtypeError(
                "the scale has the wrong dtype",
                argument=name,
                expected="float32",
                got=str(scale.dtype),
            )
    _check_scales(a, b, {"a_scale": a_scale, "b_scale": b_scale})
    if out_dtype not in _OUT:
        raise DtypeError(
            "unsupported dtype of the result",
            argument="out_dtype",
            expected="bfloat16, float16 or float32",
            got=str(out_dtype),
        )
    check_devices(a, b=b, a_scale=a_scale, b_scale=b_scale, out=out)
    if out is not None:
        check_out(out, shape, out_dtype)
    return shape


def _build(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype, fast: bool,
    out: Optional[Tensor],
) -> Callable[..., Tensor]:  # fmt: skip
    (m, n), k = _checked(a, b, a_scale, b_scale, out_dtype, out), a.shape[1]
    by_block = _by_block(a, b, a_scale, b_scale)
    if min(m, n, k) == 0 or not current_target().has("nvidia.wgmma"):
        return _by_sixteen(out_dtype, by_block)
    # The matrix unit reads 8-bit operands along K only.
    a_view, b_view = _View(a, k, by_block or not fast), _View(b.mT, k, by_block or not fast)
    copied = a_view.copied or b_view.copied
    x, y = a_view(a), b_view(b.mT).mT
    if by_block or not fast:
        from gluon_kernels.gemm import promoted

        pair = None if by_block else _of_rows(a_scale, b_scale, m, n)
        scales = (a_scale, b_scale) if by_block else None
        plan = promoted.plan(x, y, out_dtype, pair or (None, None), scales, out)

        def run_promoted(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: Optional[Tensor]) -> Tensor:  # fmt: skip
            if copied:
                a, b = a_view(a), b_view(b.mT).mT
            pair = (None, None) if by_block else _of_rows(a_scale, b_scale, m, n)
            scales = (a_scale, b_scale) if by_block else None
            return plan(a, b, pair, scales, out)

        return run_promoted
    from gluon_kernels.gemm import launches

    call = Call(x, y, None, None, out_dtype, 1, m, n, k, _of_rows(a_scale, b_scale, m, n))
    fast_plan = launches.plan(call, out)
    if not copied and a_scale.ndim == b_scale.ndim == 1:
        return lambda a, b, a_scale, b_scale, out: fast_plan(a, b, None, out, a_scale, b_scale)

    def run(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: Optional[Tensor]) -> Tensor:  # fmt: skip
        scales = _of_rows(a_scale, b_scale, m, n)
        if copied:
            a, b = a_view(a), b_view(b.mT).mT
        result: Tensor = fast_plan(a, b, None, out, *scales)
        return result

    return run


class _View:
    """Return rows of a call that the kernels read: those of the caller, or a copy along K.

    Args:
        rows: [rows, K], such as each call has.
        k: columns.
        aligned: rows must begin at multiples of 16 bytes, too.
    """

    def __init__(self, rows: Tensor, k: int, aligned: bool):
        strides = rows.stride()
        good = strides[1] == 1 or k == 1
        self._unit = 16 if aligned else 1
        if aligned:
            good = good and strides[0] % 16 == 0 and strides[0] >= k and rows.data_ptr() % 16 == 0
        self.copied = not good

    def __call__(self, rows: Tensor) -> Tensor:
        if not self.copied:
            return rows
        height, k = rows.shape
        whole = torch.empty(height, -(-k // self._unit) * self._unit, dtype=torch.uint8, device=rows.device)  # fmt: skip
        whole = whole.view(rows.dtype)[:, :k]
        return whole.copy_(rows)


def _of_rows(a_scale: Tensor, b_scale: Tensor, m: int, n: int) -> tuple[Tensor, Tensor]:
    """Return a vector for the rows and one for the columns, or one number."""
    return (
        a_scale.reshape(-1) if a_scale.numel() == m else a_scale.reshape(1),
        b_scale.reshape(-1) if b_scale.numel() == n else b_scale.reshape(1),
    )


def _by_sixteen(out_dtype: torch.dtype, by_block: bool) -> Callable[..., Tensor]:
    """Return the plan where no matrix unit takes 8 bits: bfloat16 holds them exactly, and sums are float32."""

    def run(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: Optional[Tensor]) -> Tensor:  # fmt: skip
        x, y = a.bfloat16(), b.bfloat16()
        if by_block:
            result = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32, device=a.device)
            columns = b_scale.repeat_interleave(BLOCK, 1)[:, : b.shape[1]]
            for step, k in enumerate(range(0, a.shape[1], BLOCK)):
                part = matmul(x[:, k : k + BLOCK], y[k : k + BLOCK], out_dtype=torch.float32)
                result += part * a_scale[:, step, None] * columns[step]
        else:
            result = matmul(x, y, out_dtype=torch.float32)
            result = result * a_scale.reshape(-1, 1) * b_scale.reshape(1, -1)
        result = result.to(out_dtype)
        return result if out is None else out.copy_(result)

    return run


plans = Plans(_build)


def _run(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype, fast: bool,
    out: Optional[Tensor] = None,
) -> Tensor:  # fmt: skip
    known_by = (signature(a, b, a_scale, b_scale, out), out_dtype, fast)
    plan = plans.find(known_by, a, b, a_scale, b_scale, out_dtype, fast, out)
    result: Tensor = plan(a, b, a_scale, b_scale, out)
    return result


def _fake(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype, fast: bool
) -> Tensor:
    return a.new_empty(_checked(a, b, a_scale, b_scale, out_dtype), dtype=out_dtype)


@gluon.torch.op("gluon_kernels::matmul_fp8", fake=_fake)
def _matmul_fp8(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype, fast: bool
) -> Tensor:
    return _run(a, b, a_scale, b_scale, out_dtype, fast)


@gluon.torch.op("gluon_kernels::matmul_fp8_out", mutates_args=("out",))
def _matmul_fp8_out(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, fast: bool, out: Tensor
) -> None:
    check_apart(out, a=a, b=b)
    _run(a, b, a_scale, b_scale, out.dtype, fast, out)


def matmul_fp8(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    *,
    out: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
    fast_accum: bool = True,
) -> Tensor:
    """Multiply 8-bit floats: `(a * a_scale) @ (b * b_scale)`, with scales of tensors, rows or blocks.

    On Hopper the matrix unit adds up products with about 14 bits, as with `use_fast_accum` of torch. With scales of blocks, and
    without `fast_accum`, the sum of each 128 elements of K is added to a float32 one. Other targets convert the operands to
    bfloat16, which is exact. Equal inputs give equal bits. There are no gradients.

    Args:
        a: [M, K], float8_e4m3fn or float8_e5m2.
        b: [K, N] of the same dtype; stored as [N, K], such as `weight.mT`, it is read without a copy.
        a_scale: float32: one number, [M] or [M, 1], or of 128 elements of a row [M, K / 128], rounded up, of any strides, as
            `quantize(a, scaling="block")` returns them.
        b_scale: float32: one number, [N] or [1, N], or of blocks [K / 128, N / 128], rounded up, of any strides.
        out: the result is stored here, [M, N] of any strides.
        out_dtype: bfloat16 by default, float16 or float32; that of `out`.
        fast_accum: False for float32 sums with scales of rows and tensors, too.

    Returns:
        [M, N].

    Raises:
        ShapeError, DtypeError, ArgumentError: the arguments do not fit each other.
    """
    if out_dtype is not None or type(fast_accum) is not bool:
        check_dtypes(out_dtype=out_dtype)
        check_flags(fast_accum=fast_accum)
    if out is not None:
        check_tensors("matmul_fp8", out=out)
        if out_dtype is not None and out_dtype != out.dtype:
            check_out(out, out.shape, out_dtype)
        _checked(a, b, a_scale, b_scale, out.dtype, out)
        check_no_gradients(a_scale, b_scale)
        if not is_compiling() and is_plain(a, b, a_scale, b_scale, out):
            check_apart(out, a=a, b=b)
            torch.autograd.graph.increment_version(out)
            return _run(a, b, a_scale, b_scale, out.dtype, fast_accum, out)
        _matmul_fp8_out.overload(a, b, a_scale, b_scale, fast_accum, out)
        return out
    dtype = torch.bfloat16 if out_dtype is None else out_dtype
    if not is_compiling() and is_plain(a, b, a_scale, b_scale):
        return _run(a, b, a_scale, b_scale, dtype, fast_accum)
    check_tensors("matmul_fp8", a=a, b=b, a_scale=a_scale, b_scale=b_scale)
    result: Any = _matmul_fp8.overload(a, b, a_scale, b_scale, dtype, fast_accum)
    return result
