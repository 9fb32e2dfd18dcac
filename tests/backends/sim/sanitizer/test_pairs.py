"""A correct synchronization, and the same with one thing weaker, where the simulator once said the same of both."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
)
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.testing import triton_at_least
from gluon_sim.errors import LeakError, RaceError
from gluon_sim.settings import using
from tests.backends.sim.hardware.test_blocks import COLUMNS, ROWS, places
from tests.backends.sim.sanitizer.test_lifetimes import ACC, TILE, L, at

pytestmark = pytest.mark.once
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


def boxed(x):
    return TensorDescriptor.from_tensor(x, [64, 64], TILE.value)


# ---- who must wait for whom -------------------------------------------------------------------


@gluon.jit
def there_and_back(box, out, WRITTEN: gl.constexpr):
    """Load with the TMA the data that it stored."""
    one = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    other = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    one.store(gl.full([64, 64], 3, gl.float16, L))
    fence_async_shared()
    tma.async_store(box, [0, 0], one)
    tma.store_wait(0, read_only=not WRITTEN)
    mbarrier.expect(bar, 64 * 64 * 2)
    tma.async_load(box, [0, 0], bar, other)
    mbarrier.wait(bar, 0)
    gl.store(at(out, L), other.load(L))
    mbarrier.invalidate(bar)


@pytest.mark.parametrize("schedule", ["latest", "eager"])
def test_of_two_copies_the_first_is_waited_for_whichever_lands_first(schedule):
    x, out = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    with using(schedule=schedule):
        if triton_at_least(3, 8):
            there_and_back[(1,)](boxed(x), out, True, target="sim:sm_90")
            assert (out == 3).all()
        with pytest.raises(RaceError) as error:
            there_and_back[(1,)](boxed(x), out, False, target="sim:sm_90")
    assert "`tma.store_wait(0, read_only=False)`" in error.value.remedy


@gluon.jit
def reduced_twice(box, out, PENDING: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    tile.store(gl.full([64, 64], 3, gl.float16, L))
    fence_async_shared()
    tma.async_atomic_add(box, [0, 0], tile)
    tma.async_atomic_add(box, [0, 0], tile)
    tma.store_wait(PENDING)
    gl.store(at(out, L), gl.load(at(out + 4096, L)))
    tma.store_wait(0)


def test_the_wait_that_is_named_reaches_all_ops_that_are_in_the_way():
    x = np.zeros((2, 64, 64), np.float16)
    with pytest.raises(RaceError) as error:
        reduced_twice[(1,)](boxed(x[1]), x, 1, target="sim:sm_90")
    assert "`tma.store_wait(0, read_only=False)`" in error.value.remedy


WIDE = gl.constexpr(TensorMemoryLayout([128, 64], 1))


@gluon.jit
def brings(box, x, full, empty, n):
    for i in range(n):
        mbarrier.wait(empty, (i & 1) ^ 1)
        mbarrier.expect(full, 128 * 64 * 2)
        tma.async_load(box, [0, 0], full, x)


@gluon.jit
def uses(x, acc, full, empty, n, TRACKED: gl.constexpr):
    for i in range(n):
        mbarrier.wait(full, i & 1)
        right = x.slice(0, 64).permute((1, 0))
        if TRACKED:
            tcgen05_mma(x, right, acc, use_acc=i > 0, mbarriers=[empty])
        else:
            tcgen05_mma(x, right, acc, use_acc=i > 0)
            mbarrier.arrive(empty)


@gluon.jit
def idle():
    pass


@gluon.jit
def ring(box, n, TRACKED: gl.constexpr):
    x = gl.allocate_shared_memory(gl.float16, [128, 64], TILE)
    acc = allocate_tensor_memory(gl.float32, [128, 64], WIDE)
    full = mbarrier.allocate_mbarrier()
    empty = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, 1)
    mbarrier.init(empty, 1)
    mbarrier.init(done, 1)
    gl.warp_specialize(
        [
            (idle, ()),
            (brings, (box, x, full, empty, n)),
            (uses, (x, acc, full, empty, n, TRACKED)),
        ],
        [1, 1],
        [24, 24],
    )
    tcgen05_commit(done)
    mbarrier.wait(done, 0)


def test_across_partitions_too():
    x = np.ones((128, 64), np.float16)
    box = TensorDescriptor.from_tensor(x, [128, 64], TILE.value)
    ring[(1,)](box, 3, True, target="sim:sm_100")
    with pytest.raises(RaceError) as error:
        ring[(1,)](box, 3, False, target="sim:sm_100")
    assert "Put `tcgen05_commit(bar)`" in error.value.remedy
    assert "barrier that `tma." not in error.value.remedy  # that one comes second


# ---- accumulators in flight -------------------------------------------------------------------


@gluon.jit
def converted(a, c, PENDING: gl.constexpr):
    x = gl.allocate_shared_memory(gl.float16, [64, 64], TILE, gl.load(at(a, L)))
    fence_async_shared()
    acc = warpgroup_mma(x, x, gl.zeros([64, 64], gl.float32, ACC), is_async=True)
    acc = warpgroup_mma_wait(PENDING, deps=(acc,))
    converted = gl.convert_layout(acc, L)
    converted, x = warpgroup_mma_wait(0, deps=(converted, x))
    gl.store(at(c, L), converted)


@pytest.mark.filterwarnings("default::gluon_core.errors.KernelWarning")  # tracing warns of it, too
def test_a_conversion_reads_an_accumulator():
    a, c = np.ones((64, 64), np.float16), np.zeros((64, 64), np.float32)
    converted[(1,)](a, c, 0, target="sim:sm_90")
    assert (c == 64).all()
    with pytest.raises(RaceError, match="`gl.convert_layout` .* may still be writing"):
        converted[(1,)](a, c, 1, target="sim:sm_90")


@gluon.jit
def parted(a, c, n, PENDING: gl.constexpr):
    """Program 0 multiplies once more than the other one."""
    x = gl.allocate_shared_memory(gl.float16, [64, 64], TILE, gl.load(at(a, L)))
    fence_async_shared()
    acc = warpgroup_mma(x, x, gl.zeros([64, 64], gl.float32, ACC), is_async=True)
    if gl.program_id(0) < n:
        acc = warpgroup_mma(x, x, acc, is_async=True)
    acc = warpgroup_mma_wait(PENDING, deps=(acc,))
    gl.store(at(c + gl.program_id(0) * 4096, ACC), acc)
    warpgroup_mma_wait(0, deps=(x,))


def test_an_accumulator_is_in_flight_where_programs_parted_too():
    a, c = np.ones((64, 64), np.float16), np.zeros((2, 64, 64), np.float32)
    parted[(2,)](a, c, 1, 0, target="sim:sm_90")
    assert (c[0] == 128).all() and (c[1] == 64).all()
    with pytest.raises(RaceError, match="`gl.store` .* may still be writing"):
        parted[(2,)](a, c, 1, 1, target="sim:sm_90")


# ---- atomics ----------------------------------------------------------------------------------


@gluon.jit
def writes(data, shared, flag, SHARED: gl.constexpr, SCOPE: gl.constexpr, BARRIER: gl.constexpr):
    o = gl.arange(0, 128, LINE)
    if SHARED:
        shared.store(o)
    else:
        gl.store(data + o, o)
    if BARRIER:
        gl.barrier()
    gl.atomic_xchg(flag, 1, sem="release", scope=SCOPE)


@gluon.jit
def reads(data, shared, flag, out, SHARED: gl.constexpr, SEM: gl.constexpr, SCOPE: gl.constexpr):
    o = gl.arange(0, 128, LINE)
    while gl.atomic_cas(flag, 1, 1, sem=SEM, scope=SCOPE) == 0:
        pass
    if SHARED:
        gl.store(out + o, shared.load(LINE))
    else:
        gl.store(out + o, gl.load(data + o))


@gluon.jit
def roles(data, flag, out, SHARED: gl.constexpr, SEM: gl.constexpr, SCOPE: gl.constexpr,
          BARRIER: gl.constexpr):  # fmt: skip
    shared = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    gl.warp_specialize(
        [
            (reads, (data, shared, flag, out, SHARED, SEM, SCOPE)),
            (writes, (data, shared, flag, SHARED, SCOPE, BARRIER)),
        ],
        [4],
        [64],
    )


@pytest.mark.parametrize("in_shared", [False, True])
@pytest.mark.parametrize("programs", [1, 2])
def test_partitions_of_a_program_are_ordered_by_atomics_of_any_scope(in_shared, programs):
    def run(sem="acquire", scope="cta", barrier=True, grid=1):
        data, flag, out = np.zeros(128, np.int32), np.zeros(1, np.int32), np.zeros(128, np.int32)
        roles[(grid,)](data, flag, out, in_shared, sem, scope, barrier, target="sim:sm_90")
        assert (out == np.arange(128)).all()

    if programs == 2:  # which the scope of one does not reach, and who share the flag
        with pytest.raises(RaceError):
            run(grid=2)
        return
    run()
    run(scope="gpu")
    with pytest.raises(RaceError):
        run(sem="relaxed")
    if in_shared or triton_at_least(3, 9):  # a store to shared memory counts as a barrier
        run(barrier=False)
    else:
        with pytest.raises(RaceError):
            run(barrier=False)


@gluon.jit
def flagged(data, flag, out, RELEASE: gl.constexpr, ACQUIRE: gl.constexpr, SCOPE: gl.constexpr):
    o = gl.arange(0, 128, LINE)
    if gl.program_id(0) == 0:
        gl.store(data + o, o)
        gl.barrier()
        gl.atomic_xchg(flag, 1, sem=RELEASE, scope=SCOPE)
    else:
        while gl.atomic_add(flag, 0, sem=ACQUIRE) == 0:
            pass
        gl.store(out + o, gl.load(data + o))


@pytest.mark.parametrize(
    "release, acquire, scope, advice",
    [
        ("release", "acquire", "gpu", None),
        ("relaxed", "acquire", "gpu", "Here no atomic releases."),
        ("release", "relaxed", "gpu", "Here no atomic whose result is used acquires."),
        ("release", "acquire", "cta", "reaches no other program (scope cta)."),
    ],
)
def test_a_report_names_the_order_that_the_atomics_lack(release, acquire, scope, advice):
    arguments = np.zeros(128, np.int32), np.zeros(1, np.int32), np.zeros(128, np.int32)
    if advice is None:
        flagged[(2,)](*arguments, release, acquire, scope, target="sim:sm_90")
        return
    with pytest.raises(RaceError) as error:
        flagged[(2,)](*arguments, release, acquire, scope, target="sim:sm_90")
    assert error.value.remedy.endswith(advice)


WAVES = gl.constexpr(gl.BlockedLayout([1], [64], [4], [0]))


@gluon.jit
def counts(out):
    ones = gl.full([256], 1, gl.int32, WAVES)
    cdna3.buffer_atomic_add(out, gl.zeros([256], gl.int32, WAVES), ones)


def test_each_thread_of_a_buffer_atomic_adds():
    out = np.zeros(1, np.int32)
    counts[(1,)](out, target="sim:gfx942")
    assert out[0] == 256


# ---- clusters ---------------------------------------------------------------------------------


@gluon.jit
def through_global(a, out, BARRIER: gl.constexpr):
    gl.store(out + places(ROWS), gl.load(a + places(ROWS)))
    if BARRIER == "cluster":
        gl.barrier(cluster=True)
    elif BARRIER == "block":
        gl.barrier()
    x = gl.load(out + places(COLUMNS))
    gl.barrier(cluster=True)
    gl.store(out + 64 * 128 + places(COLUMNS), x)


@pytest.mark.skipif(not triton_at_least(3, 8), reason="needs Triton 3.8")
def test_blocks_of_a_cluster_meet_in_global_memory():
    a, out = np.ones((64, 128), np.float16), np.zeros((2, 64, 128), np.float16)
    through_global[(1,)](a, out, "cluster", num_ctas=2, target="sim:sm_90")
    for barrier in ("block", "nothing"):
        with pytest.raises(RaceError, match="by different blocks of the cluster") as error:
            through_global[(1,)](a, out, barrier, num_ctas=2, target="sim:sm_90")
        assert error.value.report == "race.blocks"
        assert "gl.barrier(cluster=True)" in error.value.remedy


# ---- promises of a portable kernel ----------------------------------------------------------


@gluon.jit
def copies(a, out, MISTAKE: gl.constexpr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size], [4], [0])
    o = gl.arange(0, 256, LAYOUT)
    s = gl.allocate_shared_memory(gl.float32, [256], FLAT)
    gl.portable.async_copy(s, a, o, mask=o < 200)
    gl.portable.commit()
    if MISTAKE == "source":
        gl.store(a + o, gl.zeros([256], gl.float32, LAYOUT))
    gl.portable.wait(0)
    gl.store(out + o, s.load(LAYOUT))
    if MISTAKE == "end":
        gl.portable.async_copy(s, a, o)
        gl.portable.commit()


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "gfx942", "gfx1100"])
def test_a_portable_copy_reads_its_source_late_and_is_waited_for_on_every_target(target):
    def run(mistake):
        a, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
        copies[(1,)](a, out, mistake, target=f"sim:{target}")
        np.testing.assert_array_equal(out, np.where(np.arange(256) < 200, np.arange(256), 0))

    with using(tolerated="error"):
        run("nothing")
        with pytest.raises(RaceError, match="of `a`") as error:
            run("source")
        assert any("gl.store(a + o" in access.span.text for access in error.value.accesses)
        with pytest.raises(LeakError, match="nobody waited for it"):
            run("end")
