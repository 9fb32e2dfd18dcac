"""honest: gathers neighbours from registers of other warps"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def stencil(x, y, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    lane = gl.arange(0, BLOCK, layout=layout)
    offsets = gl.program_id(0) * (BLOCK - 2) + lane - 1
    here = gl.load(x + offsets, mask=(offsets >= 0) & (offsets < count), other=0.0)
    left = gl.gather(here, gl.maximum(lane - 1, 0), 0)
    right = gl.gather(here, gl.minimum(lane + 1, BLOCK - 1), 0)
    inside = (lane > 0) & (lane < BLOCK - 1) & (offsets < count)
    gl.store(y + offsets, left + 2.0 * here + right, mask=inside)


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        layout = gl.BlockedLayout([1], [32], [4], [0])
        stencil[(-(-x.numel() // 254),)](x, y, x.numel(), 256, layout)
    return y
