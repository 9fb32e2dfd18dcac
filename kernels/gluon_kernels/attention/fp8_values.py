"""Values of 8-bit floats with their keys in rows, as the matrix unit of Hopper reads them (PTX ISA, 9.7.15.5.1: 8-bit operands are K-major)."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.dependent import wait_for_predecessor

__all__ = ["transpose"]


@gluon.jit
def transpose(v, out, strides, of_sequence, length, padded, KEYS: gl.constexpr, D: gl.constexpr):
    """Store [heads, length, D], of 8 bits with strides of batches, heads and rows, as [heads, D, padded], zeros behind the last key.

    Each 16 keys are renamed as in `hopper_fp8.weights_operand`: pairs of the second 8 come behind pairs of the first 8. The grid has tiles of KEYS
    keys and heads, `of_sequence` in each batch.
    """
    wait_for_predecessor()
    rows: gl.constexpr = gl.portable.blocked_layout([KEYS, D], v.dtype.element_ty)
    columns: gl.constexpr = gl.portable.blocked_layout([D, KEYS], v.dtype.element_ty)
    first = gl.program_id(0) * KEYS
    head = gl.program_id(1)
    batch = (head // of_sequence).to(gl.int64)
    v += batch * strides[0] + (head % of_sequence).to(gl.int64) * strides[1]
    row = first + gl.arange(0, KEYS, gl.SliceLayout(1, rows))
    column = gl.arange(0, D, gl.SliceLayout(0, rows))
    offsets = row.to(gl.int64)[:, None] * strides[2] + column[None, :]
    tile = gl.load(v + offsets, mask=(row < length)[:, None], other=0.0)
    tile = tile.reshape([KEYS // 16, 2, 4, 2, D]).permute((4, 0, 2, 1, 3)).reshape([D, KEYS])
    tile = gl.convert_layout(tile, columns)
    row = gl.arange(0, D, gl.SliceLayout(1, columns))
    column = first + gl.arange(0, KEYS, gl.SliceLayout(0, columns))
    offsets = (head * D + row).to(gl.int64)[:, None] * padded + column[None, :]
    gl.store(out + offsets, tile, mask=(column < padded)[None, :])
