"""Rotary embedding (Su et al., arXiv:2104.09864) of queries or keys: halves of a head are turned
against each other. A program turns all heads of some positions, and reads their angles once."""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def rotary(
    src, cosines, sines, dst, length, heads, row_stride, HALF: gl.constexpr,
    HEADS: gl.constexpr, INVERSE: gl.constexpr,
):  # fmt: skip
    """`src` is [rows, heads, 2 HALF], rows being sequences of `length` positions each; INVERSE turns
    back, which is the gradient."""
    layout: gl.constexpr = gl.portable.blocked_layout([HEADS, HALF], src.dtype.element_ty)
    row = gl.program_id(0)
    head = gl.arange(0, HEADS, gl.SliceLayout(1, layout))
    column = gl.arange(0, HALF, gl.SliceLayout(0, layout))
    angle = row % length * HALF + column
    cosine = gl.load(cosines + angle).to(gl.float32)[None, :]
    sine = gl.load(sines + angle).to(gl.float32)[None, :]
    if INVERSE:
        sine = -sine
    at = head[:, None] * (2 * HALF) + column[None, :]
    inside = (head < heads)[:, None] & (column < HALF)[None, :]
    src += row.to(gl.int64) * row_stride
    dst += row.to(gl.int64) * row_stride
    x = gl.portable.load(src, at, inside).to(gl.float32)
    y = gl.portable.load(src, at + HALF, inside).to(gl.float32)
    gl.portable.store(dst, at, x * cosine - y * sine, inside)
    gl.portable.store(dst, at + HALF, y * cosine + x * sine, inside)


def arguments(new, large, shape=None):
    rows, heads, width = shape or ((32768, 32, 128) if large else (7, 5, 64))
    length = 4096 if large else 4
    return {
        "src": new.random((rows, heads, width), "bfloat16"),
        "cosines": new.random((length, width // 2)),
        "sines": new.random((length, width // 2)),
        "dst": new.empty((rows, heads, width), "bfloat16"),
        "length": length,
        "heads": heads,
        "row_stride": heads * width,
    }


def reference(args, sign=1):
    src, length = args["src"].astype(np.float64), args["length"]
    at = np.arange(len(src)) % length
    cosine, sine = (args[name].astype(np.float64)[at, None] for name in ("cosines", "sines"))
    x, y = np.split(src, 2, axis=2)
    return np.concatenate([x * cosine - sign * y * sine, y * cosine + sign * x * sine], axis=2)


def config(warp_size, half=32, heads=8, num_warps=1, inverse=False):
    heads = 2 ** math.ceil(math.log2(heads))
    return {"HALF": half, "HEADS": heads, "INVERSE": inverse, "num_warps": num_warps}


def large_config(warp_size, half=64, heads=32, num_warps=4, inverse=False):
    return config(warp_size, half, heads, num_warps, inverse)


EXAMPLES = [
    Example(
        name="rotary embedding",
        kernel=rotary,
        arguments=arguments,
        grid=lambda args, config: (args["src"].shape[0],),
        config=config,
        large_config=large_config,
        reference=reference,
        output="dst",
        bytes_moved=lambda args: 4 * math.prod(args["src"].shape),
        tolerance=4e-3,
    )
]
