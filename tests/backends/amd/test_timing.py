"""Predicted times on CDNA: within what the documents allow, and said to be unmeasured."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.timeline import predict

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

TARGETS = ["gfx942", "gfx950"]


def predicted(target, launch):
    with predict(target) as predictions:
        launch()
    (one,) = predictions.launches
    assert "not measured" in one.note and "not measured" in predictions.table()
    return one


@gluon.jit
def copy(src, dst, BLOCK: gl.constexpr, layout: gl.constexpr, BUFFER: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    if BUFFER:
        gl.amd.cdna3.buffer_store(gl.amd.cdna3.buffer_load(src, i), dst, i)
    else:
        gl.store(dst + i, gl.load(src + i))


def copied(target, buffer):
    n, block = 1 << 27, 2048
    x, y = np.zeros(n, np.float32), np.zeros(n, np.float32)
    layout = gl.BlockedLayout([4], [64], [4], [0])
    return predicted(target, lambda: copy[(n // block,)](x, y, block, layout, buffer))


@pytest.mark.parametrize("target", TARGETS)
def test_a_copy_takes_the_time_of_its_bytes(target):
    plain, buffers = (copied(target, buffer) for buffer in (False, True))
    least = 2 * 4 * (1 << 27) / {"gfx942": 5300, "gfx950": 8000}[target]
    assert least < plain.nanoseconds < 1.6 * least and plain.limits[0][0] == "memory"
    assert buffers.nanoseconds == pytest.approx(plain.nanoseconds, rel=0.02)


@gluon.jit
def products(out, n, M: gl.constexpr, K: gl.constexpr, version: gl.constexpr, depth: gl.constexpr):
    layout: gl.constexpr = gl.amd.AMDMFMALayout(version, [32, 32, depth], True, [2, 2])
    a = gl.full([M, K], 1.0, gl.bfloat16, gl.DotOperandLayout(0, layout, 8))
    b = gl.full([K, M], 1.0, gl.bfloat16, gl.DotOperandLayout(1, layout, 8))
    total = gl.zeros([M, M], gl.float32, layout)
    for _ in range(n):
        total = gl.amd.cdna3.mfma(a, b, total)
    gl.store(out + gl.arange(0, M, layout=gl.SliceLayout(1, layout)), gl.sum(total, 1))


@pytest.mark.parametrize("target", TARGETS)
def test_products_take_the_time_of_the_matrix_units(target):
    units, clock, rate = {"gfx942": (304, 2.1, 1307.4), "gfx950": (256, 2.4, 2516.6)}[target]
    out, rounds = np.zeros(128, np.float32), 256
    version, depth = {"gfx942": (3, 8), "gfx950": (4, 16)}[target]
    one = predicted(target, lambda: products[(units,)](out, rounds, 128, 64, version, depth))
    least = 2 * 128 * 128 * 64 * rounds * units / rate / 1e3  # nanoseconds
    assert least < one.span < 2.5 * least
    assert one.limits[0][0] == "matrix unit"
