"""Groups of heads that share queries and keys, over whose chunks the programs of gradients walk on Hopper.

A group is a chunk of `each` heads; programs take groups in turn: chunks first, then parts of heads, then batches. `sizes` are the heads, the chunks and the
groups of all, the length, `each`, and the heads that have the same queries and keys, a multiple of `each`.
"""

import gluon_core as gluon
from gluon_core import language as gl

__all__ = ["groups_of", "item_of", "store_tile"]


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
