"""Add two matrices on Hopper: TMA copies boxes to shared memory and counts their bytes at a barrier.

    python examples/hopper/tma_add.py

A descriptor on the host holds the address, shape and strides of a matrix. The barrier's phase changes once the expected
bytes are there (PTX ISA, 9.7.9.27). Elements outside of the matrix arrive as zeros and are not stored.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier
from gluon_core.language.nvidia.hopper.tma import async_load, async_store, store_wait
from gluon_core.nvidia.hopper import TensorDescriptor


@gluon.jit
def add_kernel(a, b, out, layout: gl.constexpr):
    box: gl.constexpr = a.block_type.shape
    a_smem = gl.allocate_shared_memory(a.dtype, box, a.layout)
    b_smem = gl.allocate_shared_memory(b.dtype, box, b.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    corner = [gl.program_id(0) * box[0], gl.program_id(1) * box[1]]

    mbarrier.expect(ready, 2 * a.block_type.nbytes)
    async_load(a, corner, ready, a_smem)
    async_load(b, corner, ready, b_smem)
    mbarrier.wait(ready, 0)
    a_smem.store(a_smem.load(layout) + b_smem.load(layout))
    fence_async_shared()  # the store above is of the generic proxy, the copy below is not
    async_store(out, corner, a_smem)
    store_wait(0)


def main():
    place = gluon.testing.place("nvidia.tma")
    x, y = np.random.default_rng(0).standard_normal((2, 100, 72), np.float32)
    out, box = place.empty((100, 72), np.float32), [64, 32]
    shared = gl.NVMMASharedLayout.get_default_for(box, gl.float32)
    arrays = (place.array(x), place.array(y), out)
    descriptors = [TensorDescriptor.from_tensor(array, box, shared) for array in arrays]
    layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    add_kernel[(2, 3)](*descriptors, layout, target=place.target)
    np.testing.assert_array_equal(place.numpy(out), x + y)
    print(f"TMA add on {place.target}: 100 x 72 in boxes of 64 x 32")


if __name__ == "__main__":
    main()
