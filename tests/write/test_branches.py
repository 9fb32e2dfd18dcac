"""Loops of products whose operands are loaded under conditions of constants: copied ahead as without them."""

import importlib.util

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_write.porting.port import port

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]


@gluon.jit(layouts="auto")
def even(a, b, c, K, B: gl.constexpr, EVEN_K: gl.constexpr):
    rows, k = gl.arange(0, B), gl.arange(0, B)
    a_ptrs = a + rows[:, None] * K + k[None, :]
    b_ptrs = b + k[:, None] * B + rows[None, :]
    acc = gl.zeros((B, B), gl.float32)
    for left in range(K, 0, -B):
        if EVEN_K:
            x = gl.load(a_ptrs)
            y = gl.load(b_ptrs)
        else:
            x = gl.load(a_ptrs, mask=k[None, :] < left, other=0.0)
            y = gl.load(b_ptrs, mask=k[:, None] < left, other=0.0)
        acc = gl.portable.mma(x, y, acc)
        a_ptrs += B
        b_ptrs += B * B
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@gluon.jit(layouts="auto")
def of_types(a, b, c, K, B: gl.constexpr, EVEN_K: gl.constexpr):
    """The dtype of a tensor chooses, and a constant within its branch."""
    rows, k = gl.arange(0, B), gl.arange(0, B)
    a_ptrs = a + rows[:, None] * K + k[None, :]
    b_ptrs = b + k[:, None] * B + rows[None, :]
    acc = gl.zeros((B, B), gl.float32)
    for first in range(0, K, B):
        if a.dtype.element_ty == gl.float32:
            x = gl.load(a_ptrs).to(gl.float16)
        elif EVEN_K:
            x = gl.load(a_ptrs)
        else:
            x = gl.load(a_ptrs, mask=first + k[None, :] < K, other=0.0)
        if EVEN_K: y = gl.load(b_ptrs)  # fmt: skip
        else: y = gl.load(b_ptrs, mask=first + k[:, None] < K, other=0.0)  # fmt: skip
        acc = gl.portable.mma(x, y, acc)
        a_ptrs += B
        b_ptrs += B * B
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@gluon.jit(layouts="auto")
def chosen_at_run_time(a, b, c, K, B: gl.constexpr, EVEN_K: gl.constexpr):
    """A condition that a program finds is one still."""
    rows, k = gl.arange(0, B), gl.arange(0, B)
    acc = gl.zeros((B, B), gl.float32)
    for first in range(0, K, B):
        x = gl.load(a + rows[:, None] * K + first + k[None, :], first + k[None, :] < K, 0.0)
        if first > 0:
            y = gl.load(b + (first + k[:, None]) * B + rows[None, :], first + k[:, None] < K, 0.0)
        else:
            y = gl.load(b + k[:, None] * B + rows[None, :], k[:, None] < K, 0.0)
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@pytest.mark.parametrize("kernel", [even, of_types, chosen_at_run_time])
@pytest.mark.parametrize("K, EVEN_K", [(96, True), (80, False)])
def test_results(kernel, K, EVEN_K):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((32, K), (K, 32)))
    c = np.zeros((32, 32), np.float32)
    kernel[(1,)](a, b, c, K, 32, EVEN_K, num_stages=3, target="sim:hopper")
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-2)


@pytest.mark.parametrize("kernel, copies", [(even, 6), (of_types, 6), (chosen_at_run_time, 3)])
@pytest.mark.parametrize("EVEN_K", [True, False])
def test_copies_come_ahead(kernel, copies, EVEN_K):
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "K": "i32:16"}
    constants = {"B": 32, "EVEN_K": EVEN_K}
    asked = gluon.compile(
        kernel, target="sm_90", signature=signature, constexprs=constants, options={"num_stages": 3}
    )
    assert asked.asm["ttgir"].count("ttg.async_copy_global_to_local") == copies


@gluon.jit(layouts="auto")
def masked_by_words(x, y, stride, N: gl.constexpr, B: gl.constexpr, R: gl.constexpr):
    rows, columns = gl.arange(0, R), gl.arange(0, B)
    mask = gl.where(columns < N, 1, 0).to(gl.int1)
    some = mask[None, :] & ((rows < 5) | (rows == 6))[:, None]
    places = rows[:, None] * stride + columns[None, :]
    gl.store(y + places, gl.load(x + places, mask=some, other=0.0), mask=mask[None, :])


@pytest.mark.parametrize("N, wide", [(64, True), (40, True), (63, False)])
def test_masks_that_are_integers_first(N, wide):
    """They treat as many neighbours alike as the comparison that they come from."""
    signature = {"x": "*fp16:16", "y": "*fp16:16", "stride": "i32:16"}
    constants = {"N": N, "B": 64, "R": 16}
    asked = gluon.compile(
        masked_by_words, target="sm_90", signature=signature, constexprs=constants
    )
    assert (".v4.b32" in asked.asm["ptx"]) == wide
    x = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float16)
    y = np.zeros_like(x)
    masked_by_words[(1,)](x, y, 64, N, 64, 16, target="sim:hopper")
    wanted = np.zeros_like(x)
    kept = [0, 1, 2, 3, 4, 6]
    wanted[kept, :N] = x[kept, :N]
    assert (y == wanted).all()


OF_PRECISION = """
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, K, B: tl.constexpr, P: tl.constexpr):
    i = tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        x = tl.load(a + i[:, None] * K + (k + i)[None, :])
        y = tl.load(b + (k + i)[:, None] * B + i[None, :])
        acc += tl.dot(x, y, input_precision=P)
    tl.store(c + i[:, None] * B + i[None, :], acc)


@triton.jit
def stored(a, b, c, B: tl.constexpr, P: tl.constexpr):
    i = tl.arange(0, B)
    o = i[:, None] * B + i[None, :]
    x, y = tl.load(a + o), tl.load(b + o)
    tl.store(c + o, tl.dot(x, y, input_precision=P))
"""


@pytest.fixture
def of_precision(tmp_path):
    path = tmp_path / "ported.py"
    path.write_text(port(OF_PRECISION, "ported.py").text)
    spec = importlib.util.spec_from_file_location("ported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("precision, least", [("ieee", 0.0), ("tf32", 1e-4), ("tf32x3", 0.0)])
def test_precision_that_a_constant_chooses(precision, least, of_precision, chosen_sources):
    """Parts of operands are multiplied where it asks for them, and tiles are copied ahead for any."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((32, 96), (96, 32)))
    c = np.zeros((32, 32), np.float32)
    of_precision.product[(1,)](a, b, c, 96, 32, precision, num_stages=3, target="sim:hopper")
    apart = np.abs(c - a.astype(np.float64) @ b).max()
    assert least <= apart < max(1e-4, least * 1e3)
    parts = 3 if precision == "tf32x3" else 1
    assert chosen_sources[0].count("gl.portable.mma(") == parts
    assert "async_load" in chosen_sources[0] and "in_parts(P)" in chosen_sources[0]


def test_precision_of_a_product_that_is_stored(of_precision, chosen_sources):
    """An exact product multiplies operands from shared memory in parts, as one in a statement of its own does."""
    a, b = np.eye(32, dtype=np.float32), np.arange(1024, dtype=np.float32).reshape(32, 32)
    c = np.zeros((32, 32), np.float32)
    of_precision.stored[(1,)](a, b, c, 32, "ieee", target="sim:hopper")
    assert (c == b).all() and "product_in_parts" not in chosen_sources[0]
    assert "_buffer.slice(" in chosen_sources[0] and "not in_parts(P)" in chosen_sources[0]
