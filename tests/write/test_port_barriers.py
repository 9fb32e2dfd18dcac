"""Ported kernels that store a tensor and load it again: a barrier orders the threads that hold an element."""

import importlib.util

import pytest

from gluon_core.errors import GluonError
from gluon_write.port import port

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.once

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def centered(x, scratch, y, N: tl.constexpr):
    i, j = tl.arange(0, N), tl.arange(0, N)
    rows = tl.load(x + i[:, None] * N + j[None, :])
    places = scratch + i
    tl.store(places, tl.max(rows, 1))
    {between}
    highest = tl.load(places)
    tl.store(y + i[:, None] * N + j[None, :], rows - highest[None, :])
"""


@pytest.mark.parametrize(
    "between, barriers",
    [
        ("n = N // 2", 1),
        ("tl.debug_barrier()", 1),
        ("places = scratch + N + i", 0),
        ("if N > 4: n = tl.load(places)", 1),
    ],
)
def test_places(between, barriers):
    text = port(KERNEL.format(between=between), "kernel.py").text
    assert text.count("gl.thread_barrier()") == barriers


def launched(text, tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    path = tmp_path / "centered.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("centered", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, y = torch.randn(32, 32), torch.empty(32, 32)
    module.centered[(1,)](x, torch.empty(32), y, 32)
    return y, x - x.amax(1)


def test_results(tmp_path, monkeypatch):
    text = port(KERNEL.format(between="n = N // 2"), "kernel.py").text
    result, wanted = launched(text, tmp_path, monkeypatch)
    assert torch.equal(result, wanted)


def test_without_it_they_race(tmp_path, monkeypatch):
    text = port(KERNEL.format(between="n = N // 2"), "kernel.py").text
    with pytest.raises(GluonError, match="race"):
        launched(text.replace("gl.thread_barrier()", "pass"), tmp_path, monkeypatch)
