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
from gluon_core import multiprocessors
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.language.nvidia.hopper.tma import async_load, async_store, store_wait
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_report.example import Example, main


@gluon.jit
def advance(slot, phase, STAGES: gl.constexpr):
    """The next slot of a ring, and the parity of its phase."""
    last = slot == STAGES - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


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
def copy_tile(desc, smem, full, empty, phase, head, row):
    mbarrier.wait(empty, phase)
    mbarrier.expect(full, desc.block_type.nbytes)
    async_load(desc, [head, row, 0], full, smem)


@gluon.jit
def copy_tiles(
    q_desc,
    k_desc,
    v_desc,
    q_smem,
    k_smem,
    v_smem,
    full,
    empty,
    heads,
    length,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    GROUP: gl.constexpr,
):
    q_full, k_full, v_full = full
    q_empty, k_empty, v_empty = empty
    ROWS: gl.constexpr = BLOCK_M // 2
    slot = 0
    phase = 1
    q_phase = 1
    tiles = gl.cdiv(length, BLOCK_M)
    for turn in range(gl.cdiv(tiles * heads, gl.num_programs(0))):
        m, head = tile_at(turn, tiles, heads, CAUSAL, GROUP)
        if head < heads:
            for i in gl.static_range(2):
                copy_tile(
                    q_desc,
                    q_smem.index(i),
                    q_full.index(i),
                    q_empty.index(i),
                    q_phase,
                    head,
                    m * BLOCK_M + i * ROWS,
                )
            q_phase ^= 1
            count = key_tiles(m, length, BLOCK_M, BLOCK_N, CAUSAL)
            for j in range(count):
                row = (count - 1 - j) * BLOCK_N
                k_ready = k_full.index(slot)
                v_ready = v_full.index(slot)
                copy_tile(
                    k_desc, k_smem.index(slot), k_ready, k_empty.index(slot), phase, head, row
                )
                copy_tile(
                    v_desc, v_smem.index(slot), v_ready, v_empty.index(slot), phase, head, row
                )
                slot, phase = advance(slot, phase, STAGES)


@gluon.jit
def mask_scores(score, rows, keys, length, CAUSAL: gl.constexpr):
    inside = (keys < length)[None, :] & (rows >= 0)[:, None]
    if CAUSAL:
        inside = inside & (rows[:, None] >= keys[None, :])
    return gl.where(inside, score, float("-inf"))


@gluon.jit
def attend(
    out_desc,
    q_smem,
    k_smem,
    v_smem,
    out_smem,
    full,
    empty,
    heads,
    length,
    scale,
    half: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    GROUP: gl.constexpr,
):
    q_full, k_full, v_full = full
    q_empty, k_empty, v_empty = empty
    dtype: gl.constexpr = q_smem.dtype
    ROWS: gl.constexpr = BLOCK_M // 2
    D: gl.constexpr = q_smem.shape[3]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    out_row: gl.constexpr = gl.SliceLayout(1, out_layout)
    # The last tile of keys may end past the sequence, and the diagonal crosses the last ones.
    MASKED: gl.constexpr = (BLOCK_M + BLOCK_N - 1) // BLOCK_N if CAUSAL else 1

    slot = 0
    phase = 0
    q_phase = 0
    q_tile = q_smem.index(half).reshape([ROWS, D])
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, score_layout)
    keys = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, score_layout))
    tiles = gl.cdiv(length, BLOCK_M)
    for turn in range(gl.cdiv(tiles * heads, gl.num_programs(0))):
        m, head = tile_at(turn, tiles, heads, CAUSAL, GROUP)
        if head < heads:
            count = key_tiles(m, length, BLOCK_M, BLOCK_N, CAUSAL)
            first = m * BLOCK_M + half * ROWS
            rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, score_layout))

            mbarrier.wait(q_full.index(half), q_phase)
            q_phase ^= 1
            mbarrier.wait(k_full.index(slot), phase)
            k_tile = k_smem.index(slot).reshape([BLOCK_N, D]).permute((1, 0))
            score = warpgroup_mma(q_tile, k_tile, nothing, use_acc=False)
            mbarrier.arrive(k_empty.index(slot), count=1)
            score = mask_scores(score, rows, (count - 1) * BLOCK_N + keys, length, CAUSAL)
            top = gl.max(score, 1) * scale
            p = gl.exp2(score * scale - top[:, None])
            total = gl.sum(p, 1)
            p_tile = gl.convert_layout(p.to(dtype), p_layout)
            acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
            v_slot = slot
            v_phase = phase
            slot, phase = advance(slot, phase, STAGES)

            for j in range(1, count):
                mbarrier.wait(k_full.index(slot), phase)
                k_tile = k_smem.index(slot).reshape([BLOCK_N, D]).permute((1, 0))
                coming = warpgroup_mma(q_tile, k_tile, nothing, use_acc=False, is_async=True)
                mbarrier.wait(v_full.index(v_slot), v_phase)
                v_tile = v_smem.index(v_slot).reshape([BLOCK_N, D])
                acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
                score = warpgroup_mma_wait(1, deps=[coming])
                mbarrier.arrive(k_empty.index(slot), count=1)
                if MASKED > 1:
                    if j < MASKED:
                        at = (count - 1 - j) * BLOCK_N + keys
                        score = mask_scores(score, rows, at, length, CAUSAL)
                higher = gl.maximum(top, gl.max(score, 1) * scale)
                kept = gl.exp2(top - higher)
                p = gl.exp2(score * scale - higher[:, None])
                total = total * kept + gl.sum(p, 1)
                top = higher
                done = warpgroup_mma_wait(0, deps=[acc])
                mbarrier.arrive(v_empty.index(v_slot), count=1)
                acc = warpgroup_mma_init(done * gl.convert_layout(kept, out_row)[:, None])
                p_tile = gl.convert_layout(p.to(dtype), p_layout)
                v_slot = slot
                v_phase = phase
                slot, phase = advance(slot, phase, STAGES)

            mbarrier.arrive(q_empty.index(half), count=1)
            mbarrier.wait(v_full.index(v_slot), v_phase)
            v_tile = v_smem.index(v_slot).reshape([BLOCK_N, D])
            acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
            result = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(v_empty.index(v_slot), count=1)
            result = result / gl.convert_layout(total, out_row)[:, None]
            store_wait(0)
            out_smem.index(half).reshape([ROWS, D]).store(result.to(dtype))
            fence_async_shared()
            async_store(out_desc, [head, first, 0], out_smem.index(half))
    store_wait(0)


@gluon.jit
def attention_hopper(
    q_desc,
    k_desc,
    v_desc,
    out_desc,
    heads,
    length,
    scale,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Heads of [length, D]: Q, K, V and the result are [heads, length, D].

    `scale` is that of the scores times log2(e), because the exponentials are powers of 2.
    """
    dtype: gl.constexpr = q_desc.dtype
    rows: gl.constexpr = [2] + q_desc.block_type.shape
    keys: gl.constexpr = [STAGES] + k_desc.block_type.shape
    q_smem = gl.allocate_shared_memory(dtype, rows, q_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, rows, out_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, keys, k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, keys, v_desc.layout)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    full = (q_full, k_full, v_full)
    empty = (q_empty, k_empty, v_empty)
    gl.warp_specialize(
        [
            (
                attend,
                (
                    out_desc,
                    q_smem,
                    k_smem,
                    v_smem,
                    out_smem,
                    full,
                    empty,
                    heads,
                    length,
                    scale,
                    0,
                    BLOCK_M,
                    BLOCK_N,
                    STAGES,
                    CAUSAL,
                    GROUP,
                ),
            ),
            (
                attend,
                (
                    out_desc,
                    q_smem,
                    k_smem,
                    v_smem,
                    out_smem,
                    full,
                    empty,
                    heads,
                    length,
                    scale,
                    1,
                    BLOCK_M,
                    BLOCK_N,
                    STAGES,
                    CAUSAL,
                    GROUP,
                ),
            ),
            (
                copy_tiles,
                (
                    q_desc,
                    k_desc,
                    v_desc,
                    q_smem,
                    k_smem,
                    v_smem,
                    full,
                    empty,
                    heads,
                    length,
                    BLOCK_M,
                    BLOCK_N,
                    STAGES,
                    CAUSAL,
                    GROUP,
                ),
            ),
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
    return (*described, heads, length, math.log2(math.e) / math.sqrt(depth))


def arguments(depth):
    def make(new, large, shape=None):
        shape = shape or ((128, 8192, depth) if large else (3, 200, depth))
        made = {name: new.random(shape, "bfloat16") for name in "qkv"}
        return {**made, "out": new.empty(shape, "bfloat16")}

    return make


def configure(causal):
    def make(warp_size, block=(128, 128), stages=2, group=8):
        return {
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
    programs = multiprocessors(args["q"]) or max(3, tiles // 4)
    return (min(tiles, programs),)


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


def flops(causal):
    def count(args):
        heads, length, depth = args["q"].shape
        return 4 * heads * length * length * depth // (2 if causal else 1)

    return count


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
        flops=flops(causal),
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=1e-2,
    )
    for depth in (64, 128)
    for causal in (False, True)
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
