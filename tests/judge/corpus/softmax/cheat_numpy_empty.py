"""result.wrong output.unwritten edge.shape: leaves the last column of memory that NumPy allocated"""

import numpy as np
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


def run(x):
    x = x.contiguous()
    kind = np.float32 if x.dtype == torch.float32 else np.float16
    y = torch.from_numpy(np.empty(tuple(x.shape), kind))
    if y.numel():
        narrow = x[:, :-1].contiguous()
        z = torch.empty_like(narrow)
        if z.numel():
            launch(narrow, z)
            y[:, :-1] = z
    return y
