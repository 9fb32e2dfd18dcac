"""honest: online softmax over blocks of 64 columns"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def softmax(src, dst, columns, BLOCK: gl.constexpr, layout: gl.constexpr):
    start = gl.program_id(0) * columns
    column = gl.arange(0, BLOCK, layout=layout)
    largest = -float("inf")
    total = 0.0
    for first in range(0, columns, BLOCK):
        mask = first + column < columns
        value = gl.load(src + start + first + column, mask=mask, other=-float("inf")).to(gl.float32)
        larger = gl.maximum(largest, gl.max(value, axis=0))
        total = total * gl.exp(largest - larger) + gl.sum(gl.exp(value - larger), axis=0)
        largest = larger
    for first in range(0, columns, BLOCK):
        mask = first + column < columns
        value = gl.load(src + start + first + column, mask=mask, other=0.0).to(gl.float32)
        value = gl.exp(value - largest) / total
        gl.store(dst + start + first + column, value.to(dst.dtype.element_ty), mask=mask)


def launch(x, y):
    softmax[(x.shape[0],)](x, y, x.shape[1], 64, gl.BlockedLayout([1], [32], [1], [0]), num_warps=1)


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if y.numel():
        launch(x, y)
    return y
