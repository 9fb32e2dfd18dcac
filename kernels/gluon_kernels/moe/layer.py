"""A mixture of experts as one operator of PyTorch: lists, gather, GEMM, gates, GEMM, weighted sum."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError, did_you_mean
from gluon_kernels.checks import (
    check_apart,
    check_devices,
    check_names,
    check_no_gradients,
    check_out,
    check_tensors,
)
from gluon_kernels.eager import differentiable, gradients_through, wants_gradient
from gluon_kernels.moe import routing
from gluon_kernels.moe.ops import grouped_matmul
from gluon_kernels.plans import Launch, Plans, allocator, current_target

__all__ = ["moe"]

is_plain, signature, is_compiling = (
    gluon.torch.is_plain,
    gluon.torch.signature,
    torch.compiler.is_compiling,
)
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "relu": torch.nn.functional.relu,
}
_DTYPES = (torch.float16, torch.bfloat16)


def _check_activation(activation: str) -> None:
    if activation not in _ACTIVATIONS:
        raise ArgumentError(
            "unknown activation",
            argument="activation",
            expected=", ".join(_ACTIVATIONS),
            got=repr(activation),
            remedy=did_you_mean(str(activation), list(_ACTIVATIONS)) or None,
        )


def _checked(
    x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, activation: str,
    out: Optional[Tensor] = None,
) -> None:  # fmt: skip
    check_tensors("moe", x=x, weights=weights, experts=experts, gate_up=gate_up, down=down)
    _check_activation(activation)
    if x.ndim != 2 or gate_up.ndim != 3 or down.ndim != 3:
        raise ShapeError(
            "moe takes tokens and the weights of the experts",
            argument="x, gate_up, down",
            expected="[tokens, width], [experts, width, 2 * inner] and [experts, inner, width]",
            got=f"{list(x.shape)}, {list(gate_up.shape)} and {list(down.shape)}",
        )
    if experts.shape != weights.shape or experts.ndim != 2 or experts.shape[0] != x.shape[0]:
        raise ShapeError(
            "expected one expert and one weight for each choice of each token",
            argument="weights, experts",
            expected=f"[{x.shape[0]}, choices] both",
            got=f"{list(weights.shape)} and {list(experts.shape)}",
        )
    width, count = x.shape[1], gate_up.shape[0]
    if gate_up.shape[1] != width or tuple(down.shape) != (count, gate_up.shape[2] // 2, width) or gate_up.shape[2] % 2:  # fmt: skip
        raise ShapeError(
            "the weights of the experts do not match the tokens or each other",
            argument="gate_up, down",
            expected=f"[experts, {width}, 2 * inner] and [experts, inner, {width}]",
            got=f"{list(gate_up.shape)} and {list(down.shape)}",
        )
    if x.dtype not in _DTYPES or gate_up.dtype != x.dtype or down.dtype != x.dtype:
        raise DtypeError(
            "moe takes tokens and expert weights of the same 16-bit dtype",
            argument="x, gate_up, down",
            expected="float16 or bfloat16",
            got=f"{x.dtype}, {gate_up.dtype} and {down.dtype}",
        )
    if not weights.is_floating_point():
        raise DtypeError("routing weights must be floating-point", argument="weights", expected="floating-point", got=str(weights.dtype))  # fmt: skip
    if experts.dtype not in (torch.int32, torch.int64):
        raise DtypeError("expert indices must be integers", argument="experts", expected="int32 or int64", got=str(experts.dtype))  # fmt: skip
    if width % 8 or down.shape[1] % 8:
        raise ShapeError(
            "rows are not aligned to 16 bytes",
            argument="gate_up, down",
            expected="width and inner divisible by 8",
            got=f"{list(gate_up.shape)} and {list(down.shape)}",
        )
    check_devices(x, weights=weights, experts=experts, gate_up=gate_up, down=down, out=out)
    if out is not None:
        check_out(out, x.shape, x.dtype)


def _unfused(
    x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, activation: str
) -> Tensor:
    """Return the result by operators that have gradients."""
    tokens, choices = experts.shape
    flat, count = experts.reshape(-1), gate_up.shape[0]
    known = (flat >= 0) & (flat < count)
    order = torch.argsort(torch.where(known, flat, count), stable=True)
    numbers = torch.arange(count, device=x.device, dtype=flat.dtype)
    listed = torch.where(known, flat, count)[order]
    offs = torch.searchsorted(listed, numbers, right=True).to(torch.int32)
    rows = torch.where(known[order, None], x[order // choices], 0)
    gates, values = grouped_matmul(rows, gate_up, offs).chunk(2, dim=1)
    inner = _ACTIVATIONS[activation](gates.float()) * values.float()
    inner = torch.where(known[order, None], inner, 0).to(x.dtype)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
    results = torch.where(known[:, None], grouped_matmul(inner, down, offs)[back], 0)
    results = results.view(tokens, choices, x.shape[1]).float() * weights.float()[..., None]
    return results.sum(1).to(x.dtype)


def _build(
    x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, activation: str
) -> Callable[..., Tensor]:
    _checked(x, weights, experts, gate_up, down, activation)
    (tokens, width), (count, inner, _) = x.shape, down.shape
    choices = experts.shape[1]
    pairs = tokens * choices
    if min(pairs, width, inner, count) == 0 or not current_target().has("nvidia.wgmma"):
        return lambda *arguments: _into(_unfused(*arguments[:6]), arguments[6])
    from gluon_kernels.moe import launches

    device = x.device
    new_list = allocator((pairs,), torch.int32, device)
    new_ends = allocator((count,), torch.int32, device)
    new_hidden = allocator((pairs, inner), x.dtype, device)
    new_rows = allocator((pairs, width), x.dtype, device)
    new = allocator((tokens, width), x.dtype, device)
    order, places, ends, hidden, rows, out = (
        new_list(), new_list(), new_ends(), new_hidden(), new_rows(), new()
    )  # fmt: skip
    x, weights, experts = x.contiguous(), weights.contiguous(), experts.contiguous()
    first, second = launches.matrices_for(gate_up), launches.matrices_for(down)
    copied = first is not gate_up, second is not down
    block = 1024 if pairs > 512 else 512
    route = Launch(
        routing.route, (count,), (experts, order, places, ends, pairs, block),
        (experts, order, places, ends), num_warps=4,
    )  # fmt: skip
    gated = launches.gated(x, first, order, ends, hidden, choices, activation)
    product = launches.plan(hidden, second, ends, new_rows)
    wide = 1024 if width > 512 else 512
    combine = Launch(
        routing.combine, (gluon.cdiv(width, wide), tokens),
        (rows, places, weights, out, tokens, width, choices, wide, 8 if wide == 1024 else 4),
        (rows, places, weights, out), num_warps=4,
    )  # fmt: skip

    def run(
        x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, activation: str,
        out: Optional[Tensor],
    ) -> Tensor:  # fmt: skip
        order, places, ends, hidden = new_list(), new_list(), new_ends(), new_hidden()
        route(experts.contiguous(), order, places, ends)
        first = launches.matrices_for(gate_up) if copied[0] else gate_up
        gated(x.contiguous(), first, order, ends, hidden)
        rows = product(hidden, launches.matrices_for(down) if copied[1] else down, ends)
        direct = out is not None and out.is_contiguous() and out.data_ptr() % 16 == 0
        result = out if out is not None and direct else new()
        combine(rows, places, weights.contiguous(), result)
        return result if direct else _into(result, out)

    return run


def _into(result: Tensor, out: Optional[Tensor]) -> Tensor:
    return result if out is None else out.copy_(result)


plans = Plans(_build)


def _run(
    x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, activation: str,
    out: Optional[Tensor] = None,
) -> Tensor:  # fmt: skip
    known_by = (signature(x, weights, experts, gate_up, down), activation)
    tensors = (x, weights, experts, gate_up, down)
    result: Tensor = plans.find(known_by, *tensors, activation)(*tensors, activation, out)
    return result


def _fake(
    x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, activation: str
) -> Tensor:
    _checked(x, weights, experts, gate_up, down, activation)
    return x.new_empty(x.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradients of a second forward pass by operators that have them."""
    tensors = list(ctx.saved_tensors)
    needed = [i for i, needs in enumerate(ctx.needs_input_grad[:5]) if needs]

    def again(*leaves: Tensor) -> Tensor:
        for i, leaf in zip(needed, leaves):
            tensors[i] = leaf
        return _unfused(tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], ctx.activation)  # fmt: skip

    grads: list[Any] = [None] * 6
    for i, one in zip(needed, gradients_through(again, [tensors[i] for i in needed], grad)):
        grads[i] = one
    return tuple(grads)


@gluon.torch.op("gluon_kernels::moe", fake=_fake, backward=_backward, setup_context=_keep)
def _moe(
    x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, activation: str
) -> Tensor:
    return _run(x, weights, experts, gate_up, down, activation)


_watched = differentiable(_run, _keep, _backward, again=True)


@gluon.torch.op("gluon_kernels::moe_out", mutates_args=("out",))
def _moe_out(
    x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, activation: str,
    out: Tensor,
) -> None:  # fmt: skip
    check_apart(out, gate_up=gate_up, down=down)
    _run(x, weights, experts, gate_up, down, activation, out)


def moe(
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    activation: str = "silu",
    out: Optional[Tensor] = None,
) -> Tensor:
    """Apply the chosen experts to each token: gather, GEMM, SwiGLU, GEMM, weighted sum.

    On Hopper four launches do the whole layer: one lists the pairs of tokens and choices by expert; one gathers tokens,
    multiplies them and applies the gates; one multiplies again; one adds up the rows of each token in float32, in the order of the choices.
    Equal inputs give equal bits. Gradients flow to `x`, `weights`, `gate_up` and `down`; the layer is computed again for them.

    Args:
        x: [tokens, width], float16 or bfloat16; width divisible by 8.
        weights: [tokens, choices], floating-point: the weight of each chosen expert.
        experts: [tokens, choices], int32 or int64: the chosen experts; any other number, such as -1, adds nothing.
        gate_up: [experts, width, 2 * inner], contiguous or transposed: the gates, then the values that they are multiplied
            with; inner divisible by 8.
        down: [experts, inner, width].
        activation: of the gates, "silu", "gelu" or "relu".
        out: the result is stored here, [tokens, width]; not for calls with gradients.

    Returns:
        [tokens, width].

    Raises:
        ShapeError, DtypeError, ArgumentError: the arguments do not fit each other.
    """
    check_tensors(
        "moe", {"out": out}, x=x, weights=weights, experts=experts, gate_up=gate_up, down=down
    )
    check_names(activation=activation)
    _check_activation(activation)
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, gate_up, down = x.to(dtype), gate_up.to(dtype), down.to(dtype)
    tensors = (x, weights, experts, gate_up, down)
    if out is not None:
        _checked(*tensors, activation, out)
        check_no_gradients(*tensors)
        if not is_compiling() and is_plain(*tensors, out):
            check_apart(out, gate_up=gate_up, down=down)
            torch.autograd.graph.increment_version(out)
            return _run(*tensors, activation, out)
        _moe_out.overload(*tensors, activation, out)
        return out
    if not is_compiling() and is_plain(*tensors):
        return _run(*tensors, activation)
    call = _watched if wants_gradient(*tensors) else _moe
    result: Tensor = call(*tensors, activation)
    return result
