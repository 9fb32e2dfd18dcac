"""honest: plain Triton"""

import torch
import triton
import triton.language as tl


@triton.jit
def stencil(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + at - 1, mask=(at > 0) & (at <= count), other=0.0)
    right = tl.load(x + at + 1, mask=at + 1 < count, other=0.0)
    here = tl.load(x + at, mask=at < count, other=0.0)
    tl.store(y + at, left + 2.0 * here + right, mask=at < count)


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        stencil[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 256)
    return y
