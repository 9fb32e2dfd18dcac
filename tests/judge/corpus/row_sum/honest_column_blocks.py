"""honest: sixteen rows in each program"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def row_sum(x, out, rows, columns, layout: gl.constexpr):
    row = gl.program_id(0) * 16 + gl.arange(0, 16, gl.SliceLayout(1, layout))
    total = gl.zeros([16], gl.float32, gl.SliceLayout(1, layout))
    for first in range(0, columns, 32):
        offsets = first + gl.arange(0, 32, gl.SliceLayout(0, layout))
        mask = (row < rows)[:, None] & (offsets < columns)[None, :]
        total += gl.sum(
            gl.load(x + (row * columns)[:, None] + offsets[None, :], mask=mask, other=0.0), axis=1
        )
    gl.store(out + row, total, mask=row < rows)


def run(x):
    x = x.contiguous()
    out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    if x.shape[0]:
        row_sum[(-(-x.shape[0] // 16),)](
            x, out, *x.shape, gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
        )
    return out
