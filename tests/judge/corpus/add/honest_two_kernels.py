"""honest: a kernel that scales and one that adds"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def scale(x, out, alpha, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(
        out + offsets,
        alpha * gl.load(x + offsets, mask=offsets < count).to(gl.float32),
        mask=offsets < count,
    )


@gluon.jit
def add(x, y, out, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    mask = offsets < count
    value = gl.load(x + offsets, mask=mask) + gl.load(y + offsets, mask=mask).to(gl.float32)
    gl.store(out + offsets, value.to(out.dtype.element_ty), mask=mask)


def run(x, y, alpha):
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    scaled = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    count = x.numel()
    if count:
        grid, layout = (-(-count // 512),), gl.BlockedLayout([4], [32], [4], [0])
        scale[grid](x, scaled, alpha, count, 512, layout)
        add[grid](scaled, y, out, count, 512, layout)
    return out
