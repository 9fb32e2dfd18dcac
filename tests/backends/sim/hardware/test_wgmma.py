"""`warpgroup_mma` reads shared memory late and on its own; its accumulator is there after a wait."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import DtypeError
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_sim.errors import DeadlockError, RaceError, UninitialisedError
from gluon_sim.settings import Settings, using

pytestmark = pytest.mark.sampled(2)

ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
LOAD = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
SCHEDULES = [("latest", 0), ("eager", 0), ("random", 0), ("random", 1), ("random", 2)]
UNCHECKED = Settings.without_checks()


@gluon.jit
def offsets(ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    return rows[:, None] * COLUMNS + columns[None, :]


def report(error, kernel, *args, match, line, grid=(1,), **options):
    """The error of a launch, the same under every schedule, at the line that contains `line`."""
    for schedule, seed in SCHEDULES:
        with (
            using(schedule=schedule, seed=seed),
            pytest.raises(error, match=match or None) as caught,
        ):
            kernel[grid](*args, **options)
        assert line in caught.value.span.text, caught.value
    return caught.value


def matrices(m, k, n, dtype=np.float16, seed=0):
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(m, k)), random.normal(size=(k, n))
    return a.astype(dtype), b.astype(dtype), np.zeros((m, n), np.float32)


def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


# ---- one multiplication -------------------------------------------------------------------------


@gluon.jit
def one(a, b, c, FENCE: gl.constexpr, REGISTERS: gl.constexpr):
    index = offsets(64, 64, LOAD)
    x = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    y = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    x.store(gl.load(a + index))
    y.store(gl.load(b + index))
    if FENCE:
        fence_async_shared()
    acc = gl.full([64, 64], 1, gl.float32, ACC)
    if REGISTERS:
        acc = warpgroup_mma(x.load(gl.DotOperandLayout(0, ACC, 2)), y, acc)
    else:
        acc = warpgroup_mma(x, y, acc)
    gl.store(c + offsets(64, 64, ACC), acc)


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_product(schedule, registers):
    a, b, c = matrices(64, 64, 64)
    with using(schedule=schedule[0], seed=schedule[1]):
        one[(1,)](a, b, c, True, registers)
    np.testing.assert_allclose(c, product(a, b) + 1, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("no_implied_fences")
def test_stores_without_a_fence():
    reported = report(
        RaceError,
        one,
        *matrices(64, 64, 64),
        False,
        False,
        match="fence",
        line="warpgroup_mma(x, y",
    )
    assert reported.report == "race.shared"
    then, now = reported.accesses
    assert (then.kind, then.proxy, now.kind, now.proxy) == ("write", "generic", "read", "async")
    one[(1,)](*matrices(64, 64, 64), False, False, races=False)


def test_programs_of_a_grid_have_their_own_operands():
    a, b, c = matrices(64, 64, 64)
    one[(3,)](a, b, c, True, False, races=False)
    np.testing.assert_allclose(c, product(a, b) + 1, rtol=1e-4, atol=1e-4)


@gluon.jit
def typed(
    a, b, c, INSTR: gl.constexpr, A: gl.constexpr, B: gl.constexpr, TURN: gl.constexpr,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, IMPRECISE: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], INSTR)
    load: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [gl.num_warps(), 1], [1, 0])
    x = gl.allocate_shared_memory(a.dtype.element_ty, [M, K], A, gl.load(a + offsets(M, K, load)))
    if TURN:  # b is stored as [N, K]
        y = gl.allocate_shared_memory(
            b.dtype.element_ty, [N, K], B, gl.load(b + offsets(N, K, load))
        )
        y = y.permute((1, 0))
    else:
        y = gl.allocate_shared_memory(
            b.dtype.element_ty, [K, N], B, gl.load(b + offsets(K, N, load))
        )
    fence_async_shared()
    acc = gl.zeros([M, N], c.dtype.element_ty, layout)
    acc = warpgroup_mma(x, y, acc, max_num_imprecise_acc=IMPRECISE)
    gl.store(c + offsets(M, N, layout), acc)


def bits(dtype):
    return np.dtype(dtype).itemsize * 8


@pytest.mark.parametrize(
    "dtype, out, turn",
    [
        (np.float16, np.float32, False),
        (np.float16, np.float16, True),
        (ml_dtypes.bfloat16, np.float32, False),
        (np.float32, np.float32, True),
        (np.int8, np.int32, True),
        (ml_dtypes.float8_e5m2, np.float32, True),
        (ml_dtypes.float8_e4m3fn, np.float32, True),
    ],
)
def test_dtypes(dtype, out, turn):
    m, k, n = 128, 64, 64
    random = np.random.default_rng(1)
    a, b = (
        random.integers(-8, 8, (m, k)).astype(dtype),
        random.integers(-8, 8, (k, n)).astype(dtype),
    )
    c = np.zeros((m, n), out)
    swizzle = min(128, 64 * bits(dtype) // 8)
    tile = gl.NVMMASharedLayout(swizzle, bits(dtype), 2)
    kept = b.T.copy() if turn else b
    typed[(1,)](
        a, kept, c, [16, 64, 256 // bits(dtype)], tile, tile, turn, m, n, k, None, num_warps=8
    )
    wanted = product(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(c.astype(np.float64), wanted)


def test_float32_loses_the_bits_that_tf32_lacks():
    a, b = np.full((64, 32), 1 + 2.0**-11, np.float32), np.ones((32, 8), np.float32)
    c = np.zeros((64, 8), np.float32)
    tile = gl.NVMMASharedLayout(128, 32, 2)
    typed[(1,)](a, b.T.copy(), c, [16, 8, 8], tile, tile, True, 64, 8, 32, None)
    assert (c == 32).all()


# ---- chains of them -----------------------------------------------------------------------------


@gluon.jit
def pipelined(a, b, c, STEPS: gl.constexpr, PENDING: gl.constexpr, LAST: gl.constexpr):
    """Operands of step i lie in buffer i % 2, which is filled while step i - 1 multiplies."""
    x = gl.allocate_shared_memory(gl.float16, [2, 64, 64], TILE)
    y = gl.allocate_shared_memory(gl.float16, [2, 64, 64], TILE)
    places = offsets(64, 64, LOAD)
    acc = gl.zeros([64, 64], gl.float32, ACC)
    for i in range(STEPS):
        x.index(i % 2).store(gl.load(a + i * 4096 + places))
        y.index(i % 2).store(gl.load(b + i * 4096 + places))
        fence_async_shared()
        token = warpgroup_mma(x.index(i % 2), y.index(i % 2), acc, use_acc=i > 0, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=PENDING, deps=(token,))
    if LAST:
        acc = warpgroup_mma_wait(0, deps=(acc,))
    gl.store(c + offsets(64, 64, ACC), acc)


def steps(count):
    random = np.random.default_rng(3)
    a = random.normal(size=(count, 64, 64)).astype(np.float16)
    b = random.normal(size=(count, 64, 64)).astype(np.float16)
    return a, b, np.zeros((64, 64), np.float32)


@pytest.mark.parametrize("pending", [0, 1])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline(schedule, pending):
    a, b, c = steps(5)
    with using(schedule=schedule[0], seed=schedule[1]):
        pipelined[(1,)](a, b, c, 5, pending, True)
    wanted = np.einsum("smk,skn->mn", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(c, wanted, rtol=1e-3, atol=1e-3)


def test_an_operand_that_is_written_before_the_wait():
    reported = report(
        RaceError, pipelined, *steps(5), 5, 2, True, match="race on byte", line="",
    )  # fmt: skip
    assert "`warpgroup_mma_wait(1, deps=[" in str(reported)
    assert {access.queue for access in reported.accesses} == {"wgmma", None}
    with using(UNCHECKED, schedule="latest"):
        a, b, c = steps(5)
        pipelined[(1,)](a, b, c, 5, 2, True)
    wanted = np.einsum("smk,skn->mn", a.astype(np.float64), b.astype(np.float64))
    assert not np.allclose(c, wanted, rtol=1e-3, atol=1e-3)


def test_an_accumulator_that_is_read_in_flight():
    reported = report(
        RaceError, pipelined, *steps(3), 3, 1, False, match="may still be writing",
        line="gl.store(c +",
    )  # fmt: skip
    assert reported.report == "race.registers"
    assert "Put `warpgroup_mma_wait(0, deps=[" in str(reported)
    a, b, c = steps(3)
    with using(UNCHECKED, schedule="latest"):
        pipelined[(1,)](a, b, c, 3, 1, False)
    assert np.isnan(c).all()


@gluon.jit
def two_accumulators(a, b, c, n, PENDING: gl.constexpr):
    index = offsets(64, 64, LOAD)
    x = gl.allocate_shared_memory(gl.float16, [64, 64], TILE, gl.load(a + index))
    y = gl.allocate_shared_memory(gl.float16, [64, 64], TILE, gl.load(b + index))
    fence_async_shared()
    zero = gl.zeros([64, 64], gl.float32, ACC)
    first = warpgroup_mma_init(zero)
    second = warpgroup_mma_init(zero)
    for i in range(n):
        first = warpgroup_mma(x, y, first, is_async=True)
        second = warpgroup_mma(x, y.permute((1, 0)), second, use_acc=False, is_async=True)
    one, z = warpgroup_mma_wait(PENDING, deps=(first, x))
    out = one + z.load(ACC).to(gl.float32)
    two = warpgroup_mma_wait(deps=[second])
    gl.store(c + offsets(64, 64, ACC), out - two)


def test_each_accumulator_is_waited_for_by_itself():
    a, b, c = matrices(64, 64, 64)
    for schedule, seed in SCHEDULES:
        with using(schedule=schedule, seed=seed):
            two_accumulators[(1,)](a, b, c, 3, 1)
        wanted = 3 * product(a, b) + a - product(a, b.T)
        np.testing.assert_allclose(c, wanted, rtol=1e-3, atol=1e-3)
    report(
        RaceError, two_accumulators, a, b, c, 3, 2, match="registers that `warpgroup_mma`",
        line="out = one + z.load",
    )  # fmt: skip


@gluon.jit
def uneven(a, b, c):
    """Programs make different numbers of rounds."""
    index = offsets(64, 64, LOAD)
    x = gl.allocate_shared_memory(gl.float16, [64, 64], TILE, gl.load(a + index))
    y = gl.allocate_shared_memory(gl.float16, [64, 64], TILE, gl.load(b + index))
    fence_async_shared()
    acc = warpgroup_mma_init(gl.zeros([64, 64], gl.float32, ACC))
    for i in range(gl.program_id(0) + 1):
        acc = warpgroup_mma(x, y, acc, is_async=True)
    if gl.program_id(0) > 0:
        acc = warpgroup_mma(x, y, acc, use_acc=gl.program_id(0) == 1, is_async=True)
    gl.store(c + gl.program_id(0) * 4096 + offsets(64, 64, ACC), warpgroup_mma_wait(0, (acc,)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_programs_that_part(schedule):
    a, b, _ = matrices(64, 64, 64)
    c = np.zeros((3, 64, 64), np.float32)
    with using(schedule=schedule[0], seed=schedule[1]):
        uneven[(3,)](a, b, c)
    for rounds, result in zip((1, 3, 1), c):
        np.testing.assert_allclose(result, rounds * product(a, b), rtol=1e-3, atol=1e-3)


@gluon.jit
def unwritten(c):
    x = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    acc = warpgroup_mma(x, x, gl.zeros([64, 64], gl.float32, ACC))
    gl.store(c + offsets(64, 64, ACC), acc)


def test_operands_that_nobody_wrote():
    c = np.zeros((64, 64), np.float32)
    report(UninitialisedError, unwritten, c, match="never", line="warpgroup_mma(x, x")


# ---- a partition that fills, one that multiplies -------------------------------------------------

FILL = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0]))


@gluon.jit
def fill(full, empty, x, y, a, b, n, HOW: gl.constexpr):
    for i in range(n):
        mbarrier.wait(empty.index(i % 2), (i // 2 & 1) ^ (0 if HOW == "wrong phase" else 1))
        x.index(i % 2).store(gl.load(a + i * 4096 + offsets(64, 64, FILL)))
        y.index(i % 2).store(gl.load(b + i * 4096 + offsets(64, 64, FILL)))
        if HOW != "no fence":
            fence_async_shared()
        if HOW != "never arrives" or i < 2:
            mbarrier.arrive(full.index(i % 2), count=2 if HOW == "counts two" else 1)


@gluon.jit
def multiply(full, empty, x, y, c, n, HOW: gl.constexpr):
    acc = gl.zeros([64, 64], gl.float32, ACC)
    for i in range(n):
        mbarrier.wait(full.index(i % 2), i // 2 & 1)
        acc = warpgroup_mma(x.index(i % 2), y.index(i % 2), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=2 if HOW == "waits for less" else 1, deps=(acc,))
        if HOW == "gives back too early":
            mbarrier.arrive(empty.index(i % 2))
        elif i > 0:
            mbarrier.arrive(empty.index((i - 1) % 2))
    acc = warpgroup_mma_wait(deps=(acc,))
    gl.store(c + offsets(64, 64, ACC), acc)


@gluon.jit
def specialized(a, b, c, n, HOW: gl.constexpr):
    x = gl.allocate_shared_memory(gl.float16, [2, 64, 64], TILE)
    y = gl.allocate_shared_memory(gl.float16, [2, 64, 64], TILE)
    full = mbarrier.allocate_mbarrier(batch=2)
    empty = mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=2 if HOW == "counts two" or HOW == "expects two" else 1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [
            (multiply, (full, empty, x, y, c, n, HOW)),
            (fill, (full, empty, x, y, a, b, n, HOW)),
        ],
        [1],
        [40],
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["right", "counts two"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_partitions(schedule, how):
    a, b, c = steps(7)
    with using(schedule=schedule[0], seed=schedule[1]):
        specialized[(2,)](a, b, c, 7, how, races=False)
        specialized[(1,)](a, b, c, 7, how)
    wanted = np.einsum("smk,skn->mn", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(c, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "how, error, match, line",
    [
        ("no fence", RaceError, "fence", "warpgroup_mma("),
        ("gives back too early", RaceError, "race on byte", ""),
        ("waits for less", RaceError, "race on byte", ""),
        ("wrong phase", DeadlockError, r"partition 1 of the kernel +\d+ +phase 0", "wait("),
        ("expects two", DeadlockError, r"the kernel +\d+ +phase 0.*1 arrivals", "wait(full"),
        ("never arrives", DeadlockError, r"the kernel +\d+ +phase 1.*1 arrivals", "wait(full"),
    ],
)
def test_partitions_that_go_wrong(how, error, match, line):
    report(error, specialized, *steps(7), 7, how, match=match, line=line)


def test_the_report_of_a_deadlock_names_barrier_and_partition():
    reported = report(
        DeadlockError, specialized, *steps(7), 7, "expects two", match="", line="wait(full"
    )
    by = {scene.task: scene for scene in reported.waiting}
    assert set(by) == {"the kernel", "partition 1 of the kernel"}
    assert "the barrier `full.index(i % 2)` (byte 0 of `full`)" in by["the kernel"].text
    assert by["the kernel"].pending == 1 and by["the kernel"].phase == 0
    assert by["the kernel"].arrived == (fill.fn.__code__.co_firstlineno + 9,)
    assert "of `empty`" in by["partition 1 of the kernel"].text


@gluon.jit
def begins_as_a_tensor(a, n):
    x = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    x.store(gl.load(a + offsets(64, 64, LOAD)))
    acc = gl.zeros([64, 64], gl.float32, ACC)
    for _ in range(n):
        acc = warpgroup_mma(x, x, acc, is_async=True)
    warpgroup_mma_wait(0, deps=(acc,))


def test_an_accumulator_that_begins_as_a_tensor():
    with pytest.raises(
        DtypeError, match=r"expected tensor, as before the loop, got warpgroup_mma_acc"
    ):
        begins_as_a_tensor[(1,)](np.zeros((64, 64), np.float16), 3)
    with pytest.raises(DtypeError, match=r"Start with warpgroup_mma_init\(tensor\)"):
        begins_as_a_tensor[(1,)](np.zeros((64, 64), np.float16), 3)
