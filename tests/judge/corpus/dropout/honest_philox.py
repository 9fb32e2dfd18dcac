"""honest: Philox in the kernel"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def philox(counter, seed):
    a = counter.to(gl.uint64)
    b, c, d = a * 0, a * 0, a * 0
    first: gl.constexpr = 0xD2511F53
    second: gl.constexpr = 0xCD9E8D57
    key, other = seed.to(gl.uint64) & 0xFFFFFFFF, seed.to(gl.uint64) >> 32
    for _ in gl.static_range(10):
        left, right = a * first, c * second
        a, b, c, d = (
            (right >> 32) ^ b ^ key,
            right & 0xFFFFFFFF,
            (left >> 32) ^ d ^ other,
            left & 0xFFFFFFFF,
        )
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
        other = (other + 0xBB67AE85) & 0xFFFFFFFF
    return a


@gluon.jit
def dropout(x, y, seed, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    keep = philox(offsets, seed) < 0xC0000000
    value = gl.load(x + offsets, mask=offsets < count, other=0.0)
    gl.store(y + offsets, gl.where(keep, value / 0.75, 0.0), mask=offsets < count)


def run(x, seed):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        layout = gl.BlockedLayout([1], [32], [4], [0])
        dropout[(-(-x.numel() // 256),)](x, y, seed, x.numel(), 256, layout)
    return y
