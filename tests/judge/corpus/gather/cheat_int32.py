"""result.wrong memory.bounds: reads 64-bit indices as 32-bit ones"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def gather(table, index, out, width, BLOCK: gl.constexpr, layout: gl.constexpr):
    column = gl.arange(0, BLOCK, layout=layout)
    row = gl.load(index + gl.program_id(0))
    value = gl.load(table + row * width + column, mask=column < width)
    gl.store(out + gl.program_id(0) * width + column, value, mask=column < width)


def run(table, index):
    table, index = table.contiguous(), index.contiguous().view(torch.int32)
    out = torch.empty(
        ((index.shape[0] // 2), table.shape[1]), dtype=table.dtype, device=table.device
    )
    gather[((index.shape[0] // 2),)](
        table, index, out, table.shape[1], 64, gl.BlockedLayout([1], [32], [2], [0]), num_warps=2
    )
    return out
