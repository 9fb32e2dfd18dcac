"""Verdicts on pipelines of other kinds: groups of copies, stores by a partition of its own, matrix units."""

from dataclasses import replace

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.gfx1250 import mbarrier as counters
from gluon_core.language.amd.gfx1250 import tdm
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.language.nvidia.hopper.tma import async_load, async_store, store_wait
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.simulation.evidence import Proved
from gluon_kernels.dependent import wait_for_predecessor
from gluon_sim.launcher import proving
from gluon_sim.settings import using
from tests.prove.proofs import LAYOUT, describe, judged

pytestmark = pytest.mark.once
pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


# ---- groups of cp.async -----------------------------------------------------------------------------


@gluon.jit
def grouped(src, dst, tiles, STAGES: gl.constexpr, PENDING: gl.constexpr, LATE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lanes = gl.arange(0, 128, layout=layout)
    ring = gl.allocate_shared_memory(gl.float32, [STAGES, 128], shared)
    for i in gl.static_range(STAGES - 1):
        cp.async_load(ring.index(i), src + i * 128 + lanes, mask=i < tiles)
        cp.commit_group()
    for i in range(tiles):
        ahead = i + STAGES - 1
        if not LATE:
            cp.wait_group(PENDING)
        cp.async_load(ring.index(ahead % STAGES), src + ahead * 128 + lanes, mask=ahead < tiles)
        cp.commit_group()
        if LATE:
            cp.wait_group(PENDING)
        gl.store(dst + i * 128 + lanes, ring.index(i % STAGES).load(layout))


@pytest.mark.parametrize(
    "stages, pending, late, wanted",
    [
        (2, 1, True, "proved"),
        (3, 2, True, "proved"),
        (4, 3, True, "proved"),
        (3, 1, False, "proved"),
        (3, 3, True, "counterexample"),
        (3, 2, False, "counterexample"),
        (2, 2, True, "counterexample"),
    ],
)
def test_groups_of_copies(stages, pending, late, wanted):
    src, dst = np.ones(128 * 9, np.float32), np.zeros(128 * 9, np.float32)
    verdict, error = judged(grouped, (1,), src, dst, 5, stages, pending, late, target="sim:sm_80")
    assert verdict.verdict == wanted, verdict
    assert (error is None) == (wanted == "proved")
    assert error is None or type(error).__name__ in ("RaceError", "LeakError")


@gluon.jit
def dependent(src, dst, tiles, STAGES: gl.constexpr, PENDING: gl.constexpr):
    wait_for_predecessor()
    grouped(src, dst, tiles, STAGES, PENDING, True)


@pytest.mark.parametrize("pending, wanted", [(1, "proved"), (2, "counterexample")])
def test_a_wait_for_the_grid_before_changes_no_verdict(pending, wanted):
    src, dst = np.ones(128 * 9, np.float32), np.zeros(128 * 9, np.float32)
    verdict, _ = judged(dependent, (1,), src, dst, 5, 2, pending, target="sim:sm_90")
    assert verdict.verdict == wanted, verdict


# ---- a partition that stores ------------------------------------------------------------------------


@gluon.jit
def compute(
    src, out, full, empty, tiles, STAGES: gl.constexpr, FAULT: gl.constexpr, layout: gl.constexpr
):
    rows = gl.arange(0, 8, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))[None, :]
    for i in range(tiles):
        slot = i % STAGES
        mbarrier.wait(empty.index(slot), i // STAGES & 1 ^ 1)
        out.index(slot).store(gl.load(src + rows * 32 + columns))
        if FAULT != "no fence":
            fence_async_shared()
        mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
def put(dst, out, full, empty, tiles, STAGES: gl.constexpr, FAULT: gl.constexpr):
    for i in range(tiles):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), i // STAGES & 1)
        async_store(dst, [0, i * 32], out.index(slot))
        if FAULT == "freed too early":
            mbarrier.arrive(empty.index(slot), count=1)
        elif FAULT == "one store may be left":
            store_wait(1)
            mbarrier.arrive(empty.index(slot), count=1)
        elif FAULT == "the one before is free":
            store_wait(1)
            mbarrier.arrive(empty.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)
        else:
            store_wait(0)
            mbarrier.arrive(empty.index(slot), count=1)
    store_wait(0)


@gluon.jit
def stored(src, dst, tiles, STAGES: gl.constexpr, FAULT: gl.constexpr, layout: gl.constexpr):
    out = gl.allocate_shared_memory(dst.dtype, [STAGES] + dst.block_type.shape, dst.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [
            (compute, (src, out, full, empty, tiles, STAGES, FAULT, layout)),
            (put, (dst, out, full, empty, tiles, STAGES, FAULT)),
        ],
        [4],
        [24],
    )


@pytest.mark.parametrize(
    "fault, wanted",
    [
        ("none", "proved"),
        ("the one before is free", "proved"),
        ("no fence", "counterexample"),
        ("freed too early", "counterexample"),
        ("one store may be left", "counterexample"),
    ],
)
def test_a_partition_that_stores(fault, wanted):
    src, dst = np.ones((8, 32), np.float32), np.zeros((8, 32 * 9), np.float32)
    verdict, error = judged(
        stored, (1,), src, describe(dst), 5, 3, fault, LAYOUT, target="sim:sm_90"
    )
    assert verdict.verdict == wanted, verdict
    if fault == "no fence":
        assert "fence" in str(error)


# ---- products in flight ------------------------------------------------------------------------------


@gluon.jit
def multiplied(a, b, dst, tiles, STAGES: gl.constexpr, PENDING: gl.constexpr, FAULT: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    left = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_type.shape, a.layout)
    right = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    acc = gl.zeros([64, 64], gl.float32, layout)
    for i in range(tiles + STAGES - 2):
        slot = i % STAGES
        if i < tiles:
            mbarrier.expect(ready.index(slot), a.block_type.nbytes + b.block_type.nbytes)
            async_load(a, [0, i * 64], ready.index(slot), left.index(slot))
            async_load(b, [i * 64, 0], ready.index(slot), right.index(slot))
        past = i - (STAGES - 2)
        if past >= 0:
            mbarrier.wait(ready.index(past % STAGES), past // STAGES & 1)
            acc = warpgroup_mma(
                left.index(past % STAGES), right.index(past % STAGES), acc, is_async=True
            )
            acc = warpgroup_mma_wait(PENDING, deps=[acc])
            if FAULT == "read in flight":
                acc = acc * 2
    acc = warpgroup_mma_wait(0, deps=[acc])
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))[None, :]
    gl.store(dst + rows * 64 + columns, acc)


@pytest.mark.parametrize(
    "pending, fault, wanted",
    [
        (1, "none", "proved"),
        (0, "none", "proved"),
        (2, "none", "counterexample"),
        (1, "read in flight", "counterexample"),
        (0, "read in flight", "proved"),
    ],
)
def test_products_in_flight(pending, fault, wanted):
    a, b = np.ones((64, 64 * 6), np.float16), np.ones((64 * 6, 64), np.float16)
    layout = gl.NVMMASharedLayout(128, 16, 2)
    described = [TensorDescriptor.from_tensor(x, [64, 64], layout) for x in (a, b)]
    dst = np.zeros((64, 64), np.float32)
    verdict, error = judged(
        multiplied, (1,), *described, dst, 5, 3, pending, fault, target="sim:sm_90"
    )
    assert verdict.verdict == wanted, verdict
    assert error is None or type(error).__name__ == "RaceError", error


# ---- a copy that may be switched off -------------------------------------------------------------------


@gluon.jit
def switched(a, n, FAULT: gl.constexpr):
    layout: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0])
    descriptor = tdm.make_tensor_descriptor(a, [32, 64], [64, 1], [32, 64], layout)
    tile = gl.allocate_shared_memory(descriptor.dtype, [32, 64], layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], counters.MBarrierLayout())
    counters.init(bar, 4)
    tdm.async_load(descriptor, [0, 0], tile, pred=n > 1, mbarrier=bar)
    if FAULT or n > 1:
        counters.wait(bar, 0)


@pytest.mark.parametrize("fault, wanted", [(False, "proved"), (True, "counterexample")])
def test_a_copy_that_is_off_is_not_waited_for(fault, wanted):
    """With Triton 3.8 the descriptor says whether it is."""
    verdict, _ = judged(
        switched, (1,), np.ones((32, 64), np.float16), 5, fault, target="sim:gfx1250"
    )
    assert verdict.verdict == wanted, verdict
    assert "under way" not in " ".join(verdict.lines)


# ---- no round at all ------------------------------------------------------------------------------


@gluon.jit
def ahead(box, dst, tiles):
    """The first copy goes out even where there is no tile."""
    ring = gl.allocate_shared_memory(gl.float32, [2, 8, 32], gl.NVMMASharedLayout(128, 32, 2))
    bars = mbarrier.allocate_mbarrier(batch=2)
    for s in gl.static_range(2):
        mbarrier.init(bars.index(s), 1)
    mbarrier.expect(bars.index(0), 1024)
    async_load(box, [0, 0], bars.index(0), ring.index(0))
    total = gl.zeros([8, 32], gl.float32, LAYOUT)
    for i in range(tiles):
        late = (i + 1) % 2
        mbarrier.expect(bars.index(late), 1024, pred=i + 1 < tiles)
        async_load(box, [8 * i + 8, 0], bars.index(late), ring.index(late), pred=i + 1 < tiles)
        mbarrier.wait(bars.index(i % 2), (i // 2) & 1)
        total += ring.index(i % 2).load(LAYOUT)
    for s in gl.static_range(2):
        mbarrier.invalidate(bars.index(s))
    rows = gl.arange(0, 8, gl.SliceLayout(1, LAYOUT))[:, None]
    gl.store(dst + rows * 32 + gl.arange(0, 32, gl.SliceLayout(0, LAYOUT))[None, :], total)


def test_a_loop_without_a_round():
    x, dst = np.ones((24, 32), np.float32), np.zeros((8, 32), np.float32)
    verdict, error = judged(ahead, (1,), describe(x), dst, 3, target="sim:sm_90")
    assert verdict.verdict == "counterexample" and "tiles=0" in verdict.lines[0]
    assert type(error).__name__ == "BarrierError"


def test_a_launch_without_checks_does_not_race_with_the_runs_of_its_proof():
    x, dst = np.ones((24, 32), np.float32), np.zeros((8, 32), np.float32)

    def runs_longer(launch):
        values = [*launch.values[:-1], np.full(1, 3, np.int32)]
        launch.machine(settings=replace(launch.settings, races=True)).run(values)
        return Proved("cannot say", "ahead", 0, 0.0, ()), None

    with proving(runs_longer), using(prove="*", races=False):
        ahead[(1,)](describe(x), dst, 2, target="sim:sm_100")
    assert (dst == 2).all()
