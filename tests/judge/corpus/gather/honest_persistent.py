"""honest: five programs"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def gather(table, index, out, count, width, BLOCK: gl.constexpr, layout: gl.constexpr):
    column = gl.arange(0, BLOCK, layout=layout)
    for i in range(gl.program_id(0), count, gl.num_programs(0)):
        value = gl.load(table + gl.load(index + i) * width + column, mask=column < width)
        gl.store(out + i * width + column, value, mask=column < width)


def run(table, index):
    table, index = table.contiguous(), index.contiguous()
    out = torch.empty((index.shape[0], table.shape[1]), dtype=table.dtype, device=table.device)
    gather[(5,)](
        table,
        index,
        out,
        index.shape[0],
        table.shape[1],
        64,
        gl.BlockedLayout([1], [32], [2], [0]),
        num_warps=2,
    )
    return out
