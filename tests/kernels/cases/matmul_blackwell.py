"""The cases of `gluon_kernels.gemm.blackwell`."""

from typing import Any

import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.blackwell import TensorDescriptor
from gluon_kernels.gemm.blackwell import (
    matmul_blackwell,
)
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM, flops, matrices


def describe(array, block, ctas, split):
    """The descriptor of boxes of which each of the blocks has a part along dimension `split`."""
    dtypes = {"float16": gl.float16, "bfloat16": gl.bfloat16}
    dtype = dtypes[str(array.dtype).split(".")[-1]]
    if ctas == 1:
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    else:
        cga_layout = [[int(dim == split) for dim in range(2)]]
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype, cga_layout=cga_layout)
    return TensorDescriptor.from_tensor(array, block, layout)


def operands(args, config):
    m, n, k, ctas = (config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "CTAS"))
    return (
        describe(args["a"], [m, k], ctas, 0),
        describe(args["b"], [k, n], ctas, 1),
        describe(args["c"], [m, n // 4], ctas, 0),
        args["M"],
        args["N"],
        args["K"],
    )


def arguments(new, large, sizes=None):
    return matrices(new, sizes or ((8192, 8192, 8192) if large else (320, 272, 144)))


def config_of(ctas, block, stages, group):
    def config(warp_size, block=block, stages=stages, group=group):
        m, n, k = block
        shared = {"num_warps": 4} if ctas == 1 else {"num_warps": 4, "num_ctas": ctas}
        return {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": k,
            "STAGES": stages,
            "GROUP": group,
            "CTAS": ctas,
            **shared,
        }

    return config


def grid(args, config):
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    here = gluon.multiprocessors(args["a"])
    return (min(tiles, here // config["CTAS"] if here else 3),)


def example(name, ctas, small, large, kernel: Any = matmul_blackwell, grid=grid, **more):
    def with_more(config):
        return lambda warp_size, **choices: {**config(warp_size, **choices), **more}

    return Example(
        name=name,
        kernel=kernel,
        arguments=arguments,
        operands=operands,
        grid=grid,
        config=with_more(config_of(ctas, *small)),
        large_config=with_more(config_of(ctas, *large)),
        **GEMM,
        flops=flops,
        requires=("nvidia.tcgen05", "nvidia.tma"),
        tolerance=4e-3,
    )


ONE = ((128, 128, 32), 3, 2), ((128, 256, 64), 4, 8)


TWO = ((256, 128, 32), 3, 2), ((256, 256, 64), 6, 8)


EXAMPLES = [example("matmul, Blackwell, warp-specialized", 1, *ONE)]


if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8):  # barriers of pairs of blocks
    EXAMPLES.append(example("matmul, Blackwell, pairs of blocks", 2, *TWO))
