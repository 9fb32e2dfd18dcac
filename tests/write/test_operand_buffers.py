"""Products without a matrix unit: threads read their operands from shared memory."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry

pytestmark = pytest.mark.once


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@gluon.jit(layouts="auto")
def twice(a, b, c, N: gl.constexpr):
    """Store a product, the same again, and one of another operand of that name."""
    o = gl.arange(0, N)[:, None] * N + gl.arange(0, N)[None, :]
    x, y = gl.load(a + o), gl.load(b + o)
    gl.store(c + o, gl.portable.mma(x, y, gl.zeros([N, N], gl.float32)))
    gl.store(c + N * N + o, gl.portable.mma(x, y, gl.zeros([N, N], gl.float32)))
    x = x + 1.0
    gl.store(c + 2 * N * N + o, gl.portable.mma(x, y.T, gl.zeros([N, N], gl.float32)))


def test_operands_are_stored_once(chosen_sources):
    n = 32
    a, b = numbers(n, n), numbers(n, n, seed=1)
    c = np.zeros((3, n, n), np.float32)
    twice[(1,)](a, b, c, n, num_warps=4, target="sim:sm_90")
    assert np.allclose(c, [a @ b, a @ b, (a + 1) @ b.T], atol=1e-4)
    (text,) = chosen_sources
    filled = re.findall(r"(\w+) = gl\.allocate_shared_memory\((\w+)\.dtype", text)
    assert [value for _, value in filled] == ["x", "y", "x", "y_value"]
    read = re.findall(r"mma\((\w+)\.slice\(\w+, 16, dim=1\)\.load\(\), (\w+)\.slice\(", text)
    assert read == [("x_buffer", "y_buffer")] * 2 + [("x_buffer_2", "y_buffer_2")]


@gluon.jit(layouts="auto")
def in_a_loop(a, b, c, steps, N: gl.constexpr):
    o = gl.arange(0, N)[:, None] * N + gl.arange(0, N)[None, :]
    x = gl.load(a + o)
    total = gl.zeros([N, N], gl.float32)
    for step in range(steps):
        y = gl.load(b + step * N * N + o)
        total = gl.portable.mma(x, gl.exp(y), total, input_precision="ieee")
    gl.store(c + o, total)


def test_an_operand_of_all_steps_is_stored_before_them(chosen_sources):
    n = 32
    a, b, c = numbers(n, n), numbers(3, n, n, seed=1), np.zeros((n, n), np.float32)
    in_a_loop[(1,)](a, b, c, 3, n, num_warps=4, num_stages=1, target="sim:sm_90")
    assert np.allclose(c, a @ np.exp(b).sum(0), atol=1e-3)
    before, _, loop = chosen_sources[0].partition("for step in")
    assert "x_buffer = " in before and "x_buffer.slice(part, 16, dim=1).load()" in loop
    assert ', product, input_precision="ieee")' in loop
    assert loop.count("allocate_shared_memory") == 1


@gluon.jit(layouts="auto")
def nested(a, b, c, N: gl.constexpr):
    o = gl.arange(0, N)[:, None] * N + gl.arange(0, N)[None, :]
    x, y = gl.load(a + o), gl.load(b + o)
    zeros = gl.zeros([N, N], gl.float32)
    gl.store(c + o, gl.portable.mma(gl.portable.mma(x, y, zeros), x, zeros))


def test_products_of_products(chosen_sources):
    n = 32
    a, b, c = numbers(n, n), numbers(n, n, seed=1), np.zeros((n, n), np.float32)
    nested[(1,)](a, b, c, n, num_warps=4, target="sim:sm_90")
    assert np.allclose(c, a @ b @ a, atol=1e-3)
    assert "x_buffer.slice(part" in chosen_sources[0]
    assert "mma(product, x, zeros)" in chosen_sources[0]


@gluon.jit(layouts="auto")
def named(a, b, c, N: gl.constexpr):
    o = gl.arange(0, N)[:, None] * N + gl.arange(0, N)[None, :]
    x, y = gl.load(a + o), gl.load(b + o)
    gl.store(c + o, gl.portable.mma(x, y, acc=gl.zeros([N, N], gl.float32)))
    gl.store(c + N * N + o, gl.portable.mma(x, y, acc=gl.zeros([N, N], gl.float32)))


def test_a_product_whose_sum_is_named_is_made_at_once(chosen_sources):
    n = 32
    a, b = numbers(n, n), numbers(n, n, seed=1)
    c = np.zeros((2, n, n), np.float32)
    named[(1,)](a, b, c, n, num_warps=4, target="sim:sm_90")
    assert np.allclose(c, [a @ b, a @ b], atol=1e-4)
    (text,) = chosen_sources
    assert text.count(".load()") == 2 and text.count("mma(x_operand, y_operand, acc=") == 2


@gluon.jit(layouts="auto")
def once(a, b, c, N: gl.constexpr):
    o = gl.arange(0, N)[:, None] * N + gl.arange(0, N)[None, :]
    gl.store(c + o, gl.portable.mma(gl.load(a + o), gl.load(b + o), gl.zeros([N, N], gl.float32)))


@gluon.jit(layouts="auto")
def over_lines(a, b, c, N: gl.constexpr):
    o = gl.arange(0, N)[:, None] * N + gl.arange(0, N)[None, :]
    gl.store(
        c + o,
        gl.portable.mma(
            gl.load(a + o),
            gl.load(b + o),  # by columns
            gl.zeros(
                [N, N],
                gl.float32,
            ),
        ),
    )
    gl.store(c + N * N + o, gl.load(a + o))


def test_a_product_over_several_lines(chosen_sources):
    a, b = numbers(32, 32), numbers(32, 32, seed=1)
    c = np.zeros((2, 32, 32), np.float32)
    over_lines[(1,)](a, b, c, 32, num_warps=4, target="sim:sm_90")
    assert np.allclose(c, [a @ b, a], atol=1e-4)
    assert ".slice(part, 16, dim=1).load()" in chosen_sources[0]


def test_a_tile_of_64_columns_stays_in_registers():
    """Its operands took all registers and 6 kB of local memory of each thread."""
    a, c = numbers(64, 64), np.zeros((64, 64), np.float32)
    kernel = once.warmup(a, a, c, 64, num_warps=4, target=registry().target("sm_90"))
    report = kernel.report()
    assert report.spills == 0 and report.registers < 200


def test_small_tiles_are_converted(chosen_sources):
    a, b, c = numbers(16, 16), numbers(16, 16, seed=1), np.zeros((16, 16), np.float32)
    for warps, converted in ((8, True), (4, False)):
        once[(1,)](a, b, c, 16, num_warps=warps, target="sim:sm_90")
        assert np.allclose(c, a @ b, atol=1e-4)
        assert ("allocate_shared_memory" in chosen_sources[-1]) != converted


@gluon.jit(layouts="auto")
def in_a_branch(a, b, c, steps, M: gl.constexpr, N: gl.constexpr):
    """Multiply tiles of two shapes, those of the second in a branch."""
    rows, columns = gl.arange(0, M)[:, None], gl.arange(0, N)[None, :]
    along = gl.arange(0, N)[:, None]
    x, y = gl.load(a + rows * N + columns), gl.load(b + along * N + columns)
    total = gl.zeros([M, N], gl.float32)
    for step in range(steps):
        part = gl.portable.mma(
            x, y * (step + 1), gl.zeros([M, N], gl.float32), input_precision="ieee"
        )
        if step == 1:
            part = gl.portable.mma(part, y.T, part, input_precision="ieee")
        total += part
    gl.store(c + rows * N + columns, total)


def test_a_branch_has_buffers_of_another_shape():
    a, b, c = numbers(64, 32), numbers(32, 32, seed=1), np.zeros((64, 32), np.float32)
    in_a_branch[(1,)](a, b, c, 2, 64, 32, num_warps=4, num_stages=1, target="sim:sm_90")
    second = a @ b * 2
    assert np.allclose(c, a @ b + second + second @ b.T, atol=1e-2)
