"""Compile-time loops over tensors of other shapes in each round get layouts for each round."""

import runpy

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import LayoutError
from gluon_core.registry.load import registry
from gluon_write.command import written

pytestmark = pytest.mark.once

FILE = '''import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def exchanged(v, i, N: gl.constexpr, run: gl.constexpr, gap: gl.constexpr):
    """Order pairs of elements that are `gap` apart, up and down in turn."""
    shape: gl.constexpr = [N // gap // 2, 2, gap]
    low, high = gl.split(gl.permute(gl.reshape(v, shape), (0, 2, 1)))
    up, _ = gl.split(gl.permute(gl.reshape(i // run % 2 == 0, shape), (0, 2, 1)))
    less, more = gl.minimum(low, high), gl.maximum(low, high)
    both = gl.join(gl.where(up, less, more), gl.where(up, more, less))
    return gl.reshape(gl.permute(both, (0, 2, 1)), [N])


@gluon.jit(layouts="auto")
def ordered(x, out, sums, D: gl.constexpr):
    i = gl.arange(0, 2**D)
    v = gl.load(x + i)
    for run in gl.static_range(1, D + 1):
        for gap in gl.static_range(run - 1, -1, -1):
            v = exchanged(v, i, 2**D, 2**run, 2**gap)  # in order
    gl.store(out + i, v)
    for n in gl.static_range(D): gl.store(sums + n, gl.sum(gl.load(x + gl.arange(0, 2**n)), 0))


if __name__ == "__main__":
    D = 3
    x = np.random.default_rng(0).random(2**D).astype(np.float32)
    out, sums = np.zeros_like(x), np.zeros(D, np.float32)
    ordered[(1,)](x, out, sums, D)
    assert (out == np.sort(x)).all()
    assert np.allclose(sums, [x[: 2**n].sum() for n in range(D)])
'''


def test_rounds_of_other_shapes_are_written_out(tmp_path, monkeypatch):
    """A sorting network is right, and so is its explicit source, which has no such loop."""
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    path = tmp_path / "ordered.py"
    path.write_text(FILE)
    text, _ = written(str(path), registry().target("gfx942"))  # runs the file
    assert "static_range" not in text and "exchanged_ordered(v, i, 2**D, 2**3, 2**0)" in text
    assert "# in order" in text and "gl.load(x + gl.arange(0, 2**2, layout=" in text
    explicit = tmp_path / "explicit.py"
    explicit.write_text(text)
    runpy.run_path(str(explicit), run_name="__main__")


@gluon.jit(layouts="auto")
def kept(x, out):
    for n in gl.static_range(3):
        gl.store(out + gl.arange(0, 128 << n * 2), gl.load(x + gl.arange(0, 128 << n * 2)))
    gl.store(out, n + gl.sum(gl.full([1 << n], 1, gl.int32), 0))


@gluon.jit(layouts="auto")
def mixed(x, out):
    for n in gl.static_range(3):
        gl.store(out + gl.arange(0, 128 << n), gl.load(x + gl.arange(0, 128 << n)))
        n = n + 1


def test_a_variable_has_its_last_value_behind_the_loop():
    x, out = np.ones(2048, np.float32), np.zeros(2048, np.float32)
    kept[(1,)](x, out, target="sim:hopper")
    assert out[0] == 6 and (out[1:] == 1).all()


def test_an_expression_of_several_shapes_is_named_with_its_line():
    x = np.zeros(2048, np.float32)
    with pytest.raises(LayoutError, match="tensors of several shapes") as report:
        mixed[(1,)](x, x.copy(), target="sim:hopper")
    assert f"test_unrolled.py:{mixed.fn.__code__.co_firstlineno + 3}:" in str(report.value)


CALLS = """import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def shortened(x, y, i: gl.constexpr, N: gl.constexpr):
    j = gl.arange(0, N >> (3 * i))
    gl.store(y + i * N + j, gl.load(x + j) + i)


@gluon.jit
def rounds(x, y, first: gl.constexpr, last: gl.constexpr, N: gl.constexpr):
    for i in gl.static_range(first, last):
        # Each round has fewer elements.
        shortened(x, y, i, N)
        if i > 2:
            gl.store(y, -1.0)


@gluon.jit(layouts="auto")
def kernel(x, y, N: gl.constexpr):
    rounds(x, y, 0, 2, N)
    rounds(x, y, 2, 3, N)


if __name__ == "__main__":
    x, y = np.arange(1024, dtype=np.float32), np.zeros((3, 1024), np.float32)
    kernel[(1,)](x, y, 1024)
    want = [np.where(x < 1024 >> (3 * i), x + i, 0) for i in range(3)]
    assert (y == want).all(), y
"""


def test_calls_with_other_rounds(tmp_path, monkeypatch):
    path = tmp_path / "kernels.py"
    path.write_text(CALLS)
    text, kernels = written(str(path), registry().target("sm_90"))
    assert kernels == ["kernel"] and text.count("gl.static_range") == 1  # of the old function
    assert "shortened_kernel_2(x, y, 2, N)" in text
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    path.write_text(text)
    runpy.run_path(str(path), run_name="__main__")
