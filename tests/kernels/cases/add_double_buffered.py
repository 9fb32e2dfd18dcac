"""Add two vectors, copying the next block into shared memory while this one is added.

Each program walks over `TILES` consecutive blocks with two buffers per operand: while `cp.async`
fills one, the other is read. `wait_group(1)` waits for all copies but those of the newest group.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere.async_copy import async_load, commit_group, wait_group
from gluon_report.example import Example


@gluon.jit
def fetch(a_smem, b_smem, a, b, offsets, n, tile, BLOCK: gl.constexpr):
    here = offsets + tile * BLOCK
    mask = here < n
    async_load(a_smem.index(tile % 2), a + here, mask=mask)
    async_load(b_smem.index(tile % 2), b + here, mask=mask)
    commit_group()


@gluon.jit
def add_and_store(a_smem, b_smem, out, offsets, n, tile, BLOCK: gl.constexpr, layout: gl.constexpr):
    here = offsets + tile * BLOCK
    total = a_smem.index(tile % 2).load(layout) + b_smem.index(tile % 2).load(layout)
    gl.store(out + here, total, mask=here < n)


@gluon.jit
def add_double_buffered(
    a,
    b,
    out,
    n,
    BLOCK: gl.constexpr,
    TILES: gl.constexpr,
    layout: gl.constexpr,
    shared_layout: gl.constexpr,
):
    dtype: gl.constexpr = a.dtype.element_ty
    a_smem = gl.allocate_shared_memory(dtype, [2, BLOCK], shared_layout)
    b_smem = gl.allocate_shared_memory(dtype, [2, BLOCK], shared_layout)
    offsets = gl.program_id(0) * BLOCK * TILES + gl.arange(0, BLOCK, layout=layout)

    fetch(a_smem, b_smem, a, b, offsets, n, 0, BLOCK)
    for tile in range(TILES - 1):
        fetch(a_smem, b_smem, a, b, offsets, n, tile + 1, BLOCK)
        wait_group(1)
        add_and_store(a_smem, b_smem, out, offsets, n, tile, BLOCK, layout)
    wait_group(0)
    add_and_store(a_smem, b_smem, out, offsets, n, TILES - 1, BLOCK, layout)


def arguments(new, large, shape=None):
    n = shape or (2**28 if large else 10_000)
    return {"a": new.random(n), "b": new.random(n), "out": new.empty(n), "n": n}


def config(warp_size, block=1024, tiles=8, num_warps=4):
    return {
        "BLOCK": block,
        "TILES": tiles,
        "layout": gl.BlockedLayout([4], [warp_size], [num_warps], [0]),
        "shared_layout": gl.SwizzledSharedLayout(1, 1, 1, [0]),
        "num_warps": num_warps,
    }


EXAMPLES = [
    Example(
        name="add, double-buffered",
        kernel=add_double_buffered,
        arguments=arguments,
        grid=lambda args, config: (-(-args["n"] // (config["BLOCK"] * config["TILES"])),),
        config=config,
        reference=lambda args: args["a"] + args["b"],
        output="out",
        bytes_moved=lambda args: 3 * 4 * args["n"],
        requires=("nvidia.cp_async",),
    )
]
