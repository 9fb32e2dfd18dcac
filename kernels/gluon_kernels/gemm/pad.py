"""Copies of matrices whose rows begin at multiples of 32 or 128 bytes, for units that copy tiles: one launch for both operands."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.dependent import overlapping, wait_for_predecessor
from gluon_kernels.plans import allocator

__all__ = ["Padding", "pad"]

BLOCK = 4096
SECTOR, LINE = 32, 128  # bytes that memory and the L2 cache move at least, and keep together


@gluon.constexpr_function
def in_warps(rows, width, unit, warps):
    """Return a layout in which a thread has `unit` elements of a row that follow each other, and a warp as much of it as fits."""
    lanes = min(32, width // unit)
    along = [warps, 1] if rows * lanes >= 32 * warps else [1, warps]
    return gl.BlockedLayout([1, unit], [32 // lanes, lanes], along, [1, 0])


@gluon.jit
def copy_block(x, to, block, rows, columns, pitch, matrices, of_matrix, of_row, BLOCK: gl.constexpr, FORM: gl.constexpr):  # fmt: skip
    """Copy BLOCK elements of [matrices, rows, columns] to rows of `pitch`: WIDTH of a row, VECTOR by each load, UNIT by each store."""
    WIDTH: gl.constexpr = FORM[0]
    VECTOR: gl.constexpr = FORM[1]
    UNIT: gl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    ROWS: gl.constexpr = BLOCK // WIDTH
    layout: gl.constexpr = in_warps(ROWS, WIDTH, UNIT, gl.num_warps())
    of_matrix = of_matrix // VECTOR * VECTOR  # the compiler sees the multiples
    of_row = of_row // VECTOR * VECTOR
    columns = columns // VECTOR * VECTOR
    pitch = pitch // UNIT * UNIT
    across = gl.cdiv(pitch, WIDTH)
    row = block // across * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = block % across * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    offsets = (row // rows).to(gl.int64) * of_matrix + (row % rows).to(gl.int64) * of_row
    inside = (row < matrices * rows)[:, None]
    value = gl.load(x + offsets[:, None] + column[None, :], mask=inside & (column < columns)[None, :], other=0.0)  # fmt: skip
    place = row.to(gl.int64)[:, None] * pitch + column[None, :]
    gl.store(to + place, value, mask=inside & (column < pitch)[None, :])


SIZES = ["rows", "columns", "pitch", "matrices", "of_matrix", "of_row"]


@gluon.jit(do_not_specialize=["x_blocks", *(f"{name}_{size}" for name in "xy" for size in SIZES)])
def pad_rows(
    x, x_to, x_rows, x_columns, x_pitch, x_matrices, x_of_matrix, x_of_row,
    y, y_to, y_rows, y_columns, y_pitch, y_matrices, y_of_matrix, y_of_row,
    x_blocks, BLOCK: gl.constexpr, FORMS: gl.constexpr,
):  # fmt: skip
    """Copy `x`, and `y` where there is one: the programs from `x_blocks` on."""
    wait_for_predecessor()
    program = gl.program_id(0)
    if y is None:
        copy_block(x, x_to, program, x_rows, x_columns, x_pitch, x_matrices, x_of_matrix, x_of_row, BLOCK, FORMS[0])  # fmt: skip
    else:
        if program < x_blocks:
            copy_block(x, x_to, program, x_rows, x_columns, x_pitch, x_matrices, x_of_matrix, x_of_row, BLOCK, FORMS[0])  # fmt: skip
        else:
            copy_block(y, y_to, program - x_blocks, y_rows, y_columns, y_pitch, y_matrices, y_of_matrix, y_of_row, BLOCK, FORMS[1])  # fmt: skip


class Padding:
    """Hold the choices for a copy of [batch, rows, columns] with contiguous columns.

    Args:
        wide: such a tensor.
    """

    def __init__(self, wide: torch.Tensor):
        batch, rows, columns = wide.shape
        unit = (
            LINE if columns * wide.element_size() >= 8 * LINE else SECTOR
        ) // wide.element_size()
        self.shape = (batch, rows, -(-columns // unit) * unit)
        of_matrix, of_row = (s if n > 1 else 0 for s, n in zip(wide.stride(), (batch, rows)))
        most = 16 // wide.element_size() if wide.data_ptr() % 16 == 0 else 1
        self.sizes = (rows, columns, self.shape[2], batch, of_matrix, of_row)
        width = min(1024, max(32, 1 << (self.shape[2] - 1).bit_length()))
        self.form = (width, math.gcd(most, columns, of_matrix, of_row))
        self.blocks = -(-batch * rows // (BLOCK // width)) * -(-self.shape[2] // width)
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
    first, forms = both[0][1].blocks, tuple(padding.form for _, padding in both)
    total = sum(padding.blocks for _, padding in both)
    tensors = [tensor for (x, _), copy in zip(both, copies) for tensor in (x, copy)]
    memory = 2.0 * sum(x.numel() * x.element_size() for x, _ in both)
    launch = gluon.torch.prepare(
        pad_rows,
        (total,),
        (*arguments, first, BLOCK, forms),
        tensors,
        num_warps=4,
        **overlapping(memory),
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
