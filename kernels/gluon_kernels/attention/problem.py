"""The cases of attention and of its gradients, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_kernels.attention.ops import attention
from gluon_kernels.problem import Problem, Shape

__all__ = ["ATTENTION", "GRADIENTS", "PROBLEMS"]


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


def _draw(most: float) -> Any:
    def draw(draw: random.Random) -> Shape:
        while True:
            length = int(2 ** draw.uniform(7, 14))
            length = max(64, length // 64 * 64) if draw.random() < 0.75 else length
            shape = {
                "batch": draw.choice((1, 2, 4, 8)),
                "heads": draw.choice((8, 12, 16, 32)),
                "length": length,
                "width": draw.choice((64, 128)),
                "causal": draw.random() < 0.6,
                "packed": draw.random() < 0.5,
            }
            if 1e9 < _flops(4)(shape) < most:
                return shape

    return draw


def _case(batch: int, heads: int, length: int, width: int, causal: bool, **more: Any) -> Shape:
    named = {"batch": batch, "heads": heads, "length": length, "width": width, "causal": causal}
    return {**named, **more}


NAMED = [
    _case(2, 16, 4096, 128, True), _case(1, 32, 16384, 128, True), _case(4, 16, 2048, 64, False),
    _case(8, 32, 512, 128, True), _case(2, 16, 8192, 64, True),
]  # fmt: skip
SMALL = (
    _case(1, 2, 200, 64, True, packed=True),
    _case(2, 2, 70, 128, False, **{"dtype": "float16", "heads of keys": 1}),
    _case(1, 1, 130, 64, False, keys=300),
    _case(1, 1, 300, 128, True, keys=100),
    _case(1, 2, 70, 80, True),
)

ATTENTION = Problem(
    name="attention",
    op=attention,
    arguments=_arguments,
    reference=_reference,
    rivals={"torch": _torch, "cuDNN": _cudnn},
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
    rivals={"torch": _with_gradients(_torch), "cuDNN": _with_gradients(_cudnn)},
    draw=_draw(1e12),
    flops=_flops(14),
    bytes=_bytes(3),
    tolerance=2e-2,
    small=SMALL,
    named=NAMED,
)

PROBLEMS = (ATTENTION, GRADIENTS)
