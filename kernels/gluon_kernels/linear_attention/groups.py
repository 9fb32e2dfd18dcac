"""Groups of heads that share queries and keys, over whose chunks the programs of gradients walk on Hopper.

A group is a chunk of `each` heads; programs take groups in turn: chunks first, then parts of heads, then batches. `sizes` are the heads, the chunks and the
groups of all, the length, `each`, and the heads that have the same queries and keys, a multiple of `each`.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.hopper_decay import barriers_of

__all__ = ["groups_of", "item_of", "layouts_of", "slots_of_sums", "store_keys", "store_tile"]


@gluon.constexpr_function
def layouts_of(C, K):
    """Return the layouts of four warps' products of C x C, of those of C x K, and of their left operands in registers."""
    square = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, C, 16])
    wide = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    return square, wide, gl.DotOperandLayout(0, wide, 2)


@gluon.jit
def slots_of_sums(COUNT: gl.constexpr, SLOTS: gl.constexpr, C: gl.constexpr):
    """Allocate slots of COUNT sums of rows, of which the second has a part of each of four warps, that two partitions write and one reads."""
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    parts: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    vectors = (
        gl.allocate_shared_memory(gl.float32, [SLOTS, C], plain),
        gl.allocate_shared_memory(gl.float32, [SLOTS, 4, C], parts),
    )
    for _ in gl.static_range(COUNT - 2):
        vectors = vectors + (gl.allocate_shared_memory(gl.float32, [SLOTS, C], plain),)
    return (vectors,) + barriers_of(SLOTS, 1, 2)


@gluon.jit
def item_of(number, sizes):
    """Return the batch, the head and the chunk of the n-th head of a program."""
    heads, chunks, _, _, each, _ = sizes
    group = gl.program_id(0) + number // each * gl.num_programs(0)
    chunk = group % chunks
    part = group // chunks
    parts = heads // each
    return part // parts, part % parts * each + number % each, chunk


@gluon.jit
def groups_of(sizes):
    """Return the number of groups of a program."""
    return gl.cdiv(sizes[2] - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def store_tile(pointer, tile, left, stride, EVEN: gl.constexpr):
    """Store the rows that there are."""
    row = gl.arange(0, tile.shape[0], gl.SliceLayout(1, tile.type.layout))[:, None]
    column = gl.arange(0, tile.shape[1], gl.SliceLayout(0, tile.type.layout))[None, :]
    tile = tile.to(pointer.dtype.element_ty)
    if EVEN:
        gl.store(pointer + (row * stride + column), tile)
    else:
        gl.store(pointer + (row * stride + column), tile, mask=row < left)


@gluon.jit
def store_keys(
    target, tile, batch, part, chunk, sizes, EVEN: gl.constexpr, WRITTEN: gl.constexpr
):  # fmt: skip
    """Store the gradients of a group's queries or keys, to [batch, length, parts, K] or by a writer of it."""
    heads, _, _, length, each, _ = sizes
    C: gl.constexpr = tile.shape[0]
    K: gl.constexpr = tile.shape[1]
    if WRITTEN:
        target.store([batch, chunk * C, part, 0], tile)
    else:
        row_size = heads // each * K
        token = batch.to(gl.int64) * length + chunk * C
        target += token * row_size + part * K
        store_tile(target, tile, length - chunk * C, row_size, EVEN)
