"""honest: a histogram of each program, added by a second kernel"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def parts(x, partial, count, BLOCK: gl.constexpr, layout: gl.constexpr, bins: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    value = gl.load(x + offsets, mask=offsets < count, other=0)
    counts = gl.histogram(value, 16, mask=offsets < count, layout=bins)
    gl.store(partial + gl.program_id(0) * 16 + gl.arange(0, 16, layout=bins), counts)


@gluon.jit
def add(partial, counts, programs, bins: gl.constexpr):
    total = gl.zeros([16], gl.int32, bins)
    offsets = gl.arange(0, 16, layout=bins)
    for program in range(programs):
        total += gl.load(partial + program * 16 + offsets)
    gl.store(counts + offsets, total)


def run(x):
    x = x.contiguous()
    counts = torch.zeros(16, dtype=torch.int32, device=x.device)
    programs = -(-x.numel() // 256)
    if programs:
        layout = gl.BlockedLayout([1], [32], [4], [0])
        partial = torch.empty((programs, 16), dtype=torch.int32, device=x.device)
        parts[(programs,)](x, partial, x.numel(), 256, layout, layout)
        add[(1,)](partial, counts, programs, layout)
    return counts
