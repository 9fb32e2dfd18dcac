"""Logarithms of softmax over rows that the blocks of a cluster hold together."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch


@gluon.jit
def log_softmax(x, out, WIDE: gl.constexpr, LAYOUT: gl.constexpr):
    offset = gl.program_id(0) * WIDE + gl.arange(0, WIDE, LAYOUT)
    value = gl.load(x + offset)
    value -= gl.max(value, 0)
    gl.store(out + offset, value - gl.log(gl.sum(gl.exp(value), 0)))


def data(rng):
    x = rng.standard_normal((3, 2048)).astype(np.float32)
    sums = np.exp(x.astype(float)).sum(1, keepdims=True)
    return [x, np.zeros_like(x)], {"out": x - np.log(sums)}


LAUNCHES = [
    Launch(
        log_softmax,
        "sm_90",
        data,
        grid=(3,),
        constants={
            "WIDE": 2048,
            "LAYOUT": gl.BlockedLayout([4], [32], [4], [0], cga_layout=blocks),
            "num_ctas": 2 ** len(blocks),
        },
        tolerance=1e-6,
        since=(3, 8) if blocks else (3, 6),
    )
    for blocks in ([], [[1]], [[1], [2]])
]
