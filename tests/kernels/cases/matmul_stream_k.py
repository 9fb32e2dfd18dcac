"""The cases of `gluon_kernels.gemm.stream_k`."""

from gluon_kernels.gemm.stream_k import matmul_stream_k
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM, flops, matrices
from tests.kernels.cases.matmul import choices


def arguments(new, large, sizes=None, programs=None, block=None):
    m, n, k = sizes or ((4096, 4352, 4096) if large else (136, 208, 176))
    block = block or ((128, 256) if large else (64, 64))
    programs = programs or (132 if large else 5)
    return matrices(
        new,
        (m, n, k),
        sums=new.empty((2 * programs, *block)),
        counters=new.integers((2 * programs,), 0, 1, "int32"),
    )


def config(warp_size, block=(64, 64, 32), stages=3, num_warps=4):
    m, n, k = block
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "STAGES": stages, "num_warps": num_warps}


def large_config(warp_size, block=(128, 128, 32), stages=3, num_warps=4):
    return config(warp_size, block, stages, num_warps)


EXAMPLES = [
    Example(
        name="matmul, stream-K",
        kernel=matmul_stream_k,
        arguments=arguments,
        grid=lambda args, config: (args["counters"].shape[0] // 2,),
        config=config,
        large_config=large_config,
        choices=choices,
        **GEMM,
        flops=flops,
        tolerance=4e-3,
    )
]
