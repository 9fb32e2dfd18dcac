"""honest: plain Triton with atomics"""

import torch
import triton
import triton.language as tl


@triton.jit
def row_sum(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + offsets, mask=offsets < columns, other=0.0)
    tl.atomic_add(out + row, tl.sum(value, axis=0))


def run(x):
    x = x.contiguous()
    out = torch.zeros(x.shape[0], dtype=x.dtype)
    if x.numel():
        row_sum[(x.shape[0], triton.cdiv(x.shape[1], 256))](x, out, x.shape[1], 256)
    return out
