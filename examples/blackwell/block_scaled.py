"""Block-scaled multiplication on Blackwell: mxfp8, a scale for every 32 elements along K.

    python examples/blackwell/block_scaled.py

`tcgen05.mma` reads the scales from tensor memory (PTX ISA, 9.7.16.10.7).
"""

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia import blackwell
from gluon_core.language.nvidia.hopper import mbarrier, tma
from gluon_core.nvidia.blackwell import TensorDescriptor


@gluon.jit
def load_scales(pointer, first, k, runs, memory, ROWS: gl.constexpr, RUNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, RUNS], [32, 1], [4, 1], [1, 0])
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    run = k // 32 + gl.arange(0, RUNS, gl.SliceLayout(0, layout))
    scales = gl.load(pointer + (row * runs)[:, None] + run[None, :])
    memory.store(gl.convert_layout(scales, memory.get_reg_layout()))


@gluon.jit
def scaled_kernel(a, b, a_scale, b_scale, c, N, K, block: gl.constexpr):
    M: gl.constexpr = block[0]
    RUNS: gl.constexpr = block[2] // 32
    a_smem = gl.allocate_shared_memory(a.dtype, [M, block[2]], a.layout)
    b_smem = gl.allocate_shared_memory(b.dtype, [block[1], block[2]], b.layout)
    sums: gl.constexpr = blackwell.TensorMemoryLayout([M, block[1]], col_stride=1)
    acc = blackwell.allocate_tensor_memory(gl.float32, [M, block[1]], sums)
    scales: gl.constexpr = blackwell.TensorMemoryScalesLayout()
    s = blackwell.allocate_tensor_memory(gl.uint8, [M, RUNS], scales)
    t = blackwell.allocate_tensor_memory(gl.uint8, [block[1], RUNS], scales)
    copied, multiplied = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(copied, count=1)
    mbarrier.init(multiplied, count=1)
    row, column = gl.program_id(0) * M, gl.program_id(1) * block[1]
    for k in range(0, K, block[2]):
        phase = k // block[2] & 1
        mbarrier.expect(copied, a.block_type.nbytes + b.block_type.nbytes)
        tma.async_load(a, [row, k], copied, a_smem)
        tma.async_load(b, [column, k], copied, b_smem)
        load_scales(a_scale, row, k, K // 32, s, M, RUNS)
        load_scales(b_scale, column, k, K // 32, t, block[1], RUNS)
        mbarrier.wait(copied, phase)
        b_t = b_smem.permute((1, 0))
        blackwell.tcgen05_mma_scaled(a_smem, b_t, acc, s, t, "e4m3", "e4m3", use_acc=k > 0)
        blackwell.tcgen05_commit(multiplied)
        mbarrier.wait(multiplied, phase)
    result = acc.load(acc.get_reg_layout())
    i = row + gl.arange(0, M, gl.SliceLayout(1, result.type.layout))
    j = column + gl.arange(0, block[1], gl.SliceLayout(0, result.type.layout))
    gl.store(c + (i * N)[:, None] + j[None, :], result)


def main():
    place = gluon.testing.place("nvidia.tcgen05")
    rng, (m, n, k), block = np.random.default_rng(0), (256, 128, 256), (128, 64, 128)
    a, b = (rng.standard_normal((x, k)).astype(ml_dtypes.float8_e4m3fn) for x in (m, n))
    s, t = (rng.integers(120, 130, (x, k // 32), np.uint8) for x in (m, n))
    c, boxes = place.empty((m, n), np.float32), ([block[0], block[2]], [block[1], block[2]])
    layouts = [gl.NVMMASharedLayout.get_default_for(box, gl.float8e4nv) for box in boxes]
    operands = map(TensorDescriptor.from_tensor, map(place.array, (a, b)), boxes, layouts)
    scales = place.array(s), place.array(t)
    scaled_kernel[(2, 2)](*operands, *scales, c, n, k, block, target=place.target)
    powers = (np.repeat(2.0 ** (e.astype(int) - 127), 32, 1) for e in (s, t))
    x, y = (v.astype(float) * power for v, power in zip((a, b), powers))
    np.testing.assert_allclose(place.numpy(c), x @ y.T, rtol=1e-3, atol=0.01)
    print(f"mxfp8 GEMM on {place.target}: {m} x {n} x {k}")


if __name__ == "__main__":
    main()
