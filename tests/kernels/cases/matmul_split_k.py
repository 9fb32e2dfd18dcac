"""The cases of `gluon_kernels.gemm.split_k`."""

import gluon_core as gluon
from gluon_kernels.gemm.split_k import matmul_split_k
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM, matrices


def arguments(new, large, sizes=None, block=(64, 128), splits=None):
    m, n, k = sizes or ((16, 8192, 8192) if large else (5, 208, 464))
    splits = splits or (4 if large else 3)
    blocks = gluon.cdiv(m, block[0]) * gluon.cdiv(n, block[1])
    return matrices(
        new,
        (m, n, k),
        sums=new.empty((blocks, splits, *block)),
        counters=new.integers((blocks,), 0, 1, "int32"),
    )


def config(warp_size, block=(64, 128, 32), stages=3, splits=3, num_warps=4):
    m, n, k = block
    return {
        "BLOCK_M": m,
        "BLOCK_N": n,
        "BLOCK_K": k,
        "STAGES": stages,
        "SPLITS": splits,
        "num_warps": num_warps,
    }


def large_config(warp_size, block=(64, 128, 64), stages=2, splits=4, num_warps=4):
    return config(warp_size, block, stages, splits, num_warps)


def choices(target):
    """Sums and operands of RDNA are too many for four warps."""
    rdna = target.has("amd.wmma_v1") or target.has("amd.wmma_v2")
    return {"num_warps": 8} if rdna else {}


def grid(args, config):
    blocks = [gluon.cdiv(args[x], config[f"BLOCK_{x}"]) for x in "NM"]
    return (blocks[0], config["SPLITS"], blocks[1])


EXAMPLES = [
    Example(
        name="matmul, split-K",
        kernel=matmul_split_k,
        arguments=arguments,
        grid=grid,
        config=config,
        large_config=large_config,
        choices=choices,
        **GEMM,
        bytes_moved=lambda args: 2 * args["K"] * args["N"],
        tolerance=4e-3,
    )
]
