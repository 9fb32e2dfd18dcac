"""honest: plain Triton with a loop over rows"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(src, dst, rows, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    mask = column < columns
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        offsets = row * columns + column
        value = tl.load(src + offsets, mask=mask, other=-float("inf")).to(tl.float32)
        value = tl.exp(value - tl.max(value, axis=0))
        tl.store(dst + offsets, value / tl.sum(value, axis=0), mask=mask)


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if y.numel():
        softmax[(min(4, x.shape[0]),)](x, y, *x.shape, triton.next_power_of_2(x.shape[1]))
    return y
