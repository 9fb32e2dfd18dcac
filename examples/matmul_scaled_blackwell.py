"""Block-scaled matrix multiplication on Blackwell, C = A B^T: fp8 and fp4 with a scale for each run of K.

Runs of 32 elements have power-of-two scales (mxfp8, mxfp4), runs of 16 have e4m3 scales (nvfp4).
The host lays the scales out in blocks of 128 rows by four, as `tcgen05` reads them; from there TMA
and the copy to tensor memory move them, never a register. The roles are those of
matmul_blackwell.py. K must be a multiple of 32.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryScalesLayout,
    accumulator_ring,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma_scaled,
)
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer
from gluon_core.nvidia.blackwell import TensorDescriptor
from gluon_report.example import Example, main

try:
    from .matmul_blackwell import store_tiles
except ImportError:  # run as a program
    from matmul_blackwell import store_tiles


@gluon.jit
def rows_of(scales):
    """A box of scales [R, G, 2, 256] seen as [128 R, 4 G].

    A block of 512 bytes has four scales of row 0, of row 32, of 64 and of 96, then of row 1 and so on.
    """
    R: gl.constexpr = scales.shape[0]
    G: gl.constexpr = scales.shape[1]
    return scales.reshape((R, G, 32, 4, 4)).permute((0, 3, 2, 1, 4)).reshape((R * 128, G * 4))


@gluon.jit
def copy_tiles(ring, tiles, K, BLOCK_K: gl.constexpr, PACK: gl.constexpr, RUN: gl.constexpr):
    at = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, gl.cdiv(K, BLOCK_K)):
            value = k * (BLOCK_K // PACK)
            scale = k * (BLOCK_K // RUN // 4)
            ring.fetch(
                at,
                [
                    [row, value],
                    [column, value],
                    [row // 128, scale, 0, 0],
                    [column // 128, scale, 0, 0],
                ],
            )
            at = at.next()


@gluon.jit
def multiply_tiles(ring, sums, scales, tiles, K, BLOCK_K: gl.constexpr, KIND: gl.constexpr):
    a_scale_tmem, b_scale_tmem = scales
    at = ring.consumer()
    to = sums.producer()
    for _ in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        acc = sums.take(to)
        for k in range(0, K, BLOCK_K):
            a_tile, b_tile, a_scale, b_scale = ring.wait(at)
            # The unit copies and multiplies in the order in which one warp issues: the scales are
            # there when they are read, and the next ones come when they have been.
            tcgen05_copy(rows_of(a_scale), a_scale_tmem)
            tcgen05_copy(rows_of(b_scale), b_scale_tmem)
            tcgen05_mma_scaled(
                a_tile,
                b_tile.permute((1, 0)),
                acc,
                a_scale_tmem,
                b_scale_tmem,
                KIND,
                KIND,
                use_acc=k > 0,
            )
            tcgen05_commit(ring.empty(at))  # its tiles are done with once the unit has read them
            at = at.next()
        sums.done(to)
        to = to.next()


@gluon.jit
def matmul_scaled_blackwell(
    a_desc, b_desc, a_scale_desc, b_scale_desc, c_desc, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, KIND: gl.constexpr,
    RUN: gl.constexpr, STAGES: gl.constexpr, ACCS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A is [M, K] and B is [N, K]; fp4 ("e2m1") is packed, two along K in a byte. Their scales, one
    for each RUN elements of K, come in blocks [rows / 128, runs / 4, 2, 256]."""
    PACK: gl.constexpr = 2 if KIND == "e2m1" else 1
    ring = tma_ring([a_desc, b_desc, a_scale_desc, b_scale_desc], STAGES)
    sums = accumulator_ring([BLOCK_M, BLOCK_N], ACCS)
    writer = tma_writer(c_desc, parts=BLOCK_N // c_desc.block_type.shape[1], buffers=2)
    # One buffer of scales for all slots: see `multiply_tiles`.
    layout: gl.constexpr = TensorMemoryScalesLayout()
    a_scale_tmem = allocate_tensor_memory(a_scale_desc.dtype, [BLOCK_M, BLOCK_K // RUN], layout)
    b_scale_tmem = allocate_tensor_memory(b_scale_desc.dtype, [BLOCK_N, BLOCK_K // RUN], layout)
    scales = (a_scale_tmem, b_scale_tmem)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    gl.warp_specialize(
        [
            (store_tiles, (sums, writer, tiles)),
            (multiply_tiles, (ring, sums, scales, tiles, K, BLOCK_K, KIND)),
            (copy_tiles, (ring, tiles, K, BLOCK_K, PACK, RUN)),
        ],
        [1, 1],
        [48, 48],
    )


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


def arguments_of(kind, run):
    def arguments(new, large, sizes=None):
        m, n, k = sizes or ((8192, 8192, 8192) if large else (320, 272, 288))

        def values(rows):
            if kind == "e2m1":
                return new.integers((rows, k // 2), 0, 256)
            return new.random((rows, k), "float8_e4m3fn")

        def scales(rows):
            if run == 16:
                return new.random((rows, k // run), "float8_e4m3fn")
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

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
