"""honest: plain Triton"""

import torch
import triton
import triton.language as tl


@triton.jit
def gather(table, index, out, width, BLOCK: tl.constexpr):
    row = tl.load(index + tl.program_id(0))
    offsets = tl.arange(0, BLOCK)
    value = tl.load(table + row * width + offsets, mask=offsets < width)
    tl.store(out + tl.program_id(0) * width + offsets, value, mask=offsets < width)


def run(table, index):
    table, index = table.contiguous(), index.contiguous()
    out = torch.empty((index.shape[0], table.shape[1]), dtype=table.dtype)
    if out.numel():
        gather[(index.shape[0],)](table, index, out, table.shape[1], 128)
    return out
