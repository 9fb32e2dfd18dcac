"""Reductions, scans, gathers, histograms, and the matrix product without a matrix unit."""

# Functions that `library` declares have no body.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import inspect
from typing import Any, Optional, TypeVar, Union, overload

from gluon_core._triton import constexpr, tensor, tl, tl_core, tl_tuple, unwrap
from gluon_core.errors import ArgumentError
from gluon_core.language._library import library
from gluon_core.plugin.ops import builtin, code_generator, semantic_layer
from gluon_core.plugin.typing import Const, Dtype, KernelFunction, RegisterLayout, Values
from gluon_core.semantic import layer

__all__ = [
    "argmax",
    "argmin",
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


# A tensor, or several of one shape in a tuple.
Scanned = TypeVar("Scanned", tensor, Values)


@builtin
def reduce(
    input: Scanned,
    axis: Optional[Const[int]],
    combine_fn: KernelFunction,
    keep_dims: Const[bool] = False,
) -> Scanned:
    """Combine the elements along `axis`, all of them for None.

    Args:
        input: a tensor, or a tuple of tensors of one shape.
        combine_fn: a `@gluon.jit` function of two values, or of two groups when `input` is a tuple.
        keep_dims: the dimension stays, with size 1.

    Returns:
        A tensor, or a tuple of them, in the SliceLayout of the input's layout along `axis`.
    """
    _check_combine(combine_fn, input)
    return tl_core.reduce(
        input, axis, combine_fn, keep_dims, _semantic=semantic_layer(), _generator=code_generator()
    )


@builtin
def associative_scan(
    input: Scanned, axis: Const[int], combine_fn: KernelFunction, reverse: Const[bool] = False
) -> Scanned:
    """Scan along `axis` with `combine_fn`, an associative `@gluon.jit` function; from
    the end if `reverse`. `input` is a tensor or a tuple of tensors, as for `reduce`."""
    _check_combine(combine_fn, input)
    return tl_core.associative_scan(
        input, axis, combine_fn, reverse, _semantic=semantic_layer(), _generator=code_generator()
    )


def _check_combine(combine_fn: Any, input: Any) -> None:
    function = unwrap(combine_fn)
    plain = getattr(function, "fn", None)
    if plain is None:
        return  # a call of an object that is no function reports it
    values = unwrap(input)
    takes = 2 * (len(values) if isinstance(values, (tuple, list, tl_tuple)) else 1)
    signature = inspect.signature(plain)
    try:
        signature.bind(*range(takes))
    except TypeError:
        raise ArgumentError(
            "the function does not take two values for each input",
            argument="combine_fn",
            expected=f"{takes} parameters",
            got=f"{plain.__name__}{signature}",
        ) from None


# Triton's own library functions: written in the language, so they work on these tensors.


@library(tl.sum)
def sum(
    input: tensor,
    axis: Optional[Const[int]] = None,
    keep_dims: Const[bool] = False,
    dtype: Optional[Dtype] = None,
) -> tensor:
    """Sum along `axis`, of all elements by default.

    Args:
        keep_dims: the dimension stays, with size 1.
        dtype: of the result; by default narrow integers are summed as int32, narrow floats as
            float32.
    """
    ...


@overload
def max(
    input: tensor, axis: Optional[Const[int]] = None, *, keep_dims: Const[bool] = False
) -> tensor: ...


@overload
def max(
    input: tensor,
    axis: Optional[Const[int]] = None,
    return_indices: Const[bool] = False,
    return_indices_tie_break_left: Const[bool] = True,
    keep_dims: Const[bool] = False,
) -> Any: ...


@library(tl.max)
def max(
    input: tensor,
    axis: Optional[Const[int]] = None,
    return_indices: Const[bool] = False,
    return_indices_tie_break_left: Const[bool] = True,
    keep_dims: Const[bool] = False,
) -> Any:
    """Return the greatest along `axis`, of all elements by default.

    Args:
        return_indices: return a pair, with where they are.
        return_indices_tie_break_left: of equal ones, the first.
        keep_dims: the dimension stays, with size 1.
    """
    ...


@overload
def min(
    input: tensor, axis: Optional[Const[int]] = None, *, keep_dims: Const[bool] = False
) -> tensor: ...


@overload
def min(
    input: tensor,
    axis: Optional[Const[int]] = None,
    return_indices: Const[bool] = False,
    return_indices_tie_break_left: Const[bool] = True,
    keep_dims: Const[bool] = False,
) -> Any: ...


@library(tl.min)
def min(
    input: tensor,
    axis: Optional[Const[int]] = None,
    return_indices: Const[bool] = False,
    return_indices_tie_break_left: Const[bool] = True,
    keep_dims: Const[bool] = False,
) -> Any:
    """Return the smallest along `axis`; see `max`."""
    ...


@library(tl.argmax)
def argmax(
    input: tensor,
    axis: Optional[Const[int]],
    tie_break_left: Const[bool] = True,
    keep_dims: Const[bool] = False,
) -> tensor:
    """Return the index of the greatest along `axis`, of all elements for None; int32.

    Args:
        tie_break_left: of equal ones, the first; any of them otherwise.
        keep_dims: the dimension stays, with size 1.
    """
    ...


@library(tl.argmin)
def argmin(
    input: tensor,
    axis: Optional[Const[int]],
    tie_break_left: Const[bool] = True,
    keep_dims: Const[bool] = False,
) -> tensor:
    """Return the index of the smallest along `axis`; see `argmax`."""
    ...


@library(tl.xor_sum)
def xor_sum(
    input: tensor, axis: Optional[Const[int]] = None, keep_dims: Const[bool] = False
) -> tensor:
    """Exclusive or along `axis`, of all elements by default; integers."""
    ...


@library(tl.reduce_or)
def reduce_or(input: tensor, axis: Optional[Const[int]], keep_dims: Const[bool] = False) -> tensor:
    """Or along `axis`, of all elements for None; integers."""
    ...


@library(tl.cumsum)
def cumsum(
    input: tensor,
    axis: Const[int] = 0,
    reverse: Const[bool] = False,
    dtype: Optional[Dtype] = None,
) -> tensor:
    """Return the running sum along `axis`, from the end if `reverse`; `dtype` as for `sum`."""
    ...


@library(tl.cumprod)
def cumprod(
    input: tensor,
    axis: Const[int] = 0,
    reverse: Const[bool] = False,
    dtype: Optional[Dtype] = None,
) -> tensor:
    """Return the running product along `axis`, from the end if `reverse`; `dtype` from Triton 3.9 on."""
    ...


@builtin
def gather(src: tensor, index: tensor, axis: Const[int]) -> tensor:
    """Gather `result[.., i, ..] = src[.., index[.., i, ..], ..]` along `axis`; shape and layout of
    `index`."""
    return layer().gather(src, index, axis)


@builtin
def histogram(
    input: tensor,
    num_bins: Const[int],
    mask: Optional[Union[tensor, constexpr]] = None,
    layout: Optional[RegisterLayout] = None,
) -> tensor:
    """Count the occurrences of each of 0..num_bins-1 in the integers `input` [N]; int32 [num_bins].

    Other values are undefined behaviour where `mask` lets them through: GPUs count them modulo
    num_bins, and the simulator reports them.
    """
    return layer().histogram(input, num_bins, mask, layout)


@builtin
def dot_fma(a: tensor, b: tensor, acc: tensor) -> tensor:
    """Compute `a @ b + acc` with fused multiply-adds, no matrix unit.

    Args:
        a: [M, K], layout DotOperandLayout(0, parent, 0).
        b: [K, N], layout DotOperandLayout(1, parent, 0).
        acc: [M, N], layout parent, a BlockedLayout; the dtype of a and b.
    """
    return semantic_layer().dot_fma(a, b, acc)
