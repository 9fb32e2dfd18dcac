"""Integers of the other sign as values of typed memory: as upstream takes them, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from tests.frontend import oracle

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.once
blackwell = gl.nvidia.blackwell
PAIRS = [("int8", "uint8"), ("uint8", "int8"), ("int16", "uint16"), ("int32", "uint32"), ("uint32", "int32")]  # fmt: skip
_TENSOR = """\
blackwell = gl.nvidia.blackwell
@gluon.jit
def kernel(x, out):
    T: gl.constexpr = {layout}
    B: gl.constexpr = {registers}
    value = gl.load(x + gl.zeros([128, {columns}], gl.int32, B))
    t = blackwell.allocate_tensor_memory(gl.{memory}, [128, {columns}], T, value)
ARGS, TARGET = (ptr(gl.{value}), ptr(gl.int32)), GPUTarget("cuda", 100, 32)
"""
_BUFFER = """\
@gluon.jit
def kernel(x, out):
    i = gl.arange(0, 256, gl.BlockedLayout([1], [64], [4], [0]))
    gl.amd.cdna3.buffer_store(gl.load(x + i), out, i)
ARGS, TARGET = (ptr(gl.{value}), ptr(gl.{memory})), GPUTarget("hip", "gfx942", 64)
"""
MATRIX = {
    "layout": "blackwell.TensorMemoryLayout([128, 64], col_stride=1)",
    "registers": "gl.BlockedLayout([1, 64], [32, 1], [4, 1], [0, 1])",
    "columns": 64,
}
SCALES = {
    "layout": "blackwell.TensorMemoryScalesLayout()",
    "registers": "gl.DistributedLinearLayout([[0, 1], [0, 2], [32, 0], [64, 0]], "
    "[[1, 0], [2, 0], [4, 0], [8, 0], [16, 0]], [[0, 0], [0, 0]], [], [128, 4])",
    "columns": 4,
}


@pytest.mark.parametrize("memory, value", PAIRS)
@pytest.mark.parametrize("kind", ["matrix", "scales", "buffer"])
def test_the_module_is_upstreams(kind, memory, value):
    if kind == "buffer":
        source = _BUFFER.format(memory=memory, value=value)
    elif kind == "scales" and memory not in ("int8", "uint8"):
        pytest.skip("scales are bytes")
    else:
        shape = SCALES if kind == "scales" else MATRIX
        source = _TENSOR.format(**shape, memory=memory, value=value)
    oracle.compare(source, raw=False)


@gluon.jit
def through_tensor_memory(x, out, dtype: gl.constexpr):
    T: gl.constexpr = blackwell.TensorMemoryLayout([128, 64], col_stride=1)
    B: gl.constexpr = gl.BlockedLayout([1, 64], [32, 1], [4, 1], [0, 1])
    rows, columns = gl.arange(0, 128, gl.SliceLayout(1, B)), gl.arange(0, 64, gl.SliceLayout(0, B))
    i = rows[:, None] * 64 + columns[None, :]
    t = blackwell.allocate_tensor_memory(dtype, [128, 64], T, gl.load(x + i))
    gl.store(out + i, t.load(B).to(gl.int64))


@gluon.jit
def through_a_buffer(x, out):
    i = gl.arange(0, 256, gl.BlockedLayout([1], [64], [4], [0]))
    gl.amd.cdna3.buffer_store(gl.load(x + i), out, i)


def _any(dtype, *shape):
    known = np.iinfo(dtype)
    numbers = np.random.default_rng(0).integers(known.min, known.max, shape, dtype, endpoint=True)
    return torch.from_numpy(numbers)


@pytest.mark.parametrize("memory, value", PAIRS)
def test_tensor_memory_holds_the_bits(memory, value):
    x, out = _any(value, 128, 64), torch.zeros(128, 64, dtype=torch.int64)
    through_tensor_memory[(1,)](x, out, getattr(gl, memory), target="sim:sm_100")
    assert np.array_equal(out.numpy(), x.numpy().view(memory).astype(np.int64))


@pytest.mark.parametrize("target", ["sim:gfx942", "emu:gfx942"])
def test_a_buffer_store_writes_the_bits(target):
    x, out = _any("uint8", 256), torch.zeros(256, dtype=torch.int8)
    through_a_buffer[(1,)](x, out, target=target)
    assert np.array_equal(out.numpy(), x.numpy().view(np.int8))
