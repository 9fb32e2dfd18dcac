"""honest: warps read what others wrote to shared memory"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def stencil(x, y, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    tile = gl.allocate_shared_memory(gl.float32, [BLOCK], shared)
    tile.store(gl.load(x + offsets, mask=offsets < count, other=0.0))
    other: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    here = gl.convert_layout(tile.load(other), layout)
    left = gl.load(x + offsets - 1, mask=(offsets > 0) & (offsets <= count), other=0.0)
    right = gl.load(x + offsets + 1, mask=offsets + 1 < count, other=0.0)
    gl.store(y + offsets, left + 2.0 * here + right, mask=offsets < count)


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        layout = gl.BlockedLayout([1], [32], [4], [0])
        stencil[(-(-x.numel() // 256),)](x, y, x.numel(), 256, layout)
    return y
