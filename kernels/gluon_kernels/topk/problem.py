"""The cases of `topk` and `cumsum`, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from gluon_kernels.norm.problem import draw_rows, half_of, matrix
from gluon_kernels.problem import Problem, Shape, with_gradients
from gluon_kernels.topk.ops import topk
from gluon_kernels.topk.sums import cumsum

__all__ = ["CUMSUM", "PROBLEMS", "TOPK", "WITH_GRADIENTS"]


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
    rivals={"torch": lambda x, k, largest: torch.topk(x, k, -1, largest).values},
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

CUMSUM = Problem(
    name="cumsum",
    op=cumsum,
    arguments=lambda shape, device: {"x": matrix(shape, device), "dim": shape["dim"]},
    reference=lambda x, dim: x.to(torch.float64).cumsum(dim),
    rivals={"torch": lambda x, dim: torch.cumsum(x, dim)},
    draw=lambda draw: {**draw_rows(draw), "dim": draw.choice((-1, -1, 0))},
    flops=lambda shape: 0.0,
    bytes=lambda shape: 2 * _bytes(shape),
    tolerance=8e-3,
    small=(
        {**_case(3, 1001, 0, "float32", apart=3), "dim": -1},
        {**_case(70, 64, 0), "dim": 0},
    ),
    named=[
        {"rows": rows, "columns": columns, "dtype": "bfloat16", "dim": dim}
        for rows, columns in ((16384, 4096), (1024, 131072))
        for dim in (-1, 0)
    ],
)

PROBLEMS = (TOPK, CUMSUM)

# Those of top-k depend on which of equal elements is taken.
WITH_GRADIENTS = (with_gradients(CUMSUM, "x", draw=lambda draw: half_of(CUMSUM.draw(draw))),)
