"""Grouped products and a mixture of experts as operators of PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.moe import portable
from gluon_kernels.plans import Launch, Plans, allocator, current_target

__all__ = ["grouped_matmul", "moe"]

is_plain, signature, is_compiling = (
    gluon.torch.is_plain,
    gluon.torch.signature,
    torch.compiler.is_compiling,
)
_DTYPES = (torch.float16, torch.bfloat16)


def _checked(a: Tensor, b: Tensor, offs: Tensor) -> tuple[int, int]:
    """Return the shape of the result.

    Raises:
        ShapeError, DtypeError, ArgumentError: the arguments do not fit each other.
    """
    if a.ndim != 2 or b.ndim != 3 or offs.ndim != 1:
        raise ShapeError(
            "not rows, matrices and ends of groups",
            argument="a, b, offs",
            expected="[rows, K], [groups, K, N] and [groups]",
            got=f"{list(a.shape)}, {list(b.shape)} and {list(offs.shape)}",
        )
    if a.shape[1] != b.shape[1] or b.shape[0] != offs.shape[0]:
        raise ShapeError(
            "the matrices do not fit the rows or the groups",
            argument="b",
            expected=[offs.shape[0], a.shape[1], "N"],
            got=list(b.shape),
            remedy="Pass b.mT if b is stored as [groups, N, K]."
            if a.shape[1] == b.shape[2]
            else None,
        )
    if a.dtype != b.dtype or a.dtype not in _DTYPES:
        raise DtypeError(
            "grouped_matmul takes two operands of the same 16-bit dtype",
            argument="a, b",
            expected="float16 or bfloat16",
            got=f"{a.dtype} and {b.dtype}",
        )
    if offs.dtype != torch.int32 or (len(offs) > 1 and offs.stride(0) != 1):
        raise DtypeError(
            "the ends of groups are contiguous numbers of 32 bits",
            argument="offs",
            expected="int32",
            got=str(offs.dtype),
            remedy="Pass counts.cumsum(0, dtype=torch.int32).",
        )
    if not a.device == b.device == offs.device:
        raise ArgumentError(
            "the tensors are on different devices",
            argument="a, b, offs",
            got=f"{a.device}, {b.device} and {offs.device}",
        )
    if a.shape[1] % 8 or b.shape[2] % 8:
        raise ShapeError(
            "rows do not begin at multiples of 16 bytes",
            argument="b",
            expected="K and N divisible by 8",
            got=list(b.shape),
        )
    return a.shape[0], b.shape[2]


def _most(groups: int) -> int:
    """Return for how many groups a kernel is compiled."""
    return max(32, 1 << (groups - 1).bit_length())


def _build(a: Tensor, b: Tensor, offs: Tensor) -> Callable[..., Tensor]:
    rows, n = _checked(a, b, offs)
    empty = allocator((rows, n), a.dtype, a.device)
    if rows * n * a.shape[1] * b.shape[0] == 0:
        return lambda a, b, offs: empty().zero_()
    target = current_target()
    if target.has("nvidia.wgmma"):
        from gluon_kernels.moe import launches

        return launches.plan(a, b, offs, empty)
    block, stages, warps = (128, 128, 32), 3, 4
    if target.has("amd.wmma_v1") or target.has("amd.wmma_v2"):
        warps = 8
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

    def run(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        out = empty()
        launch(a.contiguous(), b.contiguous(), out, offs)
        return out

    return run


def _build_gradient(a: Tensor, grad: Tensor, offs: Tensor) -> Callable[..., Tensor]:
    (rows, k), n, groups = a.shape, grad.shape[1], len(offs)
    empty = allocator((groups, k, n), a.dtype, a.device)
    if rows * k * n * groups == 0:
        return lambda a, grad, offs: empty().zero_()
    m, across, depth = (64, 128, 32) if gluon.multiprocessors(a) else (32, 32, 32)
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


plans, gradient_plans = Plans(_build), Plans(_build_gradient)


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
        _grouped(grad.contiguous(), b.mT, offs) if needs[0] else None,
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
    return _run(a, b, offs)


def grouped_matmul(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """Multiply groups of rows, each with a matrix of its own, as a mixture of experts needs it.

    Group i has the rows of `a` from offs[i - 1] (0 for the first) up to offs[i]; the numbers are read on the device. Rows behind the
    last group are not computed: their results are undefined. Gradients flow to `a` and `b`. Equal inputs give equal bits.

    Args:
        a: [rows, K], float16 or bfloat16; K divisible by 8.
        b: [groups, K, N] of the same dtype, contiguous or transposed; N divisible by 8.
        offs: [groups], int32, not falling, at most `rows`.

    Returns:
        [rows, N].

    Raises:
        ShapeError, DtypeError, ArgumentError: the arguments do not fit each other.
    """
    if not a.is_meta and torch.is_autocast_enabled(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        a, b = a.to(dtype), b.to(dtype)
    if not is_compiling() and is_plain(a, b, offs):
        return _run(a, b, offs)
    result: Tensor = _grouped.overload(a, b, offs)
    return result


def moe(
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    activation: Optional[str] = "silu",
) -> Tensor:
    """Apply the chosen experts to each token: gather, GEMM, SwiGLU, GEMM, weighted sum.

    Tokens are sorted by expert, so that each expert's are multiplied at once, and results are summed token by token in the order
    of the choices: equal inputs give equal bits. Gradients flow to `x`, `weights`, `gate_up` and `down`.

    Args:
        x: [tokens, width], float16 or bfloat16.
        weights: [tokens, choices], floating-point: the weight of each chosen expert.
        experts: [tokens, choices], int32 or int64: the chosen experts.
        gate_up: [experts, width, 2 * inner]: the gates, then the values that they are multiplied with.
        down: [experts, inner, width].
        activation: of the gates, "silu", "gelu" or "relu".

    Returns:
        [tokens, width].

    Raises:
        ShapeError, DtypeError, ArgumentError: the arguments do not fit each other.
    """
    functions = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "relu": torch.nn.functional.relu,
    }
    if activation not in functions:
        raise ArgumentError(
            "unknown activation",
            argument="activation",
            expected=", ".join(functions),
            got=repr(activation),
        )
    if experts.shape != weights.shape or experts.ndim != 2 or experts.shape[0] != x.shape[0]:
        raise ShapeError(
            "not an expert and a weight for each choice of each token",
            argument="weights, experts",
            expected=f"[{x.shape[0]}, choices] both",
            got=f"{list(weights.shape)} and {list(experts.shape)}",
        )
    if gate_up.shape[0] != down.shape[0] or gate_up.shape[2] != 2 * down.shape[1]:
        raise ShapeError(
            "the matrices of the experts do not fit each other",
            argument="gate_up, down",
            expected="[experts, width, 2 * inner] and [experts, inner, width]",
            got=f"{list(gate_up.shape)} and {list(down.shape)}",
        )
    tokens, choices = experts.shape
    flat = experts.reshape(-1)
    order = torch.argsort(flat, stable=True)
    numbers = torch.arange(gate_up.shape[0], device=x.device, dtype=flat.dtype)
    offs = torch.searchsorted(flat[order], numbers, right=True).to(torch.int32)
    gates, values = grouped_matmul(x[order // choices], gate_up, offs).chunk(2, dim=1)
    inner = functions[activation](gates) * values
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
    results = grouped_matmul(inner, down, offs)[back].view(tokens, choices, -1)
    return (results * weights.to(results.dtype)[..., None]).sum(1)
