"""Whole programs for Hopper, as sources for `oracle.load`: the tests of the frontend compare them with
upstream, those of the simulator run them, with one synchronization less too."""

# c[M, 64] = a[M, K] @ b[K, 64]: persistent, one partition loads through a ring of buffers, the other
# multiplies, stores while the next tile begins.
GEMM = """
from GLUON.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait)
copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
put = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
T = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
BAR = gl.constexpr(mbarrier.MBarrierLayout())
@aggregate
class Ring:
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    x: gl.shared_memory_descriptor
    y: gl.shared_memory_descriptor
    stages: gl.constexpr
    @gluon.constexpr_function
    def __init__(self, full, empty, x, y, stages):
        self.full = full
        self.empty = empty
        self.x = x
        self.y = y
        self.stages = gl.constexpr(stages)
@gluon.jit
def load(ring, a, b, tiles, k):
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        for i in range(0, k, 64):
            slot = step % ring.stages
            phase = step // ring.stages & 1
            mbarrier.wait(ring.empty.index(slot), phase ^ 1)
            full = ring.full.index(slot)
            mbarrier.expect(full, 2 * 64 * 64 * 2)
            copy(a, [tile * 64, i], full, ring.x.index(slot))
            copy(b, [i, 0], full, ring.y.index(slot))
            step += 1
@gluon.jit
def multiply(ring, c, tiles, k):
    out = gl.allocate_shared_memory(gl.float16, [64, 64], T)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        acc = warpgroup_mma_init(gl.zeros([64, 64], gl.float32, layout=ACC))
        for i in range(0, k, 64):
            slot = step % ring.stages
            mbarrier.wait(ring.full.index(slot), step // ring.stages & 1)
            acc = warpgroup_mma(ring.x.index(slot), ring.y.index(slot), acc, use_acc=i > 0, is_async=True)
            x = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            acc = warpgroup_mma_init(x)
            if i > 0:
                mbarrier.arrive(ring.empty.index((step - 1) % ring.stages), count=1)
            step += 1
        result = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(ring.empty.index((step - 1) % ring.stages), count=1)
        tma.store_wait(pendings=0)
        out.store(result.to(gl.float16))
        fence_async_shared()
        put(c, [tile * 64, 0], out)
    tma.store_wait(pendings=0)
@gluon.jit
def kernel(pa, pb, pc, m, k, STAGES: gl.constexpr):
    a = tma.make_tensor_descriptor(pa, [m, k], [k, 1], [64, 64], T)
    b = tma.make_tensor_descriptor(pb, [k, 64], [64, 1], [64, 64], T)
    c = tma.make_tensor_descriptor(pc, [m, 64], [64, 1], [64, 64], T)
    x = gl.allocate_shared_memory(gl.float16, [STAGES, 64, 64], T)
    y = gl.allocate_shared_memory(gl.float16, [STAGES, 64, 64], T)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BAR)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BAR)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    ring = Ring(full, empty, x, y, STAGES)
    tiles = gl.cdiv(m, 64)
    gl.warp_specialize([(multiply, (ring, c, tiles, k)), (load, (ring, a, b, tiles, k))], [1], [24])
ARGS = (ptr(gl.float16), ptr(gl.float16), ptr(gl.float16), 256, 192, 3)
"""
