"""The cases of `gluon_kernels.gemm.amd_wmma`."""

from gluon_kernels.gemm.amd_wmma import matmul_rdna4
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM_TRANSPOSED, flops, matrices, tiles


def arguments(new, large):
    return matrices(
        new, (4096, 4096, 4096) if large else (150, 104, 336), "float16", transposed=True
    )


def config_of(block, num_warps):
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
    return lambda warp_size: {**dict(zip(names, block)), "num_warps": num_warps}


EXAMPLES = [
    Example(
        name="matmul, RDNA4",
        kernel=matmul_rdna4,
        arguments=arguments,
        grid=tiles,
        config=config_of((64, 64, 64), 4),
        large_config=config_of((128, 128, 64), 8),
        **GEMM_TRANSPOSED,
        flops=flops,
        requires=("amd.wmma_v2",),
        tolerance=2e-3,
    )
]
