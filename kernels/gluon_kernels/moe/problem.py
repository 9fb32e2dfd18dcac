"""The cases of `grouped_matmul`, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from gluon_kernels.moe.ops import grouped_matmul
from gluon_kernels.problem import Problem, Shape

__all__ = ["GROUPED_MATMUL", "PROBLEMS"]


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

PROBLEMS = (GROUPED_MATMUL,)
