import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia.blackwell import TensorDescriptor

LINE = gl.BlockedLayout([4], [32], [1], [0])
TILE = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
ROWS = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0]))


def run(kernel, *arguments, target="sim:sm_100", num_warps=4, grid=1, **options):
    """Launch on the simulator, and return the last argument."""
    kernel[(grid,)](*arguments, target=target, num_warps=num_warps, **options)
    return arguments[-1]


matrix = np.arange(64 * 64, dtype=np.int32).reshape(64, 64)
HALVES = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
WORDS = gl.NVMMASharedLayout.get_default_for([32, 32], gl.int32)


# -- nvidia.blackwell.tma.async_atomic_and, nvidia.blackwell.tma.async_atomic_or, nvidia.blackwell.tma.async_atomic_xor: bits of a tile changed where they are
@gluon.jit
def masked(bits, both, either, other):
    tma: gl.constexpr = gl.nvidia.blackwell.tma
    r = gl.arange(0, 32, gl.SliceLayout(1, TILE))[:, None] * 32
    v = gl.load(bits + r + gl.arange(0, 32, gl.SliceLayout(0, TILE))[None, :])
    buffer = gl.allocate_shared_memory(gl.int32, [32, 32], both.layout, v)
    gl.nvidia.blackwell.fence_async_shared()
    tma.async_atomic_and(both, [0, 0], buffer)
    tma.async_atomic_or(either, [0, 0], buffer)
    tma.async_atomic_xor(other, [0, 0], buffer)
    tma.store_wait(0)


bits = np.arange(1024, dtype=np.int32).reshape(32, 32)
results = [np.full((32, 32), 5, np.int32) for _ in range(3)]
run(masked, bits, *(TensorDescriptor.from_tensor(m, [32, 32], WORDS) for m in results))
print([m[0, 6].item() for m in results], [5 & 6, 5 | 6, 5 ^ 6])
#> [4, 7, 3] [4, 7, 3]

# -- nvidia.blackwell.tma.async_gather, nvidia.blackwell.tma.async_scatter, nvidia.blackwell.tma.tensor_descriptor, nvidia.blackwell.tma.tensor_descriptor_type: rows by number, there and back
@gluon.jit
def reversed_rows(source, sink):
    b: gl.constexpr = gl.nvidia.blackwell
    gl.static_assert(source.type == sink.type)
    rows = gl.allocate_shared_memory(gl.float16, [32, 64], source.layout)
    done = b.mbarrier.allocate_mbarrier()
    b.mbarrier.init(done, count=1)
    b.mbarrier.expect(done, 32 * source.block_type.nbytes)
    i = gl.arange(0, 32, ROWS)
    b.tma.async_gather(source, 63 - i, 0, done, rows)
    b.mbarrier.wait(done, 0)
    b.tma.async_scatter(sink, i, 0, rows)
    b.tma.store_wait(0)


a, gathered = matrix.astype(np.float16), np.zeros((64, 64), np.float16)
source, sink = (TensorDescriptor.from_tensor(m, [1, 64], HALVES) for m in (a, gathered))
run(reversed_rows, source, sink)
print((gathered[:32] == a[:31:-1]).all(), gathered[32:].any())
#> True False

# -- nvidia.blackwell.tma.async_copy_global_to_shared_im2col, nvidia.blackwell.tma.tensor_descriptor_im2col, nvidia.blackwell.tma.tensor_descriptor_im2col_type: the pixels that one tap of a filter sees; from Triton 3.8 on
from gluon_core.nvidia.hopper import TensorDescriptorIm2Col


@gluon.jit
def tap(image, out):
    b: gl.constexpr = gl.nvidia.blackwell
    gl.static_assert(isinstance(image, b.tma.tensor_descriptor_im2col))
    pixels = gl.allocate_shared_memory(gl.float16, image.block_shape, image.layout)
    done = b.mbarrier.allocate_mbarrier()
    b.mbarrier.init(done, count=1)
    b.mbarrier.expect(done, image.block_type.nbytes)
    shift = gl.program_id(0).to(gl.int16)
    b.tma.async_copy_global_to_shared_im2col(image, [0, 0, 0, 0], [shift, shift], done, pixels)
    b.mbarrier.wait(done, 0)
    b.tma.async_copy_shared_to_global(out, [0, 0], pixels)
    b.tma.store_wait(0)


image = np.arange(16 * 4 * 4 * 64).reshape(16, 4, 4, 64).astype(np.float16)
seen = np.zeros((64, 64), np.float16)
run(
    tap,
    TensorDescriptorIm2Col.from_tensor(
        image, [64, 64], HALVES, pixel_box_lower_corner=[0, 0], pixel_box_upper_corner=[-2, -2]
    ),
    TensorDescriptor.from_tensor(seen, [64, 64], HALVES),
)
print((seen == image[:, :2, :2].reshape(64, 64)).all())
#> True

# -- nvidia.ampere.CachePolicy, nvidia.ampere.FractionalEvictionPolicy: hints for the caches; from Triton 3.9 on
@gluon.jit
def streamed(x, out):
    ampere: gl.constexpr = gl.nvidia.ampere
    keep: gl.constexpr = ampere.FractionalEvictionPolicy("evict_last", 0.5)
    i = gl.arange(0, 128, LINE)
    v = gl.load(x + i, cache_policy=ampere.CachePolicy(l1="no_allocate", l2=keep))
    gl.store(out + i, v)


x = np.arange(128, dtype=np.float32)
print(run(streamed, x, np.zeros_like(x), target="sim:sm_80", num_warps=1)[:4])
#> [0. 1. 2. 3.]

# -- nvidia.blackwell.clc.try_cancel, nvidia.blackwell.clc.load_result, nvidia.blackwell.clc.clc_result, nvidia.blackwell.clc.clc_result_type: programs take the work of those that have not begun; from Triton 3.8 on
@gluon.jit
def marked(out):
    b: gl.constexpr = gl.nvidia.blackwell
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    answered = b.mbarrier.allocate_mbarrier()
    b.mbarrier.init(answered, count=1)
    work = gl.program_id(0)
    asked = 0
    more = True
    while more:
        b.mbarrier.expect(answered, 16)
        b.clc.try_cancel(answer, answered)
        gl.atomic_add(out + work, work + 1)
        b.mbarrier.wait(answered, asked & 1)
        asked += 1
        taken = b.clc.load_result(answer)
        gl.static_assert(isinstance(taken, b.clc.clc_result))
        more = taken.is_canceled()
        if more:
            work = taken.program_id(0)


print(run(marked, np.zeros(8, np.int32), grid=8))
#> [1 2 3 4 5 6 7 8]

# -- nvidia.blackwell.clc.tile_scheduler: the same as a tile scheduler, for any number of partitions; from Triton 3.8 on
@gluon.jit
def marked_by_a_scheduler(out, count):
    work = gl.nvidia.blackwell.clc.tile_scheduler(count)
    tile = work.first()
    while work.has(tile):
        gl.store(out + work.at(tile), work.at(tile) + 1)
        tile = work.next(tile)


print(run(marked_by_a_scheduler, np.zeros(8, np.int32), grid=8, count=8))
#> [1 2 3 4 5 6 7 8]

# -- nvidia.blackwell.mbarrier.fence_init_release_cluster, nvidia.blackwell.mbarrier.sync_cluster_init: barriers that the other blocks of a cluster know; from Triton 3.7 to 3.8
@gluon.jit
def announced(out):
    b: gl.constexpr = gl.nvidia.blackwell
    done = b.mbarrier.allocate_mbarrier()
    b.mbarrier.init(done, count=1)
    b.mbarrier.fence_init_release_cluster()
    b.cluster.arrive(relaxed=True)
    b.cluster.wait()
    b.mbarrier.sync_cluster_init()  # the same in one
    gl.store(out, 1)


print(run(announced, np.zeros(1, np.int32), num_ctas=2))
#> [1]

# -- nvidia.blackwell.tcgen05_mma_barrier_count, nvidia.blackwell.tensor_memory_descriptor_type: how many commits a barrier of a cluster hears; from Triton 3.7 on
@gluon.jit
def counted(out):
    b: gl.constexpr = gl.nvidia.blackwell
    split: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]])
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]])
    left = gl.allocate_shared_memory(gl.float16, [256, 64], split)
    right = gl.allocate_shared_memory(gl.float16, [64, 64], shared)
    memory: gl.constexpr = b.TensorMemoryLayout([128, 64], 1, cga_layout=[(1, 0)])
    sums = b.allocate_tensor_memory(gl.float32, [256, 64], memory)
    buffer: gl.constexpr = b.tensor_memory_descriptor_type(gl.float32, [256, 64], memory, [256, 64])
    gl.static_print(sums.type == buffer)
    gl.store(out, b.tcgen05_mma_barrier_count([left, right], multicast=True))


print(run(counted, np.zeros(1, np.int32), num_ctas=2))
#> True
#> [2]

# -- nvidia.hopper.warpgroup_mma_accumulator, nvidia.hopper.warpgroup_mma_accumulator_type: a product that is still under way
@gluon.jit
def under_way(a, out):
    h: gl.constexpr = gl.nvidia.hopper
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    r = gl.arange(0, 64, gl.SliceLayout(1, TILE))[:, None] * 64
    index = r + gl.arange(0, 64, gl.SliceLayout(0, TILE))[None, :]
    operand = gl.allocate_shared_memory(gl.float16, [64, 64], HALVES, gl.load(a + index))
    h.fence_async_shared()
    acc = h.warpgroup_mma_init(gl.zeros([64, 64], gl.float32, layout))
    acc = h.warpgroup_mma(operand, operand, acc, is_async=True)
    gl.static_print(isinstance(acc, h.warpgroup_mma_accumulator))
    gl.static_print(isinstance(acc.type, h.warpgroup_mma_accumulator_type))
    done = h.warpgroup_mma_wait(0, deps=(acc,))
    gl.store(out + index, gl.convert_layout(done, TILE))


one = np.eye(64, dtype=np.float16)
print((run(under_way, one, np.zeros((64, 64), np.float32), target="sim:hopper") == one).all())
#> True
#> True
#> True

# -- nvidia.blackwell.cluster.barrier: all blocks of a cluster meet; from Triton 3.7 on
@gluon.jit
def met(out):
    gl.nvidia.blackwell.cluster.barrier()
    gl.store(out, 1)


print(run(met, np.zeros(1, np.int32), num_ctas=2))
#> [1]

# -- nvidia.hopper.multimem.load_reduce, nvidia.hopper.multimem.store, nvidia.hopper.multimem.reduce: one instruction for the copies of all ranks
@gluon.jit
def add_up(x, everywhere):
    i = gl.arange(0, 64, gl.BlockedLayout([2], [32], [1], [0]))
    mm: gl.constexpr = gl.nvidia.hopper.multimem
    gl.store(gl.portable.peer(x.peers, x.rank) + i, x.rank + 1.0)
    gl.portable.rank_barrier(x.signals, x.rank)
    total = mm.load_reduce(everywhere, i)
    gl.portable.rank_barrier(x.signals, x.rank)
    if x.rank == 0:
        mm.store(everywhere, i, total)
    gl.portable.rank_barrier(x.signals, x.rank)
    mm.reduce(everywhere, i, 10.0)  # of each rank


def summed(group):
    x = group.empty(64, np.float32)
    add_up[(1,)](x, group.multicast(x), num_warps=1)
    group.barrier()
    return x.local[:2].tolist()


print(gluon.distributed.simulate(summed, world=2, target="sim:hopper"))
#> [[23.0, 23.0], [23.0, 23.0]]
