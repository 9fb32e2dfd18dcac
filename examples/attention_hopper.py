"""Flash attention forward on Hopper: TMA, `wgmma` and warp specialization.

One warp copies tiles of Q, K and V. Two groups of four warps have 64 rows of Q each and walk over
the keys, the last ones first: with a causal mask only those need masking. The scores of the next
tile are multiplied while the softmax of this one is computed, and the exponentials of one group
run while the other multiplies.

Softmax is online (Milakov and Gimelshein, 2018); its overlap with the matrix unit is that of
FlashAttention-3 (Shah et al., 2024). Programs walk over many tiles. With a causal mask, long ones
come first, and the direction turns from round to round, so that all programs get equal work.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import Example, main
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor


@gluon.jit
def tile_at(turn, tiles, heads, CAUSAL: gl.constexpr, GROUP: gl.constexpr):
    """The rows and the head that this program works on; a head past the last for none.

    Programs that run together work on few heads, whose keys and values stay in the cache.
    """
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    if CAUSAL:
        tile = turn * programs + gl.where(turn % 2 == 0, program, programs - 1 - program)
        first = tile // (GROUP * tiles) * GROUP
        inside = tile % (GROUP * tiles)
        size = gl.maximum(gl.minimum(heads - first, GROUP), 1)
        m = tiles - 1 - inside // size
        return m, gl.where(m < 0, heads, first + inside % size)  # the last group may be smaller
    else:
        tile = turn * programs + program
        return tile % tiles, tile // tiles


@gluon.jit
def key_tiles(m, length, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """How many tiles of keys the rows from `m * BLOCK_M` on look at."""
    end = length
    if CAUSAL:
        end = gl.minimum((m + 1) * BLOCK_M, length)
    return gl.cdiv(end, BLOCK_N)


@gluon.jit
def copy_tiles(
    queries, keys, values, heads, length, SHARED: gl.constexpr,
    CAUSAL: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    ROWS: gl.constexpr = queries[0].block_shape[1]
    BLOCK_M: gl.constexpr = 2 * ROWS
    BLOCK_N: gl.constexpr = keys.block_shape[1]
    at = keys.producer()
    query = queries[0].producer()
    tiles = gl.cdiv(length, BLOCK_M)
    for turn in range(gl.cdiv(tiles * heads, gl.num_programs(0))):
        m, head = tile_at(turn, tiles, heads, CAUSAL, GROUP)
        if head < heads:
            for i in gl.static_range(2):
                queries[i].fetch(query, [[head, m * BLOCK_M + i * ROWS, 0]])
            query = query.next()
            count = key_tiles(m, length, BLOCK_M, BLOCK_N, CAUSAL)
            for j in range(count):
                row = (count - 1 - j) * BLOCK_N
                keys.fetch(at, [[head // SHARED, row, 0]])
                values.fetch(at, [[head // SHARED, row, 0]])
                at = at.next()


@gluon.jit
def mask_scores(score, rows, keys, length, CAUSAL: gl.constexpr):
    inside = (keys < length)[None, :] & (rows >= 0)[:, None]
    if CAUSAL:
        inside = inside & (rows[:, None] >= keys[None, :])
    return gl.where(inside, score, float("-inf"))


@gluon.jit
def attend(
    rings, outputs, heads, length, scale, half: gl.constexpr,
    CAUSAL: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    queries, keys, values = rings
    writer, logsums = outputs
    dtype: gl.constexpr = keys.dtype
    ROWS: gl.constexpr = queries.block_shape[1]
    BLOCK_M: gl.constexpr = 2 * ROWS
    BLOCK_N: gl.constexpr = keys.block_shape[1]
    D: gl.constexpr = keys.block_shape[2]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    out_row: gl.constexpr = gl.SliceLayout(1, out_layout)
    # The last tile of keys may end past the sequence, and the diagonal crosses the last ones.
    MASKED: gl.constexpr = (BLOCK_M + BLOCK_N - 1) // BLOCK_N if CAUSAL else 1

    at = keys.consumer()
    query = queries.consumer()
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, score_layout)
    key = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, score_layout))
    tiles = gl.cdiv(length, BLOCK_M)
    for turn in range(gl.cdiv(tiles * heads, gl.num_programs(0))):
        m, head = tile_at(turn, tiles, heads, CAUSAL, GROUP)
        if head < heads:
            count = key_tiles(m, length, BLOCK_M, BLOCK_N, CAUSAL)
            first = m * BLOCK_M + half * ROWS
            rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, score_layout))

            q_tile = queries.wait(query).reshape([ROWS, D])
            k_tile = keys.wait(at).reshape([BLOCK_N, D]).permute((1, 0))
            score = warpgroup_mma(q_tile, k_tile, nothing, use_acc=False)
            keys.release(at)
            score = mask_scores(score, rows, (count - 1) * BLOCK_N + key, length, CAUSAL)
            top = gl.max(score, 1) * scale
            p = gl.exp2(score * scale - top[:, None])
            total = gl.sum(p, 1)
            p_tile = gl.convert_layout(p.to(dtype), p_layout)
            acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
            behind, at = at, at.next()

            for j in range(1, count):
                k_tile = keys.wait(at).reshape([BLOCK_N, D]).permute((1, 0))
                coming = warpgroup_mma(q_tile, k_tile, nothing, use_acc=False, is_async=True)
                v_tile = values.wait(behind).reshape([BLOCK_N, D])
                acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
                score = warpgroup_mma_wait(1, deps=[coming])
                keys.release(at)
                if MASKED > 1:
                    if j < MASKED:
                        where = (count - 1 - j) * BLOCK_N + key
                        score = mask_scores(score, rows, where, length, CAUSAL)
                higher = gl.maximum(top, gl.max(score, 1) * scale)
                kept = gl.exp2(top - higher)
                p = gl.exp2(score * scale - higher[:, None])
                total = total * kept + gl.sum(p, 1)
                top = higher
                done = warpgroup_mma_wait(0, deps=[acc])
                values.release(behind)
                acc = warpgroup_mma_init(done * gl.convert_layout(kept, out_row)[:, None])
                p_tile = gl.convert_layout(p.to(dtype), p_layout)
                behind, at = at, at.next()

            queries.release(query)
            query = query.next()
            v_tile = values.wait(behind).reshape([BLOCK_N, D])
            acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
            result = warpgroup_mma_wait(0, deps=[acc])
            values.release(behind)
            result = result / gl.convert_layout(total, out_row)[:, None]
            if logsums is not None:
                gl.store(logsums + head * length + rows, top + gl.log2(total), mask=rows < length)
            writer.store([head, first, 0], result)
    writer.close()


@gluon.jit
def attention_hopper(
    q_desc, k_desc, v_desc, out_desc, logsums, heads, length, scale, SHARED: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Heads of [length, D]: Q and the result are [heads, length, D], SHARED heads share one of K and
    V. What the gradients need, the logarithm (base 2) of each row's sum, goes to `logsums`, [heads,
    length], if that is not None.

    `scale` is that of the scores times log2(e), because the exponentials are powers of 2.
    """
    gl.static_assert(q_desc.block_type.shape[1] * 2 == BLOCK_M, "each half has a block of Q")
    gl.static_assert(k_desc.block_type.shape[1] == BLOCK_N, "blocks of keys and values")
    upper = tma_ring(q_desc, 1)
    lower = tma_ring(q_desc, 1)
    keys = tma_ring(k_desc, STAGES, consumers=2)
    values = tma_ring(v_desc, STAGES, consumers=2)
    above, below = (upper, keys, values), (lower, keys, values)
    first, second = (tma_writer(out_desc), logsums), (tma_writer(out_desc), logsums)
    gl.warp_specialize(
        [
            (attend, (above, first, heads, length, scale, 0, CAUSAL, GROUP)),
            (attend, (below, second, heads, length, scale, 1, CAUSAL, GROUP)),
            (copy_tiles, ((upper, lower), keys, values, heads, length, SHARED, CAUSAL, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )


DTYPES = {"float16": gl.float16, "bfloat16": gl.bfloat16}


def describe(array, rows):
    block = [1, rows, array.shape[-1]]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[str(array.dtype).split(".")[-1]])
    return TensorDescriptor.from_tensor(array, block, layout)


def operands(args, config):
    rows, keys = config["BLOCK_M"] // 2, config["BLOCK_N"]
    blocks = {"q": rows, "k": keys, "v": keys, "out": rows}
    described = [describe(args[name], rows) for name, rows in blocks.items()]
    heads, length, depth = args["q"].shape
    return (*described, args.get("logsums"), heads, length, math.log2(math.e) / math.sqrt(depth))


def arguments(depth):
    def make(new, large, shape=None):
        shape = shape or ((128, 8192, depth) if large else (3, 200, depth))
        made = {name: new.random(shape, "bfloat16") for name in "qkv"}
        return {**made, "out": new.empty(shape, "bfloat16")}

    return make


def configure(causal):
    def make(warp_size, block=(128, 128), stages=2, group=8, shared=1):
        return {
            "SHARED": shared,
            "BLOCK_M": block[0],
            "BLOCK_N": block[1],
            "STAGES": stages,
            "CAUSAL": causal,
            "GROUP": group,
            "num_warps": 4,
        }

    return make


def grid(args, config):
    heads, length, _ = args["q"].shape
    tiles = heads * -(-length // config["BLOCK_M"])
    if getattr(args["q"], "is_cuda", False):
        import torch

        device = torch.cuda.get_device_properties(args["q"].device)
        return (min(tiles, device.multi_processor_count),)
    return (max(min(tiles, 3), tiles // 4),)


def reference(causal):
    def attention(args):
        q, k, v = (args[name].astype(np.float64) for name in "qkv")
        score = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        if causal:
            score = np.where(np.tri(score.shape[1], dtype=bool), score, -np.inf)
        p = np.exp(score - score.max(axis=2, keepdims=True))
        return p / p.sum(axis=2, keepdims=True) @ v

    return attention


def device_reference(causal):
    """The same in float32 with torch, head by head, into an array of the result's shape."""

    def attention(args):
        out = args["out"].float()
        for i, (q, k, v) in enumerate(zip(*(args[name] for name in "qkv"))):
            score = q.float() @ k.float().T / math.sqrt(q.shape[-1])
            if causal:
                score = score.masked_fill(score.new_ones(score.shape).tril() == 0, -math.inf)
            out[i] = score.softmax(-1) @ v.float()
        return out

    return attention


EXAMPLES = [
    Example(
        name=f"attention, Hopper, {'causal' if causal else 'full'}, head {depth}",
        kernel=attention_hopper,
        arguments=arguments(depth),
        operands=operands,
        grid=grid,
        config=configure(causal),
        reference=reference(causal),
        device_reference=device_reference(causal),
        output="out",
        flops=lambda args, half=causal: (
            4 * math.prod(args["q"].shape) * args["q"].shape[1] // (1 + half)
        ),
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=1e-2,
    )
    for depth in (64, 128)
    for causal in (False, True)
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
