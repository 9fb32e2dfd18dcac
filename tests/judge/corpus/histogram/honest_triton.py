"""honest: plain Triton with atomics"""

import torch
import triton
import triton.language as tl


@triton.jit
def histogram(x, counts, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < count, other=0)
    tl.atomic_add(counts + value, 1, mask=offsets < count)


def run(x):
    x = x.contiguous()
    counts = torch.zeros(16, dtype=torch.int32, device=x.device)
    if x.numel():
        histogram[(triton.cdiv(x.numel(), 256),)](x, counts, x.numel(), 256)
    return counts
