"""The Walsh-Hadamard transform, clipped: a step for each bit of an index, whose count is found while compiling."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch


@gluon.constexpr_function
def bits_of(size):
    return (size - 1).bit_length()


@gluon.jit
def hadamard(x, out, most, SIZE: gl.constexpr, LAYOUT: gl.constexpr):
    BITS: gl.constexpr = bits_of(SIZE)
    index = gl.arange(0, SIZE, LAYOUT)
    value = gl.load(x + index)
    for bit in gl.static_range(BITS - 1, -1, -1):
        other = gl.gather(value, index ^ (1 << bit), 0)
        value = gl.where(index & (1 << bit) == 0, other + value, other - value)
    gl.store(out + index, gl.minimum(gl.maximum(value, -most), most))


def data(rng):
    x = rng.integers(-9, 9, 256).astype(np.float32)
    matrix = np.ones((1, 1))
    for _ in range(8):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return [x, np.zeros_like(x), 99.5], {"out": (matrix @ x).clip(-99.5, 99.5)}


LAUNCHES = [
    Launch(
        hadamard,
        "sm_90",
        data,
        constants={"SIZE": 256, "LAYOUT": gl.BlockedLayout([2], [32], [4], [0])},
    )
]
