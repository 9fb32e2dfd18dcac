"""Kernels whose programs are clusters of blocks: all blocks of a program run in step."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia import hopper, rubin
from gluon_core.language.nvidia.hopper import (
    cluster,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)
from gluon_core.testing import TRITON_VERSION
from gluon_nvidia import reference
from gluon_sim.errors import BarrierError, DeadlockError, RaceError
from gluon_sim.settings import using
from tests.frontend.vendor_oracle import since

SCHEDULES = [("latest", 0), ("eager", 0), ("random", 0), ("random", 1)]
HALVES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0], cga_layout=[[1, 0]]))
COPIES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0], cga_layout=[[0, 0]]))
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16], cga_layout=[[1, 0]]))
A = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]]))
B = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]]))


@gluon.jit
def offsets(ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    return rows[:, None] * COLUMNS + columns[None, :]


@gluon.jit
def product(a, b, c, FENCE: gl.constexpr):
    """Each block has half of the rows of a and c, and all of b."""
    offset = gl.program_id(0) * 8192
    x = gl.allocate_shared_memory(gl.float16, [128, 64], A)
    y = gl.allocate_shared_memory(gl.float16, [64, 64], B)
    x.store(gl.load(a + offset + offsets(128, 64, HALVES)))
    y.store(gl.load(b + offsets(64, 64, COPIES)))
    if FENCE:
        fence_async_shared(cluster=True)
    acc = warpgroup_mma(x, y, gl.zeros([128, 64], gl.float32, ACC))
    gl.store(c + offset + offsets(128, 64, ACC), acc)


def matrices(programs=2):
    random = np.random.default_rng(0)
    a = random.normal(size=(programs * 128, 64)).astype(np.float16)
    b = random.normal(size=(64, 64)).astype(np.float16)
    return a, b, np.zeros((programs * 128, 64), np.float32)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_product_of_clusters(schedule):
    a, b, c = matrices()
    with using(schedule=schedule[0], seed=schedule[1]):
        product[(2,)](a, b, c, True, num_ctas=2)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("no_implied_fences")
def test_the_fence_is_asked_for_in_a_cluster_too():
    with pytest.raises(RaceError, match="fence"):
        product[(2,)](*matrices(), False, num_ctas=2)


@gluon.jit
def exchanged(a, out, EXPECT: gl.constexpr, COUNT: gl.constexpr, PAIRS: gl.constexpr):
    """Rows that one block loads become columns of the other's shared memory."""
    tile = gl.allocate_shared_memory(
        gl.float16, [64, 64], gl.NVMMASharedLayout(64, 16, 2, cga_layout=[[0, 1]])
    )
    bar = mbarrier.allocate_mbarrier(two_ctas=PAIRS)
    mbarrier.init(bar, count=COUNT)
    cluster.barrier()
    x = gl.load(a + offsets(64, 64, HALVES))
    mbarrier.expect(bar, EXPECT)
    hopper.async_store(tile, x, bar)
    mbarrier.wait(bar, 0)
    gl.store(out + offsets(64, 64, HALVES), tile.load(HALVES))
    gl.barrier(cluster=True)  # no block may end while the other reads what it holds
    mbarrier.invalidate(bar)


@since(3, 8)
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stores_to_the_other_block(schedule, pairs):
    a = np.arange(4096, dtype=np.float16).reshape(64, 64)
    out = np.zeros_like(a)
    with using(schedule=schedule[0], seed=schedule[1]):
        exchanged[(1,)](a, out, 64 * 64, 1, pairs, num_ctas=2)  # bytes of one block's half
    np.testing.assert_array_equal(out, a)


@since(3, 8)
@pytest.mark.parametrize(
    "expect, count, error, match",
    [
        (8192, 1, DeadlockError, "4096 bytes missing"),
        (4096, 2, DeadlockError, r"1 of \d arrivals and 0 bytes missing"),
        (2048, 1, BarrierError, "more bytes came"),
    ],
)
def test_stores_that_are_counted_wrong(expect, count, error, match):
    a = np.zeros((64, 64), np.float16)
    for schedule, seed in SCHEDULES:
        with using(schedule=schedule, seed=seed), pytest.raises(error, match=match):
            exchanged[(1,)](a, a.copy(), expect, count, False, num_ctas=2)


@gluon.jit
def unawaited(a, out, HOW: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], A)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    cluster.barrier()
    x = gl.load(a + offsets(64, 64, HALVES))
    mbarrier.expect(bar, tile.nbytes_per_cta)
    hopper.async_store(tile, x, bar)
    if HOW == "a barrier of the cluster alone":
        gl.barrier(cluster=True)  # orders threads, not what is still on its way
    out_at = offsets(64, 64, HALVES)
    gl.store(out + out_at, tile.load(HALVES))
    mbarrier.wait(bar, 0)


@since(3, 8)
@pytest.mark.parametrize("how", ["nothing", "a barrier of the cluster alone"])
def test_stores_that_nobody_waited_for(how):
    a = np.zeros((64, 64), np.float16)
    for schedule, seed in SCHEDULES:
        with (
            using(schedule=schedule, seed=seed),
            pytest.raises(RaceError, match="barrier") as error,
        ):
            unawaited[(1,)](a, a.copy(), how, num_ctas=2)
        accesses = {access.op for access in error.value.accesses}
        assert accesses == {"hopper.async_store", "tile.load"}


@gluon.jit
def rounds(out, SIDE: gl.constexpr):
    bar = mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(bar.index(i), count=3)
    gl.barrier(cluster=True)
    for i in range(4):
        mbarrier.arrive(bar.index(i % 2), count=2)
        mbarrier.arrive(bar.index(i % 2), pred=i != SIDE)
        mbarrier.wait(bar.index(i % 2), i // 2)
    gl.store(out + gl.program_id(0), gl.num_ctas())


@since(3, 7)
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_barriers_of_all_blocks(blocks):
    out = np.zeros(3, np.int32)
    rounds[(3,)](out, 9, num_ctas=blocks)
    assert (out == blocks).all()
    with pytest.raises(DeadlockError, match=r"1 of \d arrivals and 0 bytes missing"):
        rounds[(3,)](out, 2, num_ctas=blocks)


@gluon.jit
def halves(out):
    cluster.arrive(relaxed=True)
    gl.store(out, 1)
    cluster.wait()
    mbarrier.fence_init_release_cluster()


@pytest.mark.skipif(TRITON_VERSION not in ((3, 7), (3, 8)), reason="Triton 3.7 and 3.8 have them")
def test_halves_of_the_barrier():
    out = np.zeros(1, np.int32)
    halves[(1,)](out, num_ctas=2)
    assert out[0] == 1


@gluon.jit
def chosen(out):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=2)
    mbarrier.expect(bar, 0, from_cta=1)
    mbarrier.arrive(bar, from_cta=1)
    mbarrier.wait(bar, 0)
    gl.store(out, 1)


@since(3, 9)
def test_barriers_of_chosen_blocks():
    out = np.zeros(1, np.int32)
    chosen[(1,)](out, num_ctas=2)
    assert out[0] == 1


@gluon.jit
def to_several(out, COUNT: gl.constexpr):
    bar = rubin.mbarrier.allocate_mbarrier()
    rubin.mbarrier.init(bar, count=COUNT)
    rubin.mbarrier.arrive(bar, count=3, multicast_cta=2)
    rubin.mbarrier.arrive(bar, multicast_cta=3, pred=gl.program_id(0) >= 0)
    rubin.mbarrier.wait(bar, 0)
    gl.store(out, 1)


@since(3, 9)
def test_arrivals_at_several_barriers():
    out = np.zeros(1, np.int32)
    to_several[(1,)](out, 3 * 2 + 4, num_ctas=4, target="sim:sm_107")
    assert out[0] == 1
    with pytest.raises(DeadlockError, match="1 arrivals"):
        to_several[(1,)](out, 3 * 2 + 5, num_ctas=4, target="sim:sm_107")


# ---- barriers that the other blocks may not know ---------------------------------------------------


@gluon.jit
def announced(a, out, HOW: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], A)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    if HOW == "barrier":
        cluster.barrier()
    elif HOW == "relaxed barrier":
        cluster.barrier(relaxed=True)
    elif HOW == "fence, relaxed barrier":
        mbarrier.fence_init_release_cluster()
        cluster.barrier(relaxed=True)
    elif HOW == "fence":
        mbarrier.fence_init_release_cluster()
    elif HOW == "arrive, wait":
        cluster.arrive()
        cluster.wait()
    elif HOW == "relaxed arrive, wait":
        cluster.arrive(relaxed=True)
        cluster.wait()
    elif HOW == "arrive":
        cluster.arrive()
    elif HOW == "block barrier":
        gl.barrier()
    mbarrier.expect(bar, tile.nbytes_per_cta)
    hopper.async_store(tile, gl.load(a + offsets(64, 64, HALVES)), bar)
    mbarrier.wait(bar, 0)
    gl.store(out + offsets(64, 64, HALVES), tile.load(HALVES))


ENOUGH = ("barrier", "fence, relaxed barrier", "arrive, wait")
ALWAYS = ("barrier", "relaxed barrier", "nothing", "block barrier")
UNTIL_3_8 = ("fence, relaxed barrier", "fence", "arrive, wait", "relaxed arrive, wait", "arrive")
HOWS = (*ALWAYS, *(UNTIL_3_8 if TRITON_VERSION < (3, 9) else ()))


@since(3, 8)
@pytest.mark.parametrize("how", HOWS)
def test_barriers_must_be_known_to_the_cluster(monkeypatch, how):
    a = np.arange(4096, dtype=np.float16).reshape(64, 64)
    out = np.zeros_like(a)
    monkeypatch.setattr(reference.cluster, "follows", lambda feature: feature.held_by((3, 8)))
    if how in ENOUGH:
        announced[(1,)](a, out, how, num_ctas=2)
        np.testing.assert_array_equal(out, a)
        return
    with pytest.raises(BarrierError, match="before it is initialized") as error:
        announced[(1,)](a, out, how, num_ctas=2)
    assert "hopper.async_store(" in error.value.span.text
    with using(barriers=False):
        announced[(1,)](a, out, how, num_ctas=2)
    monkeypatch.setattr(reference.cluster, "follows", lambda feature: feature.held_by((3, 9)))
    announced[(1,)](a, out, how, num_ctas=2)  # there the compiler adds the barrier


@gluon.jit
def multicast(a, out, SYNC: gl.constexpr):
    desc = tma.make_tensor_descriptor(a, [64, 64], [64, 1], [64, 64], B)
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], B)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    if SYNC:
        gl.barrier(cluster=True)
    mbarrier.expect(bar, 64 * 64 * 2)
    tma.async_copy_global_to_shared(desc, [0, 0], bar, tile, multicast=True)
    mbarrier.wait(bar, 0)
    gl.store(out + offsets(64, 64, COPIES), tile.load(COPIES))


@since(3, 7)
def test_copies_to_all_blocks(monkeypatch):
    a = np.arange(4096, dtype=np.float16).reshape(64, 64)
    out = np.zeros_like(a)
    multicast[(1,)](a, out, True, num_ctas=2)
    np.testing.assert_array_equal(out, a)
    monkeypatch.setattr(reference.tma, "follows", lambda feature: feature.held_by((3, 7)))
    multicast[(1,)](a, out, True, num_ctas=2)
    with pytest.raises(BarrierError, match="before it is initialized"):
        multicast[(1,)](a, out, False, num_ctas=2)
