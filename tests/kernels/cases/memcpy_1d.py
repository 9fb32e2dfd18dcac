"""Copy a vector, with the layout as a parameter.

The layout says which thread holds which element. Give each thread four neighbouring floats and the
compiler moves them with one 16-byte instruction.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def memcpy_1d(src, dst, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    mask = offsets < n
    gl.store(dst + offsets, gl.load(src + offsets, mask=mask), mask=mask)


def arguments(new, large, shape=None):
    n = shape or (2**28 if large else 10_000)
    return {"src": new.random(n), "dst": new.empty(n), "n": n}


def config(warp_size, block=2048, vector=4, num_warps=4):
    layout = gl.BlockedLayout([vector], [warp_size], [num_warps], [0])
    return {"BLOCK": block, "layout": layout, "num_warps": num_warps}


EXAMPLES = [
    Example(
        name="memcpy 1-D",
        kernel=memcpy_1d,
        arguments=arguments,
        grid=lambda args, config: (-(-args["n"] // config["BLOCK"]),),
        config=config,
        reference=lambda args: args["src"],
        output="dst",
        bytes_moved=lambda args: 2 * 4 * args["n"],
    )
]
