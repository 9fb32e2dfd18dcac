"""The cases of `rotary`, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from gluon_kernels.attention.rotary import rotary
from gluon_kernels.problem import Problem, Shape

__all__ = ["ROTARY"]


def _arguments(shape: Shape, device: Any) -> dict[str, Any]:
    batch, length, heads, width = (shape[x] for x in ("batch", "length", "heads", "width"))
    x = torch.randn(batch, length, heads, width, device=device).to(torch.bfloat16)
    angles = torch.rand(length, width // 2, device=device) * 6
    return {"x": x, "cos": angles.cos().to(x.dtype), "sin": angles.sin().to(x.dtype)}


def _by_torch(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _draw(draw: random.Random) -> Shape:
    width, heads = draw.choice((64, 128)), draw.choice((1, 8, 12, 32, 40))
    length = int(2 ** draw.uniform(7, 14))
    most = max(1, 2**27 // (length * heads * width))
    batch = min(most, draw.choice((1, 2, 4, 8)))
    return {"batch": batch, "length": length, "heads": heads, "width": width}


ROTARY = Problem(
    name="rotary",
    op=rotary,
    arguments=_arguments,
    reference=lambda x, cos, sin: _by_torch(x.float(), cos.float(), sin.float()),
    rivals={"torch": _by_torch},
    draw=_draw,
    flops=lambda shape: 0.0,
    bytes=lambda s: 4.0 * s["batch"] * s["length"] * s["heads"] * s["width"],
    tolerance=8e-3,
    small=({"batch": 2, "length": 5, "heads": 3, "width": 64},),
    named=(
        {"batch": 1, "length": 16384, "heads": 32, "width": 128},
        {"batch": 8, "length": 2048, "heads": 12, "width": 64},
    ),
)
