import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor

FLAT = gl.SwizzledSharedLayout(1, 1, 1, [0])
LINE = gl.BlockedLayout([4], [32], [1], [0])
TILE = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])


def run(kernel, *arguments, target="sim:hopper", num_warps=1, grid=1, **constants):
    """Launch on the simulator, and return the last argument."""
    kernel[(grid,)](*arguments, **constants, target=target, num_warps=num_warps)
    return arguments[-1]


# -- nvidia.ampere.async_copy.async_copy_global_to_shared, nvidia.ampere.async_copy.commit_group, nvidia.ampere.async_copy.wait_group
@gluon.jit
def copied(x, out):
    i = gl.arange(0, 128, LINE)
    buffer = gl.allocate_shared_memory(gl.float32, [128], FLAT)
    gl.nvidia.ampere.async_copy.async_copy_global_to_shared(buffer, x + i)
    gl.nvidia.ampere.async_copy.commit_group()
    gl.nvidia.ampere.async_copy.wait_group(0)
    gl.store(out + i, buffer.load(LINE))


x = np.arange(128, dtype=np.float32)
print(run(copied, x, np.zeros_like(x), target="sim:sm_80")[:4])
#> [0. 1. 2. 3.]

# -- nvidia.ampere.mbarrier.MBarrierLayout, nvidia.ampere.mbarrier.allocate_mbarrier, nvidia.ampere.mbarrier.init, nvidia.ampere.mbarrier.arrive, nvidia.ampere.mbarrier.wait, nvidia.ampere.mbarrier.invalidate, nvidia.ampere.async_copy.mbarrier_arrive: a copy that a barrier waits for
@gluon.jit
def waited(x, out):
    i = gl.arange(0, 128, LINE)
    buffer = gl.allocate_shared_memory(gl.float32, [128], FLAT)
    done = gl.nvidia.ampere.mbarrier.allocate_mbarrier()
    gl.static_print(done.layout == gl.nvidia.ampere.mbarrier.MBarrierLayout())
    gl.nvidia.ampere.mbarrier.init(done, count=1)
    gl.nvidia.ampere.async_copy.async_copy_global_to_shared(buffer, x + i)
    gl.nvidia.ampere.async_copy.mbarrier_arrive(done)
    gl.nvidia.ampere.mbarrier.arrive(done)
    gl.nvidia.ampere.mbarrier.wait(done, 0)
    gl.nvidia.ampere.mbarrier.invalidate(done)
    gl.store(out + i, buffer.load(LINE))


print(run(waited, x, np.zeros_like(x), target="sim:sm_80")[:4])
#> True
#> [0. 1. 2. 3.]

# -- nvidia.ampere.mma_v2: `mma.sync` on operands in registers
@gluon.jit
def multiplied(a, b, c):
    acc: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    r = gl.arange(0, 64, gl.SliceLayout(1, TILE))[:, None] * 64
    index = r + gl.arange(0, 64, gl.SliceLayout(0, TILE))[None, :]
    left = gl.convert_layout(gl.load(a + index), gl.DotOperandLayout(0, acc, 2))
    right = gl.convert_layout(gl.load(b + index), gl.DotOperandLayout(1, acc, 2))
    out = gl.nvidia.ampere.mma_v2(left, right, gl.zeros([64, 64], gl.float32, acc))
    gl.store(c + index, gl.convert_layout(out, TILE))


a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float16)
right = a.astype(np.float32) @ b.astype(np.float32)
c = run(multiplied, a, b, np.zeros((64, 64), np.float32), target="sim:sm_80", num_warps=4)
print(np.abs(c - right).max() < 1e-2)
#> True

# -- nvidia.hopper.tma.async_copy_global_to_shared, nvidia.hopper.tma.async_copy_shared_to_global, nvidia.hopper.tma.store_wait, nvidia.hopper.mbarrier.expect, nvidia.hopper.fence_async_shared: a tile in and out by the tensor memory accelerator
@gluon.jit
def through(source, sink):
    tma: gl.constexpr = gl.nvidia.hopper.tma
    mbarrier: gl.constexpr = gl.nvidia.hopper.mbarrier
    buffer = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(done, count=1)
    mbarrier.expect(done, source.block_type.nbytes)
    tma.async_copy_global_to_shared(source, [0, 0], done, buffer)
    mbarrier.wait(done, 0)
    buffer.store(2 * buffer.load(TILE))
    gl.nvidia.hopper.fence_async_shared()
    tma.async_copy_shared_to_global(sink, [0, 0], buffer)
    tma.store_wait(0)


layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
doubled = np.zeros_like(a)
source, sink = (TensorDescriptor.from_tensor(m, [64, 64], layout) for m in (a, doubled))
run(through, source, sink, num_warps=4)
print((doubled == 2 * a).all())
#> True

# -- nvidia.hopper.warpgroup_mma, nvidia.hopper.warpgroup_mma_init, nvidia.hopper.warpgroup_mma_wait: `wgmma` on operands in shared memory
@gluon.jit
def grouped(a, b, c, layout: gl.constexpr):
    hopper: gl.constexpr = gl.nvidia.hopper
    out: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    r = gl.arange(0, 64, gl.SliceLayout(1, TILE))[:, None] * 64
    index = r + gl.arange(0, 64, gl.SliceLayout(0, TILE))[None, :]
    left = gl.allocate_shared_memory(gl.float16, [64, 64], layout, gl.load(a + index))
    right = gl.allocate_shared_memory(gl.float16, [64, 64], layout, gl.load(b + index))
    hopper.fence_async_shared()
    acc = hopper.warpgroup_mma_init(gl.zeros([64, 64], gl.float32, out))
    acc = hopper.warpgroup_mma(left, right, acc, is_async=True)
    acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    gl.store(c + index, gl.convert_layout(acc, TILE))


c = np.zeros((64, 64), np.float32)
grouped[(1,)](a, b, c, layout=layout, target="sim:hopper", num_warps=4)
print(np.abs(c - right).max() < 1e-2)
#> True

# -- nvidia.hopper.tma.async_atomic_add, nvidia.hopper.tma.async_atomic_min, nvidia.hopper.tma.async_atomic_max: a tile added to memory, by the copy engine
@gluon.jit
def added(values, total, least, most):
    tma: gl.constexpr = gl.nvidia.hopper.tma
    r = gl.arange(0, 64, gl.SliceLayout(1, TILE))[:, None] * 64
    v = gl.load(values + r + gl.arange(0, 64, gl.SliceLayout(0, TILE))[None, :])
    buffer = gl.allocate_shared_memory(total.dtype, [64, 64], total.layout, v)
    gl.nvidia.hopper.fence_async_shared()
    tma.async_atomic_add(total, [0, 0], buffer)
    tma.async_atomic_min(least, [0, 0], buffer)
    tma.async_atomic_max(most, [0, 0], buffer)
    tma.store_wait(0)


values = np.arange(-2048, 2048, dtype=np.int32).reshape(64, 64)
whole = gl.NVMMASharedLayout.get_default_for([64, 64], gl.int32)
results = [np.zeros((64, 64), np.int32) for _ in range(3)]
run(added, values, *(TensorDescriptor.from_tensor(m, [64, 64], whole) for m in results), num_warps=4)
wanted = (values, values.clip(None, 0), values.clip(0))
print(all((m == want).all() for m, want in zip(results, wanted)))
#> True

# -- nvidia.blackwell.allocate_tensor_memory, nvidia.blackwell.TensorMemoryLayout, nvidia.blackwell.get_tmem_reg_layout, nvidia.blackwell.tensor_memory_descriptor: accumulators outside the registers
@gluon.jit
def remembered(x, out):
    blackwell: gl.constexpr = gl.nvidia.blackwell
    buffer: gl.constexpr = blackwell.TensorMemoryLayout([128, 64], 1)
    memory = blackwell.allocate_tensor_memory(gl.float32, [128, 64], buffer)
    regs: gl.constexpr = blackwell.get_tmem_reg_layout(gl.float32, (128, 64), buffer, 4)
    r = gl.arange(0, 128, gl.SliceLayout(1, regs))[:, None] * 64
    index = r + gl.arange(0, 64, gl.SliceLayout(0, regs))[None, :]
    memory.store(gl.load(x + index))
    gl.store(out + index, memory.load(regs))


x = np.arange(128 * 64, dtype=np.float32)
print((run(remembered, x, np.zeros_like(x), target="sim:sm_100", num_warps=4) == x).all())
#> True

# -- nvidia.hopper.tma_ring, nvidia.hopper.tile_ring, nvidia.hopper.ring_position, nvidia.hopper.tma_writer, nvidia.hopper.tile_writer: tiles from a role that copies to one that works, and back to memory
Ring, Writer = gl.nvidia.hopper.tile_ring, gl.nvidia.hopper.tile_writer
Position = gl.nvidia.hopper.ring_position


@gluon.jit
def fetch(ring: Ring, position: Position, i):
    ring.fetch(position, [[64 * i, 0]])
    return position.next()


@gluon.jit
def copy_ahead(ring: Ring, rounds):
    position = ring.producer()
    for i in range(rounds):
        position = fetch(ring, position, i)


@gluon.jit
def double(ring: Ring, writer: Writer, rounds):
    position = ring.consumer()
    gl.static_assert(isinstance(position, gl.nvidia.hopper.ring_position))
    for i in range(rounds):
        tile = ring.wait(position).load(TILE) * 2  # a use: the release waits for no load
        ring.release(position)
        position = position.next()
        writer.store([64 * i, 0], tile)
    writer.close()


@gluon.jit
def in_roles(source, result, rounds):
    ring = gl.nvidia.hopper.tma_ring(source, 3)
    writer = gl.nvidia.hopper.tma_writer(result)
    gl.static_assert(isinstance(ring, gl.nvidia.hopper.tile_ring))
    gl.static_assert(isinstance(writer, gl.nvidia.hopper.tile_writer))
    gl.warp_specialize([(double, (ring, writer, rounds)), (copy_ahead, (ring, rounds))], [1], [24])


x = np.arange(5 * 64 * 64, dtype=np.int32).reshape(-1, 64)
doubled = np.zeros_like(x)
ends = (TensorDescriptor.from_tensor(array, [64, 64], whole) for array in (x, doubled))
run(in_roles, *ends, 5, num_warps=4)
print((doubled == 2 * x).all())
#> True

# -- nvidia.hopper.ordered_barrier, nvidia.hopper.ordered_barrier_type: two partitions that change the same buffer, one after the other
@gluon.jit
def grow(order: gl.nvidia.hopper.ordered_barrier_type, memory, partition: gl.constexpr):
    position = order.first(partition)
    for _ in range(3):
        order.wait(position)
        memory.store(memory.load(gl.BlockedLayout([1], [32], [4], [0])) * 2 + partition)
        order.arrive(position)
        position = position.next()


@gluon.jit
def alternating(out):
    index = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    memory = gl.allocate_shared_memory(gl.int32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    memory.store(index)
    order = gl.nvidia.hopper.ordered_barrier(2)
    gl.warp_specialize([(grow, (order, memory, 0)), (grow, (order, memory, 1))], [4], [24])
    gl.store(out + index, memory.load(gl.BlockedLayout([1], [32], [4], [0])))


print(run(alternating, np.zeros(128, np.int32), num_warps=4)[:4])
#> [ 21  85 149 213]

# -- nvidia.blackwell.accumulator_ring, nvidia.blackwell.tmem_ring: sums in tensor memory, one stored while the next grows
@gluon.jit
def multiply_ahead(ring: gl.nvidia.hopper.tile_ring, sums: gl.nvidia.blackwell.tmem_ring, rounds):
    b: gl.constexpr = gl.nvidia.blackwell
    filled = ring.consumer()
    to = sums.producer()
    for _ in range(rounds):
        left, right = ring.wait(filled)
        b.tcgen05_mma(left, right, sums.take(to), use_acc=False)
        b.tcgen05_commit(ring.empty(filled))
        sums.done(to)
        filled, to = filled.next(), to.next()


@gluon.jit
def fetch_both(ring: gl.nvidia.hopper.tile_ring, rounds):
    position = ring.producer()
    for i in range(rounds):
        ring.fetch(position, [[128 * i, 0], [0, 0]])
        position = position.next()


@gluon.jit
def store_sums(sums: gl.nvidia.blackwell.tmem_ring, writer: Writer, rounds):
    position = sums.consumer()
    for i in range(rounds):
        sums.store(position, writer, [128 * i, 0])
        position = position.next()
    writer.close()


@gluon.jit
def products_in_roles(left, right, result, rounds):
    ring = gl.nvidia.hopper.tma_ring([left, right], 2)
    sums = gl.nvidia.blackwell.accumulator_ring([128, 32], 2)
    gl.static_assert(isinstance(sums, gl.nvidia.blackwell.tmem_ring))
    writer = gl.nvidia.hopper.tma_writer(result)
    gl.warp_specialize(
        [
            (store_sums, (sums, writer, rounds)),
            (multiply_ahead, (ring, sums, rounds)),
            (fetch_both, (ring, rounds)),
        ],
        [1, 1],
        [48, 48],
    )


def tiled(array, block, dtype):
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor.from_tensor(array, block, layout)


left, right = np.ones((3 * 128, 16), np.float16), np.full((16, 32), 0.5, np.float16)
result = np.zeros((3 * 128, 32), np.float32)
ends = tiled(left, [128, 16], gl.float16), tiled(right, [16, 32], gl.float16)
run(products_in_roles, *ends, tiled(result, [128, 32], gl.float32), 3, target="sim:sm_100", num_warps=4)
print((result == 8).all())
#> True
