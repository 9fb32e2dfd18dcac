"""memory.bounds: plain Triton that reads beyond the last row"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(src, dst, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    mask = column < columns
    offsets = tl.program_id(0) * columns + column
    value = tl.load(src + offsets).to(tl.float32)
    value = tl.where(mask, value, -float("inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(dst + offsets, value / tl.sum(value, axis=0), mask=mask)


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if y.numel():
        softmax[(x.shape[0],)](x, y, x.shape[1], triton.next_power_of_2(x.shape[1] + 1))
    return y
