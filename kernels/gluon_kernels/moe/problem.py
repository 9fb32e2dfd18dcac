"""The cases of `grouped_matmul` and `moe`, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from gluon_kernels.moe.layer import moe
from gluon_kernels.moe.ops import grouped_matmul
from gluon_kernels.problem import Problem, Shape

__all__ = ["GROUPED_MATMUL", "MOE", "PROBLEMS"]


def _draw(draw: random.Random) -> Shape:
    groups = draw.choice((1, 4, 8, 16, 64, 128))
    rows = int(2 ** draw.uniform(6, 15.5))
    n, k = (64 * int(2 ** draw.uniform(2, 6.8)) for _ in range(2))
    return {"groups": groups, "rows": rows, "N": n, "K": k, "stored": draw.choice(("N", "T")), "seed": draw.randrange(1000)}  # fmt: skip


def _arguments(shape: Shape, device: Any) -> dict[str, Any]:
    rows, groups, n, k = (shape[x] for x in ("rows", "groups", "N", "K"))
    draw = random.Random(shape.get("seed", 0))
    ends = sorted(draw.randint(0, rows) for _ in range(groups - 1)) + [rows]
    if shape.get("even"):
        ends = [rows * (i + 1) // groups for i in range(groups)]
    a = torch.randn(rows, k, device=device).bfloat16()
    b = torch.randn(groups, n, k, device=device).bfloat16().mT
    if shape.get("stored", "N") == "N":
        b = b.contiguous()
    return {"a": a, "b": b, "offs": torch.tensor(ends, dtype=torch.int32, device=device)}


def _reference(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    parts, begin = [], 0
    for i, end in enumerate(offs.tolist()):
        parts.append(a[begin:end].float() @ b[i].float())
        begin = end
    return torch.cat(parts)


def _torch(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    result: Tensor = torch._grouped_mm(a, b, offs=offs)
    return result


def _case(groups: int, rows: int, n: int, k: int, **more: Any) -> Shape:
    return {"groups": groups, "rows": rows, "N": n, "K": k, **more}


GROUPED_MATMUL = Problem(
    name="grouped_matmul",
    op=grouped_matmul,
    arguments=_arguments,
    reference=_reference,
    rivals={"torch": _torch},
    draw=_draw,
    flops=lambda shape: 2.0 * shape["rows"] * shape["N"] * shape["K"],
    bytes=lambda s: 2.0 * (s["rows"] * (s["N"] + s["K"]) + s["groups"] * s["N"] * s["K"]),
    tolerance=5e-3,
    small=(
        _case(4, 300, 272, 80, seed=1),
        _case(3, 200, 136, 72, stored="T", seed=2),
        _case(40, 130, 64, 64, seed=3),
        _case(2, 700, 264, 40, seed=4, stored="T"),
    ),
    named=(
        _case(8, 8192, 4096, 4096, even=True),
        _case(64, 8192, 2048, 4096, even=True),
        _case(128, 4096, 2048, 2048, even=True),
        _case(8, 300, 4096, 4096, even=True),
    ),
)


def _draw_layer(draw: random.Random) -> Shape:
    while True:
        experts = draw.choice((8, 16, 64, 128))
        choices = draw.choice((1, 2, 4, 8))
        tokens = int(2 ** draw.uniform(0, 13))
        width, inner = (128 * int(2 ** draw.uniform(2, 5.5)) for _ in range(2))
        if experts * width * inner * 6 < 8e9 and choices <= experts:
            return {"tokens": tokens, "choices": choices, "experts": experts, "width": width, "inner": inner}  # fmt: skip


def _layer_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    tokens, choices, experts, width, inner = (
        shape[x] for x in ("tokens", "choices", "experts", "width", "inner")
    )
    dtype = getattr(torch, shape.get("dtype", "bfloat16"))
    x = torch.randn(tokens, width, device=device).to(dtype)
    scores = torch.rand(tokens, experts, device=device)
    weights, ids = scores.topk(choices, dim=1)
    if shape.get("dropped"):
        ids[:: shape["dropped"], 0] = -1
    gate_up = torch.empty(experts, 2 * inner, width, device=device, dtype=dtype)
    gate_up = gate_up.normal_(std=width**-0.5).mT
    down = torch.empty(experts, width, inner, device=device, dtype=dtype)
    down = down.normal_(std=inner**-0.5).mT
    if shape.get("stored") == "N":
        gate_up, down = gate_up.contiguous(), down.contiguous()
    ids = ids.to(getattr(torch, shape.get("ids", "int64")))
    return {"x": x, "weights": weights, "experts": ids, "gate_up": gate_up, "down": down}


def _layer_reference(
    x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    result = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(len(gate_up)):
        tokens, choices = torch.where(experts == expert)
        if len(tokens):
            gates, values = (x[tokens].float() @ gate_up[expert].float()).chunk(2, 1)
            rows = (torch.nn.functional.silu(gates) * values) @ down[expert].float()
            result.index_add_(0, tokens, rows * weights[tokens, choices].float()[:, None])
    return result


def _torch_layer(
    x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """Return the layer by torch's grouped product and indexing."""
    tokens, choices = experts.shape
    flat = experts.reshape(-1)
    listed, order = flat.sort(stable=True)
    numbers = torch.arange(len(gate_up), device=x.device, dtype=flat.dtype)
    offs = torch.searchsorted(listed, numbers, right=True).to(torch.int32)
    gates, values = torch._grouped_mm(x[order // choices], gate_up, offs=offs).chunk(2, 1)
    rows = torch._grouped_mm(torch.nn.functional.silu(gates) * values, down, offs=offs)
    rows = rows * weights.reshape(-1)[order, None].to(rows.dtype)
    return torch.zeros_like(x).index_add_(0, order // choices, rows)


def _layer(tokens: int, choices: int, experts: int, width: int, inner: int, **more: Any) -> Shape:
    return {"tokens": tokens, "choices": choices, "experts": experts, "width": width, "inner": inner, **more}  # fmt: skip


MOE = Problem(
    name="moe",
    op=moe,
    arguments=_layer_arguments,
    reference=_layer_reference,
    rivals={"torch._grouped_mm and indexing": _torch_layer},
    draw=_draw_layer,
    flops=lambda s: 6.0 * s["tokens"] * s["choices"] * s["width"] * s["inner"],
    bytes=lambda s: 6.0 * min(s["experts"], s["tokens"] * s["choices"]) * s["width"] * s["inner"],
    tolerance=2e-2,
    small=(
        _layer(40, 2, 4, 72, 40),
        _layer(150, 3, 5, 136, 144, stored="N", dtype="float16"),
        _layer(1, 4, 40, 64, 64, ids="int32"),
        _layer(33, 2, 3, 64, 24, dropped=3),
    ),
    named=(
        _layer(4096, 8, 64, 2048, 1408),
        _layer(8192, 2, 8, 4096, 4096),
        _layer(64, 8, 128, 2048, 768),
        _layer(1, 8, 128, 2048, 768),
    ),
)

PROBLEMS = (GROUPED_MATMUL, MOE)
