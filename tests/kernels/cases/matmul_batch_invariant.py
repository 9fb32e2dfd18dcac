"""The cases of `gluon_kernels.gemm.batch_invariant`."""

import gluon_core as gluon
from gluon_kernels.gemm.batch_invariant import gemm_batch_invariant
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM, flops, matrices
from tests.kernels.cases.matmul import at_a_time


def arguments(new, large, sizes=None, block=(64, 64), chunk=None):
    m, n, k = sizes or ((16, 8192, 8192) if large else (5, 208, 464))
    chunk = chunk or (1024 if large else 128)
    tiles = gluon.cdiv(m, block[0]) * gluon.cdiv(n, block[1])
    return matrices(
        new,
        (m, n, k),
        sums=new.empty((tiles, gluon.cdiv(k, chunk), *block)),
        counters=new.integers((tiles,), 0, 1, "int32"),
    )


def config(warp_size, block=(64, 64, 32), chunk=128, shared=True, stages=3, num_warps=4):
    m, n, k = block
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "CHUNK": chunk, "SHARED": shared}
    return {**blocks, "STAGES": stages, "num_warps": num_warps}


def large_config(warp_size, block=(64, 64, 64), chunk=1024, shared=True, stages=2, num_warps=4):
    return config(warp_size, block, chunk, shared, stages, num_warps)


def grid(args, config):
    tiles = gluon.cdiv(args["M"], config["BLOCK_M"]) * gluon.cdiv(args["N"], config["BLOCK_N"])
    items = tiles * (gluon.cdiv(args["K"], config["CHUNK"]) if config["SHARED"] else 1)
    return at_a_time(args["a"], items, max(3, items // 2), config)


EXAMPLES = [
    Example(
        name="matmul, batch-invariant",
        kernel=gemm_batch_invariant,
        arguments=arguments,
        grid=grid,
        config=config,
        large_config=large_config,
        **GEMM,
        flops=flops,
        tolerance=4e-3,
    )
]
