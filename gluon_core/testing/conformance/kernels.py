"""Portable kernels that every backend must take, each with its NumPy meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from gluon_core import language as gl
from gluon_core.language import (
    AutoLayout,  # noqa: F401 - named in kernels
    BlockedLayout,
    DotOperandLayout,
    SliceLayout,
    SwizzledSharedLayout,
)
from gluon_core.launch.jit import jit

__all__ = ["KERNELS", "Portable"]

ROWS, COLS, WARPS = 32, 64, 4


@dataclass(frozen=True)
class Portable:
    """A kernel over float32 arrays of ROWS x COLS elements.

    Args:
        kernel: takes pointers to the inputs and the output, then the number of elements.
        inputs: dtypes of the inputs.
        output: dtype of the output.
        meaning: `f(*inputs) -> output`, both flat.
    """

    kernel: Any
    inputs: Sequence[str]
    output: str
    meaning: Callable[..., Any]

    def signature(self) -> Mapping[str, Any]:
        short = {"float32": "fp32", "int32": "i32", "float16": "fp16"}
        names = [p for p in self.kernel.arg_names if p not in ("n", "lanes")]
        kinds = [f"*{short[d]}" for d in (*self.inputs, self.output)]
        return {**dict(zip(names, kinds)), "n": "i32", "lanes": "constexpr"}

    def arrays(self) -> list[Any]:
        random = np.random.default_rng(7)
        shape = ROWS * COLS
        return [random.integers(-50, 50, shape).astype(dtype) for dtype in self.inputs]


@gl.constexpr_function
def matrix_layout(lanes):
    """Rows by columns, for warps of any width."""
    return BlockedLayout([1, 2], [lanes // 8, 8], [WARPS, 1], [1, 0])


@jit
def copy(x, out, n, lanes: gl.constexpr):
    offsets = gl.arange(0, 2048, BlockedLayout([4], [lanes], [4], [0]))
    keep = offsets < n
    gl.store(out + offsets, gl.load(x + offsets, mask=keep, other=0.0), mask=keep)


@jit
def offsets_of(lanes: gl.constexpr):
    layout: gl.constexpr = matrix_layout(lanes)
    rows = gl.arange(0, 32, SliceLayout(1, layout))
    columns = gl.arange(0, 64, SliceLayout(0, layout))
    return rows[:, None] * 64 + columns[None, :]


@jit
def softmax_like(x, out, n, lanes: gl.constexpr):
    offsets = offsets_of(lanes)
    values = gl.load(x + offsets)
    shifted = values - gl.max(values, 1)[:, None]
    weights = gl.exp2(shifted)
    gl.store(out + offsets, weights / gl.sum(weights, 1)[:, None])


@jit
def through_shared(x, out, n, lanes: gl.constexpr):
    offsets = offsets_of(lanes)
    ring = gl.allocate_shared_memory(gl.float32, [2, 32, 64], SwizzledSharedLayout(4, 1, 8, [1, 0]))
    for k in range(2):
        ring.index(k).store(gl.load(x + offsets) * (k + 1))
    transposed = (
        ring.index(1).permute([1, 0]).load(BlockedLayout([2, 1], [8, lanes // 8], [1, 4], [0, 1]))
    )
    gl.store(out + offsets, gl.convert_layout(transposed.permute(1, 0), offsets.type.layout))


@jit
def add(a, b):
    return a + b


@jit
def running_sum(x, out, n, lanes: gl.constexpr):
    offsets = offsets_of(lanes)
    gl.store(out + offsets, gl.associative_scan(gl.load(x + offsets), 1, add))


@jit
def branches(x, out, n, lanes: gl.constexpr):
    offsets = gl.arange(0, 2048, BlockedLayout([4], [lanes], [4], [0]))
    values = gl.load(x + offsets)
    steps = 0
    while steps < 3:
        if steps == 1:
            values = values * 2
        else:
            values = values + 1
        steps += 1
    if n > 100000:
        return
    gl.store(out + offsets, gl.where(values > 0, values, -values))


@jit
def count(x, out, n, lanes: gl.constexpr):
    offsets = gl.arange(0, 2048, BlockedLayout([4], [lanes], [4], [0]))
    gl.atomic_add(out + (gl.load(x + offsets) & 7), 1)


@jit
def product(x, y, out, n, lanes: gl.constexpr):
    layout: gl.constexpr = matrix_layout(lanes)
    offsets = offsets_of(lanes)
    a = gl.convert_layout(gl.load(x + offsets), DotOperandLayout(0, layout, 0))
    b = gl.convert_layout(gl.load(y + offsets).reshape(64, 32), DotOperandLayout(1, layout, 0))
    zero = gl.zeros([32, 32], gl.float32, layout)
    result = gl.dot_fma(a, b, zero)
    rows = gl.arange(0, 32, SliceLayout(1, layout))
    columns = gl.arange(0, 32, SliceLayout(0, layout))
    gl.store(out + rows[:, None] * 32 + columns[None, :], result)


def _matrix(values: Any) -> Any:
    return values.reshape(ROWS, COLS)


def _softmax(x: Any) -> Any:
    weights = np.exp2(_matrix(x) - _matrix(x).max(1, keepdims=True))
    return (weights / weights.sum(1, keepdims=True)).ravel()


def _product(x: Any, y: Any) -> Any:
    result = np.zeros(ROWS * COLS, np.float32)
    result[: ROWS * ROWS] = (_matrix(x) @ y.reshape(COLS, ROWS)).ravel()
    return result


def _count(x: Any) -> Any:
    result = np.zeros(ROWS * COLS, np.int32)
    result[:8] = np.bincount(x & 7, minlength=8)
    return result


KERNELS: Mapping[str, Portable] = {
    "copy": Portable(copy, ["float32"], "float32", lambda x: x),
    "softmax_like": Portable(softmax_like, ["float32"], "float32", _softmax),
    "through_shared": Portable(through_shared, ["float32"], "float32", lambda x: 2 * x),
    "running_sum": Portable(
        running_sum, ["float32"], "float32", lambda x: _matrix(x).cumsum(1).ravel()
    ),
    "branches": Portable(branches, ["float32"], "float32", lambda x: np.abs((x + 1) * 2 + 1)),
    "count": Portable(count, ["int32"], "int32", _count),
    "product": Portable(product, ["float32", "float32"], "float32", _product),
}
