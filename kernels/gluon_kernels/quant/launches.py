"""The launches of layers with quantized weights."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import LimitError
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.dependent import overlapping
from gluon_kernels.gemm.hopper import DTYPES
from gluon_kernels.gemm.launches import vector_of
from gluon_kernels.plans import Counters, Scratch, allocator, current_target
from gluon_kernels.quant import tilings
from gluon_kernels.quant.hopper import linear_few
from gluon_kernels.quant.hopper_copies import columns_of
from gluon_kernels.quant.hopper_groups import linear_groups
from gluon_kernels.quant.hopper_sums import boxes
from gluon_kernels.quant.hopper_tokens import linear_tokens
from gluon_kernels.quant.rows import linear_rows
from gluon_kernels.quant.tilings import Tiling
from gluon_kernels.quant.weights import restore_weights

__all__ = ["converting", "restoring"]

_SHARED = 50_000  # bytes of the slots of a program, of which four share a processor; two with more than 64 rows
_WHOLE = 1 << 30  # weights that share a scale, where a row has one
_INTEGERS = {torch.uint8: gl.uint8, torch.int16: gl.int16, torch.int32: gl.int32}
_WORDY = 32  # rows of `x` of a tile of `linear_groups`, from which on it loads weights of 4 bits in words
_ROW = 16  # bytes that addresses and strides of TMA are multiples of


def restoring(
    weight: Tensor, scales: Optional[Tensor], format: str, dtype: torch.dtype, k: int, group: int
) -> Callable[..., Tensor]:
    """Return `run(weight, scales, dtype, k) -> [N, K]`, the weights times their scales."""
    n = weight.shape[0]
    empty = allocator((n, k), dtype, weight.device)
    if n * k == 0:
        return lambda *unused: empty()
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
    moved = float(raw.numel() + n * k * dtype.itemsize)
    options = overlapping(moved) if current_target().has("nvidia.tma") else {}
    launch = gluon.torch.prepare(restore_weights, grid, arguments, tensors, num_warps=4, **options)

    def run(weight: Tensor, scales: Optional[Tensor], *settings: Any) -> Tensor:
        result = empty()
        raw = _bytes(weight.contiguous() if copied else weight)
        launch(*(x for x in (raw, scales, result) if x is not None))
        return result

    return run


def _bytes(weight: Tensor) -> Tensor:
    return (weight if weight.stride(1) == 1 else weight.contiguous()).view(torch.uint8)


class Form(NamedTuple):
    """The launch of a kernel for a tiling.

    Args:
        kernel: that is launched.
        operands: the kernel's arguments for the weights and for `x`: tensors, or descriptors of them.
        rest: its arguments after the sizes, but for the last two, which are the elements of a store and the activation.
        grid: of the launch.
        tiles: how many have a counter by which their programs wait for each other; 0 where the kernel has none.
        sums: float32 by which programs exchange sums.
    """

    kernel: Any
    operands: tuple[Any, ...]
    rest: tuple[Any, ...]
    grid: tuple[int, int, int]
    tiles: int = 0
    sums: int = 1


def converting(
    layer: Any, x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out: Optional[Tensor], processors: int, hopper: bool,
) -> Optional[Callable[..., Tensor]]:  # fmt: skip
    """Return `run(x, weight, scales, bias, out)` that converts weights within the product; None where restoring them first takes
    less time, or where TMA cannot read the operands. More than a few rows need the matrix unit of Hopper."""
    if out is not None and not out.is_contiguous():
        return None
    copied, x = not x.is_contiguous(), x.contiguous()
    rows = x.view(layer.rows, layer.k)
    if weight.stride(1) != 1 or not (_readable(rows) and _readable(weight)):
        return None
    packed, exponents = layer.k // weight.shape[1], layer.format == "mxfp4"
    sizes = (layer.rows, layer.n, layer.k, packed, layer.group, exponents, processors)
    tiling = tilings.best(*sizes, hopper=hopper)
    if tiling.kernel == "restored":
        return None
    view, formed = _FORMS[tiling.kernel]
    raw = view(weight)
    form = formed(layer, rows, raw, scales, tiling, processors)
    of_rows, grouped, strides, flattened = _scales(scales, layer)
    if flattened:
        scales = of_rows
    empty = allocator(layer.shape, layer.dtype, x.device)
    result, device = empty() if out is None else out, x.device
    new_sums, counters = Scratch(form.sums, device), Counters(max(form.tiles, 1))
    shared = (new_sums(), counters(device)) if form.tiles else ()
    vector = vector_of(result, layer.n)
    arguments = (
        *form.operands, result, *shared, bias, grouped, strides, of_rows,
        layer.rows, layer.n, layer.k, *form.rest, vector, activation,
    )  # fmt: skip
    tensors = [t for t in (raw, rows, result, *shared, bias, scales) if t is not None]
    options = {}
    if current_target().has("nvidia.tma"):
        moved = layer.rows * (2 * layer.k + layer.n * layer.dtype.itemsize)
        options = overlapping(float(weight.numel() * weight.element_size() + moved))
    try:
        launch = gluon.torch.prepare(
            form.kernel, form.grid, arguments, tensors, num_warps=4, **options
        )
    except LimitError:  # another compiler needs more shared memory than the one that was measured
        return None
    apart = form.sums > 1

    def run(x: Tensor, weight: Tensor, scales: Any, bias: Any, out: Optional[Tensor]) -> Tensor:
        result = empty() if out is None else out
        x = x.contiguous() if copied else x
        if flattened:
            scales = scales.reshape(-1).contiguous()
        own = (new_sums(), counters(device)) if apart else shared
        launch(*(t for t in (view(weight), x, result, *own, bias, scales) if t is not None))
        return result

    return run


def _scales(
    scales: Optional[Tensor], layer: Any
) -> tuple[Optional[Tensor], Optional[Tensor], tuple[int, ...], bool]:
    """Return the scales of rows, which are multiplied with sums, those of groups and their strides; and True if the former are a copy.

    Exponents are multiplied with weights, even if a row has one.
    """
    if scales is None:
        return None, None, (0, 0), False
    if layer.group > 0 or scales.dtype is torch.uint8:
        return None, scales, (*scales.stride(), 0)[:2], False
    flat = scales.ndim == 1 and scales.is_contiguous()
    return scales if flat else scales.reshape(-1).contiguous(), None, (0, 0), not flat


def _words(weight: Tensor) -> Tensor:
    return weight.view(torch.int32)


def _pairs(weight: Tensor) -> Tensor:
    """Return integers of two weights each, for weights whose rows TMA reads."""
    return weight if weight.dtype is torch.uint8 else weight.view(torch.int16)


def _rows(
    layer: Any, x: Tensor, raw: Tensor, scales: Optional[Tensor], tiling: Tiling, processors: int
) -> Form:
    size = layer.group or _WHOLE
    each = tiling.columns * tiling.splits // 4
    rest = raw.stride(0), layer.n, size, layer.format, tiling.block, each, tiling.splits
    grid = (gluon.cdiv(layer.n, tiling.columns), 1, 1)
    return Form(linear_rows, (raw, x), rest, grid)


def _tokens(
    layer: Any, x: Tensor, raw: Tensor, scales: Optional[Tensor], tiling: Tiling, processors: int
) -> Form:
    size = layer.group or _WHOLE
    rest = raw.stride(0), layer.n, size, layer.format, tiling.columns, tiling.splits
    tiles = gluon.cdiv(layer.n, tiling.columns)
    grid = (tiling.splits, tiles, 1)
    return Form(linear_tokens, (raw, x), rest, grid, tiles, _sums(tiling, tiles))


def _few(
    layer: Any, x: Tensor, raw: Tensor, scales: Optional[Tensor], tiling: Tiling, processors: int
) -> Form:
    size = layer.group or _WHOLE
    _, block, depth, splits, columns, _ = tiling
    across = gluon.cdiv(layer.n, columns)
    tiles = across * gluon.cdiv(layer.rows, block)
    slot = columns * (depth // 2) * raw.element_size() + block * depth * 2
    stages = max(2, min(6, (_SHARED if block * columns <= 4096 else 2 * _SHARED) // slot))
    described = (
        _described(raw, (layer.n, layer.k // 2), _INTEGERS[raw.dtype], (columns, depth // 2)),
        _described(x, (layer.rows, layer.k), _dtype(x), (block, depth)),
    )
    scaled = size if tilings.scaled(block, layer.group, layer.format == "mxfp4") else 0
    rest = layer.n, across, size, layer.format, scaled, block, columns, depth, stages, splits
    grid = (splits, tiles, 1)
    return Form(linear_few, described, rest, grid, tiles, _sums(tiling, tiles))


def _groups(
    layer: Any, x: Tensor, raw: Tensor, scales: Optional[Tensor], tiling: Tiling, processors: int
) -> Form:
    size = layer.group or _WHOLE
    _, block, depth, splits, columns, along = tiling
    down = columns // 64
    tiles = gluon.cdiv(layer.n, columns) * gluon.cdiv(layer.rows, block)
    packed = 2 // raw.element_size()
    steps = gluon.cdiv(layer.k, depth)
    once = splits > 0 and (splits * along > 1 or tiles <= processors)
    stages, fits = tilings.slots(
        tiling, packed, layer.dtype.itemsize, gluon.cdiv(steps, max(splits, 1)) if once else None
    )
    if packed == 2 and block >= _WORDY:
        raw = raw.view(torch.int32)
    elements, narrow = raw.shape[1], tilings.narrow(block, layer.rows)
    widths = columns_of(block) if narrow else tuple(width for width, _ in boxes(block))
    described = (
        _described(
            raw, (layer.n, elements), _INTEGERS[raw.dtype], (64, depth * elements // layer.k)
        ),
        tuple(_described(x, (layer.rows, layer.k), _dtype(x), (width, 64)) for width in widths),
    )
    shared, sharers = tilings.shares(tiles, steps, processors)
    rest = (
        layer.n, shared, sharers, size, layer.format, block, down, along, depth, tilings.part(block, layer.format == "mxfp4"), _in_words(scales, layer), layer.rows <= block and not once, once, fits, narrow, stages, splits
    )  # fmt: skip
    if splits == 0:
        programs = max(sharers, min(tiles, processors))
        grid, numbers, sums = (programs, 1, 1), programs * down, programs * block * columns
    else:
        grid = (splits, processors, 1)
        if once:
            grid = (splits, gluon.cdiv(layer.rows, block), gluon.cdiv(layer.n, columns))
        numbers, sums = tiles * down, _sums(tiling, tiles)
    return Form(linear_groups, described, rest, grid, numbers, sums)


_FORMS = {
    "rows": (_words, _rows),
    "tokens": (_words, _tokens),
    "few": (_pairs, _few),
    "groups": (_pairs, _groups),
}


def _in_words(scales: Optional[Tensor], layer: Any) -> bool:
    """Return True if the exponents of 128 weights of a row are four bytes that a thread may load at once."""
    if scales is None or scales.dtype is not torch.uint8 or layer.group != 32 or layer.k % 128:
        return False
    return bool(scales.stride(1) == 1 and (scales.stride(0) | scales.data_ptr()) % 4 == 0)


def _sums(tiling: Tiling, tiles: int) -> int:
    """Return how many sums programs exchange."""
    return tiles * tiling.splits * tiling.block * tiling.columns if tiling.splits > 1 else 1


def _dtype(x: Tensor) -> Any:
    return DTYPES[str(x.dtype).rpartition(".")[2]]


def _readable(rows: Tensor) -> bool:
    """Return True if TMA reads the rows of a matrix."""
    pitch = rows.stride(0) * rows.element_size()
    aligned = pitch % _ROW == 0 and rows.data_ptr() % _ROW == 0
    return bool(aligned and rows.stride(1) == 1 and rows.stride(0) >= rows.shape[1])


def _described(base: Tensor, shape: tuple[int, int], dtype: Any, block: tuple[int, int]) -> Any:
    layout = gl.NVMMASharedLayout.get_default_for(list(block), dtype)
    return TensorDescriptor(base, list(shape), [base.stride(0), 1], list(block), layout)
