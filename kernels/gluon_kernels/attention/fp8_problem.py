"""The cases of attention of 8-bit floats, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_kernels.attention.fp8 import attention_fp8
from gluon_kernels.attention.ops import attention
from gluon_kernels.problem import Problem, Shape

__all__ = ["FP8"]

LARGEST = 448.0  # of e4m3


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return e4m3 and the scale of each head; the tensor keeps its 16-bit form for rivals."""
    scale = x.float().abs().amax((2, 3)) / LARGEST
    narrow = (x.float() / scale[:, :, None, None]).to(torch.float8_e4m3fn)
    narrow.wide = (narrow.float() * scale[:, :, None, None]).to(torch.bfloat16)
    return narrow, scale


def _arguments(shape: Shape, device: Any) -> dict[str, Any]:
    width, heads, length = shape["width"], shape["heads"], shape["length"]
    of_keys, depth = shape.get("heads of keys", heads), shape.get("keys", length)
    sizes = ((heads, length), (of_keys, depth), (of_keys, depth))
    tensors = [torch.randn(shape["batch"], *size, width, device=device) for size in sizes]
    (q, q_scale), (k, k_scale), (v, v_scale) = (_quantized(x) for x in tensors)
    return {
        "q": q, "k": k, "v": v, "q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale,
        "causal": shape.get("causal", False),
    }  # fmt: skip


def _reference(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, causal: bool
) -> Tensor:
    wide = torch.float64 if q.device.type == "cpu" else torch.float32
    shared = q.shape[1] // k.shape[1]
    pairs = ((q, q_scale), (k, k_scale), (v, v_scale))
    q, k, v = (x.to(wide) * scale[:, :, None, None] for x, scale in pairs)
    heads = [
        F.scaled_dot_product_attention(
            q[:, h], k[:, h // shared], v[:, h // shared], is_causal=causal
        )
        for h in range(q.shape[1])
    ]
    return torch.stack(heads, 1)


def _of_16_bits(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rival(
        q: Any, k: Any, v: Any, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, causal: bool
    ) -> Tensor:
        return attend(q.wide, k.wide, v.wide, causal)

    return rival


def _cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    grouped = q.shape[1] != k.shape[1]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def _ours(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return attention(q, k, v, causal=causal)


def _pairs(shape: Shape) -> float:
    pairs = shape["length"] * shape.get("keys", shape["length"])
    return float(shape["batch"] * shape["heads"] * pairs / (2 if shape.get("causal") else 1))


def _bytes(shape: Shape) -> float:
    queries = shape["heads"] * shape["length"]
    keys = shape.get("heads of keys", shape["heads"]) * shape.get("keys", shape["length"])
    return float(shape["batch"] * shape["width"] * (3 * queries + 2 * keys))


def _draw(draw: random.Random) -> Shape:
    while True:
        shape = {
            "batch": draw.choice((1, 2, 4)),
            "heads": draw.choice((8, 16, 32)),
            "length": int(2 ** draw.uniform(8, 14)) // 16 * 16,
            "width": draw.choice((64, 128, 128)),
            "causal": draw.random() < 0.5,
        }
        if draw.random() < 0.25:
            shape["heads of keys"] = int(shape["heads"]) // 4
        if 2e9 < 4 * _pairs(shape) * shape["width"] < 2e12:
            return shape


def _case(batch: int, heads: int, length: int, width: int, causal: bool, **more: Any) -> Shape:
    return {
        "batch": batch, "heads": heads, "length": length, "width": width, "causal": causal, **more,
    }  # fmt: skip


FP8 = Problem(
    name="attention_fp8",
    op=attention_fp8,
    arguments=_arguments,
    reference=_reference,
    rivals={
        "cuDNN in bfloat16": _of_16_bits(_cudnn),
        "attention in bfloat16": _of_16_bits(_ours),
    },
    draw=_draw,
    flops=lambda shape: 4 * _pairs(shape) * shape["width"],
    bytes=_bytes,
    tolerance=0.1,  # weights have three bits behind the first
    small=(
        _case(1, 2, 150, 64, True),
        _case(1, 2, 140, 128, False, keys=200, **{"heads of keys": 1}),
    ),
    named=[
        _case(2, 16, 8192, 128, False), _case(2, 16, 8192, 128, True), _case(4, 16, 4096, 64, False),
        _case(1, 32, 2048, 128, True, **{"heads of keys": 8}),
    ],
)  # fmt: skip
