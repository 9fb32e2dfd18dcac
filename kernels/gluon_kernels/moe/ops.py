"""Grouped products as operators of PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.checks import (
    check_apart,
    check_devices,
    check_no_gradients,
    check_out,
    check_tensors,
)
from gluon_kernels.eager import differentiable, wants_gradient
from gluon_kernels.moe import portable
from gluon_kernels.plans import Launch, Plans, allocator, current_target

__all__ = ["grouped_matmul"]

is_plain, signature, is_compiling = (
    gluon.torch.is_plain,
    gluon.torch.signature,
    torch.compiler.is_compiling,
)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def _checked(a: Tensor, b: Tensor, offs: Tensor) -> tuple[int, int]:
    """Return the shape of the result.

    Raises:
        ShapeError, DtypeError, ArgumentError: the arguments do not fit each other.
    """
    check_tensors("grouped_matmul", a=a, b=b, offs=offs)
    if a.ndim != 2 or b.ndim != 3 or offs.ndim != 1:
        raise ShapeError(
            "grouped_matmul takes rows, one matrix for each group, and the ends of the groups",
            argument="a, b, offs",
            expected="[rows, K], [groups, K, N] and [groups]",
            got=f"{list(a.shape)}, {list(b.shape)} and {list(offs.shape)}",
        )
    if a.shape[1] != b.shape[1] or b.shape[0] != offs.shape[0]:
        raise ShapeError(
            "the matrices do not match the rows or the groups",
            argument="b",
            expected=[offs.shape[0], a.shape[1], "N"],
            got=list(b.shape),
            remedy="Pass b.mT if b is stored as [groups, N, K]."
            if a.shape[1] == b.shape[2]
            else None,
        )
    if a.dtype != b.dtype or a.dtype not in _DTYPES:
        raise DtypeError(
            "grouped_matmul takes two operands of the same floating-point dtype",
            argument="a, b",
            expected="float16, bfloat16 or float32",
            got=f"{a.dtype} and {b.dtype}",
        )
    if offs.dtype != torch.int32:
        raise DtypeError(
            "the ends of groups must be int32",
            argument="offs",
            expected="int32",
            got=str(offs.dtype),
            remedy="Pass counts.cumsum(0, dtype=torch.int32).",
        )
    check_devices(a, b=b, offs=offs)
    unit = 16 // a.element_size()
    if a.shape[1] % unit or b.shape[2] % unit:
        raise ShapeError(
            "rows are not aligned to 16 bytes",
            argument="b",
            expected=f"K and N divisible by {unit}",
            got=list(b.shape),
        )
    return a.shape[0], b.shape[2]


def _check_ends(a: Tensor, b: Tensor, offs: Tensor) -> None:
    """Check the ends of groups, where the host can read them.

    Raises:
        ArgumentError: they fall, or are no rows.
    """
    if not offs.is_cpu:
        return
    rows, _ = _checked(a, b, offs)
    ends = offs.tolist()
    if ends and (ends != sorted(ends) or ends[0] < 0 or ends[-1] > rows):
        raise ArgumentError(
            "the ends of groups must not fall",
            argument="offs",
            expected=f"numbers from 0 up to {rows}",
            got=ends[:8],
        )


def _most(groups: int) -> int:
    """Return the number of groups that a kernel is compiled for."""
    return max(32, 1 << (groups - 1).bit_length())


def _build(a: Tensor, b: Tensor, offs: Tensor) -> Callable[..., Tensor]:
    rows, n = _checked(a, b, offs)
    empty = allocator((rows, n), a.dtype, a.device)
    if rows * n * a.shape[1] * b.shape[0] == 0:
        return lambda a, b, offs, out=None: (empty() if out is None else out).zero_()
    target = current_target()
    wide = a.dtype == torch.float32
    if target.has("nvidia.wgmma") and not wide:
        from gluon_kernels.moe import launches

        return launches.plan(a, b, offs, empty)
    block, warps = (128, 128, 32), 4
    # 16 KiB of operands in each stage, and the conversion of the result.
    stages = 3 if target.limits.shared_memory >= 81920 else 2
    if wide:  # twice the bytes, and no matrix unit of full precision
        block = 64, 64, 16
    elif target.has("amd.wmma_v1") or target.has("amd.wmma_v2") or (n % 128 or a.shape[1] % 32):
        warps = 8  # the masks of the copies take registers, too
    here = gluon.multiprocessors(a)
    x, y, out = a.contiguous(), b.contiguous(), empty()
    arguments = (
        x, y, out, offs, b.shape[0], rows, n, a.shape[1], *block, stages, 8, _most(b.shape[0])
    )  # fmt: skip
    launch = Launch(
        portable.grouped_gemm,
        (2 * here if here else 3,),
        arguments,
        (x, y, out, offs),
        num_warps=warps,
    )

    def run(a: Tensor, b: Tensor, offs: Tensor, out: Optional[Tensor] = None) -> Tensor:
        out = empty() if out is None else out
        launch(a.contiguous(), b.contiguous(), out, offs)
        return out

    return run


def _build_gradient(a: Tensor, grad: Tensor, offs: Tensor) -> Callable[..., Tensor]:
    (rows, k), n, groups = a.shape, grad.shape[1], len(offs)
    empty = allocator((groups, k, n), a.dtype, a.device)
    if rows * k * n * groups == 0:
        return lambda a, grad, offs: empty().zero_()
    m, across, depth = (64, 128, 32) if gluon.multiprocessors(a) else (32, 32, 32)
    if a.dtype == torch.float32:  # threads hold whole rows of a step
        m, across, depth = 64, 64, 8
    tiles = gluon.cdiv(k, m) * gluon.cdiv(n, across)
    x, y, out = a.contiguous(), grad.contiguous(), empty()
    arguments = (x, y, out, offs, groups, rows, n, k, m, across, depth)
    launch = Launch(
        portable.grouped_gemm_wgrad, (tiles, groups), arguments, (x, y, out, offs), num_warps=4
    )

    def run(a: Tensor, grad: Tensor, offs: Tensor) -> Tensor:
        out = empty()
        launch(a.contiguous(), grad.contiguous(), out, offs)
        return out

    return run


plans = Plans(_build, vectors=(2,))
gradient_plans = Plans(_build_gradient, vectors=(2,))


def _run(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    result: Tensor = plans.find(signature(a, b, offs), a, b, offs)(a, b, offs)
    return result


def _fake(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return a.new_empty(_checked(a, b, offs))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b, offs = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        grouped_matmul(grad.contiguous(), b.mT, offs) if needs[0] else None,
        _gradient(a, grad, offs) if needs[1] else None,
        None,
    )


@gluon.torch.op(
    "gluon_kernels::grouped_matmul_gradient",
    shape=lambda a, grad, offs: (offs.shape[0], a.shape[1], grad.shape[1]),
)
def _gradient(a: Tensor, grad: Tensor, offs: Tensor) -> Tensor:
    result: Tensor = gradient_plans(signature(a, grad, offs), a, grad, offs)
    return result


@gluon.torch.op(
    "gluon_kernels::grouped_matmul", fake=_fake, backward=_gradients, setup_context=_keep
)
def _grouped(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    _check_ends(a, b, offs)
    return _run(a, b, offs)


_watched = differentiable(_run, _keep, _gradients, again=True)


@gluon.torch.op("gluon_kernels::grouped_matmul_out", mutates_args=("out",))
def _grouped_out(a: Tensor, b: Tensor, offs: Tensor, out: Tensor) -> None:
    _check_ends(a, b, offs)
    _into(a, b, offs, out)


def _into(a: Tensor, b: Tensor, offs: Tensor, out: Tensor) -> None:
    check_apart(out, a=a, b=b)
    if out.is_contiguous() and out.data_ptr() % 16 == 0:
        plans.find((signature(a, b, offs), "out"), a, b, offs)(a, b, offs, out)
    else:
        out.copy_(_run(a, b, offs))


def grouped_matmul(a: Tensor, b: Tensor, offs: Tensor, *, out: Optional[Tensor] = None) -> Tensor:
    """Multiply groups of rows, each with a matrix of its own, as a mixture of experts needs it.

    Group i has the rows of `a` from offs[i - 1] (0 for the first) up to offs[i]; the numbers are read on the device. Rows behind the
    last group are not computed: their results are undefined. Gradients flow to `a` and `b`. Equal inputs give equal bits.

    Args:
        a: [rows, K], float16, bfloat16 or float32; rows are multiples of 16 bytes.
        b: [groups, K, N] of the same dtype, contiguous or transposed; rows are multiples of 16 bytes.
        offs: [groups], int32, not falling, at most `rows`.
        out: the result is stored here, [rows, N]; not for calls with gradients.

    Returns:
        [rows, N].

    Raises:
        ShapeError, DtypeError, ArgumentError: the arguments do not fit each other.
    """
    if out is None and not is_compiling() and is_plain(a, b, offs):
        return _run(a, b, offs)
    check_tensors("grouped_matmul", {"out": out}, a=a, b=b, offs=offs)
    if not a.is_meta and torch.is_autocast_enabled(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        a, b = a.to(dtype), b.to(dtype)
    if out is not None:
        check_out(out, _checked(a, b, offs), a.dtype)
        check_devices(a, out=out)
        check_no_gradients(a, b)
        if not is_compiling() and is_plain(a, b, offs, out):
            torch.autograd.graph.increment_version(out)
            _into(a, b, offs, out)
        else:
            _grouped_out.overload(a, b, offs, out)
        return out
    call = _watched if wants_gradient(a, b, offs) else _grouped
    result: Tensor = call(a, b, offs)
    return result
