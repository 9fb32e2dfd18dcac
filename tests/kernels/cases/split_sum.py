"""Sums of rows that are too long for one program: each takes a part and adds it atomically."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def split_sum(src, dst, columns, BLOCK: gl.constexpr, PART: gl.constexpr, layout: gl.constexpr):
    row = gl.program_id(0)
    first = gl.program_id(1) * PART
    total = gl.zeros([BLOCK], gl.float32, layout)
    for start in range(0, PART, BLOCK):
        column = first + start + gl.arange(0, BLOCK, layout=layout)
        total += gl.load(src + row * columns + column, mask=column < columns, other=0.0)
    gl.atomic_add(dst + row, gl.sum(total, axis=0))


def arguments(new, large, shape=None):
    rows, columns = shape or ((256, 2**18) if large else (5, 20000))
    dst = new.empty((rows,))
    if hasattr(dst, "__setitem__"):  # there is nothing to clear where a kernel is only compiled
        dst[:] = 0
    return {"src": new.random((rows, columns)), "dst": dst, "columns": columns}


def config(warp_size, block=1024, part=8192, num_warps=4):
    layout = gl.BlockedLayout([4], [warp_size], [num_warps], [0])
    return {"BLOCK": block, "PART": part, "layout": layout, "num_warps": num_warps}


EXAMPLES = [
    Example(
        name="split sum",
        kernel=split_sum,
        arguments=arguments,
        grid=lambda args, config: (args["src"].shape[0], -(-args["columns"] // config["PART"])),
        config=config,
        reference=lambda args: args["src"].astype(np.float64).sum(axis=1),
        output="dst",
        bytes_moved=lambda args: 4 * args["src"].shape[0] * args["columns"],
        tolerance=1e-4,
        any_order=True,
    )
]
