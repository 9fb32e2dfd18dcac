"""Conversions of narrow floats on gfx1250, whose warps have 32 lanes; the rest is with CDNA's."""

from __future__ import annotations

import pytest

from gluon_core.errors import CapabilityError
from gluon_core.testing import TRITON_VERSION
from tests.frontend.vendor_oracle import agree, parse, since

SETUP = """
from GLUON.language.amd import gfx1250
TARGET = GPUTarget("hip", "gfx1250", 32)
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
WIDE = gl.constexpr(gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0]))
@gluon.jit
def put(q, x):
    rows: gl.constexpr = x.shape[0]
    columns: gl.constexpr = x.shape[1]
    r = gl.arange(0, rows, layout=gl.SliceLayout(1, x.type.layout))
    c = gl.arange(0, columns, layout=gl.SliceLayout(0, x.type.layout))
    gl.store(q + r[:, None] * columns + c[None, :], x)
@gluon.jit
def tile(p, layout: gl.constexpr):
    r = gl.arange(0, 32, layout=gl.SliceLayout(1, layout))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
    return gl.load(p + r[:, None] * 64 + c[None, :])
"""
UPCAST = (
    SETUP
    + """
@gluon.jit
def kernel(p, q):
    x = tile(p, L)
    s8 = gl.full([32, 64], 127, gl.uint8, layout=L)
    s4 = gl.full([32, 128], 127, gl.uint8, layout=WIDE)
    put(q, {call})
ARGS = (ptr({pointee}), ptr({result}))
"""
)


@since(3, 8)
@pytest.mark.parametrize(
    "pointee, call, result",
    [
        ("gl.float8e4nv", "gfx1250.scaled_upcast(x, s8, gl.bfloat16)", "gl.bfloat16"),
        ("gl.float8e5", "gfx1250.scaled_upcast(x, s8, gl.float16)", "gl.float16"),
        ("gl.uint8", "gfx1250.scaled_upcast(x, s4, gl.bfloat16, axis=1)", "gl.bfloat16"),
    ],
)
def test_scaled_upcast(pointee, call, result):
    text = agree(UPCAST.format(call=call, pointee=pointee, result=result))
    assert "amdg.scaled_upcast_fp" in text


DOWNCAST = (
    SETUP
    + """
S = gl.constexpr(gl.DistributedLinearLayout([], [[0, 0], [0, 0], [0, 1], [1, 0], [2, 0]],
                                            [[4, 0], [8, 0]], [], [16, 2]))
NARROW = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
@gluon.jit
def kernel(p, q, s):
    r = gl.arange(0, 16, layout=gl.SliceLayout(1, NARROW))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, NARROW))
    x = gl.load(p + r[:, None] * 64 + c[None, :])
    r = gl.arange(0, 16, layout=gl.SliceLayout(1, S))
    c = gl.arange(0, 2, layout=gl.SliceLayout(0, S))
    scale = gl.load(s + r[:, None] * 2 + c[None, :])
    put(q, gfx1250.scaled_downcast(x, scale, {format}))
ARGS = (ptr({pointee}), ptr({result}), ptr(gl.uint8))
"""
)


@pytest.mark.sampled(2)
@since(3, 9)
@pytest.mark.parametrize("pointee", ["gl.bfloat16", "gl.float16", "gl.float32"])
@pytest.mark.parametrize(
    "format, result",
    [("'e4m3'", "gl.float8e4nv"), ("'e5m2', 1", "gl.float8e5"), ("format='e2m1'", "gl.uint8")],
)
def test_scaled_downcast(pointee, format, result):
    text = agree(DOWNCAST.format(pointee=pointee, format=format, result=result))
    assert "amdg.scaled_downcast_fp" in text


LAYOUT = (
    SETUP
    + """
@gluon.jit
def kernel(p, q):
    x = tile(p, L)
    M: gl.constexpr = gfx1250.get_scaled_upcast_fp4_scale_layout(x, 32, gl.bfloat16, 1)
    put(q, gl.full([32, 4], 127, gl.uint8, layout=M))
ARGS = (ptr(gl.uint8), ptr(gl.uint8))
"""
)


@since(3, 9)
def test_the_layout_of_scales():
    agree(LAYOUT)


REPACKED = (
    SETUP
    + """
ACC = gl.constexpr(gl.amd.AMDWMMALayout(3, True, [[0, 1], [1, 0]], [], [16, 16, 64]))
B = gl.constexpr(gl.DotOperandLayout(1, ACC, 16))
@gluon.jit
def kernel(q):
    m = gl.allocate_shared_memory(gl.uint8, [128, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    put(q, gfx1250.load_shared_fp4_repacked(m, B))
ARGS = (ptr(gl.uint8),)
"""
)


@since(3, 9)
def test_fp4_repacked():
    agree(REPACKED)


@pytest.mark.skipif(TRITON_VERSION >= (3, 9), reason="this Triton has them")
def test_they_name_the_triton_they_need():
    source = DOWNCAST.format(pointee="gl.float16", format="'e4m3'", result="gl.float8e4nv")
    with pytest.raises(CapabilityError, match="Triton >= 3.9"):
        parse(source)
