"""Attention of one new token each against keys and values in pages, split over programs.

Every sequence has its keys and values in pages of a common store, and a table that says which pages.
A program takes one head of keys, the queries that share it (GQA), and a part of the sequence. Each
key and value is read once, so memory bounds the kernel: copies of later keys are under way while these are
multiplied. One warp suffices for that, and has nobody to wait for; a processor runs several.

The parts of a sequence are put together by a second kernel, weighted by their sums.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def rows_of(table, tile, end, layout: gl.constexpr, PAGE: gl.constexpr, BLOCK: gl.constexpr):
    """Return the places of a tile's keys in the cache, and a mask of those that exist."""
    key = tile * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
    there = key < end
    page = gl.load(table + key // PAGE, mask=there, other=0)
    return page * PAGE + key % PAGE, there


@gluon.jit
def fetch(smem, cache, rows, there, row_stride, layout: gl.constexpr):
    """Start copying keys or values to a slot."""
    column = gl.arange(0, smem.shape[1], gl.SliceLayout(0, layout))
    at = (rows.to(gl.int64) * row_stride)[:, None] + column[None, :]
    gl.portable.async_copy(smem, cache, at, there[:, None])


@gluon.jit
def paged_attention(
    q, k_cache, v_cache, table, lengths, parts, logsums, heads, table_stride, scale,
    SHARED: gl.constexpr, D: gl.constexpr, PAGE: gl.constexpr, BLOCK: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """`q` is [sequences, heads * SHARED, D], a cache [pages, PAGE, heads, D], the table [sequences,
    pages of the longest]; the result of each part goes to `parts` [sequences, heads * SHARED,
    SPLITS, D], float32, the logarithm (base 2) of its sum to `logsums`. `scale` includes log2(e)."""
    dtype: gl.constexpr = q.dtype.element_ty
    M: gl.constexpr = 16  # rows of the matrix units; SHARED of them are queries
    scores: gl.constexpr = gl.portable.mma_layouts(M, BLOCK, D, dtype, dtype)
    values: gl.constexpr = gl.portable.mma_layouts(M, D, BLOCK, dtype, dtype)
    tile_layout: gl.constexpr = gl.portable.blocked_layout([BLOCK, D], dtype)
    q_layout: gl.constexpr = gl.portable.blocked_layout([M, D], dtype)
    by_row: gl.constexpr = gl.SliceLayout(1, scores.accumulator)
    out_row: gl.constexpr = gl.SliceLayout(1, values.accumulator)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, D], values.b_shared)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, D], values.b_shared)

    head = gl.program_id(0)
    sequence = gl.program_id(1)
    split = gl.program_id(2)
    length = gl.load(lengths + sequence)
    tiles = gl.cdiv(length, BLOCK)
    share = gl.cdiv(tiles, SPLITS)
    first = split * share
    last = gl.minimum(first + share, tiles)
    end = gl.minimum(last * BLOCK, length)
    table += sequence * table_stride
    k_cache += head * D
    v_cache += head * D
    row_stride = heads * D
    for i in gl.static_range(STAGES - 1):
        rows, there = rows_of(table, first + i, end, tile_layout, PAGE, BLOCK)
        slot = (first + i) % STAGES
        fetch(k_smem.index(slot), k_cache, rows, there, row_stride, tile_layout)
        fetch(v_smem.index(slot), v_cache, rows, there, row_stride, tile_layout)
        gl.portable.commit()

    q_row = gl.arange(0, M, gl.SliceLayout(1, q_layout))
    q_column = gl.arange(0, D, gl.SliceLayout(0, q_layout))
    first_query = (sequence * heads + head) * SHARED
    q_at = (first_query + q_row)[:, None] * D + q_column[None, :]
    q_tile = gl.load(q + q_at, mask=(q_row < SHARED)[:, None], other=0.0)
    q_tile = gl.convert_layout(q_tile, scores.a)
    key = gl.arange(0, BLOCK, gl.SliceLayout(0, scores.accumulator))
    largest = gl.full([M], -1e30, gl.float32, by_row)
    total = gl.zeros([M], gl.float32, by_row)
    acc = gl.zeros([M, D], gl.float32, values.accumulator)
    for tile in range(first, last):
        rows, there = rows_of(table, tile + STAGES - 1, end, tile_layout, PAGE, BLOCK)
        gl.portable.wait(STAGES - 2)
        k_tile = k_smem.index(tile % STAGES).permute((1, 0)).load(scores.b)
        zero = gl.zeros([M, BLOCK], gl.float32, scores.accumulator)
        score = gl.portable.mma(q_tile, k_tile, zero) * scale
        score = gl.where((tile * BLOCK + key < end)[None, :], score, -float("inf"))
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        p = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(p, axis=1)
        largest = higher
        acc = acc * gl.convert_layout(kept, out_row)[:, None]
        p_tile = gl.convert_layout(p.to(dtype), values.a)
        acc = gl.portable.mma(p_tile, v_smem.index(tile % STAGES).load(values.b), acc)
        slot = (tile + STAGES - 1) % STAGES
        fetch(k_smem.index(slot), k_cache, rows, there, row_stride, tile_layout)
        fetch(v_smem.index(slot), v_cache, rows, there, row_stride, tile_layout)
        gl.portable.commit()
    gl.portable.wait(0)

    # A part without keys has the sum 0, whose logarithm weighs nothing.
    out_total = gl.convert_layout(total, out_row)
    acc = acc / gl.where(out_total > 0, out_total, 1.0)[:, None]
    row = gl.arange(0, M, out_row)
    column = gl.arange(0, D, gl.SliceLayout(0, values.accumulator))
    at = ((first_query + row) * SPLITS + split)[:, None] * D + column[None, :]
    gl.store(parts + at, acc, mask=(row < SHARED)[:, None])
    score_row = gl.arange(0, M, by_row)
    logsum = largest + gl.log2(total)
    where = (first_query + score_row) * SPLITS + split
    gl.store(logsums + where, logsum, mask=score_row < SHARED)


@gluon.jit
def combine(parts, logsums, out, D: gl.constexpr, SPLITS: gl.constexpr):
    """Put the parts of a query's result together."""
    layout: gl.constexpr = gl.portable.blocked_layout([SPLITS, D], gl.float32)
    query = gl.program_id(0)
    split = gl.arange(0, SPLITS, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    logsum = gl.load(logsums + query * SPLITS + split)
    weight = gl.exp2(logsum - gl.maximum(gl.max(logsum, axis=0), -1e30))
    total = gl.sum(weight, axis=0)
    part = gl.load(parts + (query * SPLITS + split)[:, None] * D + column[None, :])
    result = gl.sum(part * weight[:, None], axis=0) / gl.where(total > 0, total, 1.0)
    gl.store(out + query * D + column, result)


def arguments(new, large, shape=None, splits=None, seed=0):
    """`shape`: sequences, heads of keys, queries that share one, width, page, longest sequence."""
    sequences, heads, shared, width, page, longest = shape or (
        (64, 8, 8, 128, 16, 8192) if large else (3, 2, 3, 64, 16, 150)
    )
    splits = splits or (4 if large else 2)
    pages = -(-longest // page)
    draw = np.random.default_rng(seed)
    table = draw.permutation(sequences * pages).reshape(sequences, pages).astype(np.int32)
    lengths = np.full(sequences, longest, np.int32)
    if not large:
        lengths[:-1] = draw.integers(0, longest, sequences - 1)
    size = (sequences * pages, page, heads, width)
    queries = sequences * heads * shared
    return {
        "q": new.random((sequences, heads * shared, width), "bfloat16"),
        "k_cache": new.random(size, "bfloat16"),
        "v_cache": new.random(size, "bfloat16"),
        "table": placed(new, table),
        "lengths": placed(new, lengths),
        "parts": new.empty((queries, splits, width)),
        "logsums": new.empty((queries, splits)),
        "heads": heads,
        "table_stride": pages,
        "scale": math.log2(math.e) / math.sqrt(width),
    }


def placed(new, array):
    """`array` where the kernel runs."""
    if array.dtype.kind == "f":
        tensor = new.empty(array.shape, str(array.dtype))
    else:
        tensor = new.integers(array.shape, 0, 1, "int32")
    if hasattr(tensor, "copy_"):
        import torch

        tensor.copy_(torch.from_numpy(array))
    elif hasattr(tensor, "__setitem__"):
        tensor[:] = array
    return tensor


def config(warp_size, shared=3, width=64, page=16, block=32, stages=3, splits=2, num_warps=1):
    return {
        "SHARED": shared,
        "D": width,
        "PAGE": page,
        "BLOCK": block,
        "STAGES": stages,
        "SPLITS": splits,
        "num_warps": num_warps,
    }


def large_config(warp_size, shared=8, width=128, block=32, stages=3, splits=4, num_warps=2):
    return config(warp_size, shared, width, 16, block, stages, splits, num_warps)


def grid(args, config):
    return (args["heads"], args["q"].shape[0], config["SPLITS"])


def part_of(args, i, head, first, last):
    """The result of a query over keys from `first` to `last` of its sequence, in float64."""
    q, shared = args["q"][i, head].astype(np.float64), args["q"].shape[1] // args["heads"]
    if last <= first:
        return np.zeros(q.shape)
    page = args["k_cache"].shape[1]
    key = np.arange(first, last)
    where = args["table"][i][key // page], key % page, head // shared
    k, v = (args[name][where].astype(np.float64) for name in ("k_cache", "v_cache"))
    score = k @ q * args["scale"]
    p = np.exp2(score - score.max())
    return p / p.sum() @ v


def attention(args):
    """The whole result in float64, of NumPy arrays."""
    rows = [
        part_of(args, i, head, 0, length)
        for i, length in enumerate(args["lengths"])
        for head in range(args["q"].shape[1])
    ]
    return np.reshape(rows, args["q"].shape)


def part_reference(args, block=32):
    """The parts, of tiles of `block` keys."""
    splits = args["parts"].shape[1]
    expected = []
    for i, length in enumerate(args["lengths"]):
        share = gluon.cdiv(gluon.cdiv(int(length), block), splits) * block
        for head in range(args["q"].shape[1]):
            starts = [min(split * share, length) for split in range(splits + 1)]
            expected += [part_of(args, i, head, a, b) for a, b in zip(starts, starts[1:])]
    return np.reshape(expected, args["parts"].shape)


def put_together(args):
    """`combine` in NumPy."""
    logsums, parts = (args[name].astype(np.float64) for name in ("logsums", "parts"))
    weight = np.exp2(logsums - logsums.max(axis=1, keepdims=True).clip(-1e30))
    total = weight.sum(axis=1, keepdims=True)
    return np.einsum("qs,qsd->qd", weight / np.where(total > 0, total, 1), parts)


def decode(args, config, **options):
    """Both kernels: the result, [sequences, heads * SHARED, D], in an array like `q`."""
    paged_attention[grid(args, config)](*args.values(), **{**config, **options})
    out = args["q"] * 0
    queries = math.prod(out.shape[:2])
    combine[(queries,)](
        args["parts"], args["logsums"], out, config["D"], config["SPLITS"], **options, num_warps=1
    )
    return out


def combine_arguments(new, large):
    queries, splits, width = (4096, 4, 128) if large else (18, 2, 64)
    return {
        "parts": new.random((queries, splits, width)),
        "logsums": new.random((queries, splits)),
        "out": new.empty((queries, width)),
    }


def bytes_read(args):
    """Return the bytes of keys and values; queries and results are few compared with them."""
    width, longest = args["q"].shape[2], args["table_stride"] * args["k_cache"].shape[1]
    return 2 * 2 * args["q"].shape[0] * longest * args["heads"] * width


EXAMPLES = [
    Example(
        name="attention of a part, paged",
        kernel=paged_attention,
        arguments=arguments,
        grid=grid,
        config=config,
        large_config=large_config,
        reference=part_reference,
        output="parts",
        bytes_moved=bytes_read,
        tolerance=1e-2,
    ),
]
# Not in the demo.
MORE = [
    Example(
        name="parts put together",
        kernel=combine,
        arguments=combine_arguments,
        grid=lambda args, config: (args["parts"].shape[0],),
        config=lambda warp_size, width=64, splits=2: {"D": width, "SPLITS": splits, "num_warps": 1},
        large_config=lambda warp_size: {"D": 128, "SPLITS": 4, "num_warps": 1},
        reference=put_together,
        output="out",
        bytes_moved=lambda args: 4 * math.prod(args["parts"].shape),
        tolerance=1e-5,
    ),
]
