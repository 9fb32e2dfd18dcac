"""Tensor memory on the simulator: values that go in come out, views alias, capacity, uninitialised reads."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core._triton import tl
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    tcgen05_commit,
    tcgen05_copy,
)
from gluon_sim.errors import CapacityError, RaceError, UninitialisedError
from gluon_sim.settings import using
from tests.frontend.vendor_oracle import since


@pytest.fixture(autouse=True)
def _blackwell(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_100")


ALL = gl.constexpr(tl.PropagateNan.ALL)
L = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0]))


@gluon.jit
def tile(p, M: gl.constexpr, N: gl.constexpr):
    rows = gl.arange(0, M, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, N, layout=gl.SliceLayout(0, L))
    return p + rows[:, None] * N + columns[None, :]


@gluon.jit
def through(a, out, M: gl.constexpr, N: gl.constexpr, T: gl.constexpr, PRED: gl.constexpr):
    dtype: gl.constexpr = a.dtype.element_ty
    memory = allocate_tensor_memory(dtype, [M, N], T)
    R: gl.constexpr = memory.get_reg_layout()
    x = gl.convert_layout(gl.load(tile(a, M, N)), R)
    memory.store(x * 0)
    memory.store(x, pred=gl.program_id(0) != PRED)
    back = gl.convert_layout(memory.load(R), L)
    gl.store(tile(out + gl.program_id(0) * M * N, M, N), back)


@pytest.mark.parametrize(
    "m, n, dtype, layout",
    [
        (128, 64, np.float32, TensorMemoryLayout([128, 64], 1)),
        (64, 64, np.float32, TensorMemoryLayout([64, 64], 1)),
        (128, 128, np.float32, TensorMemoryLayout([64, 128], 1)),
        (256, 64, np.float32, TensorMemoryLayout([128, 64], 1)),
        (128, 128, np.float16, TensorMemoryLayout([128, 64], 1)),
        (128, 64, np.float16, TensorMemoryLayout([128, 64], 2)),
        (128, 64, np.int32, TensorMemoryLayout([128, 32], 1)),
    ],
    ids=str,
)
def test_values_survive_the_round_trip(m, n, dtype, layout):
    a = np.arange(m * n).reshape(m, n).astype(dtype) % 251
    out = np.zeros((3, m, n), dtype)
    through[(3,)](a, out, m, n, layout, 1)
    np.testing.assert_array_equal(out, [a, 0 * a, a])  # the predicate holds in two of three


@gluon.jit
def unwritten(out, PART: gl.constexpr):
    memory = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))
    if PART:
        half = memory.slice(0, 32)
        R: gl.constexpr = half.get_reg_layout()
        half.store(gl.full([128, 32], 1.0, gl.float32, layout=R))
    x = gl.convert_layout(memory.load(memory.get_reg_layout()), L)
    gl.store(tile(out, 128, 64), x)


@pytest.mark.parametrize("part", [False, True])
def test_reads_of_unwritten_memory(part):
    with pytest.raises(UninitialisedError, match="`memory.load` of `memory`"):
        unwritten[(1,)](np.zeros((128, 64), np.float32), part)


@gluon.jit
def pieces(out, i):
    memory = allocate_tensor_memory(gl.float32, [2, 128, 64], TensorMemoryLayout([128, 64], 1))
    R: gl.constexpr = memory.index(0).get_reg_layout()
    memory.index(0).store(gl.full([128, 64], 1.0, gl.float32, layout=R))
    memory.index(1).store(gl.full([128, 64], 2.0, gl.float32, layout=R))
    part = memory.index(i).slice(32, 32)
    S: gl.constexpr = part.get_reg_layout()
    part.store(gl.full([128, 32], 3.0, gl.float32, layout=S))
    for j in range(2):
        x = gl.convert_layout(memory.index(j).load(R), L)
        gl.store(tile(out + j * 128 * 64, 128, 64), x)


@pytest.mark.parametrize("i", [0, 1])
def test_parts_of_a_buffer(i):
    out = np.zeros((2, 128, 64), np.float32)
    pieces[(1,)](out, i)
    wanted = np.ones((2, 128, 64), np.float32)
    wanted[1] = 2
    wanted[i, :, 32:] = 3
    np.testing.assert_array_equal(out, wanted)


@gluon.jit
def aliases(out):
    memory = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))
    R: gl.constexpr = memory.get_reg_layout()
    memory.store(gl.full([128, 64], 1.0, gl.float32, layout=R))
    halves = memory.reinterpret(gl.float16, [128, 128], TensorMemoryLayout([128, 128], 1))
    S: gl.constexpr = halves.get_reg_layout()
    x = gl.convert_layout(halves.load(S), L)
    gl.store(tile(out, 128, 128), x)


@since(3, 9)
def test_views_of_other_types_alias():
    out = np.zeros((128, 128), np.float16)
    aliases[(1,)](out)
    np.testing.assert_array_equal(out.view(np.float32), np.ones((128, 64), np.float32))


@gluon.jit
def too_much(out, N: gl.constexpr):
    a = allocate_tensor_memory(gl.float32, [128, 256], TensorMemoryLayout([128, 256], 1))
    b = allocate_tensor_memory(gl.float32, [128, N], TensorMemoryLayout([128, N], 1))
    c = allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 128], 1))
    gl.store(tile(out, 128, 128), gl.convert_layout(c.load(c.get_reg_layout()), L))
    gl.store(tile(out, 128, N), gl.convert_layout(b.load(b.get_reg_layout()), L))
    gl.store(tile(out, 128, 256), gl.convert_layout(a.load(a.get_reg_layout()), L))


def test_capacity():
    out = np.zeros((128, 256), np.float32)
    with pytest.raises(CapacityError, match="640 columns in use at once") as caught:
        too_much[(1,)](out, 256)
    assert "at most 512 columns" in str(caught.value) and caught.value.report == "capacity.tensor"
    with using(capacity=False, uninitialised=False):
        too_much[(1,)](out, 256)
    with using(uninitialised=False):
        too_much[(1,)](out, 128)


@gluon.jit
def narrow(out, MORE: gl.constexpr):
    pairs: gl.constexpr = TensorMemoryLayout([64, 256], 1)
    first = allocate_tensor_memory(gl.float32, [2, 64, 256], pairs)
    second = allocate_tensor_memory(gl.float32, [64, 256], pairs)
    R: gl.constexpr = second.get_reg_layout()
    third = second
    if MORE:
        third = allocate_tensor_memory(gl.float32, [2, 64, 256], pairs).index(0)
    one = gl.full([64, 256], 1.0, gl.float32, layout=R)
    first.index(0).store(one)
    second.store(one)
    third.store(one)
    x = second.load(R) + first.index(0).load(R) + third.load(R)
    gl.store(tile(out, 64, 256), gl.convert_layout(x, L))


def test_buffers_of_64_rows_go_in_pairs():
    out = np.zeros((64, 256), np.float32)
    narrow[(1,)](out, False)  # 768 columns side by side
    assert (out == 3).all()
    with pytest.raises(CapacityError, match="640 columns"):
        narrow[(1,)](out, True)


@gluon.jit
def reduces(a, values, rows, LEAST: gl.constexpr, ABS: gl.constexpr):
    memory = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))
    R: gl.constexpr = memory.get_reg_layout()
    memory.store(gl.convert_layout(gl.load(tile(a, 128, 64)), R))
    if LEAST:
        x, r = memory.load_min(R, abs=ABS)
    else:
        x, r = memory.load_max(R, abs=ABS, propagate_nan=ALL)
    gl.store(tile(values, 128, 64), gl.convert_layout(x, L))
    gl.store(rows + gl.arange(0, 128, layout=r.type.layout), r)


@since(3, 7)
@pytest.mark.parametrize("magnitude", [False, True])
@pytest.mark.parametrize("least", [False, True])
def test_loads_that_reduce(least, magnitude, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_103")
    a = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
    a[3, 5] = np.nan
    values, rows = np.zeros_like(a), np.zeros(128, np.float32)
    reduces[(1,)](a, values, rows, least, magnitude)
    np.testing.assert_array_equal(values, a)
    compared = np.abs(a) if magnitude else a
    wanted = np.nanmin(compared, 1) if least else compared.max(1)
    np.testing.assert_array_equal(rows, wanted)
    assert least or np.isnan(rows[3])


@gluon.jit
def copies(a, out, ROWS: gl.constexpr, S: gl.constexpr, WAIT: gl.constexpr):
    smem = gl.allocate_shared_memory(gl.float32, [128, 64], S)
    smem.store(gl.load(tile(a, 128, 64)))
    fence_async_shared()
    memory = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    tcgen05_copy(smem, memory)
    tcgen05_commit(bar)
    if WAIT:
        mbarrier.wait(bar, 0)
    R: gl.constexpr = memory.get_reg_layout()
    gl.store(tile(out, 128, 64), gl.convert_layout(memory.load(R), L))
    mbarrier.invalidate(bar)


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_copies_from_shared_memory(schedule):
    a = np.random.default_rng(1).standard_normal((128, 64)).astype(np.float32)
    out = np.zeros_like(a)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    with using(schedule=schedule):
        copies[(1,)](a, out, 128, layout, True)
    np.testing.assert_array_equal(out, a)


def test_a_copy_needs_its_wait():
    a = np.zeros((128, 64), np.float32)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    with pytest.raises(RaceError, match=r"Put `mbarrier.wait\(bar, phase\)`"):
        copies[(1,)](a, np.zeros_like(a), 128, layout, False)
