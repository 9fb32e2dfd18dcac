"""The cases of attention and of its gradients, for tests and benchmarks."""

from __future__ import annotations

import importlib
import random
from typing import Any, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_kernels.attention.decode_problem import DECODE, MLA
from gluon_kernels.attention.fp8_problem import FP8
from gluon_kernels.attention.ops import attention
from gluon_kernels.attention.rotary_problem import ROTARY
from gluon_kernels.attention.varlen import attention_varlen
from gluon_kernels.problem import Problem, Shape

__all__ = [
    "ATTENTION",
    "GRADIENTS",
    "OF_HOPPER",
    "PROBLEMS",
    "VARLEN",
    "VARLEN_GRADIENTS",
    "lists_of",
]


def _arguments(shape: Shape, device: Any) -> dict[str, Any]:
    dtype, width = getattr(torch, shape.get("dtype", "bfloat16")), shape["width"]
    heads, length = shape["heads"], shape["length"]

    def tensor(heads: int, length: int) -> Tensor:
        if shape.get("packed"):  # as a projection leaves it: [batch, length, heads, width]
            x = torch.randn(shape["batch"], length, heads, width, device=device).to(dtype)
            return x.transpose(1, 2)
        return torch.randn(shape["batch"], heads, length, width, device=device).to(dtype)

    keys = shape.get("heads of keys", heads), shape.get("keys", length)
    return {
        "q": tensor(heads, length),
        "k": tensor(*keys),
        "v": tensor(*keys),
        "causal": shape.get("causal", False),
    }


def _gradient_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    arguments = _arguments(shape, device)
    grad = torch.randn_like(arguments["q"])
    for name in "qkv":
        arguments[name].requires_grad_()
    return {**arguments, "grad": grad}


def _with_gradients(function: Any) -> Any:
    def gradients(q: Tensor, k: Tensor, v: Tensor, causal: bool, grad: Tensor) -> Any:
        return torch.autograd.grad(function(q, k, v, causal=causal), (q, k, v), grad)

    return gradients


def _torch(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def _cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return _torch(q, k, v, causal)


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attend by FlashAttention in CuTe DSL (`flash-attn-4`), which puts the last query at the last key."""
    flash_attn_func = importlib.import_module("flash_attn.cute.interface").flash_attn_func

    if causal and q.shape[2] != k.shape[2]:
        raise NotImplementedError("queries and keys begin together")
    result = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
    result = result[0] if isinstance(result, tuple) else result
    return result.transpose(1, 2)


def _reference(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Compute head by head, in float64 on a host."""
    shared = q.shape[1] // k.shape[1]
    wide = torch.float64 if q.device.type == "cpu" else torch.float32
    batches = []
    for i in range(q.shape[0]):
        heads = []
        for h in range(q.shape[1]):
            one, keys, values = (
                x.to(wide) for x in (q[i, h], k[i, h // shared], v[i, h // shared])
            )
            heads.append(
                F.scaled_dot_product_attention(
                    one[None], keys[None], values[None], is_causal=causal
                )[0]
            )
        batches.append(torch.stack(heads))
    return torch.stack(batches)


def _gradient_reference(q: Tensor, k: Tensor, v: Tensor, causal: bool, grad: Tensor) -> Any:
    wide = torch.float64 if q.device.type == "cpu" else torch.float32
    leaves = [x.detach().to(wide).requires_grad_() for x in (q, k, v)]
    result = _reference(leaves[0], leaves[1], leaves[2], causal)
    return torch.autograd.grad(result, leaves, grad.to(wide))


def _flops(times: float) -> Any:
    def flops(shape: Shape) -> float:
        pairs = shape["length"] * shape.get("keys", shape["length"])
        pairs /= 2 if shape.get("causal") else 1
        return float(times * shape["batch"] * shape["heads"] * pairs * shape["width"])

    return flops


def _bytes(times: float) -> Any:
    def moved(shape: Shape) -> float:
        queries = shape["heads"] * shape["length"]
        keys = shape.get("heads of keys", shape["heads"]) * shape.get("keys", shape["length"])
        return float(times * 2 * shape["batch"] * shape["width"] * 2 * (queries + keys))

    return moved


WIDTHS = (64, 64, 64, 128, 128, 128, 96, 192, 256)  # of drawn heads


def _draw(most: float) -> Any:
    def draw(draw: random.Random) -> Shape:
        while True:
            length = int(2 ** draw.uniform(7, 14))
            length = max(64, length // 64 * 64) if draw.random() < 0.75 else length
            shape = {
                "batch": draw.choice((1, 2, 4, 8)),
                "heads": draw.choice((8, 12, 16, 32)),
                "length": length,
                "width": draw.choice(WIDTHS),
                "causal": draw.random() < 0.6,
                "packed": draw.random() < 0.5,
            }
            if draw.random() < 0.25:
                shape["heads of keys"] = int(shape["heads"]) // 4
            if not shape["causal"] and draw.random() < 0.2:
                shape["keys"] = int(length * 2 ** draw.uniform(-2, 2))
            if 1e9 < _flops(4)(shape) < most:
                return shape

    return draw


def _case(batch: int, heads: int, length: int, width: int, causal: bool, **more: Any) -> Shape:
    named = {"batch": batch, "heads": heads, "length": length, "width": width, "causal": causal}
    return {**named, **more}


NAMED = [
    _case(2, 16, 4096, 128, True), _case(1, 32, 16384, 128, True), _case(4, 16, 2048, 64, False),
    _case(8, 32, 512, 128, True), _case(2, 16, 8192, 64, True),
    _case(2, 32, 4096, 128, True, **{"heads of keys": 8}), _case(1, 32, 2048, 128, True, **{"heads of keys": 4}),
]  # fmt: skip
SMALL = (
    _case(1, 2, 200, 64, True, packed=True),
    _case(2, 2, 70, 128, False, **{"dtype": "float16", "heads of keys": 1}),
    _case(1, 1, 130, 64, False, keys=300),
    _case(1, 1, 300, 128, True, keys=100),
    _case(1, 2, 70, 80, True),
    _case(1, 6, 140, 64, True, **{"heads of keys": 2}),
    _case(2, 2, 70, 192, True),
    _case(1, 2, 70, 64, True, **{"dtype": "float32", "heads of keys": 1}),
)

ATTENTION = Problem(
    name="attention",
    op=attention,
    arguments=_arguments,
    reference=_reference,
    rivals={"torch": _torch, "cuDNN": _cudnn, "FlashAttention": _flash},
    draw=_draw(4e12),
    flops=_flops(4),
    bytes=_bytes(1),
    tolerance=2e-2,
    small=SMALL,
    named=NAMED,
)

GRADIENTS = Problem(
    name="attention and gradients",
    op=_with_gradients(attention),
    arguments=_gradient_arguments,
    reference=_gradient_reference,
    rivals={
        "torch": _with_gradients(_torch),
        "cuDNN": _with_gradients(_cudnn),
        "FlashAttention": _with_gradients(_flash),
    },
    draw=_draw(1e12),
    flops=_flops(14),
    bytes=_bytes(3),
    tolerance=2e-2,
    small=SMALL,
    named=NAMED,
)


# -- packed sequences ------------------------------------------------------------------------------


def lists_of(lengths: Sequence[int], device: Any) -> Tensor:
    """Return the offset of each sequence and the total number of tokens."""
    firsts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device)
    firsts.longest = max(lengths, default=0)  # for rivals that ask for it
    return firsts


def _varlen_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    dtype, heads = getattr(torch, shape.get("dtype", "bfloat16")), shape["heads"]
    lengths = shape["lengths"]
    keys = shape.get("keys", lengths)
    width, values = shape["width"], shape.get("values", shape["width"])

    def tensor(tokens: int, heads: int, width: int) -> Tensor:
        return torch.randn(tokens, heads, width, device=device).to(dtype)

    of_keys = shape.get("heads of keys", heads)
    return {
        "q": tensor(sum(lengths), heads, width),
        "k": tensor(sum(keys), of_keys, width),
        "v": tensor(sum(keys), of_keys, values),
        "cu_seqlens_q": lists_of(lengths, device),
        "cu_seqlens_k": lists_of(keys, device),
        "causal": shape.get("causal", False),
        "window": shape.get("window"),
        "softcap": shape.get("softcap", 0.0),
    }


def _varlen_gradient_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    arguments = _varlen_arguments(shape, device)
    q, v = arguments["q"], arguments["v"]
    grad = torch.randn(*q.shape[:2], v.shape[2], device=device).to(q.dtype)
    for name in "qkv":
        arguments[name].requires_grad_()
    return {**arguments, "grad": grad}


def _varlen_with_gradients(function: Any) -> Any:
    def gradients(grad: Tensor, **arguments: Any) -> Any:
        inputs = [arguments[name] for name in "qkv"]
        return torch.autograd.grad(function(**arguments), inputs, grad)

    return gradients


def _varlen_reference(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, causal: bool, window: Any,
    softcap: float,
) -> Tensor:  # fmt: skip
    wide = torch.float64 if q.device.type == "cpu" else torch.float32
    left, right = window or (None, None)
    right = 0 if causal else right
    shared, results = q.shape[1] // k.shape[1], []
    firsts = [x.tolist() for x in (cu_seqlens_q, cu_seqlens_k)]
    for i in range(len(firsts[0]) - 1):
        own, others = (slice(x[i], x[i + 1]) for x in firsts)
        queries = q[own].transpose(0, 1).to(wide)
        keys, values = (
            x[others].transpose(0, 1).to(wide).repeat_interleave(shared, 0) for x in (k, v)
        )
        score = queries @ keys.mT * q.shape[2] ** -0.5
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        shift = keys.shape[1] - queries.shape[1]
        rows = torch.arange(queries.shape[1], device=q.device)[:, None] + shift
        away = torch.arange(keys.shape[1], device=q.device) - rows
        seen = torch.ones_like(away, dtype=torch.bool)
        if left is not None:
            seen &= away >= -left
        if right is not None:
            seen &= away <= right
        weights = score.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        results.append((weights @ values).transpose(0, 1))
    return torch.cat(results)


def _varlen_gradient_reference(grad: Tensor, **arguments: Any) -> Any:
    wide = torch.float64 if grad.device.type == "cpu" else torch.float32
    leaves = [arguments[name].detach().to(wide).requires_grad_() for name in "qkv"]
    result = _varlen_reference(**{**arguments, **dict(zip("qkv", leaves))})
    return torch.autograd.grad(result, leaves, grad.to(wide))


def _torch_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    causal: bool,
    window: Any,
    softcap: float,
) -> Tensor:
    if softcap:
        raise NotImplementedError("no cap")
    from torch.nn.attention.varlen import varlen_attn

    longest = cu_seqlens_q.longest, cu_seqlens_k.longest
    if k.shape[1] != q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    result: Tensor
    try:
        if window:
            raise TypeError
        result = varlen_attn(q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, is_causal=causal)
    except TypeError:  # later releases have windows instead
        left, right = window or (-1, -1)
        bounds = (left, 0 if causal else right)
        result = varlen_attn(q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, window_size=bounds)
    return result


def _flash_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any, causal: bool, window: Any, softcap: float,
) -> Tensor:  # fmt: skip
    flash_attn_varlen_func = importlib.import_module(
        "flash_attn.cute.interface"
    ).flash_attn_varlen_func

    result = flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=cu_seqlens_q.longest,
        max_seqlen_k=cu_seqlens_k.longest, causal=causal, window_size=window or (None, None), softcap=softcap,
    )  # fmt: skip
    return result[0] if isinstance(result, tuple) else result


def _pairs(shape: Shape) -> float:
    """Return how many pairs of a query and a key see each other, in each head."""
    left, right = shape.get("window") or (None, None)
    right = 0 if shape.get("causal") else right
    count = 0
    for queries, keys in zip(shape["lengths"], shape.get("keys", shape["lengths"])):
        place = torch.arange(queries) + keys - queries
        low = torch.zeros_like(place) if left is None else (place - left).clamp(min=0)
        high = (
            torch.full_like(place, keys) if right is None else (place + right + 1).clamp(max=keys)
        )
        count += int((high - low).clamp(min=0).sum())
    return count


def _varlen_flops(times: float) -> Any:
    def flops(shape: Shape) -> float:
        widths = shape["width"] + shape.get("values", shape["width"])
        return float(times * shape["heads"] * widths / 2 * _pairs(shape))

    return flops


def _varlen_bytes(times: float) -> Any:
    def moved(shape: Shape) -> float:
        queries = shape["heads"] * sum(shape["lengths"])
        keys = shape.get("heads of keys", shape["heads"]) * sum(shape.get("keys", shape["lengths"]))
        return float(times * 2 * 2 * shape["width"] * (queries + keys))

    return moved


def _draw_varlen(draw: random.Random) -> Shape:
    heads = draw.choice((8, 16, 32))
    total = int(2 ** draw.uniform(11, 15))
    longest = int(2 ** draw.uniform(8, 13))
    lengths: list[int] = []
    while sum(lengths) < total:
        lengths.append(min(draw.randint(1, longest), total - sum(lengths)))
    shape = {
        "lengths": tuple(lengths),
        "heads": heads,
        "heads of keys": heads // draw.choice((1, 1, 4)),
        "width": draw.choice(WIDTHS),
        "causal": draw.random() < 0.7,
    }
    if shape["causal"] and draw.random() < 0.2:
        shape["window"] = (int(2 ** draw.uniform(7, 12)), 0)
    return shape


def _varlen(lengths: tuple[int, ...], heads: int, width: int, causal: bool, **more: Any) -> Shape:
    return {"lengths": lengths, "heads": heads, "width": width, "causal": causal, **more}


VARLEN_NAMED = [
    _varlen((8192,) * 4, 16, 128, True),
    _varlen((4096, 1024, 512, 2048, 300, 212), 32, 128, True, **{"heads of keys": 8}),
    _varlen((512,) * 32, 16, 64, False),
    _varlen((16384,), 16, 128, True, window=(1023, 0)),
]
VARLEN_SMALL = (
    _varlen((130, 1, 0, 70), 4, 64, True, **{"heads of keys": 2, "keys": (130, 40, 3, 200)}),
    _varlen((70, 1, 30), 2, 128, False, **{"keys": (50, 40, 60), "dtype": "float16"}),
    _varlen((70, 1, 30), 2, 64, False, window=(20, 9), softcap=5.0),
    _varlen((70, 30), 2, 128, False, **{"window": (39, 0), "heads of keys": 1}),
    _varlen((70, 30), 2, 80, True),
    _varlen((40, 30), 2, 192, True, values=128),
    _varlen((130, 30), 1, 200, False, **{"keys": (40, 150)}),
)

VARLEN = Problem(
    name="attention_varlen",
    op=attention_varlen,
    arguments=_varlen_arguments,
    reference=_varlen_reference,
    rivals={"torch": _torch_varlen, "FlashAttention": _flash_varlen},
    draw=_draw_varlen,
    flops=_varlen_flops(4),
    bytes=_varlen_bytes(1),
    tolerance=2e-2,
    small=VARLEN_SMALL,
    named=VARLEN_NAMED,
)

VARLEN_GRADIENTS = Problem(
    name="attention_varlen and gradients",
    op=_varlen_with_gradients(attention_varlen),
    arguments=_varlen_gradient_arguments,
    reference=_varlen_gradient_reference,
    rivals={
        "torch": _varlen_with_gradients(_torch_varlen),
        "FlashAttention": _varlen_with_gradients(_flash_varlen),
    },
    draw=_draw_varlen,
    flops=_varlen_flops(14),
    bytes=_varlen_bytes(3),
    tolerance=2e-2,
    small=VARLEN_SMALL,
    named=VARLEN_NAMED,
)

PROBLEMS = (ATTENTION, GRADIENTS, VARLEN, VARLEN_GRADIENTS, DECODE, MLA, ROTARY)
OF_HOPPER = (FP8,)  # no other device runs these
