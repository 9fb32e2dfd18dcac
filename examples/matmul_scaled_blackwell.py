"""Block-scaled matrix multiplication on Blackwell, C = A B^T: fp8 and fp4 with a scale for each run of K.

Runs of 32 elements have power-of-two scales (mxfp8, mxfp4), runs of 16 have e4m3 scales (nvfp4).
The host lays the scales out in blocks of 128 rows by four, as `tcgen05` reads them; from there TMA
and the copy to tensor memory move them, never a register. The roles are those of
matmul_blackwell.py. K must be a multiple of 32.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import Example, main
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma_scaled,
)
from gluon_core.language.nvidia.blackwell.tma import async_load, async_store, store_wait
from gluon_core.nvidia.blackwell import TensorDescriptor


@gluon.jit
def advance(slot, phase, SLOTS: gl.constexpr):
    """The next slot of a ring, and the parity of its phase."""
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def tile_at(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Row and column of a tile: programs that run together share rows of A and of B."""
    width = GROUP * tiles_n
    first = tile // width * GROUP
    height = gl.minimum(tiles_m - first, GROUP)
    inside = tile % width
    return first + inside % height, inside // height


@gluon.jit
def rows_of(scales):
    """A box of scales [R, G, 2, 256] seen as [128 R, 4 G].

    A block of 512 bytes has four scales of row 0, of row 32, of 64 and of 96, then of row 1 and so on.
    """
    R: gl.constexpr = scales.shape[0]
    G: gl.constexpr = scales.shape[1]
    return scales.reshape((R, G, 32, 4, 4)).permute((0, 3, 2, 1, 4)).reshape((R * 128, G * 4))


@gluon.jit
def copy_tiles(
    descs, smems, full, empty, tiles_m, tiles_n, K, PACK: gl.constexpr, GROUP: gl.constexpr
):
    a_desc, b_desc, a_scale_desc, b_scale_desc = descs
    a_smem, b_smem, a_scale_smem, b_scale_smem = smems
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    BYTES_K: gl.constexpr = a_desc.block_type.shape[1]
    R: gl.constexpr = a_scale_desc.block_type.shape[0]
    S: gl.constexpr = b_scale_desc.block_type.shape[0]
    G: gl.constexpr = a_scale_desc.block_type.shape[1]
    STAGES: gl.constexpr = a_smem.shape[0]
    BYTES: gl.constexpr = (
        a_desc.block_type.nbytes
        + b_desc.block_type.nbytes
        + a_scale_desc.block_type.nbytes
        + b_scale_desc.block_type.nbytes
    )
    slot = 0
    phase = 1  # of buffers that nobody has used yet, the phase before the first has ended
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        for k in range(0, gl.cdiv(K, BYTES_K * PACK)):
            mbarrier.wait(empty.index(slot), phase)
            ready = full.index(slot)
            mbarrier.expect(ready, BYTES)
            async_load(a_desc, [m * BLOCK_M, k * BYTES_K], ready, a_smem.index(slot))
            async_load(b_desc, [n * BLOCK_N, k * BYTES_K], ready, b_smem.index(slot))
            async_load(a_scale_desc, [m * R, k * G, 0, 0], ready, a_scale_smem.index(slot))
            async_load(b_scale_desc, [n * S, k * G, 0, 0], ready, b_scale_smem.index(slot))
            slot, phase = advance(slot, phase, STAGES)


@gluon.jit
def multiply_tiles(
    smems, tmems, full, empty, acc_full, acc_empty, tiles_m, tiles_n, K,
    PACK: gl.constexpr, KIND: gl.constexpr,
):  # fmt: skip
    a_smem, b_smem, a_scale_smem, b_scale_smem = smems
    acc_tmem, a_scale_tmem, b_scale_tmem = tmems
    BLOCK_K: gl.constexpr = a_smem.shape[2] * PACK
    STAGES: gl.constexpr = a_smem.shape[0]
    ACCS: gl.constexpr = acc_tmem.shape[0]
    slot = 0
    phase = 0
    acc_slot = 0
    acc_phase = 1
    for _ in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        mbarrier.wait(acc_empty.index(acc_slot), acc_phase)
        acc = acc_tmem.index(acc_slot)
        for k in range(0, K, BLOCK_K):
            mbarrier.wait(full.index(slot), phase)
            # The unit copies and multiplies in the order in which one warp issues: the scales are
            # there when they are read, and the next ones come when they have been.
            tcgen05_copy(rows_of(a_scale_smem.index(slot)), a_scale_tmem)
            tcgen05_copy(rows_of(b_scale_smem.index(slot)), b_scale_tmem)
            tcgen05_mma_scaled(
                a_smem.index(slot),
                b_smem.index(slot).permute((1, 0)),
                acc,
                a_scale_tmem,
                b_scale_tmem,
                KIND,
                KIND,
                use_acc=k > 0,
            )
            tcgen05_commit(empty.index(slot))  # its buffers are free once the unit has read them
            slot, phase = advance(slot, phase, STAGES)
        tcgen05_commit(acc_full.index(acc_slot))
        acc_slot, acc_phase = advance(acc_slot, acc_phase, ACCS)


@gluon.jit
def store_tiles(
    c_desc, c_smem, acc_tmem, acc_full, acc_empty, tiles_m, tiles_n, GROUP: gl.constexpr
):
    ACCS: gl.constexpr = acc_tmem.shape[0]
    BLOCK_M: gl.constexpr = acc_tmem.shape[1]
    BLOCK_N: gl.constexpr = acc_tmem.shape[2]
    WIDTH: gl.constexpr = c_desc.block_type.shape[1]
    # A lane of tensor memory is a row of the tile; each of four warps reaches 32 lanes.
    layout: gl.constexpr = gl.BlockedLayout([1, WIDTH], [32, 1], [4, 1], [0, 1])
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        mbarrier.wait(acc_full.index(slot), phase)
        acc = acc_tmem.index(slot)
        for i in gl.static_range(BLOCK_N // WIDTH):
            part = acc.slice(i * WIDTH, WIDTH).load(layout).to(c_desc.dtype)
            if i == BLOCK_N // WIDTH - 1:
                mbarrier.arrive(acc_empty.index(slot), count=1)
            buffer = c_smem.index(i % 2)
            store_wait(1)  # what left this buffer before is out of it
            buffer.store(part)
            fence_async_shared()
            async_store(c_desc, [m * BLOCK_M, n * BLOCK_N + i * WIDTH], buffer)
        slot, phase = advance(slot, phase, ACCS)
    store_wait(0)


@gluon.jit
def matmul_scaled_blackwell(
    a_desc,
    b_desc,
    a_scale_desc,
    b_scale_desc,
    c_desc,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    KIND: gl.constexpr,
    RUN: gl.constexpr,
    STAGES: gl.constexpr,
    ACCS: gl.constexpr,
    GROUP: gl.constexpr,
):
    """A is [M, K] and B is [N, K]; fp4 ("e2m1") is packed, two along K in a byte. Their scales, one
    for each RUN elements of K, come in blocks [rows / 128, runs / 4, 2, 256]."""
    PACK: gl.constexpr = 2 if KIND == "e2m1" else 1
    a_smem = gl.allocate_shared_memory(
        a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout
    )
    b_smem = gl.allocate_shared_memory(
        b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout
    )
    a_scale_smem = gl.allocate_shared_memory(
        a_scale_desc.dtype, [STAGES] + a_scale_desc.block_type.shape, a_scale_desc.layout
    )
    b_scale_smem = gl.allocate_shared_memory(
        b_scale_desc.dtype, [STAGES] + b_scale_desc.block_type.shape, b_scale_desc.layout
    )
    c_smem = gl.allocate_shared_memory(c_desc.dtype, [2] + c_desc.block_type.shape, c_desc.layout)
    # One buffer of scales for all slots: see `multiply_tiles`.
    scales: gl.constexpr = TensorMemoryScalesLayout()
    a_scale_tmem = allocate_tensor_memory(a_scale_desc.dtype, [BLOCK_M, BLOCK_K // RUN], scales)
    b_scale_tmem = allocate_tensor_memory(b_scale_desc.dtype, [BLOCK_N, BLOCK_K // RUN], scales)
    acc_layout: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    acc_tmem = allocate_tensor_memory(gl.float32, [ACCS, BLOCK_M, BLOCK_N], acc_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    acc_full = gl.allocate_shared_memory(gl.int64, [ACCS, 1], mbarrier.MBarrierLayout())
    acc_empty = gl.allocate_shared_memory(gl.int64, [ACCS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(ACCS):
        mbarrier.init(acc_full.index(i), count=1)
        mbarrier.init(acc_empty.index(i), count=1)
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    descs = (a_desc, b_desc, a_scale_desc, b_scale_desc)
    smems = (a_smem, b_smem, a_scale_smem, b_scale_smem)
    tmems = (acc_tmem, a_scale_tmem, b_scale_tmem)
    gl.warp_specialize(
        [
            (
                store_tiles,
                (c_desc, c_smem, acc_tmem, acc_full, acc_empty, tiles_m, tiles_n, GROUP),
            ),
            (
                multiply_tiles,
                (smems, tmems, full, empty, acc_full, acc_empty, tiles_m, tiles_n, K, PACK, KIND),
            ),
            (
                copy_tiles,
                (descs, smems, full, empty, tiles_m, tiles_n, K, PACK, GROUP),
            ),
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
    if getattr(args["a"], "is_cuda", False):
        import torch

        device = torch.cuda.get_device_properties(args["a"].device)
        return (min(tiles, device.multi_processor_count),)
    return (min(tiles, 3),)


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
