"""Copies of matrices whose rows begin at multiples of 16 bytes, for units that copy tiles: one launch for both operands."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.plans import allocator

__all__ = ["Padding", "pad"]

BLOCK = 2048


@gluon.jit
def copy_block(x, to, block, rows, columns, pitch, matrices, of_matrix, of_row, BLOCK: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """Copy a block of [matrices, rows, columns], counted in elements of the copy, whose rows have `pitch`, a multiple of 8."""
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [gl.num_warps()], [0])
    kind: gl.constexpr = gl.int64 if WIDE else gl.int32
    i = block.to(kind) * BLOCK + gl.arange(0, BLOCK, layout)
    end = (matrices.to(kind) * rows * pitch) // 8 * 8
    row = i // pitch
    column = i % pitch
    inside = i < end
    at = (row // rows).to(gl.int64) * of_matrix + (row % rows).to(gl.int64) * of_row + column
    value = gl.load(x + at, mask=inside & (column < columns), other=0.0)
    gl.store(to + i, value, mask=inside)


SIZES = ["rows", "columns", "pitch", "matrices", "of_matrix", "of_row"]


@gluon.jit(do_not_specialize=["x_blocks", *(f"{name}_{size}" for name in "xy" for size in SIZES)])
def pad_rows(
    x, x_to, x_rows, x_columns, x_pitch, x_matrices, x_of_matrix, x_of_row,
    y, y_to, y_rows, y_columns, y_pitch, y_matrices, y_of_matrix, y_of_row,
    x_blocks, BLOCK: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Copy `x`, and `y` where there is one: the programs from `x_blocks` on."""
    program = gl.program_id(0)
    if y is None:
        copy_block(x, x_to, program, x_rows, x_columns, x_pitch, x_matrices, x_of_matrix, x_of_row, BLOCK, WIDE)  # fmt: skip
    else:
        if program < x_blocks:
            copy_block(x, x_to, program, x_rows, x_columns, x_pitch, x_matrices, x_of_matrix, x_of_row, BLOCK, WIDE)  # fmt: skip
        else:
            copy_block(y, y_to, program - x_blocks, y_rows, y_columns, y_pitch, y_matrices, y_of_matrix, y_of_row, BLOCK, WIDE)  # fmt: skip


class Padding:
    """Hold the choices for a copy of [batch, rows, columns] with contiguous columns.

    Args:
        wide: such a tensor.
    """

    def __init__(self, wide: torch.Tensor):
        batch, rows, columns = wide.shape
        unit = 16 // wide.element_size()
        self.shape = (batch, rows, -(-columns // unit) * unit)
        of_matrix, of_row = (s if n > 1 else 0 for s, n in zip(wide.stride(), (batch, rows)))
        self.sizes = (rows, columns, self.shape[2], batch, of_matrix, of_row)
        self.elements = batch * rows * self.shape[2]
        self.blocks = -(-self.elements // BLOCK)

        self.empty = allocator(self.shape, wide.dtype, wide.device)


Pair = tuple[torch.Tensor, torch.Tensor]


def pad(a: torch.Tensor, b: torch.Tensor, paddings: tuple[Optional[Padding], Optional[Padding]]) -> Callable[[torch.Tensor, torch.Tensor], Pair]:  # fmt: skip
    """Return `f(a, b)`: the operands of a call, padded where they have a padding."""
    both = [(x, padding) for x, padding in zip((a, b), paddings) if padding is not None]
    copies = [padding.empty() for x, padding in both]
    arguments: list[Any] = []
    for (x, padding), copy in zip(both, copies):
        arguments += [x, copy, *padding.sizes]
    if len(both) == 1:
        arguments += [None, None, *both[0][1].sizes]
    first, wide = both[0][1].blocks, any(padding.elements > 2**31 - BLOCK for _, padding in both)
    total = sum(padding.blocks for _, padding in both)
    tensors = [tensor for (x, _), copy in zip(both, copies) for tensor in (x, copy)]
    launch = gluon.torch.prepare(
        pad_rows, (total,), (*arguments, first, BLOCK, wide), tensors, num_warps=4
    )
    of_a, of_b = paddings

    def both_padded(a: torch.Tensor, b: torch.Tensor) -> Pair:
        to_a, to_b = (of_a.empty(), of_b.empty())  # type: ignore[union-attr]
        launch(a, to_a, b, to_b)
        return to_a, to_b

    def first_padded(a: torch.Tensor, b: torch.Tensor) -> Pair:
        to_a = of_a.empty()  # type: ignore[union-attr]
        launch(a, to_a)
        return to_a, b

    def second_padded(a: torch.Tensor, b: torch.Tensor) -> Pair:
        to_b = of_b.empty()  # type: ignore[union-attr]
        launch(b, to_b)
        return a, to_b

    if of_a is None:
        return second_padded
    return first_padded if of_b is None else both_padded
