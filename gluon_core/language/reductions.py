"""Reductions, scans, gathers, histograms, and the matrix product without a matrix unit."""

from __future__ import annotations

from typing import Any

from gluon_core._triton import tl, tl_core
from gluon_core.builtin import adopt, builtin

__all__ = [
    "associative_scan",
    "cumprod",
    "cumsum",
    "dot_fma",
    "gather",
    "histogram",
    "max",
    "min",
    "reduce",
    "reduce_or",
    "sum",
    "xor_sum",
]

reduce = adopt(
    tl_core.reduce,
    "Combine the elements along `axis` (all of them for None) with `combine_fn`, a `@gluon.jit` "
    "function of two values, or of two groups when `input` is a tuple of tensors. The result's "
    "layout is the SliceLayout of the input's along `axis`.",
)
associative_scan = adopt(
    tl_core.associative_scan,
    "Running combination along `axis` with `combine_fn`, an associative `@gluon.jit` function; "
    "from the end if `reverse`.",
)
# Triton's own library functions: written in the language, so they work on these tensors.
sum = tl.sum
max = tl.max
min = tl.min
xor_sum = tl.xor_sum
reduce_or = tl.reduce_or
cumsum = tl.cumsum
cumprod = tl.cumprod


@builtin
def gather(src: Any, index: Any, axis: Any, _semantic: Any = None) -> Any:
    """`result[.., i, ..] = src[.., index[.., i, ..], ..]` along `axis`; shape and layout of `index`."""
    return _semantic.gather(src, index, axis)


@builtin
def histogram(
    input: Any, num_bins: Any, mask: Any = None, layout: Any = None, _semantic: Any = None
) -> Any:
    """How often each of 0..num_bins-1 occurs in the integers `input` [N]; int32 [num_bins].

    Other values are undefined behaviour where `mask` lets them through: GPUs count them modulo
    num_bins, and the simulator reports them.
    """
    return _semantic.histogram(input, num_bins, mask, layout)


@builtin
def dot_fma(a: Any, b: Any, acc: Any, _semantic: Any = None) -> Any:
    """`a @ b + acc` with fused multiply-adds, no matrix unit.

    Args:
        a: [M, K], layout DotOperandLayout(0, parent, 0).
        b: [K, N], layout DotOperandLayout(1, parent, 0).
        acc: [M, N], layout parent, a BlockedLayout; the dtype of a and b.
    """
    return _semantic.dot_fma(a, b, acc)
