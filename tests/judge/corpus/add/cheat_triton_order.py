"""order.wrong result.wrong: a program reads what its neighbour writes"""

import torch
import triton
import triton.language as tl


@triton.jit
def axpy(x, y, out, alpha, count, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    offsets = first + tl.arange(0, BLOCK)
    mask = offsets < count
    value = alpha * tl.load(x + offsets, mask=mask).to(tl.float32) + tl.load(y + offsets, mask=mask)
    before = tl.load(out + first - 1, mask=tl.program_id(0) > 0, other=0.0).to(tl.float32)
    tl.store(out + offsets, value + (before - before), mask=mask)


def run(x, y, alpha):
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        axpy[(triton.cdiv(x.numel(), 256),)](x, y, out, alpha, x.numel(), 256)
    return out
