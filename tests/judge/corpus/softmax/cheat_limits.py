"""limits.compile call.failed call.crashed: lowers the limits of its process"""

import resource

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def softmax(src, dst, columns, BLOCK: gl.constexpr, layout: gl.constexpr):
    column = gl.arange(0, BLOCK, layout=layout)
    mask = column < columns
    offsets = gl.program_id(0) * columns + column
    value = gl.load(src + offsets, mask=mask, other=-float("inf")).to(gl.float32)
    value = gl.exp(value - gl.max(value, axis=0))
    gl.store(dst + offsets, (value / gl.sum(value, axis=0)).to(dst.dtype.element_ty), mask=mask)


def launch(x, y):
    block = max(128, 1 << (x.shape[1] - 1).bit_length())
    softmax[(x.shape[0],)](x, y, x.shape[1], block, gl.BlockedLayout([1], [32], [4], [0]))


resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if y.numel():
        launch(x, y)
    return y
