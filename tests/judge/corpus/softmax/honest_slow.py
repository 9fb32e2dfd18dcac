"""honest: one warp and three passes over the row"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def softmax(src, dst, columns, BLOCK: gl.constexpr, layout: gl.constexpr):
    column = gl.arange(0, BLOCK, layout=layout)
    mask = column < columns
    offsets = gl.program_id(0) * columns + column
    largest = gl.max(gl.load(src + offsets, mask=mask, other=-float("inf")).to(gl.float32), axis=0)
    value = gl.load(src + offsets, mask=mask, other=-float("inf")).to(gl.float32)
    total = gl.sum(gl.exp(value - largest), axis=0)
    again = gl.load(src + offsets, mask=mask, other=0.0).to(gl.float32)
    gl.store(dst + offsets, (gl.exp(again - largest) / total).to(dst.dtype.element_ty), mask=mask)


def launch(x, y):
    block = max(128, 1 << (x.shape[1] - 1).bit_length())
    softmax[(x.shape[0],)](
        x, y, x.shape[1], block, gl.BlockedLayout([1], [32], [1], [0]), num_warps=1
    )


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if y.numel():
        launch(x, y)
    return y
