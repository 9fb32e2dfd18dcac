"""honest: plain Triton"""

import torch
import triton
import triton.language as tl


@triton.jit
def axpy(x, y, out, alpha, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(
        out + offsets,
        alpha * tl.load(x + offsets, mask=mask).to(tl.float32) + tl.load(y + offsets, mask=mask),
        mask=mask,
    )


def run(x, y, alpha):
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        axpy[(triton.cdiv(x.numel(), 256),)](x, y, out, alpha, x.numel(), 256)
    return out
