"""honest: plain Triton, with its own Philox"""

import torch
import triton
import triton.language as tl


@triton.jit
def dropout(x, y, seed, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.randint(seed, offsets).to(tl.uint32, bitcast=True)
    value = tl.load(x + offsets, mask=offsets < count, other=0.0)
    tl.store(y + offsets, tl.where(bits < 0xC0000000, value / 0.75, 0.0), mask=offsets < count)


def run(x, seed):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        dropout[(triton.cdiv(x.numel(), 256),)](x, y, seed, x.numel(), 256)
    return y
