"""output.unwritten result.wrong: leaves the last block out"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def axpy(x, y, out, alpha, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    mask = offsets < count
    value = alpha * gl.load(x + offsets, mask=mask).to(gl.float32) + gl.load(
        y + offsets, mask=mask
    ).to(gl.float32)
    gl.store(out + offsets, value.to(out.dtype.element_ty), mask=mask)


def run(x, y, alpha):
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    count = x.numel()
    if count:
        axpy[(max(1, count // 512),)](
            x, y, out, alpha, count, 512, gl.BlockedLayout([4], [32], [4], [0])
        )
    return out
