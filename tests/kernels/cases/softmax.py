"""Softmax of each row: one program per row, reductions across its threads."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def softmax(src, dst, columns, row_stride, BLOCK: gl.constexpr, layout: gl.constexpr):
    column = gl.arange(0, BLOCK, layout=layout)
    offsets = gl.program_id(0) * row_stride + column
    mask = column < columns
    value = gl.load(src + offsets, mask=mask, other=-float("inf"))
    numerator = gl.exp(value - gl.max(value, axis=0))
    gl.store(dst + offsets, numerator / gl.sum(numerator, axis=0), mask=mask)


def arguments(new, large, shape=None):
    rows, columns = shape or ((2**15, 2**13) if large else (19, 1000))
    return {
        "src": new.random((rows, columns)),
        "dst": new.empty((rows, columns)),
        "columns": columns,
        "row_stride": columns,
    }


def config(warp_size, block=1024, num_warps=4):
    layout = gl.BlockedLayout([4], [warp_size], [num_warps], [0])
    return {"BLOCK": block, "layout": layout, "num_warps": num_warps}


def large_config(warp_size, block=8192, num_warps=8):
    return config(warp_size, block, num_warps)


def reference(args):
    shifted = np.exp(args["src"] - args["src"].max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


EXAMPLES = [
    Example(
        name="row softmax",
        kernel=softmax,
        arguments=arguments,
        grid=lambda args, config: (args["src"].shape[0],),
        config=config,
        large_config=large_config,
        reference=reference,
        output="dst",
        bytes_moved=lambda args: 2 * 4 * args["src"].shape[0] * args["columns"],
        tolerance=1e-5,
    )
]
