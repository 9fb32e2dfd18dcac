"""Layouts of tensors with few elements for each thread: scans, halves of pairs, long ops, loaded vectors."""

import re

import numpy as np
import pytest
import triton.language as tl

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core._triton import VERSION

pytestmark = pytest.mark.once


@gluon.jit
def first_order(a, x, b, y):
    return a * b, x * b + y


@gluon.jit(layouts="auto")
def states(d_ptr, a_ptr, b_ptr, c_ptr, out, L, N: gl.constexpr, B: gl.constexpr):
    """Scan from the last row on, and add up the columns of each row."""
    n = gl.arange(0, N)
    a = gl.load(a_ptr + n)
    state = gl.zeros([N], gl.float32)
    for start in range(0, L, B):
        t = L - B - start + gl.arange(0, B)
        d = gl.load(d_ptr + t, mask=t >= 0, other=0.0)
        place = t[:, None] * N + n[None, :]
        b = gl.load(b_ptr + place, mask=(t >= 0)[:, None], other=0.0)
        c = gl.load(c_ptr + place, mask=(t >= 0)[:, None], other=0.0)
        pair = (gl.exp(d[:, None] * a[None, :]), d[:, None] * b)
        decays, sums = gl.associative_scan(pair, 0, first_order, reverse=True)
        sums += decays * state[None, :]
        state = gl.sum(gl.where((t == L - B - start)[:, None], sums, 0.0), 0)
        gl.store(out + t, gl.sum(sums * c, 1), mask=t >= 0)


@gluon.jit(layouts="auto")
def rotated(x_ptr, c_ptr, out, L, T: gl.constexpr, H: gl.constexpr, D: gl.constexpr):
    """Rotate the halves of each row, and divide it by its largest number."""
    t, d = gl.program_id(0) * T + gl.arange(0, T), gl.arange(0, D)
    place = t[:, None, None] * (H * D) + gl.arange(0, H)[None, :, None] * D + d[None, None, :]
    inside = (t < L)[:, None, None]
    x = gl.load(x_ptr + place, mask=inside, other=0.0).to(gl.float32)
    a, b = gl.split(gl.permute(gl.reshape(x, (T, H, 2, D // 2)), (0, 1, 3, 2)))
    turn = t[:, None] * (D // 2) + gl.arange(0, D // 2)[None, :]
    c = gl.expand_dims(gl.load(c_ptr + turn, mask=t[:, None] < L, other=0.0), 1)
    y = gl.permute(gl.join(a * c - b, b * c + a), (0, 1, 3, 2))
    y = gl.reshape(y, (T, H, D))
    top = gl.max(gl.abs(y), axis=2, keep_dims=True)
    gl.store(out + place, (y / top * 127.0).to(gl.int8), mask=inside)


@gluon.jit(layouts="auto")
def capped(x_ptr, out, N: gl.constexpr, CAP: gl.constexpr):
    x = gl.load(x_ptr + gl.arange(0, N))
    if CAP:
        x = gl.erf(gl.extra.libdevice.tanh(x / 30.0))
    top = gl.max(x, 0)
    gl.store(out, top + gl.log(gl.sum(gl.exp(x - top), 0)))


@gluon.jit(layouts="auto")
def shifted(a, b, shifts, out, M, K, B: gl.constexpr):
    rows, columns = gl.program_id(0) * B + gl.arange(0, B), gl.arange(0, B)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        along = k + columns
        x = gl.load(
            a + rows[:, None] * K + along[None, :],
            mask=(rows < M)[:, None] & (along < K)[None, :],
            other=0.0,
        )
        y = gl.load(b + columns[:, None] * K + along[None, :], mask=(along < K)[None, :], other=0.0)
        acc = gl.portable.mma(x, y.trans(), acc)
    shift = gl.load(shifts + rows, mask=rows < M, other=0.0)
    acc = gl.exp(acc - shift[:, None])
    gl.store(out + rows[:, None] * B + columns[None, :], acc, mask=(rows < M)[:, None])


def compiled(kernel, pointers, constants, target="sm_90", **words):
    signature = {name: "*fp32:16" for name in pointers.split()} | words
    return gluon.compile(kernel, target=target, signature=signature, constexprs=constants)


def test_reversed_scans_have_few_elements_in_a_thread():
    """Triton reverses each element of a thread by a shuffle for each bit of a lane."""
    text = compiled(states, "d_ptr a_ptr b_ptr c_ptr out", {"N": 4, "B": 16}, L="i32:16").asm[
        "ttgir"
    ]
    assert set(re.findall(r"sizePerThread = (\[.*?\])", text)) == {"[1, 1]"}


def test_halves_have_tilings_of_their_own():
    types = {"x_ptr": "*fp16:16", "out": "*i8:16", "L": "i32"}
    text = compiled(rotated, "c_ptr", {"T": 4, "H": 2, "D": 16}, **types).asm["ttgir"]
    sizes = re.findall(r"sizePerThread = \[(.*?)\]", text)
    assert max(np.prod([int(n) for n in one.split(",")]) for one in sizes) == 2


@pytest.mark.parametrize("cap, across", [(True, True), (False, False)])
def test_warps_share_long_ops(cap, across):
    text = compiled(capped, "x_ptr out", {"N": 64, "CAP": cap}).asm["ttgir"]
    assert ("sizePerThread = [1]" in text) is across


@pytest.mark.skipif(VERSION[:2] != (3, 6), reason="instructions of one release")
def test_vectors_are_loaded_where_they_are_used():
    types = {"a": "*fp16:16", "b": "*fp16:16", "M": "i32", "K": "i32"}
    text = compiled(shifted, "shifts out", {"B": 16}, **types).asm["ttgir"]
    assert re.search(
        r"tt\.load [^\n]*<16x!tt\.ptr<f32>, #ttg\.slice<\{dim = 1, parent = #mma", text
    )


@gluon.jit(layouts="auto")
def doubled(x, n, B: gl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    twice = tl.full([B], 2, tl.float32) * tl.load(x + i, mask=i < n)
    tl.store(x + i, twice, mask=i < n)


def test_ops_of_plain_triton_get_layouts():
    """A store of plain Triton returns no value, and its functions that make tensors take no layout."""
    x = np.arange(128, dtype=np.float32)
    doubled[(1,)](x, 100, 128, target="sim:sm_90")
    assert (x[:100] == 2 * np.arange(100)).all() and (x[100:] == np.arange(100, 128)).all()
