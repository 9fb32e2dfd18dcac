"""Flash attention forward on Hopper: TMA, `wgmma` and warp specialization.

One warp copies tiles of Q, K and V. Two or three groups of four warps have 64 rows of Q each and walk
over the keys, the last ones first: with a causal mask only those need masking. Scores of the next tile
are multiplied while the softmax of this one is computed, and in heads of 64, where exponentials take as
long as products, so is the weighted sum of the last one.

Softmax is online (Milakov and Gimelshein, 2018); its overlap with the matrix unit is that of
FlashAttention-3 (Shah et al., 2024). Programs walk over many tiles, in an order that gives all of them
equal work.
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
from tests.kernels.cases.attention_tiles import mask_scores, rounds, sums_of_lanes, work_at


@gluon.jit
def copy_tiles(queries, keys, values, sizes, SHARED: gl.constexpr, SETTINGS: gl.constexpr):
    BLOCK_N: gl.constexpr = SETTINGS[1]
    at = keys.producer()
    query = queries[0].producer()
    for round in range(rounds(sizes, SETTINGS)):
        row, head, count = work_at(round, sizes, SETTINGS)
        if head < sizes[0]:
            with gl.scope("copy Q"):
                for i in gl.static_range(len(queries)):
                    queries[i].fetch(query, [[head, row + i * 64, 0]])
            query = query.next()
            for j in range(count):
                key = (count - 1 - j) * BLOCK_N
                with gl.scope("copy K and V"):
                    keys.fetch(at, [[head // SHARED, key, 0]])
                    values.fetch(at, [[head // SHARED, key, 0]])
                at = at.next()


@gluon.jit
def attend(work, SETTINGS: gl.constexpr, part: gl.constexpr):
    rings, writer, logsums, sizes, scale = work
    queries, keys, values = rings
    heads, length = sizes
    CAUSAL: gl.constexpr = SETTINGS[2]
    dtype: gl.constexpr = keys.dtype
    ROWS: gl.constexpr = queries.block_shape[1]
    BLOCK_N: gl.constexpr = keys.block_shape[1]
    D: gl.constexpr = keys.block_shape[2]
    OVERLAP: gl.constexpr = D <= 64
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    row: gl.constexpr = gl.SliceLayout(1, score_layout)

    at = keys.consumer()
    query = queries.consumer()
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, score_layout)
    key = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, score_layout))
    for round in range(rounds(sizes, SETTINGS)):
        first, head, count = work_at(round, sizes, SETTINGS)
        if head < heads:
            first += part * ROWS
            rows = first + gl.arange(0, ROWS, layout=row)
            if CAUSAL and BLOCK_N % SETTINGS[0] != 0:
                # Other groups' rows may see more. Without those tiles the first alone needs the mask.
                seen = gl.maximum(gl.cdiv(gl.minimum(first + ROWS, length), BLOCK_N), 1)
                for _ in range(seen, count):
                    keys.wait(at)
                    keys.release(at)
                    values.wait(at)
                    values.release(at)
                    at = at.next()
                count = gl.minimum(count, seen)

            with gl.scope("wait for Q"):
                q_tile = queries.wait(query).reshape([ROWS, D])
            if not OVERLAP:
                # There are registers for it, and less is read from shared memory.
                q_tile = q_tile.load(gl.DotOperandLayout(0, score_layout, 2))
                queries.release(query)
                query = query.next()
            k_tile = keys.wait(at).reshape([BLOCK_N, D]).permute((1, 0))
            score = warpgroup_mma(q_tile, k_tile, nothing, use_acc=False)
            keys.release(at)
            score = mask_scores(score, rows, (count - 1) * BLOCK_N + key, length, CAUSAL)
            # Finite even where none of these keys is seen.
            top = gl.maximum(gl.max(score, 1) * scale, -1e30)
            p = gl.exp2(score * scale - top[:, None])
            total = sums_of_lanes(p)
            lanes: gl.constexpr = gl.SliceLayout(1, total.type.layout)
            p_tile = gl.convert_layout(p.to(dtype), p_layout)
            acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
            behind, at = at, at.next()

            for _ in range(1, count):
                with gl.scope("wait for K"):
                    k_tile = keys.wait(at).reshape([BLOCK_N, D]).permute((1, 0))
                coming = warpgroup_mma(q_tile, k_tile, nothing, use_acc=False, is_async=True)
                with gl.scope("wait for V"):
                    v_tile = values.wait(behind).reshape([BLOCK_N, D])
                acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
                with gl.scope("wait for the scores"):
                    score = warpgroup_mma_wait(1, deps=[coming])
                keys.release(at)
                gl.scope_begin("softmax")
                higher = gl.maximum(top, gl.max(score, 1) * scale)
                kept = gl.exp2(top - higher)
                p = gl.exp2(score * scale - higher[:, None])
                fresh = sums_of_lanes(p)
                total = total * gl.convert_layout(kept, lanes)[:, None] + fresh
                top = higher
                gl.scope_end("softmax")
                if OVERLAP:
                    # Came long ago. But ptxas moves a wait for `wgmma` up to the last branch, and here
                    # that is one behind softmax.
                    queries.wait(query)
                with gl.scope("wait for the sums"):
                    done = warpgroup_mma_wait(0, deps=[acc])
                values.release(behind)
                acc = warpgroup_mma_init(
                    done * gl.convert_layout(kept, gl.SliceLayout(1, out_layout))[:, None]
                )
                p_tile = gl.convert_layout(p.to(dtype), p_layout)
                behind, at = at, at.next()

            if OVERLAP:
                queries.release(query)
                query = query.next()
            v_tile = values.wait(behind).reshape([BLOCK_N, D])
            acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
            whole = gl.convert_layout(gl.sum(total, 1), row)
            result = warpgroup_mma_wait(0, deps=[acc])
            values.release(behind)
            result = result * gl.convert_layout(1 / whole, gl.SliceLayout(1, out_layout))[:, None]
            if logsums is not None:
                gl.store(logsums + head * length + rows, top + gl.log2(whole), mask=rows < length)
            with gl.scope("store"):
                writer.store([head, first, 0], result)
    writer.close()


@gluon.jit
def attention_hopper(
    q_desc, k_desc, v_desc, out_desc, logsums, heads, length, scale, SHARED: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Heads of [length, D]: Q and the result are [heads, length, D], SHARED heads share one of K and
    V. The logarithm (base 2) of each row's sum, which the gradients need, goes to `logsums`, [heads,
    length], if that is not None.

    `scale` is that of the scores times log2(e), because the exponentials are powers of 2.
    """
    PARTS: gl.constexpr = BLOCK_M // 64
    gl.static_assert(PARTS == 2 or PARTS == 3, "two or three groups of warps with 64 rows each")
    gl.static_assert(BLOCK_N % 64 == 0, "the diagonal of a group's rows is in one tile of keys")
    keys = tma_ring(k_desc, STAGES, consumers=PARTS)
    values = tma_ring(v_desc, STAGES, consumers=PARTS)
    SETTINGS: gl.constexpr = (BLOCK_M, BLOCK_N, CAUSAL, GROUP)
    sizes = (heads, length)
    AHEAD: gl.constexpr = PARTS - 1  # three groups keep the rows until their last product
    q0 = tma_ring(q_desc, AHEAD)
    q1 = tma_ring(q_desc, AHEAD)
    a = ((q0, keys, values), tma_writer(out_desc), logsums, sizes, scale)
    b = ((q1, keys, values), tma_writer(out_desc), logsums, sizes, scale)
    if PARTS == 2:
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, 0)),
                (attend, (b, SETTINGS, 1)),
                (copy_tiles, ((q0, q1), keys, values, sizes, SHARED, SETTINGS)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        q2 = tma_ring(q_desc, AHEAD)
        c = ((q2, keys, values), tma_writer(out_desc), logsums, sizes, scale)
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, 0)),
                (attend, (b, SETTINGS, 1)),
                (attend, (c, SETTINGS, 2)),
                (copy_tiles, ((q0, q1, q2), keys, values, sizes, SHARED, SETTINGS)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


DTYPES = {"float16": gl.float16, "bfloat16": gl.bfloat16}


def describe(array, rows):
    block = [1, rows, array.shape[-1]]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[str(array.dtype).split(".")[-1]])
    return TensorDescriptor.from_tensor(array, block, layout)


def operands(args, config):
    sizes = {"q": 64, "k": config["BLOCK_N"], "v": config["BLOCK_N"], "out": 64}
    described = [describe(args[name], rows) for name, rows in sizes.items()]
    heads, length, depth = args["q"].shape
    return (*described, args.get("logsums"), heads, length, math.log2(math.e) / math.sqrt(depth))


def arguments(depth):
    def make(new, large, shape=None):
        shape = shape or ((128, 8192, depth) if large else (3, 200, depth))
        tensors = {name: new.random(shape, "bfloat16") for name in "qkv"}
        return {**tensors, "out": new.empty(shape, "bfloat16")}

    return make


def configure(causal, depth):
    """Three groups of warps have registers for sums of 64 columns, two for those of 128."""

    def make(warp_size, block=(192 if depth <= 64 else 128, 128), stages=2, group=8, shared=1):
        sizes = {"SHARED": shared, "BLOCK_M": block[0], "BLOCK_N": block[1], "STAGES": stages}
        return {**sizes, "CAUSAL": causal, "GROUP": group, "num_warps": 4}

    return make


def grid(args, config):
    heads, length, _ = args["q"].shape
    tiles = heads * -(-length // config["BLOCK_M"])
    return (min(tiles, gluon.multiprocessors(args["q"]) or max(3, tiles // 4)),)


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
    """The same in float32 with torch, head by head."""

    def attention(args):
        import torch

        attend = torch.nn.functional.scaled_dot_product_attention
        heads = zip(*(args[name].float().split(1) for name in "qkv"))
        return torch.cat([attend(*head, is_causal=causal) for head in heads])

    return attention


EXAMPLES = [
    Example(
        name=f"attention, Hopper, {'causal' if causal else 'full'}, head {depth}",
        kernel=attention_hopper,
        arguments=arguments(depth),
        operands=operands,
        grid=grid,
        config=configure(causal, depth),
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
