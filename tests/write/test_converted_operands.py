"""Operands of `mma.sync` that change their layout pass through buffers."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core._triton import VERSION

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def pages(q, k, v, table, out, length, row, D: gl.constexpr, BM: gl.constexpr, PAGE: gl.constexpr):
    """Multiply by the scaled rows of pages that a table names, and by their transpose."""
    rows, d, token = gl.arange(0, BM), gl.arange(0, D), gl.arange(0, PAGE)
    query = gl.load(q + rows[:, None] * D + d[None, :])
    acc = gl.zeros([BM, D], gl.float32)
    for page in range(0, length):
        place = gl.load(table + page) * PAGE
        key = gl.load(k + d[:, None] + (place + token)[None, :] * row)
        key = (key.to(gl.float32) * 0.5).to(gl.float16)
        weight = gl.portable.mma(query, key, gl.zeros([BM, PAGE], gl.float32))
        value = gl.load(v + (place + token)[:, None] * row + d[None, :])
        value = (value.to(gl.float32) * 0.25).to(gl.float16)
        acc = gl.portable.mma(weight.to(gl.float16), value, acc)
    gl.store(out + rows[:, None] * D + d[None, :], acc)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80"])
def test_pages(target, chosen_sources):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 40)).astype(np.float16) for n in (16, 64, 64))
    q = np.ascontiguousarray(q[:, :32])
    table, out = np.array([3, 0, 2], np.int32), np.zeros((16, 32), np.float32)
    pages[(1,)](q, k, v, table, out, 3, 40, 32, 16, 16, target=target)
    used = np.concatenate([np.arange(16) + 16 * page for page in table])
    key, value = (x[used, :32].astype(np.float32) for x in (k, v))
    weight = (q.astype(np.float32) @ (key * 0.5).T).astype(np.float16).astype(np.float32)
    assert np.allclose(out, weight @ (value * 0.25), atol=0.05)
    for line in ("key_operand = key_buffer.load()", "value_operand = value_buffer.load()"):
        assert line in chosen_sources[0]
    assert "weight_buffer" not in chosen_sources[0] and "query_buffer" not in chosen_sources[0]


@pytest.mark.skipif(VERSION[:2] != (3, 6), reason="instructions of one release")
def test_operands_are_loaded_by_matrices():
    signature = {name: "*fp16:16" for name in "qkv"}
    signature |= {"table": "*i32:16", "out": "*fp32:16", "length": "i32", "row": "i32"}
    sizes = {"D": 32, "BM": 16, "PAGE": 16}
    text = gluon.compile(pages, target="sm_90", signature=signature, constexprs=sizes).asm["ptx"]
    loop = re.search(r"^(\$L__BB0_\d+):(?P<body>.*)bra\S*\s+\1;", text, re.M | re.S)
    assert loop is not None
    assert loop["body"].count("ldmatrix") >= 2 and "ld.shared.b16" not in loop["body"]
