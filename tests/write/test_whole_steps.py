"""Loops over the blocks of a row: without masks where the blocks fill the row."""

import importlib.util

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def centred(x, y, n, BLOCK: gl.constexpr):
    """Subtract the mean of each row, and divide by the largest distance from it."""
    row = gl.program_id(0)
    places = gl.arange(0, BLOCK)
    total = gl.zeros([BLOCK], gl.float32)
    for start in range(0, n, BLOCK):
        columns = start + places
        total += gl.load(x + row * n + columns, mask=columns < n, other=0.0)
    mean = gl.sum(total, 0) / n
    most = gl.zeros([BLOCK], gl.float32)
    for start in range(0, n, BLOCK):
        # the place of a block
        columns = gl.arange(0, BLOCK) + start
        value = gl.load(x + row * n + columns, mask=n > columns, other=0.0)
        most = gl.maximum(most, gl.abs(gl.where(columns < n, value - mean, 0.0)))
    largest = gl.max(most, 0)
    for start in range(0, n, BLOCK):
        inside = start + places < n
        value = gl.load(x + row * n + start + places, mask=inside, other=0.0)
        gl.store(y + row * n + start + places, (value - mean) / largest, mask=inside)


def test_rows_that_blocks_fill_have_no_masks(chosen_sources):
    for n in (40, 256, 300, 384):
        x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
        y = np.zeros_like(x)
        centred[(3,)](x, y, n, 128, num_warps=2, target="sim:sm_90")
        far = x - x.mean(1, keepdims=True)
        assert np.allclose(y, far / np.abs(far).max(1, keepdims=True), atol=1e-5)
    odd, *others = chosen_sources
    assert "n % BLOCK" not in odd and odd.count("mask=inside") == 2 and others
    for text in others:
        assert text.count("if n % BLOCK == 0:") == 3
        for part in text.split("if n % BLOCK == 0:")[1:]:
            whole, _, masked = part.partition("else:")
            assert "mask" not in whole.partition("\n")[2] and "where" not in whole
            assert "inside" not in whole and "mask=" in masked


def test_sizes_that_a_launch_does_not_note_may_fill_blocks(chosen_sources):
    """A form is used for all sizes where their divisibility is not noted."""
    for words in ({"do_not_specialize": ["n"]}, {"do_not_specialize_on_alignment": [2]}):
        kernel = gluon.jit(layouts="auto", **words)(centred.fn)
        for n in (40, 256):
            x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
            y = np.zeros_like(x)
            kernel[(3,)](x, y, n, 128, num_warps=2, target="sim:sm_90")
            far = x - x.mean(1, keepdims=True)
            assert np.allclose(y, far / np.abs(far).max(1, keepdims=True), atol=1e-5)
    assert all(text.count("if n % BLOCK == 0:") == 3 for text in chosen_sources)


TEXT = """
import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def summed(x, y, n, limit, BLOCK: gl.constexpr, HALF: gl.constexpr):
    total = gl.zeros([BLOCK], gl.float32)
    kept = gl.arange(0, BLOCK) < limit
    for start in range({bounds}):
        columns = start + gl.arange({places})
        total += gl.load(x + columns, mask={mask}, other=0.0)
    gl.store(y, gl.sum(total, 0))
"""


@pytest.mark.parametrize(
    ("bounds", "places", "mask"),
    [
        ("0, n, BLOCK", "0, BLOCK", "columns < limit"),
        ("0, n, BLOCK", "0, BLOCK", "columns <= n - 8"),
        ("0, n, BLOCK", "0, BLOCK", "columns + 1 < n"),
        ("0, n, BLOCK", "0, BLOCK", "(columns < n) & kept"),
        ("0, n, BLOCK", "0, BLOCK", "(columns < n) | kept"),
        ("0, n, HALF", "0, BLOCK", "columns < n"),
        ("HALF, n, BLOCK", "0, BLOCK", "columns < n"),
        ("0, n, BLOCK", "HALF, BLOCK + HALF", "columns < n"),
        ("0, n, BLOCK", "0, BLOCK); limit = max(limit, 0", "columns < n"),
    ],
)
def test_other_masks_stay(bounds, places, mask, tmp_path, chosen_sources):
    """A mask by another limit, or of places beyond a step, holds in no step for sure."""
    path = tmp_path / "summed.py"
    path.write_text(TEXT.format(bounds=bounds, places=places, mask=mask))
    spec = importlib.util.spec_from_file_location("summed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, y = np.arange(512, dtype=np.float32), np.zeros(1, np.float32)
    module.summed[(1,)](x, y, 256, 72, 128, 64, target="sim:sm_90")
    assert "% BLOCK == 0" not in chosen_sources[0] and "% HALF == 0" not in chosen_sources[0]
