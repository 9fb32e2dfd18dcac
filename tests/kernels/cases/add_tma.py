"""Add two matrices on Hopper, a tile at a time, all of it moved by TMA.

`add_pipelined` copies the tiles of the next steps while this one is added. `add_specialized` leaves
the copies to one warp: it runs ahead as far as there are buffers, and the warps that add never issue
a copy.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core import multiprocessors
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier
from gluon_core.language.nvidia.hopper.tma import async_load, async_store, store_wait
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_report.example import Example


@gluon.jit
def corner(desc, tile):
    """Row and column of the first element of a tile; tiles are counted along the rows."""
    rows: gl.constexpr = desc.block_type.shape[0]
    columns: gl.constexpr = desc.block_type.shape[1]
    across = gl.cdiv(desc.shape[1].to(gl.int32), columns)
    return tile // across * rows, tile % across * columns


@gluon.jit
def fetch(a_desc, b_desc, a_smem, b_smem, ready, tile):
    row, column = corner(a_desc, tile)
    mbarrier.expect(ready, 2 * a_desc.block_type.nbytes)
    async_load(a_desc, [row, column], ready, a_smem)
    async_load(b_desc, [row, column], ready, b_smem)


@gluon.jit
def put(out_desc, out_smem, value, tile, OUT: gl.constexpr):
    row, column = corner(out_desc, tile)
    store_wait(OUT - 1)  # the store that read this buffer before is over
    out_smem.store(value)
    fence_async_shared()
    async_store(out_desc, [row, column], out_smem)


@gluon.jit
def add_pipelined(
    a_desc, b_desc, out_desc, tiles, STAGES: gl.constexpr, OUT: gl.constexpr, layout: gl.constexpr
):
    tile_shape: gl.constexpr = a_desc.block_type.shape
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + tile_shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + tile_shape, b_desc.layout)
    out_smem = gl.allocate_shared_memory(out_desc.dtype, [OUT] + tile_shape, out_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)

    programs = gl.num_programs(0)
    program = gl.program_id(0)
    count = (tiles - program + programs - 1) // programs
    for i in gl.static_range(STAGES - 1):
        if i < count:
            tile = program + i * programs
            fetch(a_desc, b_desc, a_smem.index(i), b_smem.index(i), ready.index(i), tile)
    for i in range(count):
        ahead = i + STAGES - 1
        free = ahead % STAGES
        if ahead < count:
            tile = program + ahead * programs
            fetch(a_desc, b_desc, a_smem.index(free), b_smem.index(free), ready.index(free), tile)
        slot = i % STAGES
        mbarrier.wait(ready.index(slot), i // STAGES & 1)
        total = a_smem.index(slot).load(layout) + b_smem.index(slot).load(layout)
        put(out_desc, out_smem.index(i % OUT), total, program + i * programs, OUT)
    store_wait(0)


@gluon.jit
def copy_tiles(a_desc, b_desc, smems, barriers, tiles, STAGES: gl.constexpr):
    a_smem, b_smem = smems
    full, empty = barriers
    i = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        slot = i % STAGES
        mbarrier.wait(empty.index(slot), i // STAGES & 1 ^ 1)
        fetch(a_desc, b_desc, a_smem.index(slot), b_smem.index(slot), full.index(slot), tile)
        i += 1


@gluon.jit
def add_tiles(
    out_desc,
    smems,
    out_smem,
    barriers,
    tiles,
    STAGES: gl.constexpr,
    OUT: gl.constexpr,
    layout: gl.constexpr,
):
    a_smem, b_smem = smems
    full, empty = barriers
    i = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), i // STAGES & 1)
        total = a_smem.index(slot).load(layout) + b_smem.index(slot).load(layout)
        mbarrier.arrive(empty.index(slot), count=1)
        put(out_desc, out_smem.index(i % OUT), total, tile, OUT)
        i += 1
    store_wait(0)


@gluon.jit
def add_specialized(
    a_desc, b_desc, out_desc, tiles, STAGES: gl.constexpr, OUT: gl.constexpr, layout: gl.constexpr
):
    tile_shape: gl.constexpr = a_desc.block_type.shape
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + tile_shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + tile_shape, b_desc.layout)
    out_smem = gl.allocate_shared_memory(out_desc.dtype, [OUT] + tile_shape, out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    smems = (a_smem, b_smem)
    barriers = (full, empty)
    gl.warp_specialize(
        [
            (add_tiles, (out_desc, smems, out_smem, barriers, tiles, STAGES, OUT, layout)),
            (copy_tiles, (a_desc, b_desc, smems, barriers, tiles, STAGES)),
        ],
        [1],
        [24],
    )


def describe(array, block):
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float32)
    return TensorDescriptor.from_tensor(array, block, layout)


def operands(block):
    def make(args, config):
        return (*(describe(args[name], block) for name in ("a", "b", "out")), tiles_of(args, block))

    return make


def tiles_of(args, block):
    rows, columns = args["a"].shape
    return -(-rows // block[0]) * -(-columns // block[1])


def arguments(new, large, shape=None):
    shape = shape or ((2**23, 32) if large else (300, 40))
    return {"a": new.random(shape), "b": new.random(shape), "out": new.empty(shape)}


def configure(warp_size, stages=3, out=2, num_warps=4):
    return {
        "STAGES": stages,
        "OUT": out,
        "layout": gl.BlockedLayout([1, 4], [4, 8], [num_warps, 1], [1, 0]),
        "num_warps": num_warps,
    }


def grid(per_multiprocessor, block):
    def make(args, config):
        tiles = tiles_of(args, block)
        here = multiprocessors(args["a"])
        programs = here * per_multiprocessor if here else max(3, tiles // 8)  # several tiles each
        return (min(programs, tiles),)

    return make


def example(name, kernel, block=(64, 32), per_multiprocessor=1):
    return Example(
        name=name,
        kernel=kernel,
        arguments=arguments,
        operands=operands(block),
        grid=grid(per_multiprocessor, block),
        config=configure,
        reference=lambda args: args["a"] + args["b"],
        output="out",
        bytes_moved=lambda args: 3 * 4 * args["a"].shape[0] * args["a"].shape[1],
        requires=("nvidia.tma",),
    )


EXAMPLES = [
    example("add, TMA", add_pipelined),
    example("add, TMA, warp-specialized", add_specialized),
]
