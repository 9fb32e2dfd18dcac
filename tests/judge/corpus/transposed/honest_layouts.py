"""honest: two layouts"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def transposed(x, y, rows, columns, SIZE: gl.constexpr, loads: gl.constexpr, stores: gl.constexpr):
    row = gl.program_id(0) * SIZE + gl.arange(0, SIZE, gl.SliceLayout(1, loads))
    column = gl.program_id(1) * SIZE + gl.arange(0, SIZE, gl.SliceLayout(0, loads))
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    value = gl.load(x + (row * columns)[:, None] + column[None, :], mask=mask)
    value = gl.convert_layout(value, stores)
    row = gl.program_id(0) * SIZE + gl.arange(0, SIZE, gl.SliceLayout(1, stores))
    column = gl.program_id(1) * SIZE + gl.arange(0, SIZE, gl.SliceLayout(0, stores))
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    gl.store(y + row[:, None] + (column * rows)[None, :], value, mask=mask)


LOADS = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
STORES = gl.BlockedLayout([2, 1], [8, 4], [1, 4], [0, 1])


def run(x):
    x = x.contiguous()
    y = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device)
    transposed[(-(-x.shape[0] // 32), -(-x.shape[1] // 32))](x, y, *x.shape, 32, LOADS, STORES)
    return y
