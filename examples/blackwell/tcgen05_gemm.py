"""GEMM on Blackwell: TMA feeds `tcgen05.mma`, whose accumulator is in tensor memory.

    python examples/blackwell/tcgen05_gemm.py

One thread issues a multiplication; `tcgen05.commit` signals a barrier when all before it are done (PTX ISA, 9.7.16). The
result leaves tensor memory by a load into registers.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
)
from gluon_core.language.nvidia.hopper import mbarrier, tma
from gluon_core.nvidia.blackwell import TensorDescriptor


@gluon.jit
def gemm_kernel(a, b, c, M, N, K, block: gl.constexpr):
    a_smem = gl.allocate_shared_memory(a.dtype, [block[0], block[2]], a.layout)
    b_smem = gl.allocate_shared_memory(b.dtype, [block[2], block[1]], b.layout)
    layout: gl.constexpr = TensorMemoryLayout([block[0], block[1]], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [block[0], block[1]], layout)
    copied, multiplied = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(copied, count=1)
    mbarrier.init(multiplied, count=1)
    row, column = gl.program_id(0) * block[0], gl.program_id(1) * block[1]

    phase = 0
    for k in range(0, K, block[2]):
        mbarrier.expect(copied, a.block_type.nbytes + b.block_type.nbytes)
        tma.async_load(a, [row, k], copied, a_smem)
        tma.async_load(b, [k, column], copied, b_smem)
        mbarrier.wait(copied, phase)
        tcgen05_mma(a_smem, b_smem, acc, use_acc=k > 0)
        tcgen05_commit(multiplied)
        mbarrier.wait(multiplied, phase)  # the tiles are read: the next ones may come
        phase ^= 1

    registers: gl.constexpr = gl.BlockedLayout([1, block[1]], [32, 1], [4, 1], [0, 1])
    result = acc.load(registers)
    i = row + gl.arange(0, block[0], gl.SliceLayout(1, registers))
    j = column + gl.arange(0, block[1], gl.SliceLayout(0, registers))
    inside = (i < M)[:, None] & (j < N)[None, :]
    gl.store(c + (i * N)[:, None] + j[None, :], result.to(c.dtype.element_ty), mask=inside)


def main():
    place = gluon.testing.place("nvidia.tcgen05")
    rng, (m, n, k), block = np.random.default_rng(0), (200, 80, 144), (128, 64, 32)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c = place.empty((m, n), np.float16)
    boxes = ([block[0], block[2]], [block[2], block[1]])
    layouts = [gl.NVMMASharedLayout.get_default_for(box, gl.float16) for box in boxes]
    arrays = (place.array(a), place.array(b))
    operands = map(TensorDescriptor.from_tensor, arrays, boxes, layouts)
    grid = (gluon.cdiv(m, block[0]), gluon.cdiv(n, block[1]))
    gemm_kernel[grid](*operands, c, m, n, k, block, target=place.target)
    wanted = a.astype(float) @ b.astype(float)
    np.testing.assert_allclose(place.numpy(c), wanted, rtol=0.01, atol=0.05)
    print(f"GEMM by tcgen05 on {place.target}: {m} x {n} x {k}")


if __name__ == "__main__":
    main()
