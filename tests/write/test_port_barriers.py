"""Ported kernels that store a tensor and load it again: a barrier orders the threads that hold an element."""

import importlib.util

import pytest

from gluon_core.errors import GluonError
from gluon_write.porting.port import port

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


TILES = """
import triton
import triton.language as tl


@triton.jit
def doubled(x_ptr, y_ptr, N: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [N, N], [N, 1], [N, N])
    y = tl.make_tensor_descriptor(base=y_ptr, shape=[N, N], strides=[N, 1], block_shape=[N, N])
    values = x.load([0, 0])
    for i in range(1):
        y.store([i, 0], values * 2)
    i, j = tl.arange(0, N), tl.arange(0, N)
    places = y_ptr + i[:, None] * N + j[None, :]
    {again}
"""


@pytest.mark.parametrize(
    "again, waits",
    [
        ("x.store([0, 0], y.load([0, 0]) + 1)", 1),
        ("x.store([0, 0], tl.load_tensor_descriptor(y, [0, 0]) + 1)", 1),
        ("tl.store(x_ptr + i[:, None] * N + j[None, :], tl.load(places) + 1)", 1),
        ("y.atomic_add([0, 0], values)", 1),
        ("tl.atomic_add(places, values)", 1),
        ("values = x.load([0, 0])", 0),
        ("values = tl.load(x_ptr + i[:, None] * N + j[None, :])", 0),
        ("y.store([0, 0], values)", 0),
    ],
)
def test_tiles_that_are_loaded_again(again, waits):
    text = port(TILES.format(again=again), "kernel.py").text
    assert text.count("    tiles_written()\n") == waits


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_tiles_are_in_memory(target, tmp_path, monkeypatch):
    text = port(TILES.format(again="x.store([0, 0], y.load([0, 0]) + 1)"), "kernel.py").text
    module = written(text, tmp_path)
    monkeypatch.setenv("GLUON_TARGET", target)
    x, y = torch.randn(32, 32), torch.empty(32, 32)
    wanted = 2 * x + 1
    module.doubled[(1,)](x, y, 32)
    assert torch.equal(x, wanted)
    if "hopper" in target:
        without = text.replace("    tiles_written()\n", "    pass\n")
        with pytest.raises(GluonError, match="race"):
            written(without, tmp_path).doubled[(1,)](x, y, 32)


def written(text, tmp_path):
    path = tmp_path / "doubled.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("doubled", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
