"""Kernels in Gluon and in plain Triton that share one module."""

import triton
import triton.language as tl

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size()], [4], [0])
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    mask = offsets < n
    gl.store(out_ptr + offsets, gl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


@triton.jit
def exponentials(row, maximum):
    return tl.exp(row - maximum)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    values = values.to(tl.float32)
    powers = exponentials(values, values.max(axis=0))
    tl.store(out_ptr + row * columns + offsets, powers / tl.sum(powers, axis=0), mask=mask)


@triton.autotune(
    [triton.Config({"BLOCK": block}, num_warps=1) for block in (16, 32)], key=["columns"]
)
@triton.heuristics({"WHOLE": lambda arguments: arguments["columns"] % arguments["BLOCK"] == 0})
@triton.jit
def row_sum_kernel(x_ptr, out_ptr, columns, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        if WHOLE:
            total += tl.load(x_ptr + row * columns + offsets)
        else:
            total += tl.load(x_ptr + row * columns + offsets, mask=offsets < columns, other=0)
    tl.store(out_ptr + row, tl.sum(total, axis=0))


@triton.jit
def double_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) * 2)
