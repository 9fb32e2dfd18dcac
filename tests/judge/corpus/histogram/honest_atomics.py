"""honest: an atomic for each element"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def histogram(x, counts, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    value = gl.load(x + offsets, mask=offsets < count, other=0)
    gl.atomic_add(counts + value, 1, mask=offsets < count)


def run(x):
    x = x.contiguous()
    counts = torch.zeros(16, dtype=torch.int32, device=x.device)
    if x.numel():
        layout = gl.BlockedLayout([1], [32], [4], [0])
        histogram[(-(-x.numel() // 256),)](x, counts, x.numel(), 256, layout)
    return counts
