"""The launches of grouped products on Hopper."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import LimitError
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.dependent import overlapping
from gluon_kernels.gemm.hopper import DTYPES, widths
from gluon_kernels.moe.hopper import grouped_gemm
from gluon_kernels.moe.hopper_gated import gated_gemm
from gluon_kernels.plans import Launch, multiprocessors

__all__ = ["block_for", "gated", "matrices_for", "plan", "rows_for", "slots_for"]


def block_for(rows: int, groups: int, n: int, processors: int) -> tuple[tuple[int, int, int], int]:
    """Return tile and stages: as large as groups of `rows / groups` rows fill, and narrow where tiles are too few for all processors."""
    tiles = groups * gluon.cdiv(rows, 128 * groups) * gluon.cdiv(n, 128)
    if 2 * tiles <= processors:
        return (128, 64, 64), 8
    if rows <= 160 * groups:
        return (128, 128, 64), 6
    return ((256, 128, 64), 4) if n % 256 and n < 512 else ((128, 256, 64), 4)


def _described(base: Tensor, shape: list[int], strides: list[int], block: list[int]) -> Any:
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[str(base.dtype).rpartition(".")[2]])
    return TensorDescriptor(base, shape, strides, block, layout)


def _aligned(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0 and not any(
        s % 8 for s, size in zip(x.stride()[:-1], x.shape) if size > 1
    )


def _copied(x: Tensor) -> Tensor:
    """Return a contiguous copy, which begins at a multiple of 16 bytes."""
    return x.clone(memory_format=torch.contiguous_format)


def rows_for(a: Tensor) -> Tensor:
    return a if a.stride(1) == 1 and _aligned(a) else _copied(a)


def matrices_for(b: Tensor) -> Tensor:
    """Return `b`, or a contiguous copy where neither its rows nor its columns are contiguous."""
    plain = b.stride(2) == 1 and _aligned(b)
    by_columns = b.stride(1) == 1 and _aligned(b.mT)
    return b if plain or by_columns else _copied(b)


def slots_for(groups: int) -> int:
    """Return for how many groups a kernel is compiled."""
    return max(32, 1 << (groups - 1).bit_length())


def gated(
    x: Tensor, gate_up: Tensor, order: Tensor, ends: Tensor, hidden: Tensor, choices: int, activation: str
) -> Launch:  # fmt: skip
    """Return the launch of the first product of a mixture of experts on (x, gate_up, order, ends, hidden)."""
    n, (groups, k, _) = hidden.shape[1], gate_up.shape
    block_m, block_n, block_k, stages = (128, 128, 64, 4)
    transposed = gate_up.stride(2) != 1
    view = gate_up.mT if transposed else gate_up
    columns = _described(
        gate_up, list(view.shape), [view.stride(0), view.stride(1), 1],
        [1, block_n, block_k] if transposed else [1, block_k, block_n],
    )  # fmt: skip
    programs = multiprocessors(x) if gluon.multiprocessors(x) else 5
    arguments = (
        x, columns, hidden, order, choices, ends, groups, n, k, block_m, block_n, block_k, stages, 8,
        slots_for(groups), transposed, 8, activation,
    )  # fmt: skip
    tensors = (x, gate_up, order, ends, hidden)
    return Launch(gated_gemm, (programs,), arguments, tensors, num_warps=4)


def plan(a: Tensor, b: Tensor, offs: Tensor, empty: Callable[[], Tensor]) -> Callable[..., Tensor]:
    """Return `run(a, b, offs) -> result`."""
    (rows, k), (groups, _, n) = a.shape, b.shape
    (block_m, block_n, block_k), stages = block_for(rows, groups, n, multiprocessors(a))
    x, y, c = rows_for(a), matrices_for(b), empty()
    transposed = y.stride(2) != 1
    view = y.mT if transposed else y
    half = block_m // 2
    columns = tuple(
        _described(
            y, list(view.shape), [view.stride(0), view.stride(1), 1],
            [1, width, block_k] if transposed else [1, block_k, width],
        )
        for width in widths(block_n)
    )  # fmt: skip
    stored = tuple(
        _described(c, [1, rows, n], [rows * n, n, 1], [1, half, min(64, width)])
        for width in widths(block_n)
    )
    pitch = x.stride(0) if rows > 1 else k
    matrix = _described(x, [1, rows, k], [rows * pitch, pitch, 1], [1, half, block_k])
    programs = multiprocessors(a) if gluon.multiprocessors(a) else 5
    slots = slots_for(groups)
    memory = 2.0 * (groups * n * k + rows * (n + k))

    def launch_with(stages: int) -> Launch:
        arguments = (
            matrix, columns, c, stored, n, offs, groups, rows, n, k, block_m, block_n, block_k, stages, 8,
            slots, (False, transposed), 8,
        )  # fmt: skip
        return Launch(
            grouped_gemm,
            (programs,),
            arguments,
            (x, y, c, offs),
            num_warps=4,
            **overlapping(memory),
        )

    while True:
        try:
            launch = launch_with(stages)
            break
        except LimitError:  # conversions of layouts take shared memory that the compiler decides on
            if stages == 2:
                raise
            stages -= 1
    copies = (x is not a, y is not b)

    def run(a: Tensor, b: Tensor, offs: Tensor, out: Optional[Tensor] = None) -> Tensor:
        out = empty() if out is None else out
        launch(rows_for(a) if copies[0] else a, matrices_for(b) if copies[1] else b, out, offs)
        return out

    return run
