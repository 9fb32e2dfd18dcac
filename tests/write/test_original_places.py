"""Reports on a kernel whose loops are changed name the lines of its source."""

import inspect

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError, KernelWarning
from gluon_write.text.form import with_text

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def gemm(a, b, c, N, K, B: gl.constexpr):
    rows, lane = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        x = gl.load(a + rows * K + k + lane)
        y = gl.load(
            b + (k + rows) * N + lane,
        )
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows * N + lane, acc)


@gluon.jit(layouts="auto")
def norm(x, y, n, B: gl.constexpr):
    lane = gl.arange(0, B)
    acc = gl.zeros([B], gl.float32)
    for s in range(0, n, B):
        v = gl.load(x + s + lane, mask=s + lane < n, other=0.0)
        acc += v * v
    total = gl.sum(acc, 0)
    for s in range(0, n, B):
        v = gl.load(x + s + lane, mask=s + lane < n, other=0.0)
        gl.store(y + s + lane, v / total, mask=s + lane < n)


@pytest.mark.parametrize(
    "kernel, sizes, word, target",
    [
        (gemm, (4096, 4000, 4096), "y = gl.load(", "ampere"),
        (gemm, (4096, 4000, 4096), "for k in", "hopper"),
        (gemm, (4096, 4096, 4000), "gl.store(", "hopper"), (norm, (4096, 4000), "gl.store(", "hopper"),
        (norm, (4000, 4096), "v = gl.load(", "hopper"),
    ],
)  # fmt: skip
def test_the_line_is_that_of_the_source(kernel, sizes, word, target):
    """One copy of both tiles, as on Hopper, has the line of their loop, and that of the load."""
    dtypes = (np.float16, np.float16, np.float32) if kernel is gemm else (np.float32,) * 2
    arrays = [np.ones(size, dtype) for size, dtype in zip(sizes, dtypes)]
    sizes = (64, 64, 64) if kernel is gemm else (4096, 1024)
    with pytest.raises(GluonError) as caught:
        kernel[(1,)](*arrays, *sizes, target=f"sim:{target}")
    lines, first = inspect.getsourcelines(kernel.fn)
    known = [first + index for index, line in enumerate(lines) if word in line]
    assert caught.value.span.line in known and word in caught.value.span.text
    if word == "for k in":
        (load,) = caught.value.related
        assert "y = gl.load(" in load.text and "the shape of the array" in str(caught.value)


@pytest.mark.parametrize(
    "text, warps",
    [("def gemm(a):\n  x = (\n", 1), ("def gemm(a, b, c, N, K, B):\n    gl.store(d)\n", 2)],
)
def test_a_kernel_stays_as_it_is_where_a_changed_one_is_wrong(text, warps, monkeypatch):
    """A mistake of a pass costs time, and no result."""
    a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float16)
    c = np.zeros((64, 64), np.float32)

    def wrong(fn, *args, **kwargs):
        return with_text(fn, text)

    monkeypatch.setattr("gluon_write.explicit.prefetched", wrong)
    with pytest.warns(KernelWarning, match="gemm: its loops stay as they are"):
        gemm[(1,)](a, b, c, 64, 64, 64, num_warps=warps, target="sim:hopper")
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-2)
