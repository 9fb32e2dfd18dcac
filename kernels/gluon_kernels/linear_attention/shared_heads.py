"""The gradients of queries and keys that several heads share: sums over those heads, on any device."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.launches import CHUNK, Sizes, stages_of
from gluon_kernels.plans import Launch, allocator

__all__ = [
    "add_chunks",
    "add_heads",
    "chunks_plan",
    "heads_of_group",
    "shared_plan",
    "stages_and_writers",
]

ROWS = 16  # of a program
HEADS, CHUNKS = 8, 128  # of a program, at a time
# Microseconds on an H200, as far as they tell numbers of heads of a group apart: of a head, and of the rest of a group; bytes of sums in float32 in a microsecond.
HEAD, GROUP, BYTES = 2.6, 5.0, 3.5e6


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


@gluon.jit
def add_chunks(parts, result, rows, heads, ROWS: gl.constexpr, HEADS: gl.constexpr):
    """Store the sums of `rows` rows of heads, in the order of rows; the grid has groups of HEADS heads, and sums."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, HEADS], parts.dtype.element_ty)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    head = gl.program_id(0) * HEADS + gl.arange(0, HEADS, gl.SliceLayout(0, layout))
    parts += gl.program_id(1).to(gl.int64) * rows * heads
    total = gl.zeros([ROWS, HEADS], gl.float32, layout)
    for first in range(0, rows, ROWS):
        inside = (row + first < rows)[:, None] & (head < heads)[None, :]
        offsets = (row + first).to(gl.int64)[:, None] * heads + head[None, :]
        total += gl.load(parts + offsets, mask=inside, other=0.0)
    gl.store(result + gl.program_id(1) * heads + head, gl.sum(total, 0), mask=head < heads)


def chunks_plan(x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return `run(x) -> sums` of float32 [sums, batch, chunks, heads] over batches and chunks."""
    count, batch, chunks, heads = x.shape
    new = allocator((count, heads), torch.float32, x.device)
    result = new()
    launch: Callable[..., Any] = Launch(
        add_chunks,
        (-(-heads // HEADS), count),
        (x, result, batch * chunks, heads, CHUNKS, HEADS),
        (x, result),
        num_warps=4,
    )

    def run(x: Tensor) -> Tensor:
        result = new()
        launch(x, result)
        return result

    return run


def heads_of_group(sizes: Sizes, processors: int) -> int:
    """Return how many heads that share keys a program takes at a time, so that all programs take the least time."""
    chunks = sizes.batch * sizes.heads * sizes.chunks

    def time(each: int) -> float:
        groups = -(-chunks // each)
        sums = 0 if each == sizes.shared else groups * CHUNK * sizes.width * 4 * 4
        return -(-groups // processors) * (GROUP + each * HEAD) + sums / BYTES

    return min((n for n in range(1, sizes.shared + 1) if sizes.shared % n == 0), key=time)


def stages_and_writers(x: Tensor, read: Sequence[tuple[int, ...]], own: Sequence[tuple[int, ...]], block: tuple[int, ...]) -> tuple[int, bool]:  # fmt: skip
    """Return how many tiles of a group there is room for, and True if it leaves room for two writers of blocks of gradients such as `x`, which take fewer instructions."""
    stages = stages_of(read, own)
    return stages, x.element_size() == 2 and stages_of(read, [*own, block, block]) == stages


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
