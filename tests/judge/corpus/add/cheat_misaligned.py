"""memory.misaligned: promises an alignment that offsets do not have"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def axpy(x, y, out, alpha, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    at = gl.multiple_of(gl.maximum(at - 1, 0), 16)
    mask = at < count
    value = alpha * gl.load(x + at, mask=mask).to(gl.float32) + gl.load(y + at, mask=mask).to(
        gl.float32
    )
    gl.store(out + at, value.to(out.dtype.element_ty), mask=mask)


def run(x, y, alpha):
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    count = x.numel()
    if count:
        axpy[(-(-count // 512),)](
            x, y, out, alpha, count, 512, gl.BlockedLayout([4], [32], [4], [0])
        )
    return out
