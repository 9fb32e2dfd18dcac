"""`matmul_batch_invariant` as an operator of PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_kernels.checks import (
    check_dtypes,
    check_tensors,
)
from gluon_kernels.gemm.batch_invariant import gemm_batch_invariant
from gluon_kernels.gemm.call import Call, checked
from gluon_kernels.gemm.ops import matmul
from gluon_kernels.plans import Counters, Plans, allocator, key, multiprocessors

__all__ = ["matmul_batch_invariant"]

# Rows keep their bits only where these are the same for every number of rows.
_BLOCK = (64, 64, 64)
_CHUNK = 512  # of K, a sum that begins at zero
_STAGES, _WARPS = 2, 4


def _plan(call: Call) -> Callable[[Tensor, Tensor], Tensor]:
    m, n, _ = _BLOCK
    tiles, parts = gluon.cdiv(call.m, m) * gluon.cdiv(call.n, n), gluon.cdiv(call.k, _CHUNK)
    programs = multiprocessors(call.a)
    shared = tiles < programs and parts > 1
    sizes = (tiles, parts, m, n) if shared else (1,)
    device = call.a.device
    sums = torch.empty(sizes, dtype=torch.float32, device=device)
    counters = Counters(tiles if shared else 1)
    a, b = call.a.contiguous(), call.b.contiguous()
    c = torch.empty(call.shape, dtype=call.out_dtype, device=device)
    arguments = (
        a, b, c, sums, counters(device), call.m, call.n, call.k, *_BLOCK, _CHUNK, shared, _STAGES,
    )  # fmt: skip
    items = tiles * parts if shared else tiles
    launch = gluon.torch.prepare(
        gemm_batch_invariant,
        (min(items, 2 * programs),),
        arguments,
        arguments[:5],
        num_warps=_WARPS,
    )
    empty = allocator(call.shape, call.out_dtype, device)
    room = allocator(sizes, torch.float32, device)

    def run(a: Tensor, b: Tensor) -> Tensor:
        out = empty()
        launch(a.contiguous(), b.contiguous(), out, room(), counters(device))
        return out

    return run


def _build(a: Tensor, b: Tensor, out_dtype: Optional[torch.dtype]) -> Callable[..., Tensor]:
    call = _call(a, b, out_dtype)
    if call.empty:
        return lambda a, b, out_dtype: a.new_zeros(call.shape, dtype=call.out_dtype)
    run = _plan(call)
    return lambda a, b, out_dtype: run(a, b)


def _call(a: Tensor, b: Tensor, out_dtype: Optional[torch.dtype]) -> Call:
    call = checked("matmul_batch_invariant", a, b, None, None, out_dtype)
    if a.ndim != 2:
        raise gluon.errors.ShapeError(
            "matmul_batch_invariant multiplies matrices",
            argument="a",
            expected="[M, K]",
            got=list(a.shape),
            remedy="Fold the dimensions in front: a.flatten(0, -2).",
        )
    return call


def _fake(a: Tensor, b: Tensor, out_dtype: Optional[torch.dtype] = None) -> Tensor:
    call = _call(a, b, out_dtype)
    return a.new_empty(call.shape, dtype=call.out_dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    own = grad.to(a.dtype)
    to_a = _matmul_batch_invariant(own, b.mT) if ctx.needs_input_grad[0] else None
    return to_a, matmul(a.mT, own) if ctx.needs_input_grad[1] else None, None


plans = Plans(_build)


@gluon.torch.op(
    "gluon_kernels::matmul_batch_invariant", fake=_fake, backward=_gradients, setup_context=_keep
)
def _matmul_batch_invariant(
    a: Tensor, b: Tensor, out_dtype: Optional[torch.dtype] = None
) -> Tensor:
    result: Tensor = plans((key(a, b), out_dtype), a, b, out_dtype)
    return result


def matmul_batch_invariant(
    a: Tensor, b: Tensor, *, out_dtype: Optional[torch.dtype] = None
) -> Tensor:
    """Multiply matrices so that a row of the result has the same bits for any number of rows.

    K is split into parts of 512, whose sums are added in order; programs share a tile for small M. Gradients flow to `a`,
    whose rows keep their bits, too, and to `b`, a sum over all rows.

    Args:
        a: [M, K], float16, bfloat16 or float32, of any strides.
        b: [K, N] of the same dtype.
        out_dtype: of the result, float16, bfloat16 or float32; that of the operands by default.

    Returns:
        [M, N].

    Raises:
        ShapeError: other than two dimensions, or sizes that do not fit each other.
        DtypeError: other dtypes.
    """
    check_tensors("matmul_batch_invariant", a=a, b=b)
    check_dtypes(out_dtype=out_dtype)
    result: Tensor = _matmul_batch_invariant(a, b, out_dtype)
    return result
