import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

TARGETS = ("sim:sm_80", "sim:hopper", "sim:gfx942", "sim:gfx1201")


# -- portable.load, portable.store, portable.blocked_layout: by base and offsets, for whatever a warp is
@gluon.jit
def doubled(x, out):
    layout: gl.constexpr = gl.portable.blocked_layout([256], gl.float32)
    i = gl.arange(0, 256, layout)
    gl.portable.store(out, i, 2 * gl.portable.load(x, i, mask=i < 200, other=0.0))


x = np.arange(256, dtype=np.float32)
for target in TARGETS:
    out = np.zeros_like(x)
    doubled[(1,)](x, out, target=target)
    print(target, out[[1, 199, 200]])
#> sim:sm_80 [  2. 398.   0.]
#> sim:hopper [  2. 398.   0.]
#> sim:gfx942 [  2. 398.   0.]
#> sim:gfx1201 [  2. 398.   0.]

# -- portable.async_copy, portable.commit, portable.wait: into shared memory, in the background where that exists
@gluon.jit
def staged(x, out):
    layout: gl.constexpr = gl.portable.blocked_layout([256], gl.float32)
    i = gl.arange(0, 256, layout)
    buffer = gl.allocate_shared_memory(gl.float32, [256], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.portable.async_copy(buffer, x, i)
    gl.portable.commit()
    gl.portable.wait(0)
    gl.portable.store(out, i, buffer.load(layout))


for target in TARGETS:
    out = np.zeros_like(x)
    staged[(1,)](x, out, target=target)
    print(target, (out == x).all())
#> sim:sm_80 True
#> sim:hopper True
#> sim:gfx942 True
#> sim:gfx1201 True

# -- portable.mma, portable.mma_layouts: `acc + a @ b` on the matrix unit that there is
@gluon.jit
def product(a, b, c, M: gl.constexpr):
    wanted: gl.constexpr = gl.portable.mma_layouts(M, M, M, gl.float16, gl.float16)
    tile: gl.constexpr = gl.portable.blocked_layout([M, M], gl.float16)
    r = gl.arange(0, M, gl.SliceLayout(1, tile))[:, None] * M
    index = r + gl.arange(0, M, gl.SliceLayout(0, tile))[None, :]
    left = gl.convert_layout(gl.load(a + index), wanted.a)
    right = gl.convert_layout(gl.load(b + index), wanted.b)
    acc = gl.zeros([M, M], gl.float32, wanted.accumulator)
    acc = gl.portable.mma(left, right, acc)
    gl.store(c + index, gl.convert_layout(acc, tile))


a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float16)
for target in TARGETS:
    c = np.zeros((64, 64), np.float32)
    product[(1,)](a, b, c, M=64, target=target)
    print(target, np.abs(c - a.astype(np.float32) @ b.astype(np.float32)).max() < 1e-2)
#> sim:sm_80 True
#> sim:hopper True
#> sim:gfx942 True
#> sim:gfx1201 True

# -- portable.descriptor, portable.pipeline, portable.accumulator, portable.mma_wait, portable.read: tiles under way while others are multiplied
@gluon.jit
def long_product(a, b, c, K, M: gl.constexpr):
    wanted: gl.constexpr = gl.portable.mma_layouts(
        M, M, M, gl.float16, gl.float16, operands="shared"
    )
    rows = gl.portable.descriptor(a, [M, K], [K, 1], [M, M], wanted.a_shared)
    columns = gl.portable.descriptor(b, [K, M], [M, 1], [M, M], wanted.b_shared)
    out = gl.portable.descriptor(c, [M, M], [M, 1], [M, M])
    tiles = gl.portable.pipeline([rows, columns], 2)
    acc = gl.portable.accumulator(wanted)
    tiles.fetch(0, [[0, 0], [0, 0]])
    for step in range(K // M):
        ahead = step + 1
        left, right = tiles.wait(step)
        acc = gl.portable.mma(left, right, acc, is_async=True)
        acc = gl.portable.mma_wait(acc, pending=0)
        tiles.fetch(ahead, [[0, ahead * M], [ahead * M, 0]], pred=ahead < K // M)
    gl.portable.store(out, [0, 0], gl.portable.read(acc))


a, b = np.random.default_rng(1).standard_normal((2, 64 * 256)).astype(np.float16)
a, b = a.reshape(64, 256), b.reshape(256, 64)
for target in TARGETS:
    c = np.zeros((64, 64), np.float32)
    long_product[(1,)](a, b, c, 256, M=64, target=target)
    print(target, np.abs(c - a.astype(np.float32) @ b.astype(np.float32)).max() < 1e-1)
#> sim:sm_80 True
#> sim:hopper True
#> sim:gfx942 True
#> sim:gfx1201 True

# -- portable.fence: between stores to shared memory and a matrix unit that reads it
@gluon.jit
def stored_product(a, b, c, M: gl.constexpr):
    wanted: gl.constexpr = gl.portable.mma_layouts(
        M, M, M, gl.float16, gl.float16, operands="shared"
    )
    tile: gl.constexpr = gl.portable.blocked_layout([M, M], gl.float16)
    r = gl.arange(0, M, gl.SliceLayout(1, tile))[:, None] * M
    index = r + gl.arange(0, M, gl.SliceLayout(0, tile))[None, :]
    left = gl.allocate_shared_memory(gl.float16, [M, M], wanted.a_shared, gl.load(a + index))
    right = gl.allocate_shared_memory(gl.float16, [M, M], wanted.b_shared, gl.load(b + index))
    gl.portable.fence()
    acc = gl.portable.mma(left, right, gl.portable.accumulator(wanted))
    gl.store(c + index, gl.convert_layout(gl.portable.read(acc), tile))


a, b = np.random.default_rng(2).standard_normal((2, 64, 64)).astype(np.float16)
c = np.zeros((64, 64), np.float32)
stored_product[(1,)](a, b, c, M=64, target="sim:hopper")
print(np.abs(c - a.astype(np.float32) @ b.astype(np.float32)).max() < 1e-2)
#> True

# -- portable.swizzled_tiles: which tile of a matrix a program works on, rows of tiles in groups
@gluon.jit
def ordered(out, GROUP: gl.constexpr):
    tiles = gl.portable.swizzled_tiles([96, 64], [32, 32], GROUP)
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        gl.store(out + 2 * tile, row)
        gl.store(out + 2 * tile + 1, column)


for group in (1, 2):
    out = np.zeros((6, 2), np.int32)
    ordered[(2,)](out, group, target="sim:hopper")
    print(out.tolist())
#> [[0, 0], [0, 32], [32, 0], [32, 32], [64, 0], [64, 32]]
#> [[0, 0], [32, 0], [0, 32], [32, 32], [64, 0], [64, 32]]

# -- portable.stream_k_tiles, portable.split_k_reduce: tiles that do not divide among programs are cut along K
@gluon.jit
def inner(x, y, out, sums, counters, K):
    layout: gl.constexpr = gl.portable.blocked_layout([16], gl.float32)
    i = gl.arange(0, 16, layout)
    work = gl.portable.stream_k_tiles([1, 1, K], [1, 1, 16])
    for piece in range(work.count()):
        row, column, k, end, slot, part, parts = work.at(piece)
        products = gl.zeros([16], gl.float32, layout)
        for start in range(k, end, 16):
            products += gl.load(x + start + i, mask=start + i < end, other=0.0) * gl.load(y + start + i)
        total, last = gl.portable.split_k_reduce(products, sums + slot * 16, counters + slot, part, parts)
        if last:
            gl.store(out, gl.sum(total, 0))


x, y = np.arange(80, dtype=np.float32), np.ones(80, np.float32)
out, sums, counters = np.zeros(1, np.float32), np.zeros(96, np.float32), np.zeros(6, np.int32)
inner[(3,)](x, y, out, sums, counters, 80, target="sim:hopper")
print(out, x.sum(), counters)
#> [3160.] 3160.0 [0 0 0 0 0 0]

# -- portable.signal, portable.wait_signal, portable.peer: between programs on several devices
from gluon_core import distributed


@gluon.jit
def pass_on(x, got):
    world: gl.constexpr = len(x.peers)
    layout: gl.constexpr = gl.portable.blocked_layout([128], gl.int32)
    i = gl.arange(0, 128, layout)
    after, before = (x.rank + 1) % world, (x.rank + world - 1) % world
    gl.store(gl.portable.peer(x.peers, after) + i, i * 0 + x.rank)
    gl.portable.signal(gl.portable.peer(x.signals, after) + x.rank)
    gl.portable.wait_signal(gl.portable.peer(x.signals, x.rank) + before)
    gl.store(got + i, gl.load(gl.portable.peer(x.peers, x.rank) + i))


def body(group):
    x, got = group.empty(128, np.int32), np.zeros(128, np.int32)
    pass_on[(1,)](x, got)
    return int(got[0])


print(distributed.simulate(body, world=4, target="sim:hopper"))
#> [3, 0, 1, 2]

# -- portable.rank_barrier: all programs of a channel, on all ranks
@gluon.jit
def summed(x, out):
    layout: gl.constexpr = gl.portable.blocked_layout([128], gl.int32)
    i = gl.arange(0, 128, layout)
    gl.store(gl.portable.peer(x.peers, x.rank) + i, i + x.rank)
    gl.portable.rank_barrier(x.signals, x.rank, gl.program_id(0))
    total = gl.zeros([128], gl.int32, layout)
    for rank in gl.static_range(len(x.peers)):
        total += gl.load(x.peers[rank] + i)
    gl.store(out + i, total)


def body(group):
    out = np.zeros(128, np.int32)
    summed[(1,)](group.empty(128, np.int32), out)
    return out[:3].tolist()


print(distributed.simulate(body, world=2, target="sim:gfx942"))
#> [[1, 3, 5], [1, 3, 5]]

# -- portable.counter_add, portable.counter_wait: one program counts, many wait
@gluon.jit
def spread(x, counter, out):
    layout: gl.constexpr = gl.portable.blocked_layout([128], gl.int32)
    i = gl.arange(0, 128, layout)
    if x.rank == 0:
        if gl.program_id(0) == 0:
            gl.store(x.peers[1] + i, i)
            gl.portable.counter_add(counter.peers[1], 1)
    else:
        gl.portable.counter_wait(counter.peers[1], 1)
        gl.store(out + gl.program_id(0) * 128 + i, gl.load(x.peers[1] + i))


def body(group):
    out = np.zeros((2, 128), np.int32)
    spread[(2,)](group.empty(128, np.int32), group.zeros(1, np.int32), out)
    return out[:, 127].tolist()


print(distributed.simulate(body, world=2, target="sim:hopper"))
#> [[0, 0], [127, 127]]

# -- portable.tile_scheduler, portable.static_tile_scheduler: the tile after this one, in step in all partitions; hardware that can takes over programs that have not begun
@gluon.jit
def mark(work, out, partition: gl.constexpr):
    tile = work.first(partition)
    while work.has(tile):
        row, column = work.at(tile)
        gl.store(out + 12 * partition + row // 32 * 4 + column // 32, gl.program_id(0))
        tile = work.next(tile)


@gluon.jit
def scheduled(out, STATIC: gl.constexpr):
    tiles = gl.portable.swizzled_tiles([96, 128], [32, 32])
    if STATIC:
        work = gl.portable.static_tile_scheduler(tiles, partitions=2)
    else:
        work = gl.portable.tile_scheduler(tiles, partitions=2)
    gl.warp_specialize([(mark, (work, out, 0)), (mark, (work, out, 1))], [1], [24])


for grid in (5, 12):
    out = np.full((2, 12), -1, np.int32)
    scheduled[(grid,)](out, True, target="sim:hopper", num_warps=4)
    print((out[0] == out[1]).all(), np.bincount(out[0]).tolist())
scheduled[(12,)](out, False, target="sim:sm_100", num_warps=4)
print((out[0] == out[1]).all())
#> True [3, 3, 2, 2, 2]
#> True [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
#> True

# -- portable.epilogue, portable.writer: a change of the accumulator before its store; by TMA while the kernel goes on, where there is TMA
@gluon.jit
def relu(x):
    return gl.maximum(x, 0.0)


@gluon.jit
def finished(sums, bias, out):
    layout: gl.constexpr = gl.portable.blocked_layout([64, 64], gl.float32)
    end = gl.portable.epilogue([64, 64], scale=2.0, bias=bias, activation=relu)
    tiles = gl.portable.descriptor(out, [64, 64], [64, 1], [64, 64])
    writer = gl.portable.writer(tiles, epilogue=end)
    row = gl.arange(0, 64, gl.SliceLayout(1, layout))
    column = gl.arange(0, 64, gl.SliceLayout(0, layout))
    writer.store([0, 0], gl.load(sums + row[:, None] * 64 + column[None, :]))
    writer.close()


sums, bias = np.random.default_rng(3).standard_normal((2, 64, 64)).astype(np.float32)
for target in TARGETS:
    out = np.zeros((64, 64), np.float32)
    finished[(1,)](sums, bias[0], out, target=target)
    print(target, np.allclose(out, np.maximum(2 * sums + bias[0], 0)))
#> sim:sm_80 True
#> sim:hopper True
#> sim:gfx942 True
#> sim:gfx1201 True

# -- portable.cluster_softmax: softmax of rows; blocks of a cluster that share a row exchange once, from Triton 3.8 on
@gluon.jit
def softmax(x, out):
    layout: gl.constexpr = gl.portable.blocked_layout([2, 64], gl.float32)
    row = gl.arange(0, 2, gl.SliceLayout(1, layout))
    column = gl.arange(0, 64, gl.SliceLayout(0, layout))
    index = row[:, None] * 64 + column[None, :]
    numerator, highest, total = gl.portable.cluster_softmax(gl.load(x + index))
    gl.store(out + index, numerator * (1 / total)[:, None])


x = np.random.default_rng(4).standard_normal((2, 64)).astype(np.float32)
wanted = np.exp(x) / np.exp(x).sum(1, keepdims=True)
for target in TARGETS:
    out = np.zeros_like(x)
    softmax[(1,)](x, out, target=target)
    print(target, np.allclose(out, wanted))
#> sim:sm_80 True
#> sim:hopper True
#> sim:gfx942 True
#> sim:gfx1201 True
