"""Kernels without a solution, and problems that are too large to solve exactly."""

import itertools

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import KernelWarning, LayoutError
from gluon_write import eliminate
from gluon_write.eliminate import Tables

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def halves(x, out, B: gl.constexpr):
    i = gl.arange(0, B)
    low, high = gl.split(gl.reshape(gl.load(x + i), [B // 2, 2]))
    place = gl.arange(0, B // 2, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(out + place, low + high + place)


def test_error_names_the_ops_and_the_layout_to_write():
    """Halves have the layout of their split, which is none that the kernel's source can demand."""
    x, out = np.arange(256, dtype=np.float32), np.zeros(128, np.float32)
    with pytest.raises(LayoutError) as error:
        halves[(1,)](x, out, 256, target="sim:hopper")
    words = str(error.value)
    assert "no layouts fit" in words and "gl.split" in words and "test_conflicts.py:20" in words
    assert "by hand: for gl.split in line 20" in words and "BlockedLayout" in words


def tables_of(seed, sizes, pairs, impossible=0.0):
    rng = np.random.default_rng(seed)
    factors = [((n,), rng.integers(0, 20, size).astype(float)) for n, size in sizes.items()]
    for one, other in pairs:
        table = rng.integers(0, 50, (sizes[one], sizes[other])).astype(float)
        table[rng.random(table.shape) < impossible] = np.inf
        factors.append(((one, other), table))
    return Tables(sizes, factors)


@pytest.mark.parametrize("seed", range(6))
def test_best_choice(seed, monkeypatch):
    sizes = {n: 3 + (n + seed) % 3 for n in range(6)}
    pairs = [pair for i, pair in enumerate(itertools.combinations(range(6), 2)) if (i + seed) % 3]
    tables = tables_of(seed, sizes, pairs, 0.3)
    totals = [
        tables.total(dict(enumerate(places)))
        for places in itertools.product(*(range(sizes[n]) for n in range(6)))
    ]
    best = tables.best()
    assert best.exact and best.total == min(totals)
    monkeypatch.setattr(eliminate, "_MOST_CELLS", 20)  # as if the tables were too large
    monkeypatch.setattr(eliminate, "_SPLIT_CELLS", 20)
    monkeypatch.setattr(Tables.eliminated, "__defaults__", (None, 20, False))
    rough = tables.best()
    assert rough.bound <= min(totals) <= rough.total
    assert rough.total == np.inf or rough.total == tables.total(rough.picked)
    assert rough.exact == (rough.bound >= rough.total)


def test_no_choice_is_proved():
    tables = tables_of(1, {0: 4, 1: 4, 2: 4}, [(0, 1), (1, 2), (0, 2)])
    tables.factors.append(((0,), np.full(4, np.inf)))
    best = tables.best()
    assert best.total == best.bound == np.inf


def test_large_problems_say_how_good_their_layouts_are(monkeypatch):
    monkeypatch.setattr(eliminate, "_SPLIT_CELLS", 4)
    monkeypatch.setattr(Tables.eliminated, "__defaults__", (None, 4, False))

    @gluon.jit(layouts="auto")
    def scaled(x, out, B: gl.constexpr):
        i = gl.arange(0, B)
        rows = gl.load(x + i[:, None] * B + i[None, :])
        gl.store(out + i[:, None] + i[None, :] * B, rows / gl.sum(rows, axis=1)[:, None])

    x = np.random.default_rng(0).random((32, 32)).astype(np.float32)
    out = np.zeros_like(x)
    with pytest.warns(
        KernelWarning, match="best layouts that were found, and none costs more than"
    ):
        scaled[(1,)](x, out, 32, target="sim:hopper")
    assert np.allclose(out, (x / x.sum(1, keepdims=True)).T)


@gluon.jit(layouts="auto")
def two_written(x, out, N: gl.constexpr):
    """Use a value with two layouts of the source."""
    value = gl.load(x + gl.arange(0, N))
    narrow = value + gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [4], [0]))
    wide = value * gl.arange(0, N, layout=gl.BlockedLayout([4], [32], [4], [0]))
    gl.store(out + gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [4], [0])), narrow)
    gl.store(out + N + gl.arange(0, N, layout=gl.BlockedLayout([4], [32], [4], [0])), wide)


def test_two_layouts_of_the_source_are_named_with_both_lines():
    x, out = np.zeros(512, np.float32), np.zeros(1024, np.float32)
    with pytest.raises(LayoutError) as report:
        two_written[(1,)](x, out, 512, target="sim:sm_90")
    first = two_written.fn.__code__.co_firstlineno
    text = str(report.value)
    assert "value: two ops demand different layouts" in text
    assert f"line {first + 4}: BlockedLayout(size_per_thread=[1]" in text
    assert f"line {first + 5}: BlockedLayout(size_per_thread=[4]" in text
