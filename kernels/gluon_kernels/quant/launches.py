"""The launches of layers with quantized weights."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.dependent import overlapping
from gluon_kernels.plans import Counters, Scratch, allocator, current_target
from gluon_kernels.quant import tilings
from gluon_kernels.quant.weights import restore_weights

__all__ = ["converting", "few_rows", "many_rows", "restoring"]

_SHARED = 50_000  # bytes of the slots of a program, of which four share a processor; two with more than 64 rows
_MANY_SHARED = 190_000  # bytes of the slots of a program that has a processor to itself
_DEPTH = 64  # weights along K of a step of it
_INTEGERS = {torch.uint8: gl.uint8, torch.int16: gl.int16}
_ROW = 16  # bytes that addresses and strides of TMA are multiples of


def restoring(
    weight: Tensor, scales: Optional[Tensor], format: str, dtype: torch.dtype, k: int, group: int
) -> Callable[..., Tensor]:
    """Return `run(weight, scales) -> [N, K]`, the weights times their scales."""
    n = weight.shape[0]
    empty = allocator((n, k), dtype, weight.device)
    if n * k == 0:
        return lambda weight, scales: empty()
    copied = weight.stride(1) != 1
    raw, result = _bytes(weight), empty()
    packed = k // raw.shape[1]
    vector = 8 // packed
    while k % (vector * packed) or raw.stride(0) % vector:
        vector //= 2
    rows, columns = 8, 512
    strides = (1, 1) if scales is None else (*scales.stride(), 0)[:2]
    grid = (gluon.cdiv(k, columns), gluon.cdiv(n, rows))
    arguments = (
        raw, scales, result, n, k, raw.stride(0), strides, k, 1, format, group, rows, columns, vector
    )  # fmt: skip
    tensors = [x for x in (raw, scales, result) if x is not None]
    launch = gluon.torch.prepare(restore_weights, grid, arguments, tensors, num_warps=4)

    def run(weight: Tensor, scales: Optional[Tensor]) -> Tensor:
        result = empty()
        raw = _bytes(weight.contiguous() if copied else weight)
        launch(*(x for x in (raw, scales, result) if x is not None))
        return result

    return run


def _bytes(weight: Tensor) -> Tensor:
    return (weight if weight.stride(1) == 1 else weight.contiguous()).view(torch.uint8)


def _pairs(weight: Tensor) -> Tensor:
    """Return integers of two weights each, for weights whose rows TMA reads."""
    return weight if weight.dtype is torch.uint8 else weight.view(torch.int16)


def _of_rows(layer: Any, scales: Optional[Tensor]) -> bool:
    """Return True if sums of whole rows are scaled; exponents are scaled with weights."""
    return scales is not None and layer.group == 0 and scales.dtype is not torch.uint8


def _scales(scales: Optional[Tensor], of_rows: bool) -> tuple[Optional[Tensor], Optional[Tensor], tuple[int, ...]]:  # fmt: skip
    """Return the scales of rows, those of groups, and the strides of the latter."""
    if scales is None:
        return None, None, (0, 0)
    return (scales.reshape(-1).contiguous(), None, (0, 0)) if of_rows else (None, scales, (*scales.stride(), 0)[:2])  # fmt: skip


def _readable(rows: Tensor) -> bool:
    """Return True if TMA reads the rows of a matrix."""
    pitch = rows.stride(0) * rows.element_size()
    aligned = pitch % _ROW == 0 and rows.data_ptr() % _ROW == 0
    return bool(aligned and rows.stride(1) == 1 and rows.stride(0) >= rows.shape[1])


def converting(
    layer: Any, x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out: Optional[Tensor], processors: int, hopper: bool,
) -> Optional[Callable[..., Tensor]]:  # fmt: skip
    """Return `run(x, weight, scales, bias, out)` that converts weights within the product; None where restoring them first takes
    less time, or where TMA cannot read the operands. More than a few rows need the matrix unit of Hopper."""
    if out is not None and not out.is_contiguous():
        return None
    rows = x.contiguous().view(layer.rows, layer.k)
    if weight.stride(1) != 1 or not (_readable(rows) and _readable(weight)):
        return None
    packed, exponents = layer.k // weight.shape[1], layer.format == "mxfp4"
    sizes = (layer.rows, layer.n, layer.k, packed, layer.group, exponents, processors)
    tiling = tilings.best(*sizes, hopper=hopper)
    if tiling.kernel == "restored":
        return None
    planned = {"rows": fewest_rows, "tokens": tokens, "few": few_rows, "many": many_rows}[
        tiling.kernel
    ]
    return planned(layer, x, weight, scales, bias, activation, out, processors, tiling)


def fewest_rows(
    layer: Any, x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out: Optional[Tensor], processors: int, tiling: tilings.Tiling,
) -> Callable[..., Tensor]:  # fmt: skip
    """Return `run(x, weight, scales, bias, out)` by `linear_rows`."""
    from gluon_kernels.gemm.launches import vector_of
    from gluon_kernels.quant.rows import linear_rows

    k, n, m = layer.k, layer.n, layer.rows
    of_rows = _of_rows(layer, scales)
    flattened = scales is not None and of_rows and not (scales.ndim == 1 and scales.is_contiguous())
    copied = not x.is_contiguous()
    x = x.contiguous()
    words = weight.view(torch.int32)
    _, block, _, along, columns = tiling
    empty = allocator(layer.shape, layer.dtype, x.device)
    result = empty() if out is None else out
    flat, grouped, strides = _scales(scales, of_rows)
    arguments = (
        words, x, result, bias, grouped, strides, flat, m, n, k, words.stride(0), n,
        layer.group or 1 << 30, layer.format, block, columns * along // 4, along, vector_of(result, n), activation,
    )  # fmt: skip
    of_weights = flat if of_rows else scales
    tensors = [t for t in (words, x, result, bias, of_weights) if t is not None]
    dependent = current_target().has("nvidia.tma")
    options = overlapping(_memory(layer, weight)) if dependent else {}
    grid = (gluon.cdiv(n, columns), 1, 1)
    launch = gluon.torch.prepare(linear_rows, grid, arguments, tensors, num_warps=4, **options)

    def run(x: Tensor, weight: Tensor, scales: Any, bias: Any, out: Optional[Tensor]) -> Tensor:
        result = empty() if out is None else out
        x = x.contiguous() if copied else x
        if flattened:
            scales = scales.reshape(-1).contiguous()
        tensors = (weight.view(torch.int32), x, result, bias, scales)
        launch(*(t for t in tensors if t is not None))
        return result

    return run


def tokens(
    layer: Any, x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out: Optional[Tensor], processors: int, tiling: tilings.Tiling,
) -> Callable[..., Tensor]:  # fmt: skip
    """Return `run(x, weight, scales, bias, out)` by `linear_tokens`."""
    from gluon_kernels.gemm.launches import vector_of
    from gluon_kernels.quant.hopper_tokens import linear_tokens

    k, n, m = layer.k, layer.n, layer.rows
    of_rows = _of_rows(layer, scales)
    flattened = scales is not None and of_rows and not (scales.ndim == 1 and scales.is_contiguous())
    copied = not x.is_contiguous()
    x = x.contiguous()
    words = weight.view(torch.int32)
    _, block, _, splits, columns = tiling
    tiles = gluon.cdiv(n, columns)
    empty = allocator(layer.shape, layer.dtype, x.device)
    result = empty() if out is None else out
    count_of_sums = tiles * splits * block * columns if splits > 1 else 1
    new_sums, counters = Scratch(count_of_sums, x.device), Counters(tiles)
    sums, count = new_sums(), counters(x.device)
    device = x.device
    flat, grouped, strides = _scales(scales, of_rows)
    arguments = (
        words, x, result, sums, count, bias, grouped, strides, flat, m, n, k, words.stride(0), n,
        layer.group or 1 << 30, layer.format, columns, splits, vector_of(result, n), activation,
    )  # fmt: skip
    of_weights = flat if of_rows else scales
    tensors = [t for t in (words, x, result, sums, count, bias, of_weights) if t is not None]
    options = overlapping(_memory(layer, weight))
    grid = (splits, tiles, 1)
    launch = gluon.torch.prepare(linear_tokens, grid, arguments, tensors, num_warps=4, **options)

    def run(x: Tensor, weight: Tensor, scales: Any, bias: Any, out: Optional[Tensor]) -> Tensor:
        result = empty() if out is None else out
        x = x.contiguous() if copied else x
        if flattened:
            scales = scales.reshape(-1).contiguous()
        parts, counted = (sums, count) if splits == 1 else (new_sums(), counters(device))
        tensors = (weight.view(torch.int32), x, result, parts, counted, bias, scales)
        launch(*(t for t in tensors if t is not None))
        return result

    return run


def few_rows(
    layer: Any, x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out: Optional[Tensor], processors: int, tiling: tilings.Tiling,
) -> Callable[..., Tensor]:  # fmt: skip
    """Return `run(x, weight, scales, bias, out)` by `linear_few`."""
    from gluon_kernels.gemm.hopper import DTYPES
    from gluon_kernels.gemm.launches import vector_of
    from gluon_kernels.quant.hopper import linear_few

    k, n, m = layer.k, layer.n, layer.rows
    of_rows = _of_rows(layer, scales)
    flattened = scales is not None and of_rows and not (scales.ndim == 1 and scales.is_contiguous())
    copied = not x.is_contiguous()
    x = x.contiguous()
    rows, raw = x.view(m, k), _pairs(weight)
    _, block_m, depth, splits, block_n = tiling
    scaled = tilings.scaled(block_m, layer.group, layer.format == "mxfp4")
    columns = gluon.cdiv(n, block_n)
    tiles = columns * gluon.cdiv(m, block_m)
    slot = block_n * (depth // 2) * raw.element_size() + block_m * depth * 2
    stages = max(2, min(6, (_SHARED if block_m * block_n <= 4096 else 2 * _SHARED) // slot))
    empty = allocator(layer.shape, layer.dtype, x.device)
    result = empty() if out is None else out
    count_of_sums = tiles * splits * block_m * block_n if splits > 1 else 1
    new_sums, counters = Scratch(count_of_sums, x.device), Counters(tiles)
    sums, count = new_sums(), counters(x.device)
    flat, grouped, strides = _scales(scales, of_rows)
    dtype = DTYPES[str(x.dtype).rpartition(".")[2]]
    described = (
        _described(raw, (n, k // 2), _INTEGERS[raw.dtype], (block_n, depth // 2)),
        _described(rows, (m, k), dtype, (block_m, depth)),
    )
    size = layer.group or 1 << 30
    arguments = (
        *described, result, sums, count, bias, grouped, strides, flat, m, n, k, n, columns,
        size, layer.format, size if scaled else 0, block_m, block_n, depth, stages, splits,
        vector_of(result, n), activation,
    )  # fmt: skip
    of_weights = flat if of_rows else scales
    tensors = [t for t in (raw, rows, result, sums, count, bias, of_weights) if t is not None]
    options = overlapping(_memory(layer, weight))
    launch = gluon.torch.prepare(
        linear_few, (splits, tiles, 1), arguments, tensors, num_warps=4, **options
    )
    device = x.device

    def run(x: Tensor, weight: Tensor, scales: Any, bias: Any, out: Optional[Tensor]) -> Tensor:
        result = empty() if out is None else out
        parts, counted = (sums, count) if splits == 1 else (new_sums(), counters(device))
        x = x.contiguous() if copied else x
        if flattened:
            scales = scales.reshape(-1).contiguous()
        tensors = (_pairs(weight), x, result, parts, counted, bias, scales)
        launch(*(t for t in tensors if t is not None))
        return result

    return run


def many_rows(
    layer: Any, x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out: Optional[Tensor], processors: int, tiling: tilings.Tiling,
) -> Callable[..., Tensor]:  # fmt: skip
    """Return `run(x, weight, scales, bias, out)` by `linear_many`."""
    from gluon_kernels.gemm.hopper import DTYPES
    from gluon_kernels.gemm.launches import vector_of
    from gluon_kernels.quant.hopper_many import linear_many

    k, n, m = layer.k, layer.n, layer.rows
    of_rows = _of_rows(layer, scales)
    flattened = scales is not None and of_rows and not (scales.ndim == 1 and scales.is_contiguous())
    copied = not x.is_contiguous()
    x = x.contiguous()
    rows = x.view(m, k)
    _, block, _, splits, columns = tiling
    tiles = gluon.cdiv(n, columns) * gluon.cdiv(m, block)
    raw = _pairs(weight)
    slot = columns * (_DEPTH // 2) * raw.element_size() + block * _DEPTH * 2
    stages = min(6, _MANY_SHARED // slot)
    empty = allocator(layer.shape, layer.dtype, x.device)
    result = empty() if out is None else out
    count_of_sums = tiles * splits * block * columns if splits > 1 else 1
    new_sums, counters = Scratch(count_of_sums, x.device), Counters(2 * tiles)
    sums, count = new_sums(), counters(x.device)
    flat, grouped, strides = _scales(scales, of_rows)
    dtype = DTYPES[str(x.dtype).rpartition(".")[2]]
    described = (
        _described(raw, (n, k // 2), _INTEGERS[raw.dtype], (columns // 2, _DEPTH // 2)),
        _described(rows, (m, k), dtype, (block, _DEPTH)),
    )
    arguments = (
        *described, result, sums, count, bias, grouped, strides, flat, m, n, k, n,
        layer.group or 1 << 30, layer.format, block, columns, _DEPTH, stages, splits, vector_of(result, n), activation,
    )  # fmt: skip
    of_weights = flat if of_rows else scales
    tensors = [t for t in (raw, rows, result, sums, count, bias, of_weights) if t is not None]
    options = overlapping(_memory(layer, weight))
    grid = (splits, tiles if splits > 1 else min(tiles, processors), 1)
    launch = gluon.torch.prepare(linear_many, grid, arguments, tensors, num_warps=4, **options)
    device = x.device

    def run(x: Tensor, weight: Tensor, scales: Any, bias: Any, out: Optional[Tensor]) -> Tensor:
        result = empty() if out is None else out
        parts, counted = (sums, count) if splits == 1 else (new_sums(), counters(device))
        if flattened:
            scales = scales.reshape(-1).contiguous()
        x = x.contiguous() if copied else x
        tensors = (_pairs(weight), x, result, parts, counted, bias, scales)
        launch(*(t for t in tensors if t is not None))
        return result

    return run


def _memory(layer: Any, weight: Tensor) -> float:
    """Return the bytes of the weights, of 16-bit rows of `x`, and of the result."""
    rows = layer.rows * (2 * layer.k + layer.n * layer.dtype.itemsize)
    return float(weight.numel() * weight.element_size() + rows)


def _described(base: Tensor, shape: tuple[int, int], dtype: Any, block: tuple[int, int]) -> Any:
    layout = gl.NVMMASharedLayout.get_default_for(list(block), dtype)
    return TensorDescriptor(base, list(shape), [base.stride(0), 1], list(block), layout)
