"""tcgen05 on the simulator: results, when they are there, and reports of missing synchronization."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    fence_async_shared,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_scaled,
)
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import (
    BarrierError,
    DeadlockError,
    RaceError,
    SimulatorError,
    UninitialisedError,
)
from gluon_sim.executor.lookup import prepare
from gluon_sim.executor.models import models_for
from gluon_sim.launcher import make_launcher
from gluon_sim.settings import using
from tests.backends.sim.sanitizer import test_mutations as mutations

pytestmark = pytest.mark.sampled(2)


@pytest.fixture(autouse=True)
def _blackwell(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_100")


L = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0]))


@gluon.jit
def tile(p, M: gl.constexpr, N: gl.constexpr):
    rows = gl.arange(0, M, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, N, layout=gl.SliceLayout(0, L))
    return p + rows[:, None] * N + columns[None, :]


@gluon.jit
def matmul(
    a, b, c,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, BLOCK: gl.constexpr, ACC: gl.constexpr,
    S: gl.constexpr, T: gl.constexpr,
    FENCE: gl.constexpr = True, WAIT: gl.constexpr = True, COMMIT: gl.constexpr = False,
    A_IN_TMEM: gl.constexpr = False, USE_ACC: gl.constexpr = False, SIGNAL: gl.constexpr = True,
    USE_ACC_AT: gl.constexpr = 0,
):  # fmt: skip
    dtype: gl.constexpr = a.dtype.element_ty
    x = gl.allocate_shared_memory(dtype, [M, BLOCK], S)
    y = gl.allocate_shared_memory(dtype, [N, BLOCK], T)
    z = y.permute((1, 0))
    layout: gl.constexpr = TensorMemoryLayout([M, N], 32 // ACC.primitive_bitwidth)
    acc = allocate_tensor_memory(ACC, [M, N], layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    for i in range(K // BLOCK):
        rows = gl.arange(0, M, layout=gl.SliceLayout(1, L))
        cols = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, L))
        x.store(gl.load(a + rows[:, None] * K + i * BLOCK + cols[None, :]))
        rows = gl.arange(0, N, layout=gl.SliceLayout(1, L))
        y.store(gl.load(b + rows[:, None] + (i * BLOCK + cols[None, :]) * N))
        if FENCE:
            fence_async_shared()
        if COMMIT:
            tcgen05_mma(x, z, acc, use_acc=(i > USE_ACC_AT) | USE_ACC)
            tcgen05_commit(bar)
        elif SIGNAL:
            tcgen05_mma(x, z, acc, use_acc=(i > USE_ACC_AT) | USE_ACC, mbarriers=[bar])
        else:
            tcgen05_mma(x, z, acc, use_acc=(i > USE_ACC_AT) | USE_ACC)
        if WAIT:
            mbarrier.wait(bar, i % 2)
    out = acc.load(acc.get_reg_layout())
    mbarrier.invalidate(bar)
    gl.store(tile(c, M, N), gl.convert_layout(out, L))


TYPES = {
    "fp16": (np.float16, gl.float16, gl.float32, np.float32),
    "bf16": (ml_dtypes.bfloat16, gl.bfloat16, gl.float32, np.float32),
    "tf32": (np.float32, gl.float32, gl.float32, np.float32),
    "e4m3": (ml_dtypes.float8_e4m3fn, gl.float8e4nv, gl.float32, np.float32),
    "i8": (np.int8, gl.int8, gl.int32, np.int32),
    "fp16-fp16": (np.float16, gl.float16, gl.float16, np.float16),
}


def inputs(kind, m, n, k, seed=0):
    import torch

    random = np.random.default_rng(seed)
    names = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32,
             "e4m3": torch.float8_e4m3fn, "i8": torch.int8}  # fmt: skip
    dtype = names[kind.split("-")[0]]
    a = torch.from_numpy(random.integers(-4, 5, (m, k)).astype(np.float32)).to(dtype)
    b = torch.from_numpy(random.integers(-4, 5, (k, n)).astype(np.float32)).to(dtype)
    results = {"fp16-fp16": torch.float16, "i8": torch.int32}
    c = torch.zeros((m, n), dtype=results.get(kind, torch.float32))
    return a, b, c


def run(kind="fp16", m=128, n=64, k=128, block=64, **flags):
    a, b, c = inputs(kind, m, n, k)
    dtype = TYPES[kind][1]
    left = gl.NVMMASharedLayout.get_default_for([m, block], dtype)
    right = gl.NVMMASharedLayout.get_default_for([n, block], dtype)
    matmul[(1,)](a, b, c, m, n, k, block, TYPES[kind][2], left, right, **flags)
    return c.float().numpy(), (a.float() @ b.float()).numpy()


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
@pytest.mark.parametrize("kind", TYPES)
def test_products(kind, schedule):
    if kind == "i8" and TRITON_VERSION < (3, 8):
        pytest.skip("needs Triton 3.8")
    with using(schedule=schedule, seed=2):
        got, wanted = run(kind)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("m, n", [(64, 32), (64, 128), (128, 16), (128, 256)])
def test_shapes(m, n):
    np.testing.assert_array_equal(*run(m=m, n=n))


def test_a_commit_tracks_earlier_work():
    np.testing.assert_array_equal(*run(COMMIT=True))


def test_the_wait_is_needed():
    with pytest.raises(RaceError, match="lane 0, column 0 of `acc`"):
        run(k=64, WAIT=False)


def test_nothing_signals():
    with pytest.raises(DeadlockError):
        run(SIGNAL=False)


def test_a_read_without_a_barrier_is_reported():
    with pytest.raises(
        RaceError, match=r"Put `tcgen05_commit\(bar\)` and `mbarrier.wait\(bar, phase\)`"
    ):
        run(k=64, WAIT=False, SIGNAL=False)


@pytest.mark.usefixtures("no_implied_fences")
def test_the_fence_is_needed():
    with pytest.raises(RaceError, match="fence"):
        run(FENCE=False)


def test_an_accumulator_that_nobody_wrote():
    with pytest.raises(UninitialisedError, match="of `acc`.*takes use_acc=False"):
        run(USE_ACC=True)


@gluon.jit
def scaled(
    a, b, a_scales, b_scales, c,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, V: gl.constexpr, A: gl.constexpr,
    B: gl.constexpr, SA: gl.constexpr, SB: gl.constexpr,
):  # fmt: skip
    KA: gl.constexpr = K // 2 if A == "e2m1" else K
    KB: gl.constexpr = K // 2 if B == "e2m1" else K
    x = gl.allocate_shared_memory(a.dtype.element_ty, [M, KA], SA)
    y = gl.allocate_shared_memory(b.dtype.element_ty, [N, KB], SB)
    x.store(gl.load(tile(a, M, KA)))
    y.store(gl.load(tile(b, N, KB)))
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout([M, N], 1))
    kind: gl.constexpr = a_scales.dtype.element_ty
    first = allocate_tensor_memory(kind, [M, K // V], TensorMemoryScalesLayout())
    second = allocate_tensor_memory(kind, [N, K // V], TensorMemoryScalesLayout())
    R: gl.constexpr = first.get_reg_layout()
    S: gl.constexpr = second.get_reg_layout()
    first.store(gl.convert_layout(gl.load(tile(a_scales, M, K // V)), R))
    second.store(gl.convert_layout(gl.load(tile(b_scales, N, K // V)), S))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    tcgen05_mma_scaled(
        x, y.permute((1, 0)), acc, first, second, A, B, use_acc=False, mbarriers=[bar]
    )
    mbarrier.wait(bar, 0)
    out = acc.load(acc.get_reg_layout())
    mbarrier.invalidate(bar)
    gl.store(tile(c, M, N), gl.convert_layout(out, L))


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def operand(kind, rows, k, seed):
    """Random elements: (as the kernel gets them, in float32, layout in shared memory)."""
    import torch

    random = np.random.default_rng(seed)
    if kind == "e2m1":
        codes = random.integers(0, 16, (rows, k), dtype=np.uint8)
        packed = codes[:, ::2] | codes[:, 1::2] << 4
        layout = gl.NVMMASharedLayout.get_default_for([rows, k // 2], gl.uint8)
        return torch.from_numpy(packed), FP4[codes], layout
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind]
    values = torch.from_numpy(random.standard_normal((rows, k)).astype(np.float32)).to(dtype)
    named = {"e4m3": gl.float8e4nv, "e5m2": gl.float8e5}[kind]
    layout = gl.NVMMASharedLayout.get_default_for([rows, k], named)
    return values, values.float().numpy(), layout


def scale(rows, count, seed, exact):
    import torch

    random = np.random.default_rng(seed)
    if exact:
        codes = random.integers(120, 134, (rows, count), dtype=np.uint8)
        return torch.from_numpy(codes), 2.0 ** (codes.astype(np.float32) - 127)
    values = torch.from_numpy(random.uniform(0.25, 4, (rows, count)).astype(np.float32))
    values = values.to(torch.float8_e4m3fn)
    return values, values.float().numpy()


@pytest.mark.parametrize(
    "a_kind, b_kind, vector",
    [
        ("e4m3", "e4m3", 32),
        ("e5m2", "e4m3", 32),
        ("e2m1", "e2m1", 32),
        ("e2m1", "e2m1", 16),
    ],
    ids=["mxfp8", "mixed", "mxfp4", "nvfp4"],
)
def test_scaled_products(a_kind, b_kind, vector):
    m, n, k = 128, 64, 128
    a, wide_a, left = operand(a_kind, m, k, 0)
    b, wide_b, right = operand(b_kind, n, k, 1)
    a_scales, by_a = scale(m, k // vector, 2, vector == 32)
    b_scales, by_b = scale(n, k // vector, 3, vector == 32)
    c = np.zeros((m, n), np.float32)
    scaled[(1,)](a, b, a_scales, b_scales, c, m, n, k, vector, a_kind, b_kind, left, right)
    wide_a = wide_a * np.repeat(by_a, vector, 1)
    wide_b = wide_b * np.repeat(by_b, vector, 1)
    wanted = wide_a.astype(np.float64) @ wide_b.T.astype(np.float64)
    bound = np.abs(wide_a) @ np.abs(wide_b).T * 2.0**-18
    assert (np.abs(c - wanted) <= bound).all()


@gluon.jit
def predicated(a, b, c, flags, S: gl.constexpr, T: gl.constexpr):
    x = gl.allocate_shared_memory(gl.float16, [128, 64], S)
    y = gl.allocate_shared_memory(gl.float16, [64, 64], T)
    x.store(gl.load(tile(a, 128, 64)))
    y.store(gl.load(tile(b, 64, 64)))
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))
    R: gl.constexpr = acc.get_reg_layout()
    acc.store(gl.full([128, 64], 1.0, gl.float32, layout=R))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    p = gl.program_id(0)
    runs = gl.load(flags + 2 * p) != 0
    adds = gl.load(flags + 2 * p + 1) != 0
    tcgen05_mma(x, y, acc, use_acc=adds, pred=runs)
    tcgen05_mma(x, y, acc, pred=runs, mbarriers=[bar], mbarrier_preds=[p < 100])
    mbarrier.wait(bar, 0, pred=runs)
    gl.store(tile(c + p * 128 * 64, 128, 64), gl.convert_layout(acc.load(R), L))
    mbarrier.invalidate(bar)


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_predicates_of_each_program(schedule):
    a, b, _ = inputs("fp16", 128, 64, 64)
    flags = np.array([[1, 1], [0, 1], [1, 0], [0, 0]], np.int32)
    c = np.zeros((4, 128, 64), np.float32)
    left = gl.NVMMASharedLayout.get_default_for([128, 64], gl.float16)
    right = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    with using(schedule=schedule, seed=4):
        predicated[(4,)](a, b, c, flags, left, right)
    product = (a.float() @ b.float()).numpy()
    np.testing.assert_array_equal(c[0], 2 * product + 1)
    np.testing.assert_array_equal(c[2], 2 * product)
    assert (c[1] == 1).all() and (c[3] == 1).all()


@gluon.jit
def loads(a, b, x, y, full, empty, K: gl.constexpr, SKIP: gl.constexpr):
    for i in range(K // 64):
        if not SKIP:
            mbarrier.wait(empty.index(i % 2), (i // 2 + 1) % 2)
        rows = gl.arange(0, 128, layout=gl.SliceLayout(1, L))
        cols = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
        x.index(i % 2).store(gl.load(a + rows[:, None] * K + i * 64 + cols[None, :]))
        y.index(i % 2).store(gl.load(tile(b + i * 64 * 64, 64, 64)))
        fence_async_shared()
        mbarrier.arrive(full.index(i % 2))


@gluon.jit
def multiplies(x, y, acc, full, empty, done, K: gl.constexpr, EARLY: gl.constexpr):
    if EARLY:
        tcgen05_commit(done)
    for i in range(K // 64):
        mbarrier.wait(full.index(i % 2), i // 2 % 2)
        tcgen05_mma(
            x.index(i % 2), y.index(i % 2), acc, use_acc=i > 0, mbarriers=[empty.index(i % 2)]
        )
    if not EARLY:
        tcgen05_commit(done)


@gluon.jit
def finishes(acc, done, c):
    mbarrier.wait(done, 0)
    out = acc.load(acc.get_reg_layout())
    gl.store(tile(c, 128, 64), gl.convert_layout(out, L))


@gluon.jit
def specialized(a, b, c, K: gl.constexpr, S: gl.constexpr, T: gl.constexpr, SKIP: gl.constexpr,
                EARLY: gl.constexpr):  # fmt: skip
    x = gl.allocate_shared_memory(gl.float16, [2, 128, 64], S)
    y = gl.allocate_shared_memory(gl.float16, [2, 64, 64], T)
    acc = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))
    full = mbarrier.allocate_mbarrier(batch=2)
    empty = mbarrier.allocate_mbarrier(batch=2)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(done, 1)
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), 1)
        mbarrier.init(empty.index(i), 1)
    gl.warp_specialize(
        [
            (finishes, (acc, done, c)),
            (loads, (a, b, x, y, full, empty, K, SKIP)),
            (multiplies, (x, y, acc, full, empty, done, K, EARLY)),
        ],
        [4, 4],
        [64, 64],
    )


def run_specialized(k=384, skip=False, early=False):
    a, b, c = inputs("fp16", 128, 64, k)
    left = gl.NVMMASharedLayout.get_default_for([128, 64], gl.float16)
    right = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    specialized[(1,)](a, b, c, k, left, right, skip, early)
    return c.numpy(), (a.float() @ b.float()).numpy()


@pytest.mark.parametrize(
    "schedule, seed", [("latest", 0), ("eager", 0), *(("random", s) for s in range(4))]
)
def test_partitions_that_load_multiply_and_store(schedule, seed):
    with using(schedule=schedule, seed=seed):
        got, wanted = run_specialized()
    np.testing.assert_array_equal(got, wanted)


def test_buffers_that_are_not_free_yet():
    # A producer that fills buffers without waiting ends more phases than the others see.
    with pytest.raises((RaceError, DeadlockError)):
        run_specialized(skip=True)


def test_a_commit_that_comes_too_early():
    with pytest.raises(RaceError, match="column 0 of `acc`"):
        run_specialized(early=True)


TWO = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0], cga_layout=[[1, 0]]))
PAIRED = gl.constexpr(
    TensorMemoryLayout([128, 64], 1, cga_layout=[[1, 0]], two_ctas=True)
    if TRITON_VERSION >= (3, 8)
    else TensorMemoryLayout([128, 64], 1, cta_split_num=[2, 1], two_ctas=True)
)
OLD = gl.constexpr(TRITON_VERSION < (3, 8))  # then a pair shares a barrier
ROWS = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]]))
COLUMNS = gl.constexpr(gl.NVMMASharedLayout(64, 16, 2, cga_layout=[[0, 1]]))
SIDE = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0], cga_layout=[[0, 1]]))


@gluon.jit
def in_pairs(a, b, c, K: gl.constexpr, WAIT: gl.constexpr):
    x = gl.allocate_shared_memory(gl.float16, [256, 64], ROWS)
    y = gl.allocate_shared_memory(gl.float16, [64, 64], COLUMNS)
    acc = allocate_tensor_memory(gl.float32, [256, 64], PAIRED)
    bar = mbarrier.allocate_mbarrier(two_ctas=OLD)
    mbarrier.init(bar, 1)
    for i in range(K // 64):
        rows = gl.arange(0, 256, layout=gl.SliceLayout(1, TWO))
        cols = gl.arange(0, 64, layout=gl.SliceLayout(0, TWO))
        x.store(gl.load(a + rows[:, None] * K + i * 64 + cols[None, :]))
        rows = gl.arange(0, 64, layout=gl.SliceLayout(1, SIDE))
        cols = gl.arange(0, 64, layout=gl.SliceLayout(0, SIDE))
        y.store(gl.load(b + (i * 64 + rows)[:, None] * 64 + cols[None, :]))
        fence_async_shared(cluster=True)
        gl.barrier(cluster=True)
        tcgen05_mma(x, y, acc, use_acc=i > 0, mbarriers=[bar])
        if WAIT:
            mbarrier.wait(bar, i % 2)
    R: gl.constexpr = acc.get_reg_layout()
    out = gl.convert_layout(acc.load(R), TWO)
    rows = gl.arange(0, 256, layout=gl.SliceLayout(1, TWO))
    cols = gl.arange(0, 64, layout=gl.SliceLayout(0, TWO))
    gl.store(c + rows[:, None] * 64 + cols[None, :], out)
    mbarrier.invalidate(bar)


@pytest.mark.skipif(TRITON_VERSION < (3, 7), reason="needs Triton 3.7")
def test_pairs_of_blocks():
    a, b, c = inputs("fp16", 256, 64, 128)
    in_pairs[(1,)](a, b, c, 128, True, num_ctas=2)
    np.testing.assert_array_equal(c.numpy(), (a.float() @ b.float()).numpy())
    with pytest.raises(RaceError, match="column 0 of `acc`"):
        in_pairs[(1,)](a, b, c, 64, False, num_ctas=2)


@gluon.jit
def copied_scales(a, out, K: gl.constexpr, WARP: gl.constexpr):
    M: gl.constexpr = 64
    smem = gl.allocate_shared_memory(gl.uint8, [M, K], FLAT)
    smem.store(gl.load(tile(a, M, K)))
    fence_async_shared()
    memory = allocate_tensor_memory(gl.uint8, [M, K], TensorMemoryScalesLayout())
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    tcgen05_copy(smem, memory)
    tcgen05_commit(bar)
    mbarrier.wait(bar, 0)
    # The values of all lanes, four scales to a column.
    lanes = memory.reinterpret(
        gl.uint8, [128, M * K // 32], TensorMemoryLayout([128, M * K // 32], 1)
    )
    x = gl.convert_layout(lanes.load(lanes.get_reg_layout()), L)
    gl.store(tile(out, 128, M * K // 32), x)
    mbarrier.invalidate(bar)


FLAT = gl.constexpr(gl.NVMMASharedLayout(0, 8, 2))


@pytest.mark.skipif(TRITON_VERSION < (3, 9), reason="needs Triton 3.9")
def test_copied_scales_reach_the_lanes_of_all_warps():
    a = np.random.default_rng(0).integers(0, 256, (64, 16)).astype(np.uint8)
    out = np.zeros((128, 32), np.uint8)
    copied_scales[(1,)](a, out, 16, 0)
    for warp in range(1, 4):
        np.testing.assert_array_equal(out[32 * warp : 32 * warp + 32], out[:32])
    # Four of K side by side, the second 32 rows in the next column, then the next four of K.
    wanted = a.reshape(2, 32, 4, 4).transpose(1, 2, 0, 3).reshape(32, 32)
    np.testing.assert_array_equal(out[:32], wanted)


@gluon.jit
def repeats(c, n, S: gl.constexpr, T: gl.constexpr):
    x = gl.allocate_shared_memory(gl.float16, [64, 16], S)
    y = gl.allocate_shared_memory(gl.float16, [16, 16], T)
    x.store(gl.full([64, 16], 1.0, gl.float16, layout=L))
    y.store(gl.full([16, 16], 0.5, gl.float16, layout=L))
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [64, 16], TensorMemoryLayout([64, 16], 1))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    for i in range(n):
        tcgen05_mma(x, y, acc, use_acc=i > 0)
    tcgen05_commit(bar)
    mbarrier.wait(bar, 0)
    gl.store(tile(c, 64, 16), gl.convert_layout(acc.load(acc.get_reg_layout()), L))
    mbarrier.invalidate(bar)


def test_any_number_may_be_in_flight():
    c = np.zeros((64, 16), np.float32)
    left = gl.NVMMASharedLayout.get_default_for([64, 16], gl.float16)
    right = gl.NVMMASharedLayout.get_default_for([16, 16], gl.float16)
    repeats[(1,)](c, 1200, left, right)
    assert (c == 1200 * 8).all()


def test_every_mutant_of_a_pipeline_is_reported():
    """Delete or change one synchronization at a time."""
    k = 384
    a, b, c = (x.numpy() for x in inputs("fp16", 128, 64, k))
    left = gl.NVMMASharedLayout.get_default_for([128, 64], gl.float16)
    right = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    compiled = specialized[(1,)](a, b, c, k, left, right, False, False)

    def run():
        text = compiled.asm["program"]
        text.compiled = prepare(text.program, models_for(compiled.target))
        out = np.zeros_like(c)
        try:
            with using(timeout=30):
                make_launcher(compiled)((1,), None, a, b, out, k, left, right, False, False)
        except SimulatorError:
            return "reported"
        return "right" if (out == a.astype(np.float32) @ b.astype(np.float32)).all() else "wrong"

    assert run() == "right"
    program = compiled.asm["program"].program
    mutants = list(mutations.mutants(program))
    if not any(mutant.name.startswith("tcgen05_commit") for mutant in mutants):
        commits = [op for op in program.walk_ops() if op.name == "tcgen05_commit"]
        mutants += [mutations._deleted(op) for op in commits]
    reported, missed = [], []
    for mutant in mutants:
        mutant.apply()
        try:
            end = run()
        finally:
            mutant.undo()
        if end == "reported":
            reported.append(mutant.name)
        elif end == "wrong" or mutant.name not in mutations.HARMLESS:
            missed.append((mutant.name, end))
    assert not missed
    assert len(reported) >= 15
    assert any("fence" in name for name in reported)


@gluon.jit
def tells_two(c, FIRST: gl.constexpr):
    T: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    x = gl.allocate_shared_memory(gl.float16, [128, 64], T)
    y = gl.allocate_shared_memory(gl.float16, [64, 128], T)
    x.store(gl.full([128, 64], 1, gl.float16, L))
    y.store(gl.full([64, 128], 1, gl.float16, L))
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 128], 1))
    bars = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(3):
        mbarrier.init(bars.index(i), count=1)
    tcgen05_mma(x, y, acc, use_acc=False, mbarriers=[bars.index(0), bars.index(1)])
    tcgen05_commit(bars.index(2))
    if FIRST:
        mbarrier.wait(bars.index(0), 0)
        R: gl.constexpr = gl.BlockedLayout([1, 128], [32, 1], [4, 1], [0, 1])
        rows = gl.arange(0, 128, gl.SliceLayout(1, R))[:, None] * 128
        columns = gl.arange(0, 128, gl.SliceLayout(0, R))[None, :]
        gl.store(c + rows + columns, acc.load(R))
    for i in gl.static_range(3):
        mbarrier.invalidate(bars.index(i))


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_barriers_may_go_once_the_work_they_would_tell_of_is_known_to_be_over(schedule):
    c = np.zeros((128, 128), np.float32)
    with using(schedule=schedule):
        tells_two[(1,)](c, True)
    assert (c == 64).all()


def test_barriers_may_not_go_before():
    c = np.zeros((128, 128), np.float32)
    with pytest.raises(BarrierError, match="arrive on a barrier that was invalidated"):
        tells_two[(1,)](c, False)
