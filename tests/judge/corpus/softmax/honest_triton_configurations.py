"""honest: plain Triton with configurations, of which heuristics choose"""

import torch
import triton
import triton.language as tl


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["columns"])})
@triton.jit
def softmax(src, dst, rows, columns, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        column = tl.arange(0, BLOCK)
        mask = column < columns
        value = tl.load(src + row * columns + column, mask=mask, other=-float("inf")).to(tl.float32)
        value = tl.exp(value - tl.max(value, axis=0))
        tl.store(dst + row * columns + column, value / tl.sum(value, axis=0), mask=mask)


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if y.numel():
        softmax[lambda meta: (min(x.shape[0], 4),)](x, y, x.shape[0], x.shape[1])
    return y
