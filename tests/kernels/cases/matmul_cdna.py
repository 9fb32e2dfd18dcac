"""The cases of `gluon_kernels.gemm.amd`."""

import numpy as np

from gluon_kernels.gemm.amd import matmul_cdna3, matmul_cdna4, matmul_scaled_cdna4
from gluon_report.example import Example


def scaled_arguments_of(kind):
    def arguments(new, large, sizes=None):
        m, n, k = sizes or ((4096, 4096, 4096) if large else (150, 104, 768))

        def operand(rows):
            if kind == "e2m1":
                return new.integers((rows, k // 2), 0, 256)
            return new.random((rows, k), "float8_e4m3fn")

        return {
            "a": operand(m),
            "a_scale": new.integers((m, k // 32), 120, 128),
            "b": operand(n),
            "b_scale": new.integers((n, k // 32), 120, 128),
            "c": new.empty((m, n), "bfloat16"),
            "M": m,
            "N": n,
            "K": k,
        }

    return arguments


def scaled_config_of(kind, block, num_warps):
    def config(warp_size):
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
        return {**dict(zip(names, block)), "KIND": kind, "GROUP": 8, "num_warps": num_warps}

    return config


def scaled_reference(args):
    halves = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    fp4 = np.concatenate([halves, -halves])

    def wide(values, scale):
        if values.dtype == np.uint8:
            values = np.stack([fp4[values & 15], fp4[values >> 4]], -1).reshape(len(values), -1)
        return values.astype(np.float64) * np.repeat(2.0 ** (scale.astype(int) - 127), 32, 1)

    return wide(args["a"], args["a_scale"]) @ wide(args["b"], args["b_scale"]).T


def scaled_example(name, kind, small, large):
    return Example(
        name=name,
        kernel=matmul_scaled_cdna4,
        arguments=scaled_arguments_of(kind),
        grid=lambda args, config: (
            -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"]),
        ),
        config=scaled_config_of(kind, small, 4),
        large_config=scaled_config_of(kind, large, 8),
        reference=scaled_reference,
        output="c",
        flops=lambda args: 2 * args["M"] * args["N"] * args["K"],
        requires=("amd.mfma_scaled", "amd.direct_to_lds_128"),
        tolerance=5e-3,
    )


def arguments_of(dtype):
    def arguments(new, large, sizes=None):
        m, n, k = sizes or ((4096, 4096, 4096) if large else (150, 104, 336))
        return {
            "a": new.random((m, k), dtype),
            "b": new.random((n, k), dtype),
            "c": new.empty((m, n), "bfloat16"),
            "M": m,
            "N": n,
            "K": k,
        }

    return arguments


def config_of(block, depth, num_warps):
    def config(warp_size):
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
        rest = {"DEPTH": depth[0], "GROUP": 8, "FP8": depth[1], "num_warps": num_warps}
        return {**dict(zip(names, block)), **rest}

    return config


def reference(args):
    return args["a"].astype(np.float64) @ args["b"].astype(np.float64).T


def example(name, kernel, dtype, small, large, depth, requires, warps=(4, 4)):
    return Example(
        name=name,
        kernel=kernel,
        arguments=arguments_of(dtype),
        grid=lambda args, config: (
            -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"]),
        ),
        config=config_of(small, depth, warps[0]),
        large_config=config_of(large, depth, warps[1]),
        reference=reference,
        output="c",
        flops=lambda args: 2 * args["M"] * args["N"] * args["K"],
        requires=requires,
        tolerance=5e-3,
    )


# Blocks of M, N, K; rows of 128 bytes.
EXAMPLES = [
    example(
        "matmul, CDNA3, bf16", matmul_cdna3, "bfloat16", (64, 64, 64), (128, 128, 64),
        (8, False), ("amd.mfma", "amd.mfma_fp8"),
    ),
    example(
        "matmul, CDNA3, fp8", matmul_cdna3, "float8_e4m3fnuz", (64, 64, 128), (128, 128, 128),
        (16, True), ("amd.mfma", "amd.fp8_fnuz"),
    ),
    example(
        "matmul, CDNA4, bf16", matmul_cdna4, "bfloat16", (64, 64, 64), (256, 128, 64),
        (32, False), ("amd.direct_to_lds_128",), (4, 8),
    ),
    example(
        "matmul, CDNA4, fp8", matmul_cdna4, "float8_e4m3fn", (64, 64, 128), (256, 256, 128),
        (128, True), ("amd.direct_to_lds_128",), (4, 8),
    ),
    scaled_example("matmul, CDNA4, mxfp8", "e4m3", (64, 64, 128), (256, 256, 128)),
    scaled_example("matmul, CDNA4, mxfp4", "e2m1", (64, 64, 256), (256, 256, 256)),
]  # fmt: skip
