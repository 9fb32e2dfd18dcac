"""Neighbours exchanged, and what atomics, casts, conditions of the compiler and assertions make of a
tensor; the count of warps is a constant of the kernel, too."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch


@gluon.jit
def exchanged(x, out, tally, count, num_warps: gl.constexpr):
    SIZE: gl.constexpr = 1024
    LINE: gl.constexpr = gl.BlockedLayout([4], [32], [num_warps], [0])
    offsets = gl.arange(0, SIZE, LINE)
    there = offsets < count
    value = gl.load(x + offsets, mask=there, other=-1.0)
    first, second = value.reshape([SIZE // 2, 2]).split()
    other = gl.convert_layout(gl.join(second, first).reshape(SIZE), LINE)
    other = gl.where(offsets % 2 == 0, other, -other)
    half = gl.exp2(other) if hasattr(gl, "exp2") else gl.dot_fma(other, other, other)
    half = half.to(gl.float16).to(gl.float32)
    if hasattr(gl, "no_such_function"):
        half = gl.dot_fma(half, half, half)
    gl.store(out + offsets, half, mask=there)
    gl.atomic_add(tally + offsets % 3, gl.full_like(offsets, 1), mask=there, sem="relaxed")
    gl.atomic_max(tally + 3 + (offsets & 1), offsets)
    gl.store(tally + 5, (gl.max(value, 0) > 2).to(gl.int32))
    gl.device_assert(count > 0, "there is nothing to exchange")


def data(rng):
    x = rng.integers(-3, 4, 1000).astype(np.float32)
    rotated = x.reshape(-1, 2)[:, ::-1] * [1, -1]
    wanted = {"out": np.exp2(rotated).ravel(), "tally": np.array([334, 333, 333, 1022, 1023, 1])}
    return [x, np.zeros_like(x), np.zeros(6, np.int32), 1000], wanted


LAUNCHES = [Launch(exchanged, "sm_90", data, constants={"num_warps": n}) for n in (1, 4, 8)]
