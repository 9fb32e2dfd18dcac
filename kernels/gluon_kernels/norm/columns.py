"""Softmax, its gradient, and running sums along a dimension that is not the last one, without a transposed copy.

A tensor is seen as [outer, size, inner]. Each program has some columns of one matrix and walks along `size`; the threads of a
warp have adjacent columns.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.plans import Launch, allocator, current_target, multiprocessors

__all__ = [
    "columns_plan",
    "running_sums_of_columns",
    "softmax_backward_of_columns",
    "softmax_of_columns",
]

LOG2E = gl.constexpr(1.4426950408889634)
LOWEST = gl.constexpr(-3.3e38)  # a maximum that can be subtracted
ROWS = 32  # of a step
SHORT = 2048  # up to which few programs are enough


@gluon.jit
def add(a, b):
    """Return the sum, for scans."""
    return a + b


@gluon.jit
def place_of(size, inner, layout: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Return offsets of the program's columns in the first row, numbers of rows, and which columns exist."""
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    column = gl.program_id(0) * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
    matrix = gl.program_id(1).to(gl.int64) * size * inner
    return matrix + column, row, column < inner


@gluon.jit
def softmax_of_columns(
    src, dst, size, inner, ROWS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr
):
    """Store `exp(x) / sum(exp(x))` of columns; the grid has blocks of columns, and matrices. The second pass reads from caches."""
    offsets, row, exists = place_of(size, inner, layout, ROWS, WIDTH)
    most = gl.full([ROWS, WIDTH], LOWEST, gl.float32, layout)
    total = gl.zeros([ROWS, WIDTH], gl.float32, layout)
    for first in range(0, size, ROWS):
        inside = (first + row < size) & exists
        place = offsets + (first + row).to(gl.int64) * inner
        x = gl.load(src + place, mask=inside, other=-float("inf")).to(gl.float32)
        higher = gl.maximum(most, x)
        total = total * gl.exp2((most - higher) * LOG2E) + gl.exp2((x - higher) * LOG2E)
        most = higher
    highest = gl.max(most, 0)[None, :]
    factor = 1 / gl.sum(total * gl.exp2((most - highest) * LOG2E), 0)[None, :]
    for first in range(0, size, ROWS):
        inside = (first + row < size) & exists
        place = offsets + (first + row).to(gl.int64) * inner
        x = gl.load(src + place, mask=inside, other=0.0).to(gl.float32)
        value = gl.exp2((x - highest) * LOG2E) * factor
        gl.store(dst + place, value.to(dst.dtype.element_ty), mask=inside)


@gluon.jit
def softmax_backward_of_columns(
    grad, result, dst, size, inner, ROWS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr
):
    """Store `result * (grad - sum(result * grad))` of columns; see `softmax_of_columns`."""
    offsets, row, exists = place_of(size, inner, layout, ROWS, WIDTH)
    along = gl.zeros([ROWS, WIDTH], gl.float32, layout)
    for first in range(0, size, ROWS):
        inside = (first + row < size) & exists
        place = offsets + (first + row).to(gl.int64) * inner
        g = gl.load(grad + place, mask=inside, other=0.0).to(gl.float32)
        along += g * gl.load(result + place, mask=inside, other=0.0).to(gl.float32)
    shift = gl.sum(along, 0)[None, :]
    for first in range(0, size, ROWS):
        inside = (first + row < size) & exists
        place = offsets + (first + row).to(gl.int64) * inner
        g = gl.load(grad + place, mask=inside, other=0.0).to(gl.float32)
        y = gl.load(result + place, mask=inside, other=0.0).to(gl.float32)
        gl.store(dst + place, (y * (g - shift)).to(dst.dtype.element_ty), mask=inside)


@gluon.jit
def running_sums_of_columns(
    src, dst, size, inner, ROWS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
    REVERSE: gl.constexpr,
):  # fmt: skip
    """Store the sums of the elements of columns up to each, or from each on; float32 until they are rounded."""
    offsets, row, exists = place_of(size, inner, layout, ROWS, WIDTH)
    before = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    last = (size - 1) // ROWS * ROWS
    for step in range(0, size, ROWS):
        first = step
        if REVERSE:
            first = last - step
        inside = (first + row < size) & exists
        place = offsets + (first + row).to(gl.int64) * inner
        x = gl.load(src + place, mask=inside, other=0.0).to(gl.float32)
        result = gl.associative_scan(x, 0, add, REVERSE) + before[None, :]
        gl.store(dst + place, result.to(dst.dtype.element_ty), mask=inside)
        before += gl.sum(x, axis=0)


def columns_plan(
    kernel: Any, inputs: Sequence[Tensor], dim: int, dtype: torch.dtype, *more: Any
) -> Optional[Callable[..., Tensor]]:
    """Return `run(*inputs, ...)` by one of these kernels; None where a transposed copy takes less time.

    Args:
        inputs: of one shape.
        dtype: of the result.
        more: the last arguments of the kernel.
    """
    x = inputs[0]
    size, inner, outer = x.shape[dim], math.prod(x.shape[dim + 1 :]), math.prod(x.shape[:dim])
    dense = all(one.is_contiguous() for one in inputs)
    if not dense or not x.numel() or inner < 16 or outer >= 1 << 16:
        return None
    width = 64 if inner >= 64 * multiprocessors(x) else 32
    programs = -(-inner // width) * outer
    if size > SHORT and programs < multiprocessors(x):
        return None
    empty = allocator(x.shape, dtype, x.device)
    tensors = (*inputs, empty())
    lanes = current_target().warp_size
    layout = gl.BlockedLayout([4, 1], [-(-lanes // width), min(lanes, width)], [4, 1], [1, 0])
    launch = Launch(
        kernel,
        (-(-inner // width), outer),
        (*tensors, size, inner, ROWS, width, layout, *more),
        tensors,
        num_warps=4,
    )
    if len(inputs) == 1:

        def of_one(x: Tensor, *known: Any) -> Tensor:
            new = empty()
            launch(x, new)
            return new

        return of_one

    def of_two(x: Tensor, y: Tensor, *known: Any) -> Tensor:
        new = empty()
        launch(x, y, new)
        return new

    return of_two
