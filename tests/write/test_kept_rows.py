"""Loops that read a row again: rows of few blocks are read once, and stay in registers."""

import importlib.util

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once
BLOCK = 64


@gluon.jit(layouts="auto")
def centred(x, y, n, stride, BLOCK: gl.constexpr):
    """Subtract the mean of each row, and divide by the largest distance from it."""
    row = gl.program_id(0)
    x += row * n
    total = gl.zeros([BLOCK], gl.float32)
    for start in range(0, n, BLOCK):
        columns = start + gl.arange(0, BLOCK)
        total += gl.load(x + columns, mask=columns < n, other=0.0)
    mean = gl.sum(total, 0) / n
    most = gl.zeros([BLOCK], gl.float32)
    for begin in range(0, n, BLOCK):
        places = begin + gl.arange(0, BLOCK)
        value = gl.load(x + places, mask=places < n, other=0.0)
        most = gl.maximum(most, gl.abs(gl.where(places < n, value - mean, 0.0)))
    largest = gl.max(most, 0)
    for start in range(0, n, BLOCK):
        columns = start + gl.arange(0, BLOCK)
        value = gl.load(x + columns, mask=columns < n, other=0.0)
        gl.store(y + row * stride + columns, (value - mean) / largest, mask=columns < n)


def expected(x):
    far = x - x.mean(-1, keepdims=True)
    return far / np.abs(far).max(-1, keepdims=True)


def test_rows_of_few_blocks_are_read_once(chosen_sources):
    for n in (10, 64, 256, 192):
        x = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
        y = np.full((2, n + 3), np.nan, np.float32)
        centred[(2,)](x, y, n, n + 3, BLOCK, num_warps=1, target="sim:sm_90")
        assert np.allclose(y[:, :n], expected(x), atol=1e-5) and np.isnan(y[:, n:]).all()
    odd, *others = chosen_sources
    assert "== 0" not in odd.partition("    else:\n")[2]
    assert "2 * BLOCK" not in odd and odd.count("gl.load(") == 1 + 3 and odd.count("for ") == 3
    assert others
    for text in others:
        part, _, loops = text.partition("    else:\n")
        several, _, one = part.partition("elif few:")
        assert "if few & (n == 4 * BLOCK)" in several and "elif few & (n == 2 * BLOCK)" in several
        assert (
            several.count("gl.load(") == 4 + 2 and "mask=" not in several and "for " not in several
        )
        assert one.count("gl.load(") == 1 and one.count("mask=") == 2 and loops.count("for ") == 6


def test_a_row_may_replace_itself():
    for n in (50, 256):
        x = np.random.default_rng(n).standard_normal((1, n)).astype(np.float32)
        wanted = expected(x)
        centred[(1,)](x, x, n, n, BLOCK, num_warps=1, target="sim:sm_90")
        assert np.allclose(x, wanted, atol=1e-5)


@pytest.mark.parametrize("far", [BLOCK, -BLOCK])
def test_blocks_that_a_store_reaches_are_read_again(far):
    """A block of the result is where a later block of the row is: its step reads what was stored."""
    n = 4 * BLOCK
    whole = np.random.default_rng(1).standard_normal(n + BLOCK).astype(np.float32)
    first = max(0, -far)
    x = whole[first : first + n].copy()
    wanted, mean = whole.copy(), x.mean()
    largest = np.abs(x - mean).max()
    for start in range(first, first + n, BLOCK):
        wanted[start + far : start + far + BLOCK] = (wanted[start : start + BLOCK] - mean) / largest
    one, two = whole[first : first + n], whole[first + far : first + far + n]
    centred[(1,)](one, two, n, n, BLOCK, num_warps=1, target="sim:sm_90")
    assert np.allclose(whole, wanted, atol=1e-4)


@gluon.jit(layouts="auto")
def in_turn(x, y, rows, n, before, BLOCK: gl.constexpr):
    """Add the sums of the rows before to each row, and a number."""
    for row in range(0, rows):
        total = gl.zeros([BLOCK], gl.float32)
        for start in range(0, n, BLOCK):
            columns = start + gl.arange(0, BLOCK)
            total += gl.load(x + row * n + columns, mask=columns < n, other=0.0)
        added = before
        before = before + gl.sum(total, 0)
        for start in range(0, n, BLOCK):
            columns = start + gl.arange(0, BLOCK)
            value = gl.load(x + row * n + columns, mask=columns < n, other=0.0)
            gl.store(y + row * n + columns, value + added, mask=columns < n)


def test_values_of_the_row_before(chosen_sources):
    for n in (60, 128):
        x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
        y = np.zeros_like(x)
        in_turn[(1,)](x, y, 3, n, 0.5, BLOCK, num_warps=1, target="sim:sm_90")
        sums = x.sum(1)
        assert np.allclose(
            y, x + np.array([0.5, 0.5 + sums[0], 0.5 + sums[:2].sum()])[:, None], atol=1e-4
        )
    odd, whole = chosen_sources
    assert "2 * BLOCK" in whole and "2 * BLOCK" not in odd


TEXT = """
import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def spread(x, y, n, far, BLOCK: gl.constexpr):
    total = gl.zeros([BLOCK], gl.float32)
    shift = 0
    for start in range(0, n, BLOCK):
        columns = start + gl.arange(0, BLOCK)
        total += gl.load({first}, mask=columns < n, other=0.0)
        {more}
    mean = gl.sum(total, 0) / n
    {between}
    for start in range({bounds}):
        columns = start + gl.arange(0, BLOCK)
        value = gl.load({second}, mask=columns < n, other=0.0)
        gl.store({place}, value - mean, mask=columns < n)
"""
USUAL = {
    "first": "x + columns", "second": "x + columns", "more": "shift += 0", "between": "shift = 0",
    "bounds": "0, n, BLOCK", "place": "y + columns",
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"second": "x + columns + shift", "first": "x + columns + shift"},
        {"second": "x + columns + far"},
        {"more": "gl.store(y + columns, total, mask=columns < n)"},
        {"between": "gl.store(x, 1.0)"},
        {"bounds": "0, n + 0, BLOCK"},
        {"place": "y + columns % 16"},
        {"place": "y + columns * 2"},
        {"more": "n = n + 0"},
    ],
)
def test_other_loops_stay(changed, tmp_path, chosen_sources):
    """Other places, loops with other steps, and memory that is written before the row is read again."""
    path = tmp_path / "spread.py"
    path.write_text(TEXT.format(**USUAL | changed))
    spec = importlib.util.spec_from_file_location("spread", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    module.spread[(1,)](x, y, 128, 0, BLOCK, num_warps=1, target="sim:sm_90")
    assert ("2 * BLOCK" in chosen_sources[0]) == (not changed)


@gluon.jit(layouts="auto")
def by_lanes(x, y, n, BLOCK: gl.constexpr):
    """Carry a maximum and a sum for each element of a block."""
    column = gl.arange(0, BLOCK)
    top = gl.full([BLOCK], -1000.0, gl.float32)
    total = gl.zeros([BLOCK], gl.float32)
    for start in range(0, n, BLOCK):
        values = gl.load(x + start + column, mask=start + column < n, other=-1000.0)
        higher = gl.maximum(top, values)
        total = total * gl.exp(top - higher) + gl.exp(values - higher)
        top = higher
    most = gl.max(top, 0)
    whole = gl.sum(total * gl.exp(top - most), 0)
    for start in range(0, n, BLOCK):
        values = gl.load(x + start + column, mask=start + column < n, other=-1000.0)
        gl.store(y + start + column, gl.exp(values - most) / whole, mask=start + column < n)


@pytest.mark.parametrize("block, kept", [(256, True), (512, False)])
def test_rows_leave_room_for_tensors_that_loops_carry(chosen_sources, block, kept):
    """A thread has 8 or 16 elements of a row, of a maximum, and of a sum."""
    x = np.random.default_rng(block).standard_normal(150).astype(np.float32)
    y = np.zeros_like(x)
    by_lanes[(1,)](x, y, 150, block, num_warps=1, target="sim:sm_90")
    assert np.allclose(y, np.exp(x) / np.exp(x).sum(), atol=1e-6)
    assert ("stays in registers" in chosen_sources[0]) == kept
