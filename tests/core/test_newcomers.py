"""First steps of a newcomer: NumPy's scalars, sizes of grids, argmax, layouts of clusters."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import errors
from gluon_core import language as gl

pytestmark = pytest.mark.once

TARGET = "sim:hopper"
LAYOUT = gl.BlockedLayout([1], [32], [4], [0])


@gluon.jit
def put(out, value, pair):
    gl.store(out, value)
    gl.store(out + 1, pair[0] + pair[1])


@gluon.jit
def kind(out, value):
    gl.static_assert(value.dtype == gl.int64)
    gl.store(out, value)


@gluon.jit
def filled(out, SIZE: gl.constexpr, L: gl.constexpr):
    o = gl.arange(0, SIZE, layout=L)
    gl.store(out + o, o)


@pytest.mark.parametrize(
    "value, plain",
    [
        (np.int64(100), 100),
        (np.int32(-3), -3),
        (np.uint8(200), 200),
        (np.float32(1.5), 1.5),
        (np.float16(0.25), 0.25),
        (np.float64(2.5), 2.5),
        (np.bool_(True), 1),
        (np.int64(1), 1),
    ],
)
def test_scalars_of_numpy_are_numbers(value, plain):
    for _ in range(2):  # the second launch takes the remembered path
        out = np.zeros(2, np.float32)
        put[(1,)](out, value, (np.int32(2), 3), target=TARGET)
        assert out.tolist() == [plain, 5]
    handle = put.prepare(out, value, (2, 3), grid=(1,), target=TARGET)
    out[:] = 0
    handle(out, value, (2, 3))
    assert out.tolist() == [plain, 5]


def test_a_scalar_of_numpy_is_as_wide_as_its_value():
    out = np.zeros(1, np.int64)
    kind[(1,)](out, np.int64(1 << 40), target=TARGET)
    assert out[0] == 1 << 40
    with pytest.raises(errors.StaticAssertionError):
        kind[(1,)](out, np.int64(7), target=TARGET)


def test_a_scalar_of_numpy_as_a_compile_time_value():
    out = np.zeros(128, np.int32)
    filled[(1,)](out, np.int64(128), L=LAYOUT, target=TARGET)
    assert out.tolist() == list(range(128))


def test_values_that_are_no_number_are_named():
    out = np.zeros(2, np.float32)
    for value in (np.complex64(1), np.str_("a"), np.datetime64("2020"), 1j, [1], {}):
        with pytest.raises(errors.ArgumentError, match=r"put\(value\).*gl.constexpr"):
            put[(1,)](out, value, (2, 3), target=TARGET)


def test_arrays_without_dimensions_stay_memory():
    out = np.zeros((), np.float32)

    @gluon.jit
    def once(p):
        gl.store(p, 4.0)

    once[(1,)](out, target=TARGET)
    assert out == 4


@pytest.mark.parametrize("name, arguments", [("sum", (5, 0)), ("zeros", ([1],))])
def test_the_language_on_the_host(name, arguments):
    with pytest.raises(errors.NotInKernelError, match=f"gl.{name} was called outside a kernel"):
        getattr(gl, name)(*arguments)


@gluon.jit
def sized(out, SIZE: gl.constexpr, L: gl.constexpr):
    half: gl.constexpr = gluon.next_power_of_2((SIZE + 1) // 2)
    gl.store(out, half)
    v = gl.arange(0, 128, layout=L)
    gl.store(out + 1, gl.argmax(gl.where(v == 77, 200, v), 0))
    gl.store(out + 2, gl.argmin(gl.where(v == 33, -1, v), 0))
    gl.store(out + 3, gl.argmax(v // 64, 0))
    gl.store(out + 4, gl.cdiv(v.shape[0], 100))


def test_argmax_argmin_and_sizes_in_kernels():
    out = np.zeros(5, np.int32)
    sized[(1,)](out, 100, L=LAYOUT, target=TARGET)
    assert out.tolist() == [64, 77, 33, 64, 2]


@gluon.jit
def copied(x, y, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, COLUMNS], gl.float32)
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    o = rows[:, None] * COLUMNS + columns[None, :]
    gl.store(y + o, gl.load(x + o))


@pytest.mark.parametrize("num_ctas", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(64, 64), (2, 256), (1, 128)])
def test_the_portable_layout_spreads_over_a_cluster(num_ctas, shape):
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    y = np.zeros_like(x)
    copied[(1,)](x, y, *shape, num_ctas=num_ctas, target=TARGET)
    assert (x == y).all()


def test_the_portable_layout_of_a_cluster_compiles():
    compiled = gluon.compile(
        copied,
        "sm_90",
        signature={"x": "*fp32", "y": "*fp32"},
        constexprs={"ROWS": 64, "COLUMNS": 64},
        num_ctas=2,
    )
    assert "CGALayout" in compiled.asm["ttgir"] or "CTAsPerCGA" in compiled.asm["ttgir"]
