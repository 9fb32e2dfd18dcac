"""The cases of `gluon_kernels.gemm.amd_tdm`."""

from gluon_kernels.gemm.amd_tdm import matmul_tdm
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM_TRANSPOSED, flops, matrices, tiles


def arguments(new, large, sizes=None):
    return matrices(
        new, sizes or ((4096, 4096, 4096) if large else (100, 80, 200)), "float16", transposed=True
    )


def config_of(block, stages, warps):
    def config(warp_size):
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
        rest = {"STAGES": stages, "WARPS": warps, "num_warps": warps[0] * warps[1]}
        return {**dict(zip(names, block)), **rest}

    return config


EXAMPLES = [
    Example(
        name="matmul by TDM",
        kernel=matmul_tdm,
        arguments=arguments,
        grid=tiles,
        config=config_of((64, 64, 64), 2, (2, 2)),
        large_config=config_of((256, 256, 64), 2, (2, 4)),
        **GEMM_TRANSPOSED,
        flops=flops,
        requires=("amd.tdm",),
        tolerance=2e-3,
    )
]
