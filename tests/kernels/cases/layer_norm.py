"""Layer normalization of the rows of a matrix, one program per row."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def layer_norm(
    src, weight, bias, dst, columns, row_stride, epsilon, BLOCK: gl.constexpr, layout: gl.constexpr
):
    column = gl.arange(0, BLOCK, layout=layout)
    mask = column < columns
    offsets = gl.program_id(0) * row_stride + column
    value = gl.load(src + offsets, mask=mask, other=0.0)
    mean = gl.sum(value, axis=0) / columns
    centred = gl.where(mask, value - mean, 0.0)
    variance = gl.sum(centred * centred, axis=0) / columns
    scale = gl.load(weight + column, mask=mask, other=0.0) / gl.sqrt(variance + epsilon)
    shift = gl.load(bias + column, mask=mask, other=0.0)
    gl.store(dst + offsets, centred * scale + shift, mask=mask)


def arguments(new, large, shape=None):
    rows, columns = shape or ((2**15, 2**12) if large else (19, 1000))
    return {
        "src": new.random((rows, columns)),
        "weight": new.random((columns,)),
        "bias": new.random((columns,)),
        "dst": new.empty((rows, columns)),
        "columns": columns,
        "row_stride": columns,
        "epsilon": 1e-5,
    }


def config(warp_size, block=1024, num_warps=4):
    layout = gl.BlockedLayout([4], [warp_size], [num_warps], [0])
    return {"BLOCK": block, "layout": layout, "num_warps": num_warps}


def large_config(warp_size, block=4096, num_warps=8):
    return config(warp_size, block, num_warps)


def reference(args):
    src = args["src"].astype(np.float64)
    centred = src - src.mean(axis=1, keepdims=True)
    variance = (centred * centred).mean(axis=1, keepdims=True)
    return centred / np.sqrt(variance + args["epsilon"]) * args["weight"] + args["bias"]


EXAMPLES = [
    Example(
        name="layer norm",
        kernel=layer_norm,
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
