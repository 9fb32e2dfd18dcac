"""Quantization of rows and blocks as an operator of PyTorch."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, DtypeError, ShapeError, did_you_mean
from gluon_kernels.checks import (
    check_dtype,
    check_dtypes,
    check_names,
)
from gluon_kernels.eager import is_compiling, is_plain
from gluon_kernels.norm.composite import LONGEST
from gluon_kernels.norm.launches import Workspace, prepared
from gluon_kernels.norm.tilings import tiling_of
from gluon_kernels.norm.views import Rows, common_align
from gluon_kernels.plans import Plans, allocator, current_target, key
from gluon_kernels.quant import portable

__all__ = ["quantize"]

LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
BLOCKS = {"block": 128, "mx": 32}
EXPONENTS = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}
WIDTH = 512  # columns of a program that quantizes blocks
ROWS = 4


def _check(x: Tensor, dtype: torch.dtype, scaling: str) -> None:
    check_dtype("quantize", x)
    if dtype not in LIMITS:
        raise DtypeError(
            "unsupported 8-bit dtype",
            argument="dtype",
            expected=", ".join(str(one) for one in LIMITS),
            got=str(dtype),
        )
    if scaling != "row" and scaling not in BLOCKS:
        known = ["row", *BLOCKS]
        raise ArgumentError(
            "unknown scaling",
            argument="scaling",
            expected=", ".join(known),
            got=repr(scaling),
            remedy=did_you_mean(scaling, known) or None,
        )
    most = LONGEST if scaling == "row" else 65535 * WIDTH
    if x.shape[-1] > most:
        raise ShapeError(
            "the row is too long",
            argument="x",
            expected=f"up to {most} columns",
            got=list(x.shape),
        )
    if scaling == "mx" and dtype not in EXPONENTS:
        raise DtypeError(
            "power-of-two scales need a floating-point dtype",
            argument="dtype",
            expected=", ".join(str(one) for one in EXPONENTS),
            got=str(dtype),
        )


def _new_scales(x: Tensor, scaling: str) -> Tensor:
    """Return empty scales; those of blocks of 128 are stored as `matmul_fp8` reads them: block by block, each from 16 bytes on."""
    front = x.shape[:-1]
    if scaling == "row":
        return x.new_empty(front, dtype=torch.float32)
    blocks = (x.shape[-1] + BLOCKS[scaling] - 1) // BLOCKS[scaling]
    if scaling == "mx":
        return x.new_empty((*front, blocks), dtype=torch.uint8)
    rows = 1
    for size in front:
        rows *= size
    whole = x.new_empty((blocks, (rows + 3) // 4 * 4), dtype=torch.float32)
    return (
        whole[:, :rows]
        .unflatten(1, front if front else (1,))
        .movedim(0, -1)
        .reshape(*front, blocks)
    )


def _fake(x: Tensor, dtype: torch.dtype, scaling: str) -> tuple[Tensor, Tensor]:
    _check(x, dtype, scaling)
    return x.new_empty(x.shape, dtype=dtype), _new_scales(x, scaling)


def _codes(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return what a kernel stores values in: their codes on targets that lack a conversion to float8_e4m3fn."""
    target = current_target()
    lacking = target.has("nvidia.ldmatrix") and not target.has("nvidia.fp8")
    if dtype is torch.float8_e4m3fn and lacking:
        return lambda values: values.view(torch.uint8)
    return lambda values: values


def _build(x: Tensor, dtype: torch.dtype, scaling: str) -> Any:
    _check(x, dtype, scaling)
    new = allocator(tuple(x.shape), dtype, x.device)
    if not x.numel():
        return lambda x, dtype, scaling: (new(), _new_scales(x, scaling).fill_(1))
    codes = _codes(dtype)
    src, written, scales = Rows.of(x), codes(new()), _new_scales(x, scaling)
    by_columns = scaling == "block"
    stored = scales.movedim(-1, 0) if by_columns else scales
    pitch = (src.count + 3) // 4 * 4
    of_stored = (stored.shape[0], pitch) if by_columns else tuple(scales.shape)
    new_scales = allocator(of_stored, scales.dtype, x.device)
    of_scales, strides = scales.shape, scales.stride()
    dst, read = Rows.of(written), src.read
    if scaling == "row":
        tiles = tiling_of(src, dst)
        space = Workspace.of_rows(tiles, src.count)
        tensors = (src.tensor, written, scales, *space(x.device))
        launch = prepared(
            portable.quantize_rows,
            (tiles.grid(src.count),),
            (*tensors, src.count, src.columns, src.stride, dst.stride, LIMITS[dtype]),
            tensors,
            **tiles.constants(),
        )

        def by_row(x: Tensor, dtype: Any, scaling: Any) -> Any:
            result, scales = new(), new_scales()
            launch(read(x), codes(result), scales, *space(x.device))
            return result, scales

        return by_row
    size, align = BLOCKS[scaling], common_align(src, dst)
    warp, warps = current_target().warp_size, 4
    vector = min(align, 128 // (8 * x.element_size()))
    threads = min(warp, WIDTH // vector)
    layout = gl.BlockedLayout([1, vector], [warp // threads, threads], [warps, 1], [1, 0])
    tensors = (src.tensor, written, stored)
    launch = prepared(
        portable.quantize_blocks,
        (math.ceil(src.count / ROWS), math.ceil(src.columns / WIDTH)),
        (*tensors, src.count, src.columns, src.stride, dst.stride, pitch, LIMITS[dtype], size),
        tensors,
        EXPONENT=EXPONENTS[dtype] if scaling == "mx" else None,
        ALIGN=align,
        ROWS=ROWS,
        WIDTH=WIDTH,
        layout=layout,
        num_warps=warps,
    )

    def by_block(x: Tensor, dtype: Any, scaling: Any) -> Any:
        result, scales = new(), new_scales()
        launch(read(x), codes(result), scales)
        return result, scales.as_strided(of_scales, strides) if by_columns else scales

    return by_block


_plans = Plans(_build)


@gluon.torch.op("gluon_kernels::quantize", fake=_fake)
def _quantize(x: Tensor, dtype: torch.dtype, scaling: str) -> tuple[Tensor, Tensor]:
    result, scales = _plans((key(x), dtype, scaling), x, dtype, scaling)
    return result, scales


def quantize(
    x: Tensor, dtype: Optional[torch.dtype] = None, *, scaling: str = "row"
) -> tuple[Tensor, Tensor]:
    """Return `x` in 8 bits and the scales of its parts; `x` is about the product of both.

    Args:
        x: [..., columns], float16, bfloat16 or float32 of any strides.
        dtype: torch.float8_e4m3fn (the default), torch.float8_e5m2 or torch.int8.
        scaling: "row" for a float32 scale of each row, [...]; "block" for one of each 128 elements of a row,
            [..., columns / 128], rounded up, stored column by column, as `matmul_fp8` takes them; "mx" for a power of two of each 32 elements, the
            exponents of mxfp8 as uint8 [..., columns / 32] (OCP Microscaling, 2023).

    Returns:
        `(values, scales)`, the values of the shape of `x`. Rows and blocks of zeros have the scale 1.

    Raises:
        DtypeError, ShapeError: no tensor of floats, or an unsupported 8-bit dtype.
        ArgumentError: an unknown scaling.
    """
    check_dtypes(dtype=dtype)
    check_names(scaling=scaling)
    dtype = torch.float8_e4m3fn if dtype is None else dtype
    if not is_compiling() and is_plain(x):
        result, scales = _plans((key(x), dtype, scaling), x, dtype, scaling)
        return result, scales
    _check(x, dtype, scaling)
    result, scales = _quantize(x, dtype, scaling)
    return result, scales
