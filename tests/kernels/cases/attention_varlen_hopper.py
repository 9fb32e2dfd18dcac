"""Attention as servers and trainers want it, forward, on Hopper: sequences of any lengths packed one behind
the other, heads that share keys and values, a sliding window, and a soft cap on the scores.

The roles are those of `attention_hopper.py`. A tile of queries looks at the keys from its first row's
window to its last row's end, and only tiles that a border crosses are masked. Where sequences begin is
read from memory: with the numbers of tiles summed up, each role finds the tile of a program's turn.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_report.example import Example
from tests.kernels.cases.attention_paged import placed
from tests.kernels.cases.matmul_cooperative_hopper import programs
from tests.kernels.cases.varlen import (
    fetch_rows,
    pairs,
    reference,
    score_products,
    sequences,
    turns,
    work_at,
)


@gluon.jit
def copy_tiles(rings, lists, heads, SHARED: gl.constexpr, SETTINGS: gl.constexpr):
    BLOCKS: gl.constexpr = SETTINGS[0]
    queries, keys, values = rings
    packed = sequences(lists, 1, SETTINGS)
    at = keys.producer()
    query = queries[0].producer()
    for turn in range(turns(packed, heads)):
        head, first, row, _, first_key, _, _, start, stop = work_at(
            turn, lists, packed, heads, SETTINGS
        )
        if head < heads:
            for i in gl.static_range(2):
                fetch_rows(queries[i], query, first + row + i * (BLOCKS[0] // 2), head, SETTINGS[4])
            query = query.next()
            for j in range(start, stop):
                key = first_key + (stop - 1 - (j - start)) * BLOCKS[1]
                fetch_rows(keys, at, key, head // SHARED, SETTINGS[4])
                values.fetch(at, [[key, head // SHARED, 0]])
                at = at.next()


@gluon.jit
def weighed(score, low, tile, length, scale, SETTINGS: gl.constexpr):
    """Return scores times log2(e) of a tile of keys, capped, and -inf out of sight. The first row is at key
    `low`, the next one at the one after."""
    BLOCK_N: gl.constexpr = SETTINGS[0][1]
    WINDOW: gl.constexpr = SETTINGS[1]
    if SETTINGS[2]:
        # cap tanh(s / cap); the first factor makes the exponent of tanh, the second is the cap
        score = scale[1] - 2 * scale[1] / (gl.exp2(score * scale[0]) + 1)
    else:
        score = score * scale[0]
    first = tile * BLOCK_N
    crossed = first + BLOCK_N > length
    if WINDOW[0] is not None:
        crossed = crossed | (first < low + score.shape[0] - 1 - WINDOW[0])
    if WINDOW[1] is not None:
        crossed = crossed | (first + BLOCK_N - 1 > low + WINDOW[1])
    if crossed:
        key = (first + gl.arange(0, BLOCK_N, gl.SliceLayout(0, score.type.layout)))[None, :]
        place = low + gl.arange(0, score.shape[0], gl.SliceLayout(1, score.type.layout))[:, None]
        inside = key < length
        if WINDOW[0] is not None:
            inside = inside & (key >= place - WINDOW[0])
        if WINDOW[1] is not None:
            inside = inside & (key <= place + WINDOW[1])
        score = gl.where(inside, score, float("-inf"))
    return score


@gluon.jit
def attend(rings, outputs, lists, heads, scale, half: gl.constexpr, SETTINGS: gl.constexpr):
    queries, keys, values = rings
    writer, out, logsums, row_stride = outputs
    BLOCKS: gl.constexpr = SETTINGS[0]
    dtype: gl.constexpr = values.dtype
    ROWS: gl.constexpr = BLOCKS[0] // 2
    D: gl.constexpr = values.block_shape[2]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCKS[1], 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, score_layout)
    out_row: gl.constexpr = gl.SliceLayout(1, out_layout)
    nothing = gl.zeros([ROWS, BLOCKS[1]], gl.float32, score_layout)
    packed = sequences(lists, 4, SETTINGS)
    at = keys.consumer()
    query = queries.consumer()
    for turn in range(turns(packed, heads)):
        head, first, row, end, _, length, shift, start, stop = work_at(
            turn, lists, packed, heads, SETTINGS
        )
        if head < heads:
            row += half * ROWS
            low = row + shift
            q_tile = queries.wait(query)
            coming = score_products(q_tile, keys.wait(at), nothing, SETTINGS[4])
            score = warpgroup_mma_wait(0, deps=[coming])
            keys.release(at)
            score = weighed(score, low, stop - 1, length, scale, SETTINGS)
            top = gl.maximum(gl.max(score, 1), -1e30)  # of a row that sees no key yet, too
            p = gl.exp2(score - top[:, None])
            total = gl.sum(p, 1)
            p_tile = gl.convert_layout(p.to(dtype), p_layout)
            acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
            behind, at = at, at.next()

            for j in range(start + 1, stop):
                coming = score_products(q_tile, keys.wait(at), nothing, SETTINGS[4])
                v_tile = values.wait(behind).reshape([BLOCKS[1], D])
                acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
                score = warpgroup_mma_wait(1, deps=[coming])
                keys.release(at)
                score = weighed(score, low, start + stop - 1 - j, length, scale, SETTINGS)
                higher = gl.maximum(top, gl.max(score, 1))
                kept = gl.exp2(top - higher)
                p = gl.exp2(score - higher[:, None])
                total = total * kept + gl.sum(p, 1)
                top = higher
                done = warpgroup_mma_wait(0, deps=[acc])
                values.release(behind)
                acc = warpgroup_mma_init(done * gl.convert_layout(kept, out_row)[:, None])
                p_tile = gl.convert_layout(p.to(dtype), p_layout)
                behind, at = at, at.next()

            queries.release(query)
            query = query.next()
            v_tile = values.wait(behind).reshape([BLOCKS[1], D])
            acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
            seen = total > 0
            factor = gl.where(seen, 1 / gl.where(seen, total, 1.0), 0.0)
            if logsums is not None:
                rows = row + gl.arange(0, ROWS, row_layout)
                logsum = gl.where(seen, top + gl.log2(gl.where(seen, total, 1.0)), float("-inf"))
                at_row = (first + rows).to(gl.int64) * heads + head
                gl.store(logsums + at_row, logsum, mask=rows < end - first)
            result = warpgroup_mma_wait(0, deps=[acc])
            values.release(behind)
            result = result * gl.convert_layout(factor, out_row)[:, None]
            if first + row + ROWS <= end:
                writer.store([first + row, head, 0], result)
            else:
                # Rows behind the sequence's last are another's.
                lines = first + row + gl.arange(0, ROWS, out_row)
                columns = gl.arange(0, D, gl.SliceLayout(0, out_layout))
                to = out + head * D + lines.to(gl.int64)[:, None] * row_stride + columns[None, :]
                gl.store(to, result.to(dtype), mask=(lines < end)[:, None])
    writer.close()


@gluon.jit
def attention_varlen(
    q_desc, k_desc, v_desc, out_desc, out, logsums, of_queries, of_keys, count, heads, row_stride,
    scale, cap, SHARED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
    MORE: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """`out` is [tokens, heads, D] like the queries, in rows of `row_stride` elements; SHARED heads share
    one of the keys and values. `of_queries` and `of_keys` are where the `count` sequences begin, at
    most MOST, and where the last ends.

    With queries at the end of their sequence's keys, one at place i sees keys from i - WINDOW[0] to
    i + WINDOW[1]; None is no bound. `scale` is that of the scores times log2(e), or, if CAPPED, times
    2 log2(e) over the cap; `cap`, times log2(e), bounds the scores. `logsums` is [tokens,
    heads], logarithms of base 2, or None. Values of other sequences are multiplied with zeros: they
    must be numbers. Queries and keys wider than values come as pairs of descriptors, of which the second
    one's blocks are behind MORE elements; MORE is 0 otherwise. GROUP heads are walked together.
    """
    SETTINGS: gl.constexpr = ((BLOCK_M, BLOCK_N), WINDOW, CAPPED, MOST, MORE, GROUP)
    upper = tma_ring(q_desc, 1)
    lower = tma_ring(q_desc, 1)
    keys = tma_ring(k_desc, STAGES, consumers=2)
    values = tma_ring(v_desc, STAGES, consumers=2)
    lists = (of_queries, of_keys, count)
    PARTS: gl.constexpr = v_desc.block_type.shape[2] // out_desc.block_type.shape[2]
    first = (tma_writer(out_desc, PARTS, 1), out, logsums, row_stride)
    second = (tma_writer(out_desc, PARTS, 1), out, logsums, row_stride)
    scales = (scale, cap)
    gl.warp_specialize(
        [
            (attend, ((upper, keys, values), first, lists, heads, scales, 0, SETTINGS)),
            (attend, ((lower, keys, values), second, lists, heads, scales, 1, SETTINGS)),
            (copy_tiles, (((upper, lower), keys, values), lists, heads, SHARED, SETTINGS)),
        ],
        [4, 1],
        [232, 40],
    )


def by_head(array, rows, width=None):
    """A descriptor of [tokens, heads, D], in blocks of one head's rows, `width` elements of each."""
    block = [rows, 1, width or array.shape[2]]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    return TensorDescriptor.from_tensor(array, block, layout)


def operands(args, config):
    rows, keys, more = config["BLOCK_M"] // 2, config["BLOCK_N"], config["MORE"]
    (_, heads, depth), width = args["q"].shape, args["v"].shape[2]
    parts = (more, depth - more) if more else (depth,)
    described = [
        tuple(by_head(args[name], size, part) for part in parts)
        for name, size in (("q", rows), ("k", keys))
    ]
    described = described if more else [only for (only,) in described]
    # Results of many elements leave in parts, through less shared memory.
    out = by_head(args["out"], rows, 64 if depth > 128 else None)
    scale, cap = math.log2(math.e) / math.sqrt(depth), args["cap"]
    scales = (2 * scale / cap, cap * math.log2(math.e)) if cap else (scale, 1.0)
    lists = (args["of_queries"], args["of_keys"], args["of_queries"].shape[0] - 1)
    descriptors = (*described, by_head(args["v"], keys), out)
    operands = (args["out"], args.get("logsums"), *lists, heads, heads * width, *scales)
    return (*descriptors, *operands)


def arguments(depth, width, window, cap, shared):
    def make(new, large, lengths=None, heads=None, keys=None):
        lengths = lengths or ([8192] * 4 if large else [130, 1, 0, 70])
        keys = keys or (lengths if large else [130, 40, 3, 200])
        heads = heads or (32 if large else 2 * shared)
        ends = [np.cumsum([0, *counts]).astype(np.int32) for counts in (lengths, keys)]
        tokens = [int(end[-1]) for end in ends]
        return {
            "q": new.random((tokens[0], heads, depth), "bfloat16"),
            "k": new.random((tokens[1], heads // shared, depth), "bfloat16"),
            "v": new.random((tokens[1], heads // shared, width), "bfloat16"),
            "out": new.empty((tokens[0], heads, width), "bfloat16"),
            "of_queries": placed(new, ends[0]),
            "of_keys": placed(new, ends[1]),
            "cap": cap,
            "window": window,
        }

    return make


def configure(depth, width, window, cap, shared):
    def config(warp_size, block=None, stages=2, most=32, group=8):
        block = block or (128, 128 if width <= 128 else 64)
        return {
            "SHARED": shared,
            "BLOCK_M": block[0],
            "BLOCK_N": block[1],
            "STAGES": stages,
            "WINDOW": window,
            "CAPPED": cap is not None,
            "MOST": most,
            "MORE": 0 if depth == width else 128,
            "GROUP": group,
            "num_warps": 4,
        }

    return config


def example(name, depth=128, window=(None, 0), cap=None, shared=4, width=None):
    width = width or depth
    return Example(
        name=f"varlen attention, {name}",
        kernel=attention_varlen,
        arguments=arguments(depth, width, window, cap, shared),
        operands=operands,
        grid=lambda args, config: (programs({"a": args["q"]}, 12),),
        config=configure(depth, width, window, cap, shared),
        reference=reference,
        output="out",
        flops=lambda args: 2 * args["q"].shape[1] * (depth + width) * pairs(args),
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=1e-2,
    )


EXAMPLES = [example("causal, 4 heads share keys")]
# Not in the demo.
MORE = [
    example("window of 40", window=(39, 0)),
    example("window to both sides", 64, (20, 9), None, 1),
    example("capped", 64, (None, 0), 20.0, 2),
    example("full", 64, (None, None), None, 1),
    example("256 wide, causal", 256),
    example("192 and 128 wide, causal", 192, shared=1, width=128),
]
