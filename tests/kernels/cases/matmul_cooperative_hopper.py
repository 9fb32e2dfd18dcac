"""The cases of `gluon_kernels.gemm.hopper_cooperative`."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.gemm.hopper_cooperative import matmul_cooperative
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import flops, matrices

DTYPES = {"float16": gl.float16, "bfloat16": gl.bfloat16, "float8_e4m3fn": gl.float8e4nv}


def describe(array, block):
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[str(array.dtype).split(".")[-1]])
    return TensorDescriptor.from_tensor(array, block, layout)


def operands(args, config):
    m, n, k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    b_block = [n, k] if config["TRANSPOSED"] else [k, n]
    return (
        describe(args["a"], [m, k]),
        describe(args["b"], b_block),
        describe(args["c"], [m // 2, n // 4]),
        args["M"],
        args["N"],
        args["K"],
    )


def sizes_of(large, sizes):
    return sizes or ((8192, 8192, 8192) if large else (320, 272, 144))


def arguments(new, large, sizes=None):
    return matrices(new, sizes_of(large, sizes))


def arguments_fp8(new, large, sizes=None):
    return matrices(new, sizes_of(large, sizes), "float8_e4m3fn", out="bfloat16", transposed=True)


def configure(transposed, small, large):
    def make(block, stages, group):
        m, n, k = block
        return {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": k,
            "STAGES": stages,
            "GROUP": group,
            "TRANSPOSED": transposed,
            "num_warps": 4,
        }

    def config(warp_size, block=small, stages=3, group=2):
        return make(block, stages, group)

    def large_config(warp_size, block=large, stages=4, group=8):
        return make(block, stages, group)

    return config, large_config


def programs(args, tiles):
    """One for each multiprocessor of the device; without one, so many that each has four tiles."""
    return gluon.multiprocessors(args["a"]) or max(3, tiles // 4)


def grid(args, config):
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    return (min(tiles, programs(args, tiles)),)


def example(name, arguments, transposed, small, large, tolerance, large_tolerance=None):
    def reference(args):
        a, b = args["a"].astype(np.float64), args["b"].astype(np.float64)
        return a @ (b.T if transposed else b)

    def device_reference(args):
        a, b = args["a"].float(), args["b"].float()
        return a @ (b.T if transposed else b)

    config, large_config = configure(transposed, small, large)
    return Example(
        name=name,
        kernel=matmul_cooperative,
        arguments=arguments,
        operands=operands,
        grid=grid,
        reference=reference,
        device_reference=device_reference,
        output="c",
        flops=flops,
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=tolerance,
        large_tolerance=large_tolerance,
        config=config,
        large_config=large_config,
    )


EXAMPLES = [
    example("matmul, warp-specialized", arguments, False, (128, 128, 32), (128, 256, 64), 4e-3),
    example(
        "matmul fp8, warp-specialized",
        arguments_fp8,
        True,
        (128, 128, 64),
        (128, 256, 128),
        4e-3,
        4e-2,  # sums have about 14 bits, and errors grow with K
    ),
]
