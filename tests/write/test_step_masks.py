"""Copies that run ahead of a loop: the masks of its loads, and the place of the wait for the next tiles."""

import importlib.util

import numpy as np
import pytest

from gluon_sim.settings import using
from gluon_write.preferred import preferred_form

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


@pytest.fixture(autouse=True)
def copied_through_pointers():
    """Keep tiles of pointers from those of descriptors, which Hopper's unit copies."""
    with preferred_form("pipelined"):
        yield


TEXT = """
import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def product(a, b, c, K, stride, N: gl.constexpr, BK: gl.constexpr):
    rows, along = gl.arange(0, N), gl.arange(0, BK)
    depth = gl.arange(0, BK)
    back = depth - 8
    left, right = a + rows[:, None] * stride, b + rows[None, :]
    acc = gl.zeros([N, N], gl.float32)
    for k in range({steps}):
        first = k{times}
        x = gl.load(left + (first + depth)[None, :], mask={row}, other=0.0)
        y = gl.load(right + (first + depth)[:, None] * N, mask={column}, other=0.0)
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * N + rows[None, :], acc)
"""
COUNTED = ("0, gl.cdiv(K, BK)", " * BK")
STRIDED = ("0, K, BK", "")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("steps", "row", "column", "own"),
    [
        (COUNTED, "depth[None, :] < K - k * BK", "K - BK * k > depth[:, None]", (True, True)),
        (COUNTED, "(k * BK + depth[None, :] < K) & (rows < N)[:, None]",
         "gl.arange(0, BK)[:, None] + k * BK < K", (True, True)),
        (STRIDED, "(k + depth < K)[None, :]", "depth[:, None] < K - k", (False, True)),
        (STRIDED, "k + depth[None, :] < K", "depth[:, None] < K - k", (True, True)),
        (COUNTED, "depth[None, :] < K - k * BK", "first + depth[:, None] < K", (True, False)),
        (COUNTED, "depth[None, :] < K + BK - k * BK - BK", "depth[:, None] < K - k * BK + 0 * k", (True, False)),
        (STRIDED, "back[None, :] < K - 8 - k", "depth[:, None] < K - k", (False, True)),
    ],
)  # fmt: skip
def test_masks_that_end_with_the_loop_need_no_other(
    steps, row, column, own, tmp_path, chosen_sources
):
    """A mask of a step keeps copies behind the last step from memory that may not be there."""
    path = tmp_path / "masked.py"
    path.write_text(TEXT.format(steps=steps[0], times=steps[1], row=row, column=column))
    spec = importlib.util.spec_from_file_location("masked", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)
    depth = 208  # six steps and a half
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((64, depth), (depth, 64)))
    c = np.zeros((64, 64), np.float32)
    with using(schedule="latest"):
        module.product[(1,)](a, b, c, depth, depth, 64, 32, num_stages=4, target="sim:hopper")
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)
    calls = [" ".join(text.split()) for text in chosen_sources[0].split("async_load(")[1:]]
    bounded = ["k_ahead < K" in text or "k_ahead < gl.cdiv" in text for text in calls]
    assert len(calls) == 4 and bounded == 2 * [not one for one in own]


def test_the_next_tiles_are_awaited_before_copies_start(tmp_path, chosen_sources):
    """A fence waits for all that its thread has started, so it comes before the copies of a step; a fourth buffer needs no wait before them."""
    path = tmp_path / "ordered.py"
    row, column = "depth[None, :] < K - k", "depth[:, None] < K - k"
    path.write_text(TEXT.format(steps=STRIDED[0], times="", row=row, column=column))
    spec = importlib.util.spec_from_file_location("ordered", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, c = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float32)
    module.product[(1,)](x, x, c, 64, 64, 64, 32, num_stages=3, target="sim:hopper")
    loop = chosen_sources[0].partition("for k in range")[2]
    order = ["fence_async_shared", "async_load(", "warpgroup_mma(", "warpgroup_mma_wait(1"]
    places = [loop.index(word) for word in order]
    assert places == sorted(places) and loop.count("fence_async_shared") == 1
