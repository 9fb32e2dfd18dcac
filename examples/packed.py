"""Groups of rows and sequences packed one behind the other: who works on what, and what attention over them
is.

Programs walk over the tiles of all of them. How many tiles one has is known only when the kernel runs; with
the numbers summed up, a tile is of the group or sequence that so many sums are not above.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def groups_of(
    starts, counts, groups, N, layout: gl.constexpr, BLOCKS: gl.constexpr, MOST: gl.constexpr
):
    """Of each group, up to MOST: its first row, its rows, and the tiles of all groups up to it."""
    group = gl.arange(0, MOST, layout)
    start = gl.load(starts + group, mask=group < groups, other=0)
    count = gl.load(counts + group, mask=group < groups, other=0)
    tiles = gl.cdiv(count, BLOCKS[0]) * gl.cdiv(N, BLOCKS[1])
    return start, count, gl.associative_scan(tiles, 0, add)


@gluon.jit
def group_tile_at(tile, found, N, BLOCKS: gl.constexpr, GROUP: gl.constexpr):
    """A tile's group, its first row and column, and where the group's rows end. Within a group, GROUP
    rows of tiles are walked at a time, column by column."""
    start, count, tiles = found
    group = gl.sum((tiles <= tile).to(gl.int32), 0)
    index = gl.arange(0, tiles.shape[0], tiles.type.layout)
    first = gl.sum(gl.where(index == group, start, 0), 0)
    rows = gl.sum(gl.where(index == group, count, 0), 0)
    inside = tile - gl.sum(gl.where(index == group - 1, tiles, 0), 0)
    width = GROUP * gl.cdiv(N, BLOCKS[1])
    before = inside // width * GROUP
    height = gl.minimum(gl.cdiv(rows, BLOCKS[0]) - before, GROUP)
    inside = inside % width
    row = first + (before + inside % height) * BLOCKS[0]
    return group, row, inside // height * BLOCKS[1], first + rows


@gluon.jit
def sequences(lists, warps: gl.constexpr, BLOCK_M: gl.constexpr, MOST: gl.constexpr):
    """Of each sequence: where its queries and keys begin and end, and the tiles of all up to it."""
    of_queries, of_keys, count = lists
    index = gl.arange(0, MOST, gl.BlockedLayout([1], [32], [warps], [0]))
    there = index < count
    first = gl.load(of_queries + index, mask=there, other=0)
    last = gl.load(of_queries + index + 1, mask=there, other=0)
    first_key = gl.load(of_keys + index, mask=there, other=0)
    last_key = gl.load(of_keys + index + 1, mask=there, other=0)
    tiles = gl.associative_scan(gl.cdiv(last - first, BLOCK_M), 0, add)
    return (first, last, first_key, last_key, tiles)


@gluon.jit
def picked(values, index, at):
    return gl.sum(gl.where(index == at, values, 0), 0)


@gluon.jit
def work_at(turn, found, heads, BLOCKS: gl.constexpr, WINDOW: gl.constexpr):
    """The head, where the tile's queries begin and their sequence's end, where its keys begin, how many
    those are, the difference between a key's and a query's place, and the first tile of keys and the
    one behind the last."""
    firsts, lasts, key_firsts, key_lasts, sums = found
    total = gl.max(sums, 0)
    turn = gl.num_programs(0) * turn + gl.program_id(0)
    head = turn // gl.maximum(total, 1)
    tile = total - 1 - turn % gl.maximum(total, 1)  # with a causal mask, the last are the longest
    at = gl.sum((sums <= tile).to(gl.int32), 0)
    index = gl.arange(0, sums.shape[0], sums.type.layout)
    first = picked(firsts, index, at)
    end = picked(lasts, index, at)
    first_key = picked(key_firsts, index, at)
    length = picked(key_lasts, index, at) - first_key
    row = (tile - picked(sums, index, at - 1)) * BLOCKS[0]
    shift = length - (end - first)
    start = 0
    stop = length
    if WINDOW[0] is not None:
        start = gl.maximum(row + shift - WINDOW[0], 0) // BLOCKS[1]
    if WINDOW[1] is not None:
        stop = gl.minimum(row + BLOCKS[0] + shift + WINDOW[1], length)
    stop = gl.maximum(
        gl.cdiv(stop, BLOCKS[1]), start + 1
    )  # where no key is seen, one tile all masked
    return head, first, row, end, first_key, length, shift, start, stop


@gluon.jit
def fetch_rows(ring, at, row, head, MORE: gl.constexpr):
    """Rows of a head's queries or keys: in two parts, if MORE says where the second one begins."""
    if MORE:
        ring.fetch(at, [[row, head, 0], [row, head, MORE]])
    else:
        ring.fetch(at, [[row, head, 0]])


@gluon.jit
def product(queries, keys, acc, use_acc: gl.constexpr):
    D: gl.constexpr = queries.shape[2]
    k_tile = keys.reshape([keys.shape[0], D]).permute((1, 0))
    q_tile = queries.reshape([queries.shape[0], D])
    mma: gl.constexpr = gl.nvidia.hopper.warpgroup_mma
    return mma(q_tile, k_tile, acc, use_acc=use_acc, is_async=True)


@gluon.jit
def score_products(queries, keys, nothing, MORE: gl.constexpr):
    """Start to multiply queries with keys, of one part or of two."""
    if MORE:
        coming = product(queries[0], keys[0], nothing, False)
        coming = product(queries[1], keys[1], coming, True)
    else:
        coming = product(queries, keys, nothing, False)
    return coming


def reference(args):
    """In float64, sequence by sequence."""
    q, k, v = (args[name].astype(np.float64) for name in "qkv")
    shared, (left, right) = q.shape[1] // k.shape[1], args["window"]
    out = np.zeros((*q.shape[:2], v.shape[2]))
    bounds = [list(zip(args[name], args[name][1:])) for name in ("of_queries", "of_keys")]
    for (begin, end), (first, last) in zip(*bounds):
        if begin == end or first == last:
            continue
        mine, (of_k, of_v) = q[begin:end], (t[first:last].repeat(shared, axis=1) for t in (k, v))
        score = np.einsum("qhd,khd->hqk", mine, of_k) / math.sqrt(q.shape[-1])
        if args["cap"]:
            score = args["cap"] * np.tanh(score / args["cap"])
        away = (
            np.arange(last - first)
            - (np.arange(end - begin) + (last - first - end + begin))[:, None]
        )
        seen = np.ones_like(away, dtype=bool)
        seen &= away >= -left if left is not None else True
        seen &= away <= right if right is not None else True
        p = np.exp(score - score.max()) * seen
        total = p.sum(axis=2, keepdims=True)
        p = np.divide(p, total, out=np.zeros_like(p), where=total > 0)
        out[begin:end] = np.einsum("hqk,khd->qhd", p, of_v)
    return out


def pairs(args):
    """How many a query and a key see of each other, over all sequences, for one head."""
    left, right = args["window"]
    found = 0
    for queries, keys in zip(
        np.diff(args["of_queries"].tolist()), np.diff(args["of_keys"].tolist())
    ):
        place = np.arange(queries) + keys - queries
        low = 0 if left is None else np.maximum(place - left, 0)
        high = keys if right is None else np.minimum(place + right + 1, keys)
        found += int(np.maximum(high - low + 0 * place, 0).sum())
    return found
