"""Attention, forward: softmax(Q K^T / sqrt(D)) V, one program per block of queries and head.

The softmax is computed online (Milakov and Gimelshein, arXiv:1805.02867), so that no row of scores
is ever whole; `gl.portable.mma` takes the matrix unit that there is.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def attention(
    q,
    k,
    v,
    out,
    length,
    scale,
    D: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
):
    dtype: gl.constexpr = q.dtype.element_ty
    scores: gl.constexpr = gl.portable.mma_layouts(BLOCK_M, BLOCK_N, D, dtype, dtype)
    values: gl.constexpr = gl.portable.mma_layouts(BLOCK_M, D, BLOCK_N, dtype, dtype)
    tile: gl.constexpr = gl.portable.blocked_layout([BLOCK_N, D], dtype)
    transposed: gl.constexpr = gl.BlockedLayout(
        [tile.size_per_thread[1], tile.size_per_thread[0]],
        [tile.threads_per_warp[1], tile.threads_per_warp[0]],
        [tile.warps_per_cta[1], tile.warps_per_cta[0]],
        [tile.order[1], tile.order[0]],
    )
    by_row: gl.constexpr = gl.SliceLayout(1, scores.accumulator)
    out_row: gl.constexpr = gl.SliceLayout(1, values.accumulator)
    base = gl.program_id(1) * length * D

    row = gl.program_id(0) * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, tile))
    column = gl.arange(0, D, layout=gl.SliceLayout(0, tile))
    q_offsets = base + (row * D)[:, None] + column[None, :]
    q_tile = gl.load(q + q_offsets, mask=(row < length)[:, None], other=0.0)
    q_tile = gl.convert_layout(q_tile, scores.a)

    # Keys are read as columns: K transposed, in the layout of a tile transposed.
    key = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, transposed))
    depth = gl.arange(0, D, layout=gl.SliceLayout(1, transposed))
    value_row = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, tile))
    score_key = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, scores.accumulator))

    largest = gl.full([BLOCK_M], -1e30, gl.float32, by_row)
    total = gl.zeros([BLOCK_M], gl.float32, by_row)
    acc = gl.zeros([BLOCK_M, D], gl.float32, values.accumulator)
    for start in range(0, length, BLOCK_N):
        k_offsets = base + depth[:, None] + ((start + key) * D)[None, :]
        k_tile = gl.load(k + k_offsets, mask=(start + key < length)[None, :], other=0.0)
        zero = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, scores.accumulator)
        score = gl.portable.mma(q_tile, gl.convert_layout(k_tile, scores.b), zero) * scale
        score = gl.where((start + score_key < length)[None, :], score, -1e30)
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp(largest - higher)
        p = gl.exp(score - higher[:, None])
        total = total * kept + gl.sum(p, axis=1)
        largest = higher
        v_offsets = base + ((start + value_row) * D)[:, None] + column[None, :]
        v_tile = gl.load(v + v_offsets, mask=(start + value_row < length)[:, None], other=0.0)
        acc = acc * gl.convert_layout(kept, out_row)[:, None]
        p_tile = gl.convert_layout(p.to(dtype), values.a)
        acc = gl.portable.mma(p_tile, gl.convert_layout(v_tile, values.b), acc)
    acc = acc / gl.convert_layout(total, out_row)[:, None]
    result = gl.convert_layout(acc.to(out.dtype.element_ty), tile)
    gl.store(out + q_offsets, result, mask=(row < length)[:, None])


def arguments(new, large, shape=None):
    heads, length, depth = shape or ((32, 4096, 64) if large else (2, 144, 64))
    return {
        "q": new.random((heads, length, depth), "float16"),
        "k": new.random((heads, length, depth), "float16"),
        "v": new.random((heads, length, depth), "float16"),
        "out": new.empty((heads, length, depth), "float16"),
        "length": length,
        "scale": depth**-0.5,
    }


def config(warp_size, block=(64, 64), num_warps=4):
    return {"D": 64, "BLOCK_M": block[0], "BLOCK_N": block[1], "num_warps": num_warps}


def choices(target):
    """RDNA3 holds operands twice, in each half of a warp."""
    return {"block": (64, 32)} if target.has("amd.wmma_v1") else {}


def reference(args):
    q, k, v = (args[name].astype(np.float64) for name in "qkv")
    score = q @ k.transpose(0, 2, 1) * args["scale"]
    p = np.exp(score - score.max(axis=2, keepdims=True))
    return p / p.sum(axis=2, keepdims=True) @ v


def device_reference(args):
    """The same in float32 with torch, head by head, into an array of the result's shape."""
    out = args["out"].float()
    for i, (q, k, v) in enumerate(zip(*(args[name].float() for name in "qkv"))):
        out[i] = (q @ k.T * args["scale"]).softmax(-1) @ v
    return out


EXAMPLES = [
    Example(
        name="attention",
        kernel=attention,
        arguments=arguments,
        grid=lambda args, config: (-(-args["length"] // config["BLOCK_M"]), args["q"].shape[0]),
        config=config,
        choices=choices,
        reference=reference,
        device_reference=device_reference,
        output="out",
        flops=lambda args: 4 * args["q"].shape[0] * args["length"] ** 2 * 64,
        tolerance=4e-3,
    )
]
