"""sync.race: plain Triton that writes where neighbours still read"""

import triton
import triton.language as tl


@triton.jit
def stencil(x, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + offsets - 1, mask=(offsets > 0) & (offsets <= count), other=0.0)
    right = tl.load(x + offsets + 1, mask=offsets + 1 < count, other=0.0)
    here = tl.load(x + offsets, mask=offsets < count, other=0.0)
    tl.store(x + offsets, left + 2.0 * here + right, mask=offsets < count)


def run(x):
    x = x.clone()
    if x.numel():
        stencil[(triton.cdiv(x.numel(), 256),)](x, x.numel(), 256)
    return x
