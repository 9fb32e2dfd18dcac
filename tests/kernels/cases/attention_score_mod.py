"""Attention, forward, for every matrix unit: queries and keys wider than values, heads that share keys, a
causal mask, and a function of the kernel's user that changes scores: a soft cap, a bias, ALiBi.

SCORE is called as `SCORE(score, row, key, head, extra)` for a tile of scores in units of log2(e), with
the places of its queries and keys, and `extra` as the launch gave it; `[:, None]` and `[None, :]` are
done. None leaves scores as they are. A width that is no power of two is taken as two that are.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example

LOG2E = gl.constexpr(math.log2(math.e))


@gluon.jit
def capped(score, row, key, head, cap):
    """`cap tanh(score / cap)`, as of Gemma 2."""
    return cap * LOG2E * (1 - 2 / (gl.exp2(score * (2 / cap)) + 1))


@gluon.jit
def biased(score, row, key, head, extra):
    """A bias [heads, queries, keys] is added."""
    bias, queries, keys = extra
    at = (head * queries + row).to(gl.int64) * keys + key
    return score + gl.load(bias + at, mask=(row < queries) & (key < keys), other=0.0) * LOG2E


@gluon.jit
def sloped(score, row, key, head, heads):
    """ALiBi (Press et al., arXiv:2108.12409): farther keys count less, by head."""
    slope = gl.exp2(-8.0 * (head + 1) / heads) * LOG2E
    return score + slope * (key - row).to(gl.float32)


@gluon.jit
def load_tile(pointer, rows, count, stride, D: gl.constexpr, shared: gl.constexpr):
    """A tile of rows from `rows` on, in shared memory."""
    layout: gl.constexpr = gl.portable.blocked_layout([count, D], pointer.dtype.element_ty)
    row = gl.arange(0, count, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    at = row[:, None] * stride + column[None, :]
    tile = gl.portable.load(pointer, at, (row < rows)[:, None])
    return gl.allocate_shared_memory(pointer.dtype.element_ty, [count, D], shared, tile)


@gluon.jit
def attention_score_mod(
    q, k, v, out, queries, keys, scale, extra,
    DEPTHS: gl.constexpr, D: gl.constexpr, SHARED: gl.constexpr, CAUSAL: gl.constexpr,
    SCORE: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """`q` is [heads, queries, sum of DEPTHS], `k` [heads / SHARED, keys, the same], `v` and `out` have
    D elements instead. The last query sees the last key. `scale` includes log2(e)."""
    dtype: gl.constexpr = q.dtype.element_ty
    WIDTH: gl.constexpr = DEPTHS[0] + DEPTHS[1]
    scores: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, DEPTHS[0], dtype, dtype, operands="shared", b_transposed=True
    )
    values: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, D, BLOCK_N, dtype, dtype, operands="shared"
    )
    by_row: gl.constexpr = gl.SliceLayout(1, scores.accumulator)
    out_row: gl.constexpr = gl.SliceLayout(1, values.accumulator)
    head = gl.program_id(1)
    row = gl.program_id(0) * BLOCK_M
    if CAUSAL:  # the longest first
        row = (gl.num_programs(0) - 1 - gl.program_id(0)) * BLOCK_M
    shift = keys - queries
    k += (head // SHARED).to(gl.int64) * keys * WIDTH
    v += (head // SHARED).to(gl.int64) * keys * D
    first_row = head.to(gl.int64) * queries + row
    q += first_row * WIDTH
    q_tile = load_tile(q, queries - row, BLOCK_M, WIDTH, DEPTHS[0], scores.a_shared)
    k_tiles = gl.portable.descriptor(
        k, [keys, WIDTH], [WIDTH, 1], [BLOCK_N, DEPTHS[0]], scores.b_shared
    )
    v_tiles = gl.portable.descriptor(v, [keys, D], [D, 1], [BLOCK_N, D], values.b_shared)
    if DEPTHS[1] > 0:
        turns: gl.constexpr = gl.portable.mma_layouts(
            BLOCK_M, BLOCK_N, DEPTHS[1], dtype, dtype, operands="shared", b_transposed=True
        )
        q_more = load_tile(q + DEPTHS[0], queries - row, BLOCK_M, WIDTH, DEPTHS[1], turns.a_shared)
        more_tiles = gl.portable.descriptor(
            k, [keys, WIDTH], [WIDTH, 1], [BLOCK_N, DEPTHS[1]], turns.b_shared
        )
        ring = gl.portable.pipeline([k_tiles, v_tiles, more_tiles], STAGES)
    else:
        q_more = q_tile
        ring = gl.portable.pipeline([k_tiles, v_tiles], STAGES)
    gl.portable.fence()
    end = keys
    if CAUSAL:
        end = gl.minimum(keys, row + BLOCK_M + shift)
    tiles = gl.cdiv(end, BLOCK_N)
    for i in gl.static_range(STAGES - 1):
        fetch(ring, i, tiles, BLOCK_N, DEPTHS)

    weights = gl.allocate_shared_memory(dtype, [BLOCK_M, BLOCK_N], values.a_shared)
    place = row + gl.arange(0, BLOCK_M, by_row)[:, None]
    near = gl.arange(0, BLOCK_N, gl.SliceLayout(0, scores.accumulator))[None, :]
    largest = gl.full([BLOCK_M], -1e30, gl.float32, by_row)
    total = gl.zeros([BLOCK_M], gl.float32, by_row)
    result = gl.zeros([BLOCK_M, D], gl.float32, values.accumulator)
    for tile in range(tiles):
        buffers = ring.wait(tile)
        acc = gl.portable.accumulator(scores)
        acc = gl.portable.mma(q_tile, buffers[0].permute((1, 0)), acc, is_async=True)
        if DEPTHS[1] > 0:
            acc = gl.portable.mma(q_more, buffers[2].permute((1, 0)), acc, is_async=True)
        score = gl.portable.read(acc) * scale
        # All are done with the tile before: its slot is free.
        fetch(ring, tile + STAGES - 1, tiles, BLOCK_N, DEPTHS)
        key = tile * BLOCK_N + near
        if SCORE is not None:
            score = SCORE(score, place, key, head, extra)
        crossed = (tile + 1) * BLOCK_N > keys
        if CAUSAL:
            crossed = crossed | ((tile + 1) * BLOCK_N - 1 > row + shift)
        if crossed:
            inside = key < keys
            if CAUSAL:
                inside = inside & (key <= place + shift)
            score = gl.where(inside, score, -float("inf"))
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        p = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(p, axis=1)
        largest = higher
        weights.store(p.to(dtype))
        gl.portable.fence()
        sums = result * gl.convert_layout(kept, out_row)[:, None]
        acc = gl.portable.accumulator(values, sums)
        result = gl.portable.read(gl.portable.mma(weights, buffers[1], acc))
    ring.close()
    seen = gl.where(total > 0, total, 1.0)
    result = result / gl.convert_layout(seen, out_row)[:, None]
    rows = gl.arange(0, BLOCK_M, out_row)
    columns = gl.arange(0, D, gl.SliceLayout(0, values.accumulator))
    out += first_row * D
    inside = (row + rows < queries)[:, None]
    gl.store(out + rows[:, None] * D + columns[None, :], result.to(dtype), mask=inside)


@gluon.jit
def fetch(ring, tile, tiles, BLOCK_N: gl.constexpr, DEPTHS: gl.constexpr):
    at = tile * BLOCK_N
    if DEPTHS[1] > 0:
        ring.fetch(tile, [[at, 0], [at, 0], [at, DEPTHS[0]]], pred=tile < tiles)
    else:
        ring.fetch(tile, [[at, 0], [at, 0]], pred=tile < tiles)


def arguments(depths, width, shared, extra=None):
    def make(new, large, shape=None):
        """`shape`: heads, queries, keys."""
        heads, queries, keys = shape or ((128, 8192, 8192) if large else (2 * shared, 130, 175))
        depth = sum(depths)
        return {
            "q": new.random((heads, queries, depth), "bfloat16"),
            "k": new.random((heads // shared, keys, depth), "bfloat16"),
            "v": new.random((heads // shared, keys, width), "bfloat16"),
            "out": new.empty((heads, queries, width), "bfloat16"),
            "queries": queries,
            "keys": keys,
            "scale": math.log2(math.e) / math.sqrt(depth),
            "extra": extra(new, heads, queries, keys) if extra else 0,
        }

    return make


def reference(change, causal):
    def attention(args):
        q, k, v = (args[name].astype(np.float64) for name in "qkv")
        shared = len(q) // len(k)
        k, v = (t.repeat(shared, axis=0) for t in (k, v))
        score = np.einsum("hqd,hkd->hqk", q, k) * (args["scale"] / math.log2(math.e))
        row, key = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])[None]
        if change:
            score = change(score, row, key, args["extra"])
        if causal:
            score = np.where(key <= row + k.shape[1] - q.shape[1], score, -np.inf)
        p = np.exp(score - score.max(axis=2, keepdims=True))
        return np.einsum("hqk,hkd->hqd", p / p.sum(axis=2, keepdims=True), v)

    return attention


def alibi(score, row, key, heads):
    slope = 2.0 ** (-8 * (np.arange(len(score)) + 1) / heads)
    return score + slope[:, None, None] * (key - row)


def configure(depths, width, shared, causal, score):
    def config(warp_size, block=None, stages=2, num_warps=4):
        block = block or (
            (64, 32) if sum(depths) <= 128 else (32, 32) if width <= 128 else (32, 16)
        )
        return {
            "DEPTHS": depths,
            "D": width,
            "SHARED": shared,
            "CAUSAL": causal,
            "SCORE": score,
            "BLOCK_M": block[0],
            "BLOCK_N": block[1],
            "STAGES": stages,
            "num_warps": num_warps,
        }

    return config


def choose(width):
    def choices(target):
        """Units that read shared memory on their own want large tiles; two programs to a processor go on
        while one waits, where that has room for two."""
        if target.has("amd.wmma_v1"):  # each half of a warp holds the operands: they need room
            return {"num_warps": 8}
        if not (target.has("nvidia.wgmma") or target.has("nvidia.tcgen05")):
            return {}
        return {"block": (64 if width <= 128 else 128, 64), "num_warps": 4 if width <= 128 else 8}

    return choices


def pairs(args, causal):
    """Count the pairs of a query and a key that it sees, over all heads."""
    heads, queries, keys = args["q"].shape[0], args["queries"], args["keys"]
    hidden = queries * (queries - 1) // 2 if causal else 0
    return heads * (queries * keys - hidden)


def example(name, depths, width, shared=1, causal=False, score=None, change=None, extra=None):
    return Example(
        name=f"attention, {name}",
        kernel=attention_score_mod,
        arguments=arguments(depths, width, shared, extra),
        grid=lambda args, config: (-(-args["queries"] // config["BLOCK_M"]), args["q"].shape[0]),
        config=configure(depths, width, shared, causal, score),
        choices=choose(width),
        reference=reference(change, causal),
        output="out",
        flops=lambda args: 2 * (sum(depths) + width) * pairs(args, causal),
        tolerance=1e-2,
    )


EXAMPLES = [
    example("192 and 128 wide, causal", (128, 64), 128, causal=True),
]
# Not in the demo.
MORE = [
    example("256 wide", (256, 0), 256, 2),
    example(
        "capped", (64, 0), 64, 1, True, capped,
        lambda score, row, key, cap: cap * np.tanh(score / cap), lambda *_: 2.0,
    ),
    example(
        "with a bias", (64, 0), 64, 2, False, biased,
        lambda score, row, key, extra: score + extra[0],
        lambda new, heads, rows, keys: (new.random((heads, rows, keys)), rows, keys),
    ),
    example("ALiBi", (64, 0), 64, 1, True, sloped, alibi, lambda new, heads, *_: heads),
]  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main([*EXAMPLES, *MORE]))
