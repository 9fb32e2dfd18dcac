"""The cases of `topk`, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from gluon_kernels.norm.problem import draw_rows, matrix
from gluon_kernels.problem import Problem, Shape
from gluon_kernels.topk.ops import topk

__all__ = ["PROBLEMS", "TOPK"]


def _arguments(shape: Shape, device: Any) -> dict[str, Any]:
    x = matrix(shape, device)
    if shape.get("equal"):
        x = torch.zeros_like(x)
    return {"x": x, "k": shape["k"], "largest": shape.get("largest", True)}


def _values(x: Tensor, k: int, largest: bool) -> Tensor:
    return topk(x, k, largest=largest).values


def _reference(x: Tensor, k: int, largest: bool) -> Tensor:
    return torch.topk(x.float(), k, -1, largest).values


def _draw(draw: random.Random) -> Shape:
    shape = draw_rows(draw)
    k = min(shape["columns"], draw.choice((1, 2, 6, 8, 16, 32, 50, 64, 100, 256)))
    return {**shape, "k": k}


def _bytes(shape: Shape) -> float:
    size = torch.empty((), dtype=getattr(torch, shape["dtype"])).element_size()
    return float(size * shape["rows"] * shape["columns"])


def _case(rows: int, columns: int, k: int, dtype: str = "bfloat16", **more: Any) -> Shape:
    return {"rows": rows, "columns": columns, "k": k, "dtype": dtype, **more}


TOPK = Problem(
    name="topk",
    op=_values,
    arguments=_arguments,
    reference=_reference,
    rivals={"torch": lambda x, k, largest: torch.topk(x, k, -1, largest)},
    draw=_draw,
    flops=lambda shape: 0.0,
    bytes=_bytes,
    tolerance=0.0,
    small=(
        _case(3, 1000, 8),
        _case(2, 9001, 50, "float32", largest=False, apart=3),
        _case(2, 5000, 3, "float16", equal=True),
        _case(4, 33, 33),
        _case(40, 64, 1, "float32"),
    ),
    named=[
        _case(rows, columns, k)
        for rows, columns in ((1024, 50304), (1024, 131072), (64, 131072), (32768, 1024))
        for k in (8, 50)
    ],
)

PROBLEMS = (TOPK,)
