"""Matrix multiplication, written once.

`gl.portable` picks the matrix unit, the way tiles travel into shared memory and the layouts that go
with them, for whatever the kernel is compiled for: `mma.sync` fed by `cp.async`, MFMA or WMMA fed by
buffer loads, multiply-add where there is no matrix unit. `gluon explain examples/matmul.py --target
gfx942` shows what was taken and why.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import Example, main


@gluon.jit
def matmul(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype)
    a_layout: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_K], dtype)
    b_layout: gl.constexpr = gl.portable.blocked_layout([BLOCK_K, BLOCK_N], dtype)
    c_layout: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_N], c.dtype.element_ty)
    a_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, BLOCK_K], layouts.a_shared)
    b_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_K, BLOCK_N], layouts.b_shared)

    # Programs that run together share rows of A and columns of B in the cache.
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    program = gl.program_id(0)
    group = program // (GROUP * tiles_n)
    height = min(tiles_m - group * GROUP, GROUP)
    first_m = (group * GROUP + program % (GROUP * tiles_n) % height) * BLOCK_M
    first_n = (program % (GROUP * tiles_n) // height) * BLOCK_N

    a_row = first_m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, a_layout))
    a_column = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, a_layout))
    b_row = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(1, b_layout))
    b_column = first_n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, b_layout))
    a_offsets = (a_row * K)[:, None] + a_column[None, :]
    b_offsets = (b_row * N)[:, None] + b_column[None, :]
    a_rows = (a_row < M)[:, None]
    b_columns = (b_column < N)[None, :]

    # Groups of copies past the end of K are empty but counted, so that `wait` needs no special case.
    for stage in gl.static_range(STAGES - 1):
        k = stage * BLOCK_K
        a_mask = a_rows & (a_column + k < K)[None, :]
        b_mask = (b_row + k < K)[:, None] & b_columns
        gl.portable.async_copy(a_smem.index(stage), a, a_offsets + k, mask=a_mask)
        gl.portable.async_copy(b_smem.index(stage), b, b_offsets + k * N, mask=b_mask)
        gl.portable.commit()

    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layouts.accumulator)
    for tile in range(gl.cdiv(K, BLOCK_K)):
        gl.portable.wait(STAGES - 2)
        ahead = tile + STAGES - 1
        a_mask = a_rows & (a_column + ahead * BLOCK_K < K)[None, :]
        b_mask = (b_row + ahead * BLOCK_K < K)[:, None] & b_columns
        a_next = a_offsets + ahead * BLOCK_K
        b_next = b_offsets + ahead * BLOCK_K * N
        gl.portable.async_copy(a_smem.index(ahead % STAGES), a, a_next, mask=a_mask)
        gl.portable.async_copy(b_smem.index(ahead % STAGES), b, b_next, mask=b_mask)
        gl.portable.commit()
        a_tile = a_smem.index(tile % STAGES).load(layouts.a)
        b_tile = b_smem.index(tile % STAGES).load(layouts.b)
        acc = gl.portable.mma(a_tile, b_tile, acc)

    row = first_m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, c_layout))
    column = first_n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, c_layout))
    mask = (row < M)[:, None] & (column < N)[None, :]
    offsets = (row * N)[:, None] + column[None, :]
    result = gl.convert_layout(acc.to(c.dtype.element_ty), c_layout)
    gl.portable.store(c, offsets, result, mask=mask)


def arguments(new, large, sizes=None):
    m, n, k = sizes or ((4096, 4096, 4096) if large else (136, 80, 176))
    return {
        "a": new.random((m, k), "float16"),
        "b": new.random((k, n), "float16"),
        "c": new.empty((m, n), "float16"),
        "M": m,
        "N": n,
        "K": k,
    }


def config(warp_size, block=(64, 64, 32), stages=3, num_warps=4):
    m, n, k = block
    return {
        "BLOCK_M": m,
        "BLOCK_N": n,
        "BLOCK_K": k,
        "STAGES": stages,
        "GROUP": 8,
        "num_warps": num_warps,
    }


def large_config(warp_size, block=(128, 128, 32), stages=3, num_warps=4):
    return config(warp_size, block, stages, num_warps)


EXAMPLES = [
    Example(
        name="matmul",
        kernel=matmul,
        arguments=arguments,
        grid=lambda args, config: (
            -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"]),
        ),
        config=config,
        large_config=large_config,
        reference=lambda args: args["a"].astype(np.float32) @ args["b"].astype(np.float32),
        output="c",
        flops=lambda args: 2 * args["M"] * args["N"] * args["K"],
        tolerance=4e-3,
    )
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
