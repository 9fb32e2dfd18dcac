"""Running sums of rows as an operator of PyTorch, on any device: each block of a row begins where the one before ended."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError
from gluon_kernels.checks import (
    FLOATS,
    check_dtype,
    check_dtypes,
    check_integers,
)
from gluon_kernels.eager import is_compiling, planned, route
from gluon_kernels.norm.columns import columns_plan, running_sums_of_columns
from gluon_kernels.norm.launches import reading
from gluon_kernels.norm.rows import row_start
from gluon_kernels.norm.views import Rows, common_align
from gluon_kernels.plans import (
    Launch,
    Plans,
    allocator,
    bound,
    current_target,
    key,
    multiprocessors,
    sequence,
)
from gluon_kernels.topk.portable import add

__all__ = ["cumsum"]

BLOCK = 4096
MOST_PARTS = 1024  # of a row


@gluon.jit
def row_part(
    left, columns, stride, ALIGN: gl.constexpr, layout: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr
):  # fmt: skip
    """Return offsets of a tile from its first element, and which exist; ALIGN divides `columns` and `stride`."""
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    offsets = row[:, None] * (stride // ALIGN * ALIGN) + column[None, :]
    return offsets, (row < left)[:, None] & (column < columns // ALIGN * ALIGN)[None, :]


@gluon.jit
def part_sums(
    src, sums, columns, share, stride, ALIGN: gl.constexpr, WIDTH: gl.constexpr, flat: gl.constexpr
):
    """Store the sum of each part of a row, `share` columns, to float32 [rows, parts]; the grid has rows and parts."""
    layout: gl.constexpr = gl.SliceLayout(0, flat)
    begin = gl.program_id(1).to(gl.int64) * share
    columns = gl.minimum(columns - begin, share).to(gl.int32)
    src = row_start(src, gl.program_id(0), stride // ALIGN * ALIGN) + begin
    total = gl.zeros([WIDTH], gl.float32, layout)
    for start in range(0, columns, WIDTH):
        column = start + gl.arange(0, WIDTH, layout)
        inside = column < columns // ALIGN * ALIGN
        total += gl.portable.load(src, column, inside).to(gl.float32)
    place = gl.program_id(0).to(gl.int64) * gl.num_programs(1) + gl.program_id(1)
    gl.store(sums + place, gl.sum(total, 0))


@gluon.jit
def running_sums(
    src, dst, sums, rows, columns, share, src_stride, dst_stride, ALIGN: gl.constexpr, PARTS: gl.constexpr,
    ROWS: gl.constexpr, WIDTH: gl.constexpr, REVERSE: gl.constexpr, flat: gl.constexpr,
):  # fmt: skip
    """Store the sums of the elements up to each, or from each on; float32 until they are rounded.

    The grid has rows and, if `sums` of `part_sums` are given, parts of up to PARTS, `share` columns each. A block is loaded and stored
    with the layout `flat`, whose threads have as many neighbours as an access of ALIGN elements; the sums have threads with more.
    """
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, WIDTH], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    left = rows - first
    src = row_start(src, first, src_stride // ALIGN * ALIGN)
    dst = row_start(dst, first, dst_stride // ALIGN * ALIGN)
    before = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout))
    if sums is not None:
        part = gl.program_id(1)
        other = gl.arange(0, PARTS, gl.portable.blocked_layout([PARTS], gl.float32))
        wanted = (other > part) if REVERSE else (other < part)
        place = gl.program_id(0).to(gl.int64) * gl.num_programs(1) + other
        others = gl.load(sums + place, mask=wanted & (other < gl.num_programs(1)), other=0.0)
        before += gl.sum(others, 0)
        begin = part.to(gl.int64) * share
        src += begin
        dst += begin
        columns = gl.minimum(columns - begin, share).to(gl.int32)
    start = columns * 0
    forth = WIDTH
    if REVERSE:
        start = (columns - 1) // WIDTH * WIDTH
        forth = -WIDTH
    offsets, inside = row_part(left, columns - start, src_stride, ALIGN, flat, ROWS, WIDTH)
    loaded = gl.portable.load(src + start, offsets, inside)
    for _ in range(0, columns, WIDTH):
        # The next block is under way while this one is added up.
        after = start + forth
        offsets, inside = row_part(left, columns - after, src_stride, ALIGN, flat, ROWS, WIDTH)
        if REVERSE:
            inside = inside & (after >= 0)
        following = gl.portable.load(src + after, offsets, inside)
        x = gl.convert_layout(loaded, layout).to(gl.float32)
        result = gl.associative_scan(x, 1, add, REVERSE) + before[:, None]
        result = gl.convert_layout(result.to(dst.dtype.element_ty), flat)
        offsets, inside = row_part(left, columns - start, dst_stride, ALIGN, flat, ROWS, WIDTH)
        gl.portable.store(dst + start, offsets, result, inside)
        before += gl.sum(x, axis=1)
        loaded = following
        start = after


def _checked(x: Tensor, dtype: Optional[torch.dtype]) -> torch.dtype:
    """Check the tensor, and return the dtype of the sums."""
    check_dtype("cumsum", x)
    if dtype is not None and dtype not in FLOATS:
        raise ArgumentError(
            "unsupported dtype of the result",
            argument="dtype",
            expected="float16, bfloat16 or float32",
            got=str(dtype),
        )
    return x.dtype if dtype is None else dtype


def _build(x: Tensor, dtype: torch.dtype, reverse: bool) -> Any:
    _checked(x, dtype)
    empty = allocator(tuple(x.shape), dtype, x.device)
    if not x.numel():
        return lambda x, dtype, reverse: empty()
    src, new = Rows.of(x), empty()
    dst = Rows.of(new)
    width = min(BLOCK, max(64, 1 << (src.columns - 1).bit_length()))
    rows = max(1, 1024 // width)
    lanes = current_target().warp_size
    warps = min(8, max(1, rows * width // (16 * lanes)))
    align = common_align(src, dst)
    flat = _flat(rows, width, min(align, 16 // x.element_size()), lanes, warps)
    parts, share = _parts(src.count, src.columns, multiprocessors(x))
    scratch = allocator((src.count * parts,), torch.float32, x.device) if parts > 1 else None
    sizes = (src.count, src.columns, share, src.stride, dst.stride)
    tensors = (src.tensor, new, None if scratch is None else scratch())
    launch = Launch(
        running_sums,
        (-(-src.count // rows), parts),
        (*tensors, *sizes, align, 1 << (parts - 1).bit_length(), rows, width, reverse, flat),
        tensors,
        num_warps=warps,
    )
    if scratch is None:
        return reading(sequence(1, (empty,), [(launch, (0, 1, None))], 1), src)
    summing = Launch(
        part_sums,
        (src.count, parts),
        (src.tensor, tensors[2], src.columns, share, src.stride, align, width, flat),
        (src.tensor, tensors[2]),
        num_warps=warps,
    )
    launches = [(summing, (0, 2)), (launch, (0, 1, 2))]
    return reading(sequence(1, (empty, scratch), launches, 1), src)


def _flat(rows: int, width: int, vector: int, lanes: int, warps: int) -> gl.BlockedLayout:
    """Return the layout of a block whose threads have `vector` neighbours each."""
    across = min(lanes, width // vector)
    deep = warps if rows > 1 else 1
    return gl.BlockedLayout([1, vector], [lanes // across, across], [deep, warps // deep], [1, 0])


def _parts(rows: int, columns: int, processors: int) -> tuple[int, int]:
    """Return the number of parts of a row and their columns; few long rows have several, and are read twice."""
    blocks = -(-columns // BLOCK)
    parts = min(MOST_PARTS, blocks, max(1, 4 * processors // rows))
    if rows >= processors or blocks < 8:
        parts = 1
    share = -(-blocks // parts) * BLOCK
    return (1, columns) if parts == 1 else (-(-columns // share), share)


def _build_columns(x: Tensor, dim: int, dtype: torch.dtype, reverse: bool) -> Any:
    _checked(x, dtype)

    def transposed(x: Tensor, dim: int, dtype: torch.dtype, reverse: bool) -> Tensor:
        x = x.movedim(dim, -1)
        result: Tensor = _plans((key(x), dtype, reverse), x, dtype, reverse)
        return result.movedim(-1, dim)

    return columns_plan(running_sums_of_columns, (x,), dim, dtype, reverse) or transposed


_plans = Plans(_build)
_plans_of_columns = Plans(_build_columns)


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.dtype, ctx.reverse = inputs[0].dtype, inputs[2]


def _gradient(ctx: Any, grad: Tensor) -> Any:
    return _cumsum(grad, ctx.dtype, not ctx.reverse), None, None


@gluon.torch.op(
    "gluon_kernels::cumsum",
    shape=lambda x, dtype, reverse: (x.shape, dtype),
    backward=_gradient,
    setup_context=_keep,
    vmap="one_by_one",
)
def _cumsum(x: Tensor, dtype: torch.dtype, reverse: bool) -> Tensor:
    result: Tensor = _plans((key(x), dtype, reverse), x, dtype, reverse)
    return result


@lru_cache(maxsize=256)
def _watched(dim: int, dtype: torch.dtype, of: torch.dtype) -> Callable[..., Tensor]:
    """Return `f(x) -> sums along dim` with a gradient; `of` is the dtype of `x`."""

    def gradients_again(ctx: Any, grad: Tensor) -> Any:
        return _cumsum(grad.movedim(dim, -1), of, True).movedim(-1, dim)

    return planned(
        lambda x: _plan_of(x, dim, dtype, False),
        lambda needs, grad: _plan_of(grad, dim, of, True),
        gradients_again,
    )


def _plan_of(x: Tensor, dim: int, dtype: torch.dtype, reverse: bool) -> Callable[..., Tensor]:
    """Return `f(x) -> sums`."""
    if dim == -1 or dim == x.ndim - 1:
        return bound(_plans.find((key(x), dtype, reverse), x, dtype, reverse), dtype, reverse)
    more = dim % x.ndim, dtype, reverse
    return bound(_plans_of_columns.find((key(x), *more), x, *more), *more)


def _sums(x: Tensor, dim: int, dtype: torch.dtype, reverse: bool) -> Tensor:
    result: Tensor
    if dim == -1 or dim == x.ndim - 1:
        known_by = key(x), dtype, reverse
        plan = _plans.get(known_by)  # a frame less than a call of the plans
        if plan is None:
            plan = _plans.find(known_by, x, dtype, reverse)
        result = plan(x, dtype, reverse)
    else:
        dim %= x.ndim
        result = _plans_of_columns((key(x), dim, dtype, reverse), x, dim, dtype, reverse)
    return result


def _row_sums(x: Tensor, reverse: bool = False) -> Tensor:
    """Return the sums along the last dimension, in the dtype of `x`; plans of these have short keys."""
    known_by = (key(x), True) if reverse else key(x)
    plan = _plans.get(known_by)
    if plan is None:
        plan = _plans.find(known_by, x, x.dtype, reverse)
    result: Tensor = plan(x, None, reverse)
    return result


_watched_rows = planned(
    lambda x: _plan_of(x, -1, x.dtype, False),
    lambda needs, grad: _plan_of(grad, -1, grad.dtype, True),
    lambda ctx, grad: _cumsum(grad, grad.dtype, True),
)


def cumsum(x: Tensor, dim: int = -1, *, dtype: Optional[torch.dtype] = None) -> Tensor:
    """Return the sums of the elements up to each along a dimension, added up in float32. Gradients flow to `x`.

    Args:
        x: float16, bfloat16 or float32 of any shape and strides.
        dim: the dimension of the sums.
        dtype: of the result, that of `x` by default.

    Returns:
        A tensor of the shape of `x`.

    Raises:
        DtypeError, ShapeError: no tensor of floats, or a scalar.
        ArgumentError: the dimension is out of range, or the dtype is not supported.
    """
    result: Tensor
    if type(dim) is not int or dtype is not None:
        check_integers(dim=dim)
        check_dtypes(dtype=dtype)
    if not (x is None or is_compiling()):
        way = route(x)
        if way and dtype is None and (dim == -1 or dim == x.ndim - 1):
            result = _row_sums(x) if way == 1 else _watched_rows(x)
            return result
        if way == 1:
            kind = x.dtype if dtype is None else dtype
            if dim == -1 or -x.ndim <= dim < x.ndim:
                return _sums(x, dim, kind, False)
        elif way == 2 and (dim == -1 or -x.ndim <= dim < x.ndim):
            result = _watched(dim, x.dtype if dtype is None else dtype, x.dtype)(x)
            return result
    kind = _checked(x, dtype)
    if not -x.ndim <= dim < x.ndim:
        raise ArgumentError(
            "the dimension is out of range",
            argument="dim",
            expected=f"{-x.ndim} to {x.ndim - 1}",
            got=dim,
        )
    if dim not in (-1, x.ndim - 1):
        return cumsum(x.movedim(dim, -1), dtype=kind).movedim(-1, dim)
    result = _cumsum(x, kind, False)
    return result
