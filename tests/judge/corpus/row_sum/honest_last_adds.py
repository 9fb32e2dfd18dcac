"""honest: the last program of a row adds the parts of all"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def row_sum(
    x,
    out,
    parts,
    done,
    columns,
    count,
    BLOCK: gl.constexpr,
    PARTS: gl.constexpr,
    layout: gl.constexpr,
):
    row, part = gl.program_id(0), gl.program_id(1)
    offsets = part * BLOCK + gl.arange(0, BLOCK, layout=layout)
    value = gl.load(x + row * columns + offsets, mask=offsets < columns, other=0.0)
    gl.store(parts + row * count + part, gl.sum(value, axis=0))
    if gl.atomic_add(done + row, 1) == count - 1:
        every = gl.arange(0, PARTS, layout=layout)
        total = gl.load(parts + row * count + every, mask=every < count, other=0.0)
        gl.store(out + row, gl.sum(total, axis=0))


def run(x):
    x = x.contiguous()
    count = -(-x.shape[1] // 256)
    out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    parts = torch.empty((x.shape[0], count), dtype=x.dtype, device=x.device)
    done = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    if x.numel():
        layout = gl.BlockedLayout([1], [32], [4], [0])
        row_sum[(x.shape[0], count)](x, out, parts, done, x.shape[1], count, 256, 128, layout)
    return out
