"""honest: plain Triton whose last program of a row adds the parts"""

import torch
import triton
import triton.language as tl


@triton.jit
def row_sum(x, out, parts, done, columns, count, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    offsets = part * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + offsets, mask=offsets < columns, other=0.0)
    tl.store(parts + row * count + part, tl.sum(value, axis=0))
    if tl.atomic_add(done + row, 1) == count - 1:
        every = tl.arange(0, PARTS)
        total = tl.load(parts + row * count + every, mask=every < count, other=0.0)
        tl.store(out + row, tl.sum(total, axis=0))


def run(x):
    x = x.contiguous()
    count = triton.cdiv(x.shape[1], 256)
    out = torch.empty(x.shape[0], dtype=x.dtype)
    parts = torch.empty((x.shape[0], count), dtype=x.dtype)
    done = torch.zeros(x.shape[0], dtype=torch.int32)
    if x.numel():
        grid = x.shape[0], count
        row_sum[grid](x, out, parts, done, x.shape[1], count, 256, triton.next_power_of_2(count))
    return out
