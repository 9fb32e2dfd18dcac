"""Softmax, its gradient, and running sums along a dimension that is not the last one, without a transposed copy.

A tensor is seen as [outer, size, inner]. Each program has some columns of one matrix and walks along `size`; the threads of a
warp have adjacent columns. Where that would be few programs with long ways, `size` is cut into chunks and there are two launches: STEP 1 stores
what the others need to know of a chunk, STEP 2 stores the results. STEP 0 does both for columns as a whole.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.plans import (
    Launch,
    allocator,
    current_target,
    multiprocessors,
    sequence,
)

__all__ = [
    "columns_plan",
    "running_sums_of_columns",
    "softmax_backward_of_columns",
    "softmax_of_columns",
]

LOG2E = gl.constexpr(1.4426950408889634)
LOWEST = gl.constexpr(-3.3e38)  # a maximum that can be subtracted
ROWS = 32  # of a step
SHORT = 8 * ROWS  # up to which few programs are enough
MOST_CHUNKS = 64
HELD = 64  # elements of a thread that has all rows of its columns


@gluon.jit
def add(a, b):
    """Return the sum, for scans."""
    return a + b


@gluon.jit
def place_of(size, inner, chunk, layout: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Return offsets of the program's columns in the first row, numbers of rows, which columns exist, first row and last of the chunk."""
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    column = gl.program_id(0) * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
    matrix = gl.program_id(1).to(gl.int64) * size * inner
    begin = gl.program_id(2) * chunk
    return matrix + column, row, column < inner, begin, gl.minimum(begin + chunk, size)


@gluon.jit
def place_of_sums(inner, number, WIDTH: gl.constexpr, layout: gl.constexpr):
    """Return offsets of what chunk `number` has for the program's columns, and which columns exist."""
    column = gl.program_id(0) * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    line = gl.program_id(1).to(gl.int64) * gl.num_programs(2) + number
    return line * inner + column, column < inner


@gluon.jit
def softmax_of_columns(
    src, dst, sums, size, inner, chunk, count, STEP: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Store `exp(x) / sum(exp(x))` of columns; the grid has blocks of columns, matrices and chunks. The second pass reads from caches.

    `sums` is float32 [2, count], `count` the sizes of `outer`, chunks and `inner` multiplied.
    """
    offsets, row, exists, begin, end = place_of(size, inner, chunk, layout, ROWS, WIDTH)
    if STEP != 2:
        most = gl.full([ROWS, WIDTH], LOWEST, gl.float32, layout)
        total = gl.zeros([ROWS, WIDTH], gl.float32, layout)
        for first in range(begin, end, ROWS):
            inside = (first + row < end) & exists
            place = offsets + (first + row).to(gl.int64) * inner
            x = gl.load(src + place, mask=inside, other=-float("inf")).to(gl.float32)
            higher = gl.maximum(most, x)
            total = total * gl.exp2((most - higher) * LOG2E) + gl.exp2((x - higher) * LOG2E)
            most = higher
        highest = gl.max(most, 0)
        whole = gl.sum(total * gl.exp2((most - highest[None, :]) * LOG2E), 0)
    if STEP == 1:
        place, there = place_of_sums(inner, gl.program_id(2), WIDTH, layout)
        gl.store(sums + place, highest, mask=there)
        gl.store(sums + count + place, whole, mask=there)
    else:
        if STEP == 2:
            highest = gl.full([WIDTH], LOWEST, gl.float32, gl.SliceLayout(0, layout))
            whole = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
            for number in range(0, gl.num_programs(2)):
                place, there = place_of_sums(inner, number, WIDTH, layout)
                one = gl.load(sums + place, mask=there, other=LOWEST)
                higher = gl.maximum(highest, one)
                whole = whole * gl.exp2((highest - higher) * LOG2E)
                part = gl.load(sums + count + place, mask=there, other=1.0)
                whole += part * gl.exp2((one - higher) * LOG2E)
                highest = higher
        factor = (1 / whole)[None, :]
        for first in range(begin, end, ROWS):
            inside = (first + row < end) & exists
            place = offsets + (first + row).to(gl.int64) * inner
            x = gl.load(src + place, mask=inside, other=0.0).to(gl.float32)
            value = gl.exp2((x - highest[None, :]) * LOG2E) * factor
            gl.store(dst + place, value.to(dst.dtype.element_ty), mask=inside)


@gluon.jit
def softmax_backward_of_columns(
    grad, result, dst, sums, size, inner, chunk, count, STEP: gl.constexpr, ROWS: gl.constexpr,
    WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Store `result * (grad - sum(result * grad))` of columns; see `softmax_of_columns`."""
    offsets, row, exists, begin, end = place_of(size, inner, chunk, layout, ROWS, WIDTH)
    if STEP != 2:
        products = gl.zeros([ROWS, WIDTH], gl.float32, layout)
        for first in range(begin, end, ROWS):
            inside = (first + row < end) & exists
            place = offsets + (first + row).to(gl.int64) * inner
            g = gl.load(grad + place, mask=inside, other=0.0).to(gl.float32)
            products += g * gl.load(result + place, mask=inside, other=0.0).to(gl.float32)
        along = gl.sum(products, 0)
    if STEP == 1:
        place, there = place_of_sums(inner, gl.program_id(2), WIDTH, layout)
        gl.store(sums + place, along, mask=there)
    else:
        if STEP == 2:
            along = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
            for number in range(0, gl.num_programs(2)):
                place, there = place_of_sums(inner, number, WIDTH, layout)
                along += gl.load(sums + place, mask=there, other=0.0)
        for first in range(begin, end, ROWS):
            inside = (first + row < end) & exists
            place = offsets + (first + row).to(gl.int64) * inner
            g = gl.load(grad + place, mask=inside, other=0.0).to(gl.float32)
            y = gl.load(result + place, mask=inside, other=0.0).to(gl.float32)
            value = y * (g - along[None, :])
            gl.store(dst + place, value.to(dst.dtype.element_ty), mask=inside)


@gluon.jit
def running_sums_of_columns(
    src, dst, sums, size, inner, chunk, count, STEP: gl.constexpr, ROWS: gl.constexpr,
    WIDTH: gl.constexpr, layout: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    """Store the sums of the elements of columns up to each, or from each on; float32 until they are rounded."""
    offsets, row, exists, begin, end = place_of(size, inner, chunk, layout, ROWS, WIDTH)
    before = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    if STEP == 1:
        parts = gl.zeros([ROWS, WIDTH], gl.float32, layout)
        for first in range(begin, end, ROWS):
            inside = (first + row < end) & exists
            place = offsets + (first + row).to(gl.int64) * inner
            parts += gl.load(src + place, mask=inside, other=0.0).to(gl.float32)
        place, there = place_of_sums(inner, gl.program_id(2), WIDTH, layout)
        gl.store(sums + place, gl.sum(parts, 0), mask=there)
    else:
        if STEP == 2:
            least = 0
            most = gl.program_id(2)
            if REVERSE:
                least = most + 1
                most = gl.num_programs(2)
            for number in range(least, most):
                place, there = place_of_sums(inner, number, WIDTH, layout)
                before += gl.load(sums + place, mask=there, other=0.0)
        for step in range(begin, end, ROWS):
            first = step
            if REVERSE:
                first = begin + (end - 1 - begin) // ROWS * ROWS - (step - begin)
            inside = (first + row < end) & exists
            place = offsets + (first + row).to(gl.int64) * inner
            x = gl.load(src + place, mask=inside, other=0.0).to(gl.float32)
            result = gl.associative_scan(x, 0, add, REVERSE) + before[None, :]
            gl.store(dst + place, result.to(dst.dtype.element_ty), mask=inside)
            before += gl.sum(x, axis=0)


def _tile(size: int, inner: int, processors: int) -> tuple[int, int, gl.BlockedLayout]:
    """Return the rows and columns of a step, and its layout: threads have adjacent columns of few rows, where these are enough for all processors."""
    lanes = current_target().warp_size
    rows = 1 << (size - 1).bit_length()
    vector = min(HELD // rows, 8)
    width = 4 * lanes * vector
    if size <= ROWS and inner % vector == 0 and inner >= width * processors:
        return rows, width, gl.BlockedLayout([rows, vector], [1, lanes], [1, 4], [1, 0])
    width = 64 if inner >= 64 * processors else 32
    across = min(lanes, width)
    return ROWS, width, gl.BlockedLayout([4, 1], [-(-lanes // width), across], [4, 1], [1, 0])


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
    processors = multiprocessors(x)
    rows, width, layout = _tile(size, inner, processors)
    blocks = -(-inner // width)
    chunk = size
    if size > SHORT and blocks * outer < processors:
        wanted = min(MOST_CHUNKS, -(-4 * processors // (blocks * outer)), -(-size // (2 * ROWS)))
        chunk = -(-size // (wanted * ROWS)) * ROWS
    chunks = -(-size // chunk)
    count = outer * chunks * inner
    scratch = allocator((2 * count,), torch.float32, x.device)
    empty = allocator(x.shape, dtype, x.device)
    known = len(inputs)

    def launch_of(step: int) -> Launch:
        tensors = (*inputs, empty(), scratch() if step else None)
        grid = (blocks, outer, chunks)
        sizes = (size, inner, chunk, count, step, rows, width, layout, *more)
        return Launch(kernel, grid, (*tensors, *sizes), tensors, num_warps=4)

    if chunks > 1:
        first, second = launch_of(1), launch_of(2)

        tensors = range(known + 2)
        return sequence(known, (empty, scratch), [(first, tensors), (second, tensors)], known)
    return sequence(known, (empty,), [(launch_of(0), (*range(known + 1), None))], known)
