"""A conversion may end where one within it ends: each keeps its own layout."""

import re
import runpy

import pytest

from gluon_core.registry.load import registry
from gluon_write.command import written

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]

FILE = '''"""Attention to 48 keys."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def weighted(q, k, v, out, length, G: gl.constexpr, T: gl.constexpr, D: gl.constexpr):
    g, t, d = gl.arange(0, G), gl.arange(0, T), gl.arange(0, D)
    place = g[:, None] * D + d[None, :]
    inside = (g < 13)[:, None] & (d < 24)[None, :]
    query = gl.load(q + place, mask=inside, other=0.0)
    acc, total = gl.zeros([G, D], gl.float32), gl.zeros([G], gl.float32)
    for start in range(0, length, T):
        key = gl.load(k + (start + t)[None, :] * D + d[:, None])
        weight = gl.exp(gl.portable.mma(query, key, gl.zeros([G, T], gl.float32)))
        total += gl.sum(weight, 1)
        value = gl.load(v + (start + t)[:, None] * D + d[None, :])
        acc = gl.portable.mma(weight.to(gl.float16), value, acc)
    gl.store(out + place, acc / total[:, None], mask=inside)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 32)).astype(np.float16) / 4 for n in (16, 48, 48))
    out = np.zeros((16, 32), np.float32)
    weighted[(1,)](q, k, v, out, 48, 16, 16, 32)
    weight = np.exp(q[:, :24].astype(np.float32) @ k[:, :24].astype(np.float32).T)
    wanted = weight @ v.astype(np.float32) / weight.sum(1, keepdims=True)
    assert np.allclose(out[:13, :24], wanted[:13, :24], atol=5e-3)
'''


def test_results(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    path = tmp_path / "auto.py"
    path.write_text(FILE)
    text, _ = written(str(path), registry().target("sm_90"))
    nested = r"convert_layout\(\s*acc / gl\.convert_layout\(total\[:, None\], (\w+)\), (\w+)\s*\)"
    layouts = re.search(nested, text)
    assert layouts and layouts[1] != layouts[2]
    explicit = tmp_path / "explicit.py"
    explicit.write_text(text)
    runpy.run_path(str(explicit), run_name="__main__")
