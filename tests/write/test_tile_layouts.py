"""Loaded tiles get the layout that the ops need, not that of their descriptors alone."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_write.command import written

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

TILES = """import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def centered(x, y, out, R, C, BM: gl.constexpr, BN: gl.constexpr):
    x_tiles = gl.portable.descriptor(x, [R, C], [C, 1], [BM, BN])
    y_tiles = gl.portable.descriptor(y, [C, R], [R, 1], [BN, BM])
    out_tiles = gl.portable.descriptor(out, [R, C], [C, 1], [BM, BN])
    row = gl.program_id(0) * BM
    total = gl.zeros((BM,), gl.float32)
    for column in range(0, C, BN):
        total += gl.sum(gl.portable.load(x_tiles, [row, column]), 1)
    for column in range(0, C, BN):
        moved = gl.portable.load(y_tiles, [column, row]).T
        tile = gl.portable.load(x_tiles, [row, column]) - total[:, None] / C + moved
        gl.portable.store(out_tiles, [row, column], tile)


x, y = np.random.default_rng(0).standard_normal((2, 48, 48), dtype=np.float32)
x, y, out = x[:, :40].copy(), y.astype(np.float16)[:40], np.zeros((48, 40), np.float32)
centered[(3,)](x, y, out, 48, 40, 16, 32)
wanted = x - x.mean(1, keepdims=True) + y.T.astype(np.float32)
"""


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_tiles_of_several_layouts_meet(target, tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", f"sim:{target}")
    path = tmp_path / "centered.py"
    path.write_text(TILES)
    text, _ = written(str(path), registry().target(target))
    for source in (TILES, text):
        names = {"__name__": "tiles"}
        path.write_text(source)
        exec(compile(source, str(path), "exec"), names)
        np.testing.assert_allclose(names["out"], names["wanted"], atol=1e-5)


@gluon.jit(layouts="auto")
def running(x, out, R, C, BM: gl.constexpr, BN: gl.constexpr):
    tiles = gl.portable.descriptor(x, [R, C], [C, 1], [BM, BN])
    sums = gl.sum(gl.portable.load(tiles, [0, 0]), 1)
    gl.store(out + gl.arange(0, BM), gl.cumsum(sums, 0))


def test_sums_of_a_tile_are_scanned(monkeypatch):
    """A scan takes no slice of the layout that the tile has by itself."""
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    x, out = np.arange(512, dtype=np.float32).reshape(16, 32), np.zeros(16, np.float32)
    running[(1,)](x, out, 16, 32, 16, 32)
    np.testing.assert_allclose(out, x.sum(1).cumsum())
