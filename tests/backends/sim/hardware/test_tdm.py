"""The tensor data mover and related ops on gfx1250, in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.language.amd import gfx1250 as gfx1250_unit
from gluon_core.language.amd.gfx1250 import async_copy, cluster, mbarrier, tdm
from gluon_sim.errors import DeadlockError, LeakError, OutOfBoundsError, RaceError
from gluon_sim.settings import using
from tests.frontend.vendor_oracle import since

rng = np.random.default_rng(29)
PADDED = gl.constexpr(gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
INDEX = gl.constexpr(gl.SliceLayout(1, gl.BlockedLayout([32, 1], [1, 32], [1, 4], [1, 0])))


@pytest.fixture(autouse=True)
def gfx1250(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx1250")


def matrix(rows=70, columns=150, dtype=np.float32):
    return rng.standard_normal((rows, columns)).astype(dtype)


def boxed(x, row, column, rows=32, columns=64):
    """The box at (row, column), zero outside."""
    out = np.zeros((rows, columns), x.dtype)
    part = x[row : row + rows, column : column + columns] if min(row, column) >= 0 else x[:0, :0]
    out[: part.shape[0], : part.shape[1]] = part
    return out


@gluon.jit
def put(out, x):
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    gl.store(out + rows[:, None] * 64 + columns[None, :], x)


# -- loads ------------------------------------------------------------------------------------------


@gluon.jit
def load(p, out, rows, columns, stride, row, column, pred, S: gl.constexpr, WAIT: gl.constexpr):
    d = tdm.make_tensor_descriptor(p, [rows, columns], [stride, 1], [32, 64], S)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    smem.store(gl.full([32, 64], 7, d.dtype, layout=L))
    gl.barrier()
    tdm.async_load(d, [row, column], smem, pred=pred)
    if WAIT:
        tdm.async_wait(0)
    put(out, smem.load(L))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("corner", [(0, 0), (32, 64), (60, 100), (69, 149), (500, 0)])
@pytest.mark.parametrize("layout", [PADDED, PLAIN])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_load_brings_the_box_and_zeros(corner, layout, dtype):
    x = (matrix() * 50).astype(dtype)
    out = np.empty((32, 64), dtype)
    load[(1,)](x, out, *x.shape, x.shape[1], *corner, 1, layout, True)
    np.testing.assert_array_equal(out, boxed(x, *corner))


def test_a_predicate_that_is_0_copies_nothing():
    x, out = matrix(), np.empty((32, 64), np.float32)
    load[(1,)](x, out, *x.shape, x.shape[1], 0, 0, 0, PADDED, True)
    assert (out == 7).all()


@gluon.jit
def load_in_some(p, out, count):
    d = tdm.make_tensor_descriptor(p, [32, 64], [64, 1], [32, 64], PADDED)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 4)
    program = gl.program_id(0)
    tdm.async_load(d, [0, 0], smem, pred=(program < count).to(gl.int32), mbarrier=bar)
    if program < count:
        mbarrier.wait(bar, 0)
        put(out + program * 32 * 64, smem.load(L))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_programs_in_which_a_copy_is_switched_off_leave_none_in_flight(count):
    x, out = matrix(32, 64), np.zeros((3, 32, 64), np.float32)
    with using(tolerated="error"):
        load_in_some[(3,)](x, out, count)
    assert all((out[i] == (x if i < count else 0)).all() for i in range(3))


def test_a_load_that_nobody_waits_for_is_reported():
    x, out = matrix(), np.empty((32, 64), np.float32)
    with pytest.raises(RaceError, match="tdm.async_load"):
        load[(1,)](x, out, *x.shape, x.shape[1], 0, 0, 1, PADDED, False)


def test_a_tensor_that_is_larger_than_its_memory_is_reported():
    x, out = matrix(), np.empty((32, 64), np.float32)
    with pytest.raises(OutOfBoundsError, match="of `p`"):
        load[(1,)](x, out, 1000, 150, 150, 64, 0, 1, PADDED, True)


def test_rows_are_consecutive():
    @gluon.jit
    def kernel(p, stride):
        d = tdm.make_tensor_descriptor(p, [64, 64], [64, stride], [32, 64], PLAIN)
        tdm.async_load(d, [0, 0], gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout))
        tdm.async_wait(0)

    with pytest.raises(GluonError, match="last stride"):
        kernel[(1,)](np.zeros((64, 64), np.float32), 2)


@gluon.jit
def pipeline(p, out, n, STAGES: gl.constexpr, PENDING: gl.constexpr):
    d = tdm.make_tensor_descriptor(p, [32, n * 64], [n * 64, 1], [32, 64], PADDED)
    smem = gl.allocate_shared_memory(d.dtype, [STAGES, 32, 64], d.layout)
    for i in gl.static_range(STAGES):
        tdm.async_load(d, [0, i * 64], smem.index(i))
    total = gl.full([32, 64], 0, gl.float32, layout=L)
    for i in range(n):
        tdm.async_wait(PENDING)
        total += smem.index(i % STAGES).load(L)
        gl.barrier()
        tdm.async_load(d, [0, (i + STAGES) * 64], smem.index(i % STAGES))
    tdm.async_wait(0)
    put(out, total)


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_waits_count_copies(schedule):
    x, out = matrix(32, 320), np.empty((32, 64), np.float32)
    with using(schedule=schedule, seed=5):
        pipeline[(1,)](x, out, 5, 3, 2)
    np.testing.assert_allclose(out, x.reshape(32, 5, 64).sum(1), rtol=1e-5, atol=1e-5)
    with pytest.raises(RaceError, match=r"Put `tdm.async_wait\(2\)`"):
        pipeline[(1,)](x, out, 5, 3, 3)


# -- stores -----------------------------------------------------------------------------------------


@gluon.jit
def store(p, q, rows, columns, row, column, WAIT: gl.constexpr):
    d = tdm.make_tensor_descriptor(q, [rows, columns], [columns, 1], [32, 64], PLAIN)
    r = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    x = gl.load(p + r[:, None] * 64 + c[None, :])
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout, x)
    gl.barrier()
    tdm.async_store(d, [row, column], smem)
    if WAIT:
        tdm.async_wait(0)


@pytest.mark.parametrize("corner", [(0, 0), (32, 64), (60, 100), (69, 149)])
def test_store_leaves_out_elements_outside(corner):
    x, out = matrix(32, 64), np.zeros((70, 150), np.float32)
    store[(1,)](x, out, 70, 150, *corner, True)
    wanted = np.zeros_like(out)
    part = wanted[corner[0] : corner[0] + 32, corner[1] : corner[1] + 64]
    part[:] = x[: part.shape[0], : part.shape[1]]
    np.testing.assert_array_equal(out, wanted)


def test_a_store_that_nobody_waits_for_is_reported():
    x, out = matrix(32, 64), np.zeros((70, 150), np.float32)
    with pytest.raises(LeakError, match=r"`tdm.async_store`.*Put `tdm.async_wait\(0\)` after line"):
        store[(1,)](x, out, 70, 150, 0, 0, False)


# -- barriers ---------------------------------------------------------------------------------------


@gluon.jit
def signalled(p, out, COUNT: gl.constexpr, WAIT: gl.constexpr):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, COUNT)
    gl.barrier()
    d = tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [32, 64], PADDED)
    smem = gl.allocate_shared_memory(d.dtype, [2, 32, 64], d.layout)
    total = gl.full([32, 64], 0, gl.float32, layout=L)
    for i in gl.static_range(2):
        tdm.async_load(d, [32 * i, 0], smem.index(i), mbarrier=bar)
        if WAIT:
            mbarrier.wait(bar, i)
        total += smem.index(i).load(L)
    put(out, total)


def test_each_warp_arrives_at_the_barrier_of_a_load():
    x, out = matrix(64, 64), np.empty((32, 64), np.float32)
    signalled[(1,)](x, out, 4, True)
    np.testing.assert_allclose(out, x[:32] + x[32:])
    with pytest.raises(RaceError, match="barrier"):
        signalled[(1,)](x, out, 4, False)
    with pytest.raises(DeadlockError, match="4 of 8 arrivals"):
        signalled[(1,)](x, out, 8, True)


@gluon.jit
def arrivals(out, COUNT: gl.constexpr, TIMES: gl.constexpr):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, COUNT)
    gl.barrier()
    gl.store(out, mbarrier.arrive(bar, count=TIMES))
    mbarrier.wait(bar, 0)
    gl.store(out + 1, mbarrier.arrive(bar, count=TIMES))
    mbarrier.wait(bar, 1)


def test_each_thread_arrives_and_learns_the_phase():
    out = np.full(2, -1, np.int32)
    arrivals[(1,)](out, 256, 2)
    assert out.tolist() == [0, 1]
    with pytest.raises(DeadlockError):
        arrivals[(1,)](out, 256, 1)


# -- copies lane by lane ----------------------------------------------------------------------------


@gluon.jit
def lanes(p, out, n, COUNT: gl.constexpr, WAIT: gl.constexpr):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 128)
    gl.barrier()
    r = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    index = r[:, None] * 64 + c[None, :]
    smem = gl.allocate_shared_memory(gl.float32, [32, 64], PADDED)
    async_copy.global_to_shared(smem, p + index, mask=r[:, None] < n, other=3.0)
    if COUNT:
        async_copy.commit_group()
        if WAIT:
            async_copy.wait_group(0)
    else:
        async_copy.mbarrier_arrive(bar)
        if WAIT:
            mbarrier.wait(bar, 0)
    put(out, smem.load(L))


@pytest.mark.parametrize("count", [True, False])
def test_lanes_copy(count):
    x, out = matrix(32, 64), np.empty((32, 64), np.float32)
    lanes[(1,)](x, out, 20, count, True)
    np.testing.assert_array_equal(out[:20], x[:20])
    assert (out[20:] == 3).all()
    with pytest.raises(RaceError):
        lanes[(1,)](x, out, 20, count, False)


@gluon.jit
def back(out, n, WAIT: gl.constexpr):
    r = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    index = r[:, None] * 64 + c[None, :]
    smem = gl.allocate_shared_memory(gl.int32, [32, 64], PADDED, index)
    gl.barrier()
    async_copy.shared_to_global(out + index, smem, mask=r[:, None] < n)
    async_copy.commit_group()
    if WAIT:
        async_copy.wait_group(0)


@since(3, 7)
def test_lanes_copy_back():
    out = np.full((32, 64), -1, np.int32)
    back[(1,)](out, 20, True)
    np.testing.assert_array_equal(out[:20].ravel(), np.arange(20 * 64))
    assert (out[20:] == -1).all()
    with pytest.raises(LeakError):
        back[(1,)](out, 20, False)


# -- rows -------------------------------------------------------------------------------------------


@gluon.jit
def gather(p, out, index, rows, columns, column, SHORT: gl.constexpr):
    d = tdm.make_tensor_descriptor(p, [rows, columns], [columns, 1], [32, 64], PLAIN)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    i = gl.load(index + gl.arange(0, 32, layout=INDEX))
    if SHORT:
        i = i.to(gl.int16)
    tdm.async_gather(d, i, column, smem)
    tdm.async_wait(0)
    put(out, smem.load(L))


@since(3, 7)
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("column", [0, 16, 100])
def test_gather(column, short):
    x, out = matrix(), np.empty((32, 64), np.float32)
    index = rng.integers(0, 80, 32).astype(np.int32)
    gather[(1,)](x, out, index, *x.shape, column, short)
    wanted = np.vstack([boxed(x, row, column, rows=1) for row in index])
    np.testing.assert_array_equal(out, wanted)


@gluon.jit
def scatter(q, index, rows, columns, column):
    d = tdm.make_tensor_descriptor(q, [rows, columns], [columns, 1], [32, 64], PLAIN)
    r = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    x = (r[:, None] * 64 + c[None, :]).to(gl.float32)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout, x)
    gl.barrier()
    i = gl.load(index + gl.arange(0, 32, layout=INDEX))
    tdm.async_scatter(d, i, column, smem)
    tdm.async_wait(0)


@since(3, 7)
def test_scatter():
    out = np.full((70, 150), -1, np.float32)
    index = rng.permutation(80)[:32].astype(np.int32)
    scatter[(1,)](out, index, 70, 150, 100)
    wanted = np.full_like(out, -1)
    x = np.arange(2048, dtype=np.float32).reshape(32, 64)
    for i, row in enumerate(index):
        if row < 70:
            wanted[row, 100:] = x[i, :50]
    np.testing.assert_array_equal(out, wanted)


# -- descriptors that change ------------------------------------------------------------------------


@gluon.jit
def walk(p, out, n, rows, columns, CLAMP: gl.constexpr, BOUND: gl.constexpr):
    d = tdm.make_tensor_descriptor(p, [rows, columns], [columns, 1], [32, 64], PADDED)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    total = gl.full([32, 64], 0, gl.float32, layout=L)
    for i in range(n):
        tdm.async_load(d, dest=smem)
        tdm.async_wait(0)
        total += smem.load(L)
        gl.barrier()
        if BOUND:
            d = tdm.update_tensor_descriptor(d, [0, 64], set_bounds=[rows, columns - 64 * (i + 1)])
        else:
            d = tdm.update_tensor_descriptor(d, [0, 64], clamp_bounds=CLAMP)
    put(out, total)


@since(3, 8)
@pytest.mark.parametrize("bound", [False, True])
def test_a_descriptor_walks(bound):
    x, out = matrix(32, 150), np.empty((32, 64), np.float32)
    walk[(1,)](x, out, 3, *x.shape, not bound, bound)
    np.testing.assert_allclose(out, sum(boxed(x, 0, 64 * i) for i in range(3)), rtol=1e-5)


@since(3, 8)
def test_bounds_that_stay_behind_reach_beyond_the_end():
    x, out = matrix(32, 150), np.empty((32, 64), np.float32)
    with pytest.raises(OutOfBoundsError):
        walk[(1,)](x, out, 4, *x.shape, False, False)


@gluon.jit
def switched(p, out, flag, row):
    d = tdm.make_tensor_descriptor(p, [32, 64], [64, 1], [32, 64], PADDED)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    smem.store(gl.full([32, 64], 7, d.dtype, layout=L))
    gl.barrier()
    pid = gl.program_id(0)
    d = tdm.update_tensor_descriptor(d, pred=gl.load(flag + pid))
    if pid == 2:
        d = tdm.update_tensor_descriptor(d, [row, 0], clamp_bounds=True)
    tdm.async_load(d, dest=smem)
    tdm.async_wait(0)
    put(out + pid * 2048, smem.load(L))


@since(3, 8)
def test_programs_have_their_own():
    x, out = matrix(32, 64), np.empty((4, 32, 64), np.float32)
    switched[(4,)](x, out, np.array([1, 0, 5, -1], np.int32), 8)
    for i, wanted in enumerate([x, np.full_like(x, 7), boxed(x, 8, 0), x]):
        np.testing.assert_array_equal(out[i], wanted)
    switched[(4,)](x, out, np.array([1, 0, 5, -1], np.int32), -8)
    assert (out[2] == 0).all()  # a negative offset leaves nothing inside


@gluon.jit
def fused(p, out, WAIT: gl.constexpr):
    d = tdm.make_tensor_descriptor(p, [32, 128], [128, 1], [32, 64], PADDED)
    e = tdm.update_tensor_descriptor(d, [0, 64], clamp_bounds=True)
    a = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    b = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    tdm.async_load_fused([(d, a, 0b0011), (e, b, 0b1100)])
    tdm.prefetch(d, [0, 0])
    tdm.async_wait(WAIT)
    put(out, a.load(L) - b.load(L))


@since(3, 9)
def test_fused_loads_count_as_one():
    x, out = matrix(32, 128), np.empty((32, 64), np.float32)
    fused[(1,)](x, out, 0)
    np.testing.assert_array_equal(out, x[:, :64] - x[:, 64:])
    with pytest.raises(RaceError, match=r"Put `tdm.async_wait\(0\)` between"):
        fused[(1,)](x, out, 1)


@gluon.jit
def ranks(p, out, n):
    S: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    B: gl.constexpr = gl.BlockedLayout([1, 1, 4], [2, 2, 8], [4, 1, 1], [2, 1, 0])
    d = tdm.make_tensor_descriptor(p, [3, 5, 70], [5 * 70, 70, 1], [4, 8, 64], S)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    tdm.async_load(d, [1, n, 32], smem)
    tdm.async_wait(0)
    i = gl.arange(0, 4, layout=gl.SliceLayout(1, gl.SliceLayout(2, B)))
    j = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, B)))
    k = gl.arange(0, 64, layout=gl.SliceLayout(0, gl.SliceLayout(1, B)))
    index = i[:, None, None] * 512 + j[None, :, None] * 64 + k[None, None, :]
    gl.store(out + index, smem.load(B))


def test_three_dimensions():
    x, out = rng.standard_normal((3, 5, 70)).astype(np.float32), np.empty((4, 8, 64), np.float32)
    ranks[(1,)](x, out, 2)
    wanted = np.zeros_like(out)
    wanted[:2, :3, :38] = x[1:, 2:, 32:]
    np.testing.assert_array_equal(out, wanted)


# -- partitioned LDS --------------------------------------------------------------------------------


@gluon.jit
def partitioned(a, b, c, A: gl.constexpr, B: gl.constexpr, ACC: gl.constexpr):
    ad = tdm.make_tensor_descriptor(a, [128, 64], [64, 1], [128, 64], A)
    bd = tdm.make_tensor_descriptor(b, [64, 128], [128, 1], [64, 128], B)
    asm = gl.allocate_shared_memory(ad.dtype, ad.block_shape, ad.layout)
    bsm = gl.allocate_shared_memory(bd.dtype, bd.block_shape, bd.layout)
    tdm.async_load(ad, [0, 0], asm)
    tdm.async_load(bd, [0, 0], bsm)
    tdm.async_wait(0)
    x = asm.load(gl.DotOperandLayout(0, ACC, 8))
    y = bsm.load(gl.DotOperandLayout(1, ACC, 8))
    acc = gfx1250_unit.wmma(x, y, gl.full([128, 128], 0, gl.float32, layout=ACC))
    m = gl.arange(0, 128, layout=gl.SliceLayout(1, ACC))
    n = gl.arange(0, 128, layout=gl.SliceLayout(0, ACC))
    gfx1250_unit.buffer_store(acc, c, m[:, None] * 128 + n[None, :])


@since(3, 8)
def test_partitioned_operands():
    padded = gl.PaddedSharedLayout.with_identity_for
    shapes = ([128, 64], [64, 128])
    layouts = gfx1250_unit.make_partitioned_dot_layouts(
        128, 128, *(padded([[s[1], 8]], s, [1, 0]) for s in shapes), 4, [16, 16, 32]
    )
    a, b = (matrix(*shape).astype(np.float16) for shape in shapes)
    c = np.zeros((128, 128), np.float32)
    partitioned[(1,)](a, b, c, *layouts)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-3, atol=1e-3)


# -- clusters ---------------------------------------------------------------------------------------


@gluon.jit
def clustered(p, out):
    B: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0], cga_layout=[[1, 0]])
    S: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [64, 64], [1, 0], [[1, 0]])
    bar = gl.allocate_shared_memory(gl.int64, [2], mbarrier.MBarrierLayout([[1]]))
    mbarrier.init(bar, 4)
    cluster.arrive()
    cluster.wait()
    d = tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [64, 64], S)
    smem = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    tdm.async_load(d, [0, 0], smem, mbarrier=bar)
    mbarrier.wait(bar, 0)
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, B))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, B))
    gl.store(out + r[:, None] * 64 + c[None, :], smem.load(B))


@since(3, 7)
def test_a_cluster_loads_a_box_together():
    x, out = matrix(64, 64), np.zeros((64, 64), np.float32)
    clustered[(1,)](x, out, num_ctas=2)
    np.testing.assert_array_equal(out, x)
