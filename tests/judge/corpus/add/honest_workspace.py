"""honest: keeps a workspace that every call overwrites"""

import torch

import gluon_core as gluon
from gluon_core import language as gl

_WORKSPACE = {}


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
    count = x.numel()
    if count not in _WORKSPACE:
        _WORKSPACE[count] = torch.empty(count, dtype=torch.float32, device=x.device)
    if count:
        grid, layout = (-(-count // 512),), gl.BlockedLayout([4], [32], [4], [0])
        scale[grid](x, _WORKSPACE[count], alpha, count, 512, layout)
        add[grid](_WORKSPACE[count], y, out, count, 512, layout)
    return out
