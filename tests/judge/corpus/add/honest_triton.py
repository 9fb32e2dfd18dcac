"""honest: plain Triton"""

import torch
import triton
import triton.language as tl


@triton.jit
def axpy(x, y, out, alpha, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    tl.store(
        out + at,
        alpha * tl.load(x + at, mask=mask).to(tl.float32) + tl.load(y + at, mask=mask),
        mask=mask,
    )


def run(x, y, alpha):
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        axpy[(triton.cdiv(x.numel(), 256),)](x, y, out, alpha, x.numel(), 256)
    return out
