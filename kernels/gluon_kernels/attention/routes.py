"""The kernels of attention that a device and the widths of heads ask for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from gluon_kernels.attention.masks import Mask
from gluon_kernels.plans import current_target, multiprocessors

__all__ = ["batch_backward", "batch_forward", "packed_backward", "packed_forward", "score_forward"]

Plan = Callable[..., Any]
MANY = 256  # sequences of one launch
HEADS = 65535  # of a launch, which are programs along the second axis of a grid
LONG = 1024  # queries, of which the last tile wastes little: the heads that share keys need not be joined


def _on_hopper() -> bool:
    target = current_target()
    return target.has("nvidia.wgmma") and target.has("nvidia.tma")


def packed_forward(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], of_queries: Tensor, of_keys: Tensor, mask: Mask,
    scale: float, keep: bool, out: Optional[Tensor],
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, sinks, of_queries, of_keys, out) -> (result, logarithms of sums)` for packed sequences."""
    if _on_hopper():
        from gluon_kernels.attention import varlen_launches

        return varlen_launches.forward_plan(
            q, k, v, sinks, of_queries, of_keys, mask, scale, keep, out
        )
    if q.shape[1] > HEADS:
        tensors = (q, k, v, sinks, of_queries, of_keys)
        return _result_of_heads(packed_forward, tensors, mask, scale, keep)
    from gluon_kernels.attention import portable_launches

    lists = (of_queries, of_keys)
    plan = portable_launches.forward_plan(q, k, v, sinks, lists, mask, scale, keep, out)
    return lambda q, k, v, sinks, of_queries, of_keys, out: plan(
        q, k, v, sinks, (of_queries, of_keys), out
    )


def packed_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, of_queries: Tensor, of_keys: Tensor,
    mask: Mask, scale: float, repeatable: bool,
) -> Plan:  # fmt: skip
    """Return `run(grad, q, k, v, out, logsums, of_queries, of_keys) -> (gradients of q, k and v)`."""
    if q.shape[1] > HEADS:
        tensors = (grad, q, k, v, out, logsums, of_queries, of_keys)
        return _gradients_of_heads(packed_backward, tensors, mask, scale, repeatable)
    if _on_hopper():
        from gluon_kernels.attention import varlen_gradient_launches

        if varlen_gradient_launches.differentiates(q.shape[-1], v.shape[-1]):
            return varlen_gradient_launches.backward_plan(
                grad, q, k, v, out, logsums, of_queries, of_keys, mask, scale, repeatable
            )
    from gluon_kernels.attention import portable_launches

    lists = (of_queries, of_keys)
    plan = portable_launches.backward_plan(grad, q, k, v, out, logsums, lists, mask, scale)
    return lambda grad, q, k, v, out, logsums, *lists: plan(grad, q, k, v, out, logsums, lists)


def _as_packed(x: Tensor) -> Tensor:
    """Return [batch, heads, length, ...] as [tokens, heads, ...], without a copy where memory has that order."""
    return x.transpose(1, 2).flatten(0, 1)


def _as_batch(x: Tensor, batch: int) -> Tensor:
    return x.unflatten(0, (batch, -1)).transpose(1, 2).contiguous()


@lru_cache(maxsize=None)
def _lists(batch: int, length: int, device: torch.device) -> Tensor:
    """Return the first tokens of sequences of one length, and their number; kept for good, since a CUDA graph may read them after its plan is gone."""
    return torch.arange(0, (batch + 1) * length, max(length, 1), dtype=torch.int32, device=device)


def _in_parts(q: Tensor, k: Tensor, causal: bool) -> bool:
    """Return True if heads of queries and values are computed in two parts: 64 and 32 columns, or more than 128.

    Narrow ones are where programs have whole tiles: that kernel neither splits keys nor joins heads.
    """
    batch, heads, length, width = q.shape
    if not 64 < width <= 96:
        return bool(width > 128)
    tiles = -(-length // 128) * batch * heads
    apart = heads == k.shape[1] or length >= LONG
    return causal or bool(apart and 2 * tiles > multiprocessors(q))


def batch_forward(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], mask: Mask, scale: float, keep: bool, out: Optional[Tensor]
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, sinks, out) -> (result, logarithms of sums)` for [batch, heads, length, width]."""
    from gluon_kernels.attention import decode_launches

    if mask == Mask(None, None, 0.0) and decode_launches.takes(q.dtype):
        few = decode_launches.forward_plan(q, k, v, sinks, scale, keep, out)
        if few is not None:
            return few
    if q.dtype == torch.float32:
        if _on_hopper():
            from gluon_kernels.attention import float32_launches

            if float32_launches.takes(q, v, mask, scale):
                return float32_launches.forward_plan(q, k, v, sinks, mask, scale)
        from gluon_kernels.attention import full_precision

        return full_precision.forward_plan(mask, scale)
    if _on_hopper():
        from gluon_kernels.attention import launches

        causal = mask.right is not None
        plain = mask.is_plain and scale > 0  # a row's largest product is its largest score
        parts = _in_parts(q, k, causal)
        if plain and not parts and q.shape[-1] == v.shape[-1] <= 128:
            return launches.forward_plan(q, k, v, sinks, causal, scale, keep, out)
        if plain and q.shape[-1] == v.shape[-1]:
            from gluon_kernels.attention import wide_launches

            return wide_launches.forward_plan(q, k, v, sinks, causal, scale, keep, out)
        return _packed_batches(q, k, v, sinks, mask, scale, keep)
    if q.shape[1] > HEADS:
        return _result_of_heads(batch_forward, (q, k, v, sinks), mask, scale, keep)
    from gluon_kernels.attention import portable_launches

    plan = portable_launches.forward_plan(q, k, v, sinks, None, mask, scale, keep, out)
    return lambda q, k, v, sinks, out: plan(q, k, v, sinks, None, out)


def _heads_of_launches(heads: int, of_keys: int) -> list[tuple[slice, slice]]:
    """Return the heads of queries and of keys of each launch."""
    shared = heads // of_keys
    most = max(HEADS // 16 * 16, 1)
    size = max(HEADS // shared // 16 * 16, 1)
    slices = []
    for first in range(0, of_keys, size):
        start, end = first * shared, min(first + size, of_keys) * shared
        step = most if shared > HEADS else end - start
        slices += [
            (slice(i, min(i + step, end)), slice(first, first + size))
            for i in range(start, end, step)
        ]
    return slices


def _result_of_heads(
    make: Callable[..., Plan], tensors: tuple[Optional[Tensor], ...], mask: Mask, scale: float, keep: bool
) -> Plan:  # fmt: skip
    """Return the plan of more heads than a launch takes: launches of some heads each, whose plans are `make(*tensors, mask, scale, keep, None)`.

    Args:
        tensors: queries, keys, values and sinks, and the lists of packed sequences.
    """
    q, k = tensors[:2]
    assert q is not None and k is not None
    slices = _heads_of_launches(q.shape[1], k.shape[1])

    def sliced(own: slice, place: slice, *tensors: Optional[Tensor]) -> tuple[Any, ...]:
        q, k, v, sinks, *lists = tensors
        others: list[Any] = [None if x is None else x[:, place] for x in (k, v)]
        queries = None if q is None else q[:, own]
        return queries, *others, None if sinks is None else sinks[own], *lists

    plans = [make(*sliced(*places, *tensors), mask, scale, keep, None) for places in slices]

    def run(*arguments: Optional[Tensor]) -> Any:
        *tensors, out = arguments
        parts = [plan(*sliced(*places, *tensors), None) for plan, places in zip(plans, slices)]
        result = torch.cat([x for x, _ in parts], 1)
        logsums = torch.cat([x for _, x in parts], 1) if keep else None
        return result if out is None else out.copy_(result), logsums

    return run


def _heads_alone(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True if heads are taken as sequences: they share no keys, and contiguous ones need no copy then."""
    alone = q.shape[1] == k.shape[1] and q.shape[0] * q.shape[1] <= MANY
    return alone and all(x.is_contiguous() for x in (q, k, v))


def _as_sequences(x: Tensor) -> Tensor:
    """Return [batch, heads, length, ...] as [tokens, 1, ...], each head a sequence."""
    return x.flatten(0, 2).unsqueeze(1)


def _packed_batches(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], mask: Mask, scale: float, keep: bool
) -> Plan:
    """Return the plan of batches as packed sequences of one length."""
    (batch, heads, length), keys = q.shape[:3], k.shape[2]
    alone = sinks is None and _heads_alone(q, k, v)
    count = batch * heads if alone else batch
    packed = _as_sequences if alone else _as_packed
    lists = _lists(count, length, q.device), _lists(count, keys, q.device)
    shifted = mask.shifted(keys - length)
    tensors = packed(q), packed(k), packed(v)
    plan = packed_forward(*tensors, sinks, *lists, shifted, scale, keep, None)

    def batched(x: Tensor) -> Tensor:
        return x.view(batch, heads, length, *x.shape[2:]) if alone else _as_batch(x, batch)

    def run(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], out: Optional[Tensor]) -> Any:
        result, logsums = plan(packed(q), packed(k), packed(v), sinks, *lists, None)
        result = batched(result) if out is None else out.copy_(batched(result))
        return result, None if logsums is None else batched(logsums)

    return run


def batch_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, mask: Mask, scale: float,
    repeatable: bool,
) -> Plan:  # fmt: skip
    """Return `run(grad, q, k, v, out, logsums) -> (gradients of q, k and v)` for [batch, heads, length, width]."""
    if q.shape[1] > HEADS:
        tensors = (grad, q, k, v, out, logsums)
        return _gradients_of_heads(batch_backward, tensors, mask, scale, repeatable)
    if q.dtype == torch.float32:
        if _on_hopper():
            from gluon_kernels.attention import float32_launches

            if float32_launches.takes(q, v, mask, scale):
                return float32_launches.backward_plan(q, k, v, mask, scale)
        from gluon_kernels.attention import full_precision

        return full_precision.backward_plan(mask, scale)
    if _on_hopper():
        from gluon_kernels.attention import launches, varlen_gradient_launches

        if mask.is_plain and q.shape[-1] == v.shape[-1] <= 128:
            causal = mask.right is not None
            return launches.backward_plan(grad, q, k, v, out, logsums, causal, scale, repeatable)
        if varlen_gradient_launches.differentiates(q.shape[-1], v.shape[-1]):
            return _packed_batch_gradients(grad, q, k, v, out, logsums, mask, scale, repeatable)
    from gluon_kernels.attention import portable_launches

    plan = portable_launches.backward_plan(grad, q, k, v, out, logsums, None, mask, scale)
    return lambda grad, q, k, v, out, logsums: plan(grad, q, k, v, out, logsums, None)


def _gradients_of_heads(
    make: Callable[..., Plan], tensors: tuple[Tensor, ...], *settings: Any
) -> Plan:
    """Return the plan of gradients of more heads than a launch takes: launches of some heads each, whose gradients of shared keys are added up, and whose plans
    are `make(*tensors, *settings)`."""
    heads, of_keys = tensors[1].shape[1], tensors[2].shape[1]
    slices = _heads_of_launches(heads, of_keys)
    pieces = (
        len(slices) // of_keys if heads // of_keys > HEADS else 1
    )  # of the heads that share keys

    def sliced(tensors: tuple[Tensor, ...], own: slice, place: slice) -> list[Tensor]:
        grad, q, k, v, out, logsums, *lists = tensors
        others = k[:, place], v[:, place]
        results = out[:, own], logsums[:, own].contiguous()
        return [grad[:, own], q[:, own], *others, *results, *lists]

    plans = [make(*sliced(tensors, *places), *settings) for places in slices]

    def run(*tensors: Tensor) -> Any:
        parts = [plan(*sliced(tensors, *places)) for plan, places in zip(plans, slices)]
        to_q, *others = (list(gradients) for gradients in zip(*parts))
        if pieces > 1:
            others = [_added_up(gradients, pieces) for gradients in others]
        return tuple(torch.cat(gradients, 1) for gradients in (to_q, *others))

    return run


def _added_up(parts: list[Tensor], count: int) -> list[Tensor]:
    """Return the sums of `count` tensors each, in float32."""
    groups = (parts[i : i + count] for i in range(0, len(parts), count))
    return [torch.stack(group).sum(0, dtype=torch.float32).to(group[0].dtype) for group in groups]


def _packed_batch_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, mask: Mask, scale: float,
    repeatable: bool,
) -> Plan:  # fmt: skip
    (batch, heads, length), keys = q.shape[:3], k.shape[2]
    alone = _heads_alone(q, k, v)
    count = batch * heads if alone else batch
    lists = _lists(count, length, q.device), _lists(count, keys, q.device)

    wide = max(q.shape[-1], v.shape[-1]) > 128
    if wide and not alone and batch <= MANY:
        return _wide_batch_gradients(grad, q, k, v, out, logsums, lists, mask, scale)
    shifted = mask.shifted(keys - length)
    if alone:

        def view(*tensors: Tensor) -> Any:
            return [_as_sequences(x) for x in tensors]

        return _plan_of_views(
            view, (grad, q, k, v, out, logsums), lists, shifted, scale, repeatable
        )

    def packed(*tensors: Tensor) -> Any:
        # Logarithms are read as [tokens, heads] in a row.
        return [*(_as_packed(x) for x in tensors[:-1]), _as_packed(tensors[-1]).contiguous()]

    grad, q, k, v, out, logsums = packed(grad, q, k, v, out, logsums)
    plan = packed_backward(grad, q, k, v, out, logsums, *lists, shifted, scale, repeatable)

    def run(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor) -> Any:
        gradients = plan(*packed(grad, q, k, v, out, logsums), *lists)
        return tuple(_as_batch(x, batch) for x in gradients)

    return run


def _plan_of_views(
    view: Callable[..., Any], tensors: tuple[Tensor, ...], lists: tuple[Tensor, Tensor], *settings: Any
) -> Plan:  # fmt: skip
    """Return the plan of gradients of batches whose operands `view` returns; `settings` are the last ones of `varlen_gradient_launches.backward_plan`."""
    from gluon_kernels.attention import varlen_gradient_launches

    grad, q, k, v, out, logsums = operands = view(*tensors)
    in_place = all(x.data_ptr() == one.data_ptr() for x, one in zip(operands, tensors))
    shapes = [x.shape for x in tensors[1:4]]
    batches = varlen_gradient_launches.Batches(view, in_place, shapes)
    return varlen_gradient_launches.backward_plan(
        grad, q, k, v, out, logsums, *lists, *settings, batches=batches
    )


def _heads_in_rows(x: Tensor) -> Tensor:
    """Return [batch, heads, length, width] as [length, heads of all batches, width], where `_has_heads_in_rows`."""
    batch, heads, length, width = x.shape
    return x.as_strided((length, batch * heads, width), (x.stride(2), x.stride(1), x.stride(3)))


def _has_heads_in_rows(x: Tensor) -> bool:
    """Return True if a kernel can read the heads of all batches as those of one."""
    from gluon_kernels.attention.launches import is_readable

    return is_readable(x) and x.stride(0) == x.shape[1] * x.stride(1)


def _wide_batch_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, lists: tuple[Tensor, Tensor], mask: Mask,
    scale: float,
) -> Plan:  # fmt: skip
    """Return the plan of kernels that read results and store gradients in the order of batches."""
    lengths = q.shape[2], k.shape[2]
    apart = all(_has_heads_in_rows(x) for x in (grad, q, k, v))
    view = _heads_in_rows if apart else _as_packed

    def packed(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor) -> Any:
        of_batch = out if out.stride(-1) == 1 else out.contiguous()
        return view(grad), view(q), view(k), view(v), of_batch, logsums.contiguous()

    shifted = mask.shifted(lengths[1] - lengths[0])
    tensors = (grad, q, k, v, out, logsums)
    return _plan_of_views(packed, tensors, lists, shifted, scale, False, lengths, apart)


def score_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    scale: float,
    out: Optional[Tensor],
    score: Any,
    extra: Any,
) -> Plan:
    """Return `run(q, k, v, out, *tensors of extra) -> result` with a function of scores."""
    from gluon_kernels.attention import portable_launches

    plan = portable_launches.forward_plan(
        q, k, v, None, None, mask, scale, False, out, score, extra
    )

    def run(q: Tensor, k: Tensor, v: Tensor, out: Optional[Tensor], *more: Tensor) -> Any:
        return plan(q, k, v, None, None, out, *more)[0]

    return run
