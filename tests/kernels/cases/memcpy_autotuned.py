"""A copy that finds its own block size: `triton.autotune` works on Gluon kernels.

The layout is built inside the kernel, from the configuration's constants and `gl.num_warps()`.
`do_bench` times a call; without it `triton.autotune` wants a GPU.
"""

import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example, do_bench

CONFIGS = [
    triton.Config({"BLOCK": block, "VECTOR": vector}, num_warps=num_warps)
    for block, vector, num_warps in [
        (2048, 4, 4),
        (1024, 4, 4),
        (4096, 4, 8),
        (2048, 1, 4),
        (8192, 4, 8),
    ]
]


@triton.autotune(configs=CONFIGS, key=["n"], do_bench=do_bench)
@gluon.jit
def memcpy_autotuned(src, dst, n, THREADS: gl.constexpr, BLOCK: gl.constexpr, VECTOR: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [THREADS], [gl.num_warps()], [0])
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    mask = offsets < n
    gl.store(dst + offsets, gl.load(src + offsets, mask=mask), mask=mask)


def arguments(new, large, shape=None):
    n = shape or (2**28 if large else 10_000)
    return {"src": new.random(n), "dst": new.empty(n), "n": n}


EXAMPLES = [
    Example(
        name="memcpy, autotuned",
        kernel=memcpy_autotuned,
        arguments=arguments,
        grid=lambda args, config: lambda meta: (-(-meta["n"] // meta["BLOCK"]),),
        config=lambda warp_size: {"THREADS": warp_size},
        reference=lambda args: args["src"],
        output="dst",
        bytes_moved=lambda args: 2 * 4 * args["n"],
    )
]
