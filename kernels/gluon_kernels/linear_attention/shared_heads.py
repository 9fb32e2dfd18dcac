"""The gradients of queries and keys that several heads share: sums over those heads, on any device."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.plans import Launch, allocator

__all__ = ["add_heads", "shared_plan"]

ROWS = 16  # of a program


@gluon.jit
def add_rows(
    source, target, rows, width, PARTS: gl.constexpr, ROWS: gl.constexpr, K: gl.constexpr, WIDTH: gl.constexpr
):  # fmt: skip
    """Store some rows, each the sum of PARTS rows."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, K], source.dtype.element_ty)
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.arange(0, K, gl.SliceLayout(0, layout))[None, :]
    inside = (row < rows)[:, None] & (column < WIDTH)
    row = row.to(gl.int64)[:, None]
    total = gl.zeros([ROWS, K], gl.float32, layout)
    for part in gl.static_range(PARTS):
        total += gl.load(source + (row * PARTS + part) * WIDTH + column, mask=inside, other=0.0)
    inside = inside & (column < width)
    gl.store(target + row * width + column, total.to(target.dtype.element_ty), mask=inside)


@gluon.jit
def add_heads(
    q_parts, k_parts, q, k, rows, width, PARTS: gl.constexpr, ROWS: gl.constexpr, K: gl.constexpr, WIDTH: gl.constexpr
):  # fmt: skip
    """Store the sums of PARTS heads: the grid has groups of ROWS rows, for queries and for keys.

    `q_parts` and `k_parts` are float32 [rows, PARTS, WIDTH], covered by K columns; `q` and `k` are [rows, width].
    """
    if gl.program_id(1) == 0:
        add_rows(q_parts, q, rows, width, PARTS, ROWS, K, WIDTH)
    else:
        add_rows(k_parts, k, rows, width, PARTS, ROWS, K, WIDTH)


def shared_plan(q: Tensor, k: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[..., tuple[Tensor, Tensor]]:  # fmt: skip
    """Return `run(q, k) -> (q, k)` for gradients [batch, length, heads, width]: those of a result of this shape and dtype, whose heads they share."""
    parts, width = q.shape[2] // shape[2], q.shape[3]
    if parts == 1:
        return lambda q, k: (_narrow(q, shape, dtype), _narrow(k, shape, dtype))
    new = allocator(shape, dtype, q.device)
    covered = max(16, 1 << (width - 1).bit_length())
    rows = q.numel() // (parts * width)
    results = new(), new()
    launch: Callable[..., Any] = Launch(
        add_heads,
        (-(-rows // ROWS), 2),
        (q, k, *results, rows, shape[3], parts, ROWS, covered, width),
        (q, k, *results),
        num_warps=4,
    )

    def run(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        done = new(), new()
        launch(q, k, *done)
        return done

    return run


def _narrow(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return x[..., : shape[3]].to(dtype).contiguous()
