"""Warp-specialized GEMM on Blackwell: one warp copies, one multiplies, four store one of two accumulators.

    python examples/blackwell/warp_specialized_gemm.py

`gluon_kernels.gemm.blackwell` has pairs of blocks and a tile scheduler as well.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import accumulator_ring, tcgen05_commit, tcgen05_mma
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer
from gluon_core.nvidia.blackwell import TensorDescriptor


@gluon.jit
def copy_tiles(ring, tiles, K, BLOCK_K: gl.constexpr):
    slot = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, K, BLOCK_K):
            ring.fetch(slot, [[row, k], [k, column]])
            slot = slot.next()


@gluon.jit
def multiply_tiles(ring, sums, tiles, K, BLOCK_K: gl.constexpr):
    slot, to = ring.consumer(), sums.producer()
    for _ in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        acc = sums.take(to)
        for k in range(0, K, BLOCK_K):
            a_tile, b_tile = ring.wait(slot)
            tcgen05_mma(a_tile, b_tile, acc, use_acc=k > 0)
            tcgen05_commit(ring.empty(slot))  # frees the slot once the unit has read it
            slot = slot.next()
        sums.done(to)
        to = to.next()


@gluon.jit
def store_tiles(sums, writer, tiles):
    position = sums.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        sums.store(position, writer, tiles.at(tile))
        position = position.next()
    writer.close()


@gluon.jit
def gemm_kernel(a, b, c, M, N, K, block: gl.constexpr):
    ring = tma_ring([a, b], 3)
    sums = accumulator_ring([block[0], block[1]], 2)
    writer = tma_writer(c, parts=4)
    tiles = gl.portable.swizzled_tiles([M, N], [block[0], block[1]])
    gl.warp_specialize([
        (store_tiles, (sums, writer, tiles)),
        (multiply_tiles, (ring, sums, tiles, K, block[2])),
        (copy_tiles, (ring, tiles, K, block[2])),
    ], [1, 1], [48, 48])  # fmt: skip


def main():
    place = gluon.testing.place("nvidia.tcgen05")
    rng, (m, n, k), block = np.random.default_rng(0), (320, 272, 144), (128, 128, 32)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c = place.empty((m, n), np.float16)
    boxes = ([block[0], block[2]], [block[2], block[1]], [block[0], block[1] // 4])
    layouts = [gl.NVMMASharedLayout.get_default_for(box, gl.float16) for box in boxes]
    arrays = (place.array(a), place.array(b), c)
    operands = map(TensorDescriptor.from_tensor, arrays, boxes, layouts)
    gemm_kernel[(3,)](*operands, m, n, k, block, target=place.target)
    np.testing.assert_allclose(place.numpy(c), a.astype(float) @ b, rtol=0.01, atol=0.05)
    print(f"warp-specialized GEMM on {place.target}: {m} x {n} x {k}")


if __name__ == "__main__":
    main()
