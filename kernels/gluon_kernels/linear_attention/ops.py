"""Linear attention as operators of PyTorch: the gated delta rule, its form with gates of channels, and state space duality."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, Optional, Sequence, Union

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ShapeError
from gluon_kernels.checks import (
    HALVES,
    check_devices,
    check_flags,
    check_floats,
    check_numbers,
    check_one_dtype,
    check_tensors,
)
from gluon_kernels.eager import direct, is_compiling, is_plain, wants_gradient
from gluon_kernels.linear_attention import decay_gradients, decay_launches, gradients, launches
from gluon_kernels.linear_attention.decay_launches import Gates
from gluon_kernels.plans import Plans, key

__all__ = [
    "check_state",
    "gated_delta_rule",
    "gated_linear_attention",
    "kda",
    "in_slices",
    "joined",
]

WIDEST = 256  # keys
# Batches of a launch: a grid has 65,535 programs along its third axis, where gradients of gates alone walk over each batch in two directions.
BATCHES = 65535 // 32 * 16


def _check(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], initial: Optional[Tensor],
    channels: bool,
) -> None:  # fmt: skip
    check_tensors("linear attention", {"beta": beta, "initial_state": initial}, q=q, k=k, v=v, g=g)
    check_one_dtype("linear attention", HALVES, q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4 or not x.shape[3]:
            raise ShapeError(
                "linear attention takes tensors of four dimensions",
                argument=name,
                expected="[batch, length, heads, width]",
                got=list(x.shape),
            )
    if k.shape != q.shape:
        raise ShapeError(
            "queries and keys must have the same shape",
            argument="k",
            expected=list(q.shape),
            got=list(k.shape),
        )
    if q.shape[3] > WIDEST:
        raise ShapeError(
            "keys are too wide", argument="q", expected=f"1 to {WIDEST}", got=q.shape[3]
        )
    if v.shape[:2] != q.shape[:2]:
        raise ShapeError(
            "keys and values have different shapes",
            argument="v",
            expected=f"{list(q.shape[:2])}, heads, width",
            got=list(v.shape),
        )
    if not q.shape[2] or v.shape[2] % q.shape[2]:
        raise ShapeError(
            "the number of value heads must be a multiple of the number of key heads",
            argument="v",
            expected=f"a multiple of {q.shape[2]} heads",
            got=v.shape[2],
        )
    check_floats("gates must be floating-point", g=g, beta=beta)
    for name, gate in (("g", g), ("beta", beta)):
        if gate is None:
            continue
        wide = channels and name == "g"
        expected = [*v.shape[:3], q.shape[3]] if wide else [*v.shape[:3]]
        if list(gate.shape) != expected:
            raise ShapeError(
                "a gate for each token, head of values and channel of the keys"
                if wide
                else "a gate for each token and head of values",
                argument=name,
                expected=expected,
                got=list(gate.shape),
            )
    check_state(initial, v, k)
    check_devices(q, k=k, v=v, g=g, beta=beta, initial_state=initial)


def check_state(initial: Optional[Tensor], v: Tensor, k: Tensor) -> None:
    """Raise the error of a state that does not fit values and keys."""
    state = (v.shape[0], v.shape[2], k.shape[3], v.shape[3])
    if initial is not None and (initial.shape != state or initial.dtype != torch.float32):
        raise ShapeError(
            "the state must be one float32 matrix for each head",
            argument="initial_state",
            expected=f"float32 {list(state)}",
            got=f"{initial.dtype} {list(initial.shape)}",
        )


def in_slices(
    call: Callable[..., Sequence[Optional[Tensor]]], tensors: Sequence[Optional[Tensor]], shared: Sequence[int] = ()
) -> list[list[Optional[Tensor]]]:  # fmt: skip
    """Return the results of `call(*tensors)` for as many batches at a time as a launch takes: the parts of each.

    Args:
        tensors: the first has all batches.
        shared: places of those without batches.
    """
    assert tensors[0] is not None
    parts = []
    for first in range(0, tensors[0].shape[0], BATCHES):
        place = slice(first, first + BATCHES)
        own = (x if x is None or i in shared else x[place] for i, x in enumerate(tensors))
        parts.append(call(*own))
    return [list(of_result) for of_result in zip(*parts)]


def joined(parts: Sequence[Any]) -> Optional[Tensor]:
    """Return the parts of a result as one, None for no result."""
    return None if parts[0] is None else torch.cat(parts)


def _state_shape(k: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    """Return the shape of transposed states."""
    return v.shape[0], v.shape[2], v.shape[3], k.shape[3]


def _build(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Optional[Tensor],
    initial: Optional[Tensor],
    scale: float,
    keep: bool,
) -> Any:
    """Return `run(...) -> (out, final state, tensors that its gradients need)`, the last empty without `keep`."""
    if not v.numel():

        def nothing(
            q: Tensor, k: Tensor, v: Tensor, g: Any, beta: Any, initial: Any, scale: Any, keep: Any
        ) -> Any:
            if initial is not None:
                return torch.empty_like(v), initial.clone(), ()
            return torch.empty_like(v), v.new_zeros(_state_shape(k, v), dtype=torch.float32), ()

        return nothing
    if beta is None and decay_launches.fits(k):
        walk = decay_launches.decaying_plan(q, k, v, Gates(g), None, initial, scale, keep)

        def run(q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, *rest: Any) -> Any:
            out, final, states = walk(q, k, v, Gates(g), None, initial)
            return out, final, () if states is None else (states,)

        return run
    plan = launches.forward_plan(q, k, v, g, beta, initial, scale, keep)

    def run_plan(q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, *rest: Any) -> Any:
        out, final, kept = plan(q, k, v, g, beta, initial)
        return out, final, kept or ()

    return run_plan


def _build_gradients(
    grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor],
    initial: Optional[Tensor], scale: float, kept: tuple[Optional[Tensor], ...],
) -> Any:  # fmt: skip
    if not v.numel():

        def nothing(grad: Any, grad_state: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
            zeros = (torch.zeros_like(x) for x in (q, k, v))
            state = v.new_zeros(_state_shape(k, v), dtype=torch.float32)
            return (
                *zeros,
                torch.zeros_like(g, dtype=torch.float32),
                v.new_zeros(v.shape[:3], dtype=torch.float32),
                state if grad_state is None else grad_state.clone(),
            )

        return nothing
    if beta is None and decay_launches.fits(k):
        walks = decay_gradients.decaying_backward_plan(
            grad, grad_state, q, k, v, Gates(g), None, initial, scale, *kept
        )

        def run(grad: Any, grad_state: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, scale: Any, kept: Any) -> Any:  # fmt: skip
            done = walks(grad, grad_state, q, k, v, Gates(g), None, initial, *kept)
            return done.q, done.k, done.v, done.gates, None, done.initial

        return run

    def kept_of(kept: Any) -> Optional[launches.Kept]:
        return launches.Kept(*kept) if kept else None

    plan = gradients.backward_plan(
        grad, grad_state, q, k, v, g, beta, initial, scale, kept_of(kept)
    )
    return lambda *arguments: plan(*arguments[:-2], kept_of(arguments[-1]))


_plans = Plans(_build)
_gradient_plans = Plans(_build_gradients)


def _gradient_shapes(
    grad: Any, grad_state: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, scale: Any
) -> Any:
    rates = (v.shape[:3], torch.float32)
    state = (_state_shape(q, v), torch.float32)
    empty = ((0,), torch.float32)
    return [
        (q.shape, q.dtype), (k.shape, k.dtype), (v.shape, v.dtype), (g.shape, torch.float32),
        empty if beta is None else rates, empty if initial is None else state,
    ]  # fmt: skip


@gluon.torch.op("gluon_kernels::linear_attention_backward", shape=_gradient_shapes)
def _backward(
    grad: Tensor,
    grad_state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Optional[Tensor],
    initial: Optional[Tensor],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return all gradients; those of what is None are empty."""
    results = list(_run_backward(grad, grad_state, q, k, v, g, beta, initial, scale))
    for index, x in ((4, beta), (5, initial)):
        if x is None:
            results[index] = torch.empty(0, dtype=torch.float32, device=v.device)
    to_q, to_k, to_v, to_g, to_beta, to_initial = results
    return to_q, to_k, to_v, to_g, to_beta, to_initial


def _run_backward(
    grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor],
    initial: Optional[Tensor], scale: float, kept: Sequence[Optional[Tensor]] = (),
) -> Any:  # fmt: skip
    """Return all gradients, by what forward `kept`; those of what is None are None."""
    g, beta = g.contiguous(), None if beta is None else beta.contiguous()
    tensors = (grad, grad_state, q, k, v, g, beta, initial)
    if q.shape[0] > BATCHES:
        return map(joined, in_slices(partial(_run_backward, scale=scale), tensors))
    return _gradient_plans((key(*tensors), scale, len(kept)), *tensors, scale, tuple(kept))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)  # of states that nobody uses


def _gradients(
    ctx: Any,
    grad: Optional[Tensor],
    grad_state: Optional[Tensor],
    backward: Callable[..., Any] = _backward,
) -> Any:
    q, k, v, g, beta, initial, *kept = ctx.saved_tensors
    if grad is None:
        grad = torch.zeros_like(v)
    if grad_state is None and backward is _backward:  # the operator takes a tensor
        grad_state = v.new_zeros(_state_shape(k, v), dtype=torch.float32)
    rest = (kept,) if kept else ()
    results = backward(grad, grad_state, q, k, v, g, beta, initial, ctx.scale, *rest)
    to_q, to_k, to_v, to_g, to_beta, to_initial = results
    return (
        to_q, to_k, to_v, to_g.to(g.dtype), None if beta is None else to_beta.to(beta.dtype),
        None if initial is None else to_initial, None,
    )  # fmt: skip


@gluon.torch.op(
    "gluon_kernels::linear_attention",
    shape=lambda q, k, v, g, beta, initial, scale: [
        v.shape,
        (_state_shape(q, v), torch.float32),
    ],
    backward=_gradients,
    setup_context=_keep,
)
def _linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Optional[Tensor],
    initial: Optional[Tensor],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the result, and the final states transposed, [batch, heads, V, K]."""
    out, final, _ = _run(q, k, v, g, beta, initial, scale)
    return out, final


def _run(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], initial: Optional[Tensor], scale: float,
    keep: bool = False,
) -> Any:  # fmt: skip
    g, beta = g.contiguous(), None if beta is None else beta.contiguous()
    tensors = (q, k, v, g, beta, initial)
    if q.shape[0] > BATCHES:
        out, final, _ = in_slices(partial(_run, scale=scale), tensors)
        return joined(out), joined(final), ()
    return _plans((key(*tensors), scale, keep), *tensors, scale, keep)


def _forward_and_keep(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
    out, final, kept = _run(*arguments, keep=True)
    *tensors, ctx.scale = arguments
    ctx.save_for_backward(*tensors, *kept)
    ctx.set_materialize_grads(False)
    return out, final


# Past torch's dispatcher, with what forward keeps.
_watched = direct(
    _forward_and_keep, partial(_gradients, backward=_run_backward), whole_context=True
)


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors of the dtype that `torch.autocast` wants for products on their device."""
    first = tensors[0]
    if first.is_meta or not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(x.to(dtype) for x in tensors)


def _call(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], scale: Optional[float],
    initial_state: Optional[Tensor], return_state: bool, channels: bool = False,
) -> Any:  # fmt: skip
    check_tensors("linear attention", q=q, k=k, v=v)
    check_flags(return_state=return_state)
    q, k, v = autocast(q, k, v)
    _check(q, k, v, g, beta, initial_state, channels)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1)) if q.ndim else 1.0
    elif type(scale) is not float:
        check_numbers(scale=scale)
    initial = None if initial_state is None else initial_state.mT.contiguous()
    if not is_compiling() and is_plain(q, k, v, g, beta, initial):
        out, final = _linear.function(q, k, v, g, beta, initial, scale)
    elif wants_gradient(q, k, v, g, beta, initial):
        out, final = _watched(q, k, v, g, beta, initial, scale)
    else:
        out, final = _linear(q, k, v, g, beta, initial, scale)
    return (out, final.mT) if return_state else out


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Return the outputs of the gated delta rule (Yang et al., arXiv:2412.06464), in chunks of 64 tokens.

    Each head has a state S of K x V, zeros at first. Token by token

        S = exp(g) * S;  S += beta * k (v - S^T k)^T;  o = scale * S^T q

    Products take 16-bit operands, to which `torch.autocast` casts, and add up in float32, states are float32. Keys are expected with norms of at most about 1, such as
    after `torch.nn.functional.normalize`. Long sequences of few heads are cut into segments that are walked at a time. Gradients flow to
    all tensors. For them a call keeps states and operands of chunks, about as many bytes as its tensors and result have; `torch.utils.checkpoint.checkpoint`
    of the call and `torch.compile` compute them again. Equal inputs give equal bits.

    Args:
        q, k: [batch, length, heads of keys, K], float16 or bfloat16 of any strides, K up to 256, or 128 where a block has 64 KiB of shared memory.
        v: [batch, length, heads, V] of the same dtype; the heads are a multiple of those of keys.
        g: [batch, length, heads], the natural logarithms of decays, at most 0.
        beta: [batch, length, heads], the rates.
        scale: of the results; 1 / sqrt(K) by default.
        initial_state: float32 [batch, heads, K, V].
        return_state: return the states after the last token, too.

    Returns:
        [batch, length, heads, V]; with `return_state` also float32 [batch, heads, K, V].

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices.
    """
    check_tensors("gated_delta_rule", beta=beta)
    result: Union[Tensor, tuple[Tensor, Tensor]] = _call(
        q, k, v, g, beta, scale, initial_state, return_state
    )
    return result


def gated_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Return the outputs of linear attention with a decay for each token and head, `S = exp(g) * S + k v^T; o = scale * S^T q`.

    Arguments, results and errors are those of `gated_delta_rule`, without `beta`. With `q`, `k`, `v` and `g` as C, B, `dt * x` and `dt * A` it
    is Mamba-2's state space duality (Dao and Gu, arXiv:2405.21060).
    """
    result: Union[Tensor, tuple[Tensor, Tensor]] = _call(
        q, k, v, g, None, scale, initial_state, return_state
    )
    return result


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Return the outputs of Kimi Delta Attention (Kimi Team, arXiv:2510.26692), in chunks of 64 tokens.

    It is the gated delta rule with a gate for each channel of the keys: token by token, a head's state S of K x V becomes

        S = exp(g)[:, None] * S;  S += beta * k (v - S^T k)^T;  o = scale * S^T q

    Gates may be as strong as they like: powers above one stay within bfloat16's exponents, and a gate of minus infinity forgets its channel.

    Args:
        g: [batch, length, heads, K], the natural logarithms of decays, at most 0; float16, bfloat16 or float32.

    The other arguments, results, errors, precision, segments, gradients and determinism are those of `gated_delta_rule`.
    """
    check_tensors("kda", beta=beta)
    result: Union[Tensor, tuple[Tensor, Tensor]] = _call(
        q, k, v, g, beta, scale, initial_state, return_state, channels=True
    )
    return result
