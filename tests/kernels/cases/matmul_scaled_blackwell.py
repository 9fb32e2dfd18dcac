"""The cases of `gluon_kernels.gemm.blackwell_scaled`."""

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.blackwell import TensorDescriptor
from gluon_kernels.gemm.blackwell_scaled import matmul_scaled_blackwell
from gluon_report.example import Example

DTYPES = {"bfloat16": gl.bfloat16, "float8_e4m3fn": gl.float8e4nv, "uint8": gl.uint8}


def describe(array, block):
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[str(array.dtype).split(".")[-1]])
    return TensorDescriptor.from_tensor(array, block, layout)


def in_blocks(scales):
    """Scales [rows, runs] in blocks of 128 rows by four runs, [rows / 128, runs / 4, 2, 256]."""
    rows, runs = scales.shape
    down, across = -(-rows // 128), -(-runs // 4)
    blocks = (down, across, 2, 256)  # 512 bytes each; 256 is the most that a box of TMA has
    if isinstance(scales, np.ndarray):
        padded = np.zeros((down * 128, across * 4), scales.dtype)
        turn = np.transpose
    elif hasattr(scales, "new_zeros"):
        padded = scales.new_zeros((down * 128, across * 4))
        turn = type(scales).permute
    else:  # stands for an array while the kernel is only compiled
        return type(scales)(scales.dtype, blocks)
    padded[:rows, :runs] = scales
    return turn(padded.reshape(down, 4, 32, across, 4), (0, 3, 2, 1, 4)).reshape(blocks)


def describe_scales(scales, rows, runs):
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=4)
    block = [rows // 128, runs // 4, 2, 256]
    return TensorDescriptor.from_tensor(in_blocks(scales), block, layout)


def operands(args, config):
    m, n, k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    bytes_k = k // 2 if config["KIND"] == "e2m1" else k
    runs = k // config["RUN"]
    return (
        describe(args["a"], [m, bytes_k]),
        describe(args["b"], [n, bytes_k]),
        describe_scales(args["a_scale"], m, runs),
        describe_scales(args["b_scale"], n, runs),
        describe(args["c"], [m, 32]),
        args["M"],
        args["N"],
        args["K"],
    )


def unsigned(codes):
    """Return bytes as scales of ue4m3, whose sign is zero."""
    if isinstance(codes, np.ndarray):
        return codes.view(ml_dtypes.float8_e4m3fn)
    if hasattr(codes, "new_zeros"):
        import torch

        return codes.view(torch.float8_e4m3fn)
    return type(codes)(np.dtype(ml_dtypes.float8_e4m3fn), codes.shape)


def arguments_of(kind, run):
    def arguments(new, large, sizes=None):
        m, n, k = sizes or ((8192, 8192, 8192) if large else (320, 272, 288))

        def values(rows):
            if kind == "e2m1":
                return new.integers((rows, k // 2), 0, 256)
            return new.random((rows, k), "float8_e4m3fn")

        def scales(rows):
            if run == 16:
                return unsigned(new.integers((rows, k // run), 0x28, 0x40))
            return new.integers((rows, k // run), 120, 128)

        return {
            "a": values(m),
            "b": values(n),
            "a_scale": scales(m),
            "b_scale": scales(n),
            "c": new.empty((m, n), "bfloat16"),
            "M": m,
            "N": n,
            "K": k,
        }

    return arguments


def config_of(kind, run, block, stages, accs, group):
    def config(warp_size, block=block, stages=stages, accs=accs, group=group):
        m, n, k = block
        return {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": k,
            "KIND": kind,
            "RUN": run,
            "STAGES": stages,
            "ACCS": accs,
            "GROUP": group,
            "num_warps": 4,
        }

    return config


def grid(args, config):
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    return (min(tiles, gluon.multiprocessors(args["a"]) or 3),)


def reference(args):
    halves = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    fp4 = np.concatenate([halves, -halves])

    def wide(values, scales):
        if values.dtype == np.uint8:
            values = np.stack([fp4[values & 15], fp4[values >> 4]], -1).reshape(len(values), -1)
        if scales.dtype == np.uint8:
            scales = 2.0 ** (scales.astype(int) - 127)
        run = values.shape[1] // scales.shape[1]
        return values.astype(np.float64) * np.repeat(scales.astype(np.float64), run, 1)

    return wide(args["a"], args["a_scale"]) @ wide(args["b"], args["b_scale"]).T


def example(name, kind, run, small, large, stages):
    return Example(
        name=f"matmul, Blackwell, {name}",
        kernel=matmul_scaled_blackwell,
        arguments=arguments_of(kind, run),
        operands=operands,
        grid=grid,
        config=config_of(kind, run, small, 2, 2, 2),
        # Two accumulators of 256 columns would leave no tensor memory for scales.
        large_config=config_of(kind, run, large, stages, 1, 8),
        reference=reference,
        output="c",
        flops=lambda args: 2 * args["M"] * args["N"] * args["K"],
        requires=("nvidia.tcgen05", "nvidia.tma"),
        tolerance=4e-3,
    )


EXAMPLES = [
    example("mxfp8", "e4m3", 32, (128, 128, 128), (128, 256, 128), 4),
    example("nvfp4", "e2m1", 16, (128, 128, 64), (128, 256, 256), 3),
    example("mxfp4", "e2m1", 32, (128, 128, 128), (128, 256, 256), 3),
]
