"""The launches of products of 8-bit floats with float32 sums on Hopper."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.dependent import overlapping
from gluon_kernels.gemm.hopper_promoted import gemm_promoted, gemm_promoted_few
from gluon_kernels.gemm.launches import Operand, describe, operand, split_scales, vector_of
from gluon_kernels.gemm.places import reciprocals
from gluon_kernels.plans import Counters, Scratch, allocator, multiprocessors

__all__ = ["BLOCK", "plan"]

BLOCK = 128  # elements of K, and rows and columns of B, that share a scale
_WALK = 8  # rows of tiles that are walked together
_FEW = 64  # rows up to which the transposed product is computed


# Microseconds of a step of a tile by its columns, alone and more with all processors busy, and of a sum with those of other programs; of a sum more with all
# processors busy; then of all else that a tile takes. Measured on an H200, but for those of 64 columns, which the emulator's times of both widths give.
_STEP = {64: (0.23, 0.09, 1.4), 128: (0.31, 0.12, 2.0), 256: (0.8, 0.05, 5.1)}
_STAGES = {64: 8, 128: 5, 256: 4}  # slots of the ring, by the columns of a tile
_SUMS = 2.0
_TILE = 1.0


def tiling_for(m: int, n: int, k: int, processors: int) -> tuple[int, int]:
    """Return the columns of a tile, and how many programs share its K: those of the least expected time."""
    steps = -(-k // BLOCK)
    times = []
    for columns, (alone, busy, of_sum) in _STEP.items():
        tiles = -(-m // BLOCK) * -(-n // columns)
        for splits in range(1, 17):
            if splits > 1 and (tiles * splits > processors or steps < 2 * splits):
                break
            rounds = -(-tiles * splits // processors)
            load = min(1.0, tiles * splits / processors)
            sums = (of_sum + _SUMS * load) * (splits > 1)
            time = rounds * (-(-steps // splits) * (alone + busy * load) + _TILE) + sums
            times.append((time, columns, splits))
    _, columns, splits = min(times)
    return columns, splits


def parts_of(tiles: int, k: int, processors: int) -> int:
    """Return how many programs share the K of a tile of few rows: as many as there is room for, with several steps each."""
    return max(1, min(16, processors // tiles, -(-k // BLOCK) // 4))


def plan(
    a: Tensor, b: Tensor, out_dtype: torch.dtype, by_rows: tuple[Optional[Tensor], ...],
    scales: Optional[tuple[Tensor, Tensor]], out: Optional[Tensor],
) -> Callable[..., Tensor]:  # fmt: skip
    """Return `run(a, b, by_rows, scales, out)` for `a` and `b.mT` with contiguous rows that TMA reads.

    Args:
        a, b: [M, K] and [K, N].
        by_rows: scales of rows and of columns, or None for each.
        scales: of 128 elements of K of each row, [M, K / 128], and of blocks, [K / 128, N / 128]; or None.
        out: a result of this form; None for a new one.
    """
    (m, k), n = a.shape, b.shape[1]
    empty = allocator((m, n), out_dtype, a.device)
    result = empty() if out is None else out
    if result.stride(1) != 1 and n > 1:
        through = plan(a, b, out_dtype, by_rows, scales, None)
        return lambda a, b, by_rows, scales, out: out.copy_(through(a, b, by_rows, scales, None))
    left, right = operand(a), operand(b)
    few = m <= _FEW
    memory = float(m * k + n * k + m * n * out_dtype.itemsize)
    of_blocks = of_steps = None
    if scales is not None:
        view = _ScaleRows(scales[0])
        steps = view(scales[0])
        layout = gl.NVMMASharedLayout(0, 32, rank=2)
        box = [1, max(32, 1 << (m - 1).bit_length()) if few else 128]
        shape = [steps.shape[0], m]
        of_steps = TensorDescriptor(steps, shape, list(steps.stride()), box, layout)
        of_blocks = (scales[1], *scales[1].stride())
    processors = multiprocessors(a)
    row = result.stride(0) if m > 1 else n
    vector = vector_of(result, n, row)
    described: tuple[Any, ...]
    if few:
        rows = max(8, 1 << (m - 1).bit_length())
        kernel, tiles, halves, size = gemm_promoted_few, -(-n // 64), 1, rows * 64
        splits = min(parts_of(tiles, k, processors), rows)
        described = (
            describe(a, left, (rows, BLOCK)),
            describe(b, right, (64, BLOCK)),
            of_steps,
            result,
            row,
        )
        numbers = reciprocals(1, tiles, _WALK)
        rest: tuple[Any, ...] = (
            m,
            n,
            k,
            *numbers,
            rows,
            64,
            12 if rows <= 32 else 8,
            vector,
            splits,
        )
    else:
        columns, splits = tiling_for(m, n, k, processors)
        width = min(columns, BLOCK)
        parts = columns // width
        kernel, tiles, halves, size = (
            gemm_promoted,
            -(-m // 128) * -(-n // columns),
            2 * parts,
            64 * width,
        )
        unit = 16 // result.element_size()
        form, stored = "rows", ()
        if row % unit == 0 and result.data_ptr() % 16 == 0 and splits == 1:
            of_c = Operand((1, m, n), (m * row, row, 1), False)
            form, stored = "tma", (describe(result, of_c, (64, 128 // result.element_size())),) * parts  # fmt: skip
        described = (
            describe(a, left, (64, BLOCK)), (describe(b, right, (width, BLOCK)),) * parts, of_steps,
            result, stored, 0, row,
        )  # fmt: skip
        stages = _STAGES[columns] - (columns == 256 and result.element_size() == 4)
        numbers = reciprocals(-(-m // 128), -(-n // columns), _WALK)
        rest = (1, m, n, k, *numbers, 128, stages, _WALK, form, vector, splits)
    scratch = Scratch(halves * tiles * splits * size if splits > 1 else 1, a.device)
    counters = Counters(halves * tiles)
    sums, count = scratch(), counters(a.device)
    tensors = [a, b, result, sums, count, *(x for x in by_rows if x is not None)]
    if scales is not None:
        tensors += [steps, scales[1]]
    grid = (splits, tiles if splits > 1 else min(tiles, processors))
    arguments = (*described, split_scales(by_rows, (m, n)), of_blocks, sums, count, *rest)
    launch = gluon.torch.prepare(
        kernel, grid, arguments, tensors, num_warps=4, **overlapping(memory)
    )
    device = a.device

    def run(a: Tensor, b: Tensor, by_rows: Any, scales: Any, out: Optional[Tensor]) -> Tensor:
        result = empty() if out is None else out
        both = (sums, count) if splits == 1 else (scratch(), counters(device))
        if scales is None:
            launch(a, b, result, *both, *(x for x in by_rows if x is not None))
        else:
            launch(a, b, result, *both, view(scales[0]), scales[1])
        return result

    return run


class _ScaleRows:
    """Return scales of steps, [M, K / 128], as rows that TMA reads: [K / 128, M], those of the call or a copy."""

    def __init__(self, scales: Tensor):
        by_steps = scales.mT
        good = by_steps.stride(1) == 1 and by_steps.stride(0) % 4 == 0
        self._copied = not (good and by_steps.stride(0) >= scales.shape[0] and scales.data_ptr() % 16 == 0)  # fmt: skip

    def __call__(self, scales: Tensor) -> Tensor:
        rows = scales.mT
        if not self._copied:
            return rows
        steps, m = rows.shape
        return rows.new_empty(steps, -(-m // 4) * 4)[:, :m].copy_(rows)
