"""Values of 8-bit floats with their keys in rows, as the matrix unit of Hopper reads them (PTX ISA, 9.7.15.5.1: 8-bit operands are K-major)."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.dependent import wait_for_predecessor

__all__ = ["keys_in_rows", "transpose"]


@gluon.constexpr_function
def bytes_layout(keys, width):
    """Return where values, [keys, width], are: 16 neighbours of each of 4 keys in a thread, those that become neighbours.

    Eight lanes read 16 bytes of four keys each from different banks; a warp stores 4 bytes for each 16 lines of a row.
    """
    more = [[0, 64]] if width == 128 else []
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [8, 0], *more], [[2, 0], [4, 0], [0, 16], [16, 0], [32, 0]],
        [[64, 0], [0, 32]], [], [keys, width],
    )  # fmt: skip


@gluon.jit
def renamed(tile):
    """Return [keys, D] as [D, keys], with each 16 keys renamed as in `hopper_fp8.weights_operand`: pairs of the second 8 come behind pairs of the first 8."""
    KEYS: gl.constexpr = tile.shape[0]
    D: gl.constexpr = tile.shape[1]
    return tile.reshape([KEYS // 16, 2, 4, 2, D]).permute((4, 0, 2, 1, 3)).reshape([D, KEYS])


@gluon.jit
def keys_in_rows(tile):
    """Return a tile of values from shared memory, [1, 1, keys, D], as [D, keys] with keys renamed."""
    KEYS: gl.constexpr = tile.shape[2]
    D: gl.constexpr = tile.shape[3]
    gl.static_assert(KEYS == 128, "the layout is of 128 keys")
    return renamed(tile.reshape([KEYS, D]).load(bytes_layout(KEYS, D)))


@gluon.jit
def transpose(v, out, strides, of_sequence, length, padded, KEYS: gl.constexpr, D: gl.constexpr):
    """Store [heads, length, D], of 8 bits with strides of batches, heads and rows, as [heads, D, padded], zeros behind the last key.

    Keys are `renamed`. The grid has tiles of KEYS keys, head by head, `of_sequence` in each batch.
    """
    wait_for_predecessor()
    rows: gl.constexpr = gl.portable.blocked_layout([KEYS, D], v.dtype.element_ty)
    columns: gl.constexpr = gl.portable.blocked_layout([D, KEYS], v.dtype.element_ty)
    tiles = gl.cdiv(padded, KEYS)
    first = gl.program_id(0) % tiles * KEYS
    head = gl.program_id(0) // tiles
    batch = (head // of_sequence).to(gl.int64)
    v += batch * strides[0] + (head % of_sequence).to(gl.int64) * strides[1]
    row = first + gl.arange(0, KEYS, gl.SliceLayout(1, rows))
    column = gl.arange(0, D, gl.SliceLayout(0, rows))
    offsets = row.to(gl.int64)[:, None] * strides[2] + column[None, :]
    tile = gl.load(v + offsets, mask=(row < length)[:, None], other=0.0)
    tile = gl.convert_layout(renamed(tile), columns)
    row = gl.arange(0, D, gl.SliceLayout(1, columns))
    column = first + gl.arange(0, KEYS, gl.SliceLayout(0, columns))
    offsets = (head.to(gl.int64) * D + row)[:, None] * padded + column[None, :]
    gl.store(out + offsets, tile, mask=(column < padded)[None, :])
