"""Warp-specialized GEMM on Hopper: a producer warp feeds a ring of tiles, two consumer warp groups multiply.

    python examples/hopper/warp_specialized_gemm.py

The producer runs ahead as far as the ring has free slots. Each consumer takes half of the rows (a cooperative schedule).
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia import hopper
from gluon_core.nvidia.hopper import TensorDescriptor


@gluon.jit
def produce(ring, row, column, K, BLOCK_K: gl.constexpr):
    slot = ring.producer()
    for k in range(0, K, BLOCK_K):
        ring.fetch(slot, [[row, k], [k, column]])
        slot = slot.next()


@gluon.jit
def consume(ring, writer, row, column, K, half: gl.constexpr, block: gl.constexpr):
    rows: gl.constexpr = block[0] // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block[1], 16])
    acc = hopper.warpgroup_mma_init(gl.zeros([rows, block[1]], gl.float32, layout))
    slot = ring.consumer()
    for k in range(0, K, block[2]):
        a_tile, b_tile = ring.wait(slot)
        a_tile = a_tile.slice(half * rows, rows, dim=0)
        acc = hopper.warpgroup_mma(a_tile, b_tile, acc, is_async=True)
        acc = hopper.warpgroup_mma_init(hopper.warpgroup_mma_wait(1, deps=[acc]))
        ring.release(slot.before(), pred=k > 0)  # its product is done
        slot = slot.next()
    result = hopper.warpgroup_mma_wait(0, deps=[acc])
    ring.release(slot.before())
    writer.store([row + half * rows, column], result)
    writer.close()


@gluon.jit
def gemm_kernel(a, b, c, K, block: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr):
    ring = hopper.tma_ring([a, b], STAGES, consumers=2)
    first, second = hopper.tma_writer(c), hopper.tma_writer(c)
    row, column = gl.program_id(0) * block[0], gl.program_id(1) * block[1]
    gl.warp_specialize(
        [
            (consume, (ring, first, row, column, K, 0, block)),
            (consume, (ring, second, row, column, K, 1, block)),
            (produce, (ring, row, column, K, block[2])),
        ],
        [4, 1],
        [232, 24],
    )


def main():
    place = gluon.testing.place("nvidia.wgmma")
    rng, (m, n, k), block = np.random.default_rng(0), (200, 80, 144), (128, 64, 32)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c = place.empty((m, n), np.float16)
    boxes = ([block[0], block[2]], [block[2], block[1]], [block[0] // 2, block[1]])
    layouts = [gl.NVMMASharedLayout.get_default_for(box, gl.float16) for box in boxes]
    arrays = (place.array(a), place.array(b), c)
    operands = map(TensorDescriptor.from_tensor, arrays, boxes, layouts)
    grid = (gluon.cdiv(m, block[0]), gluon.cdiv(n, block[1]))
    gemm_kernel[grid](*operands, k, block, STAGES=3, num_warps=4, target=place.target)
    wanted = a.astype(float) @ b.astype(float)
    np.testing.assert_allclose(place.numpy(c), wanted, rtol=0.01, atol=0.05)
    print(f"warp-specialized GEMM on {place.target}: {m} x {n} x {k}")


if __name__ == "__main__":
    main()
