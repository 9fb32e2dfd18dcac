"""Kernels with one seeded mistake each, which the simulator and the emulator both report; without it both are silent."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_emu.settings import using as emulated
from gluon_sim.settings import using as simulated

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::UserWarning")]
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
PAIRS = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
BYTES = gl.constexpr(64 * 64 * 2)
SCHEDULES = [("latest", 0), ("eager", 0), ("random", 0)]
rng = np.random.default_rng(7)


@gluon.jit
def within(p, LAYOUT: gl.constexpr):
    rows = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    return p + rows[:, None] * 64 + columns[None, :]


# -- one barrier for each slot, over tiles with an odd number of steps --------------------------------


@gluon.jit
def persistent(box, out, tiles, steps, SEED: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.float16, [2, 64, 64], TILE)
    bars = mbarrier.allocate_mbarrier(batch=2)
    for s in gl.static_range(2):
        mbarrier.init(bars.index(s), 1)
    count = 0
    for t in range(tiles):
        total = gl.zeros([64, 64], gl.float32, L)
        if SEED == "counts anew in each tile":
            count = 0
        for k in range(steps):
            slot = count % 2
            mbarrier.expect(bars.index(slot), BYTES)
            tma.async_load(box, [(t * steps + k) * 64, 0], bars.index(slot), ring.index(slot))
            if SEED == "parity of the count":
                mbarrier.wait(bars.index(slot), count & 1)
            elif SEED == "parity of the step":
                mbarrier.wait(bars.index(slot), (k // 2) & 1)
            else:
                mbarrier.wait(bars.index(slot), (count // 2) & 1)
            total += ring.index(slot).load(L).to(gl.float32)
            count += 1
        gl.store(within(out + t * 4096, L), total)


def of_persistent():
    x, out = rng.integers(0, 7, (576, 64)).astype(np.float16), np.zeros((3, 64, 64), np.float32)
    total = x.reshape(3, 3, 64, 64).astype(np.float32).sum(1)
    box = TensorDescriptor.from_tensor(x, [64, 64], TILE.value)
    return (box, out, 3, 3), lambda: (out == total).all()


# -- stores of a ring ---------------------------------------------------------------------------------


@gluon.jit
def stores(x, box, n, S: gl.constexpr, SEED: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.float16, [S, 64, 64], TILE)
    for i in range(n):
        values = gl.load(within(x + i * 4096, L))
        if SEED == "one more pending":
            tma.store_wait(S)
        elif SEED != "no wait":
            tma.store_wait(S - 1)
        ring.index(i % S).store(values + values)
        if SEED != "no fence":
            fence_async_shared()
        tma.async_store(box, [i * 64, 0], ring.index(i % S))
    if SEED != "no wait at the end":
        tma.store_wait(0)


def of_stores():
    x = rng.integers(0, 7, (384, 64)).astype(np.float16)
    out = np.zeros_like(x)
    box = TensorDescriptor.from_tensor(out, [64, 64], TILE.value)
    return (x, box, 6, 2), lambda: (out == 2 * x).all()


# -- groups of cp.async -------------------------------------------------------------------------------


@gluon.jit
def stages(x, out, n, S: gl.constexpr, SEED: gl.constexpr):
    o, r = gl.arange(0, 256, LINE), gl.arange(0, 256, PAIRS)
    ring = gl.allocate_shared_memory(gl.float32, [S, 256], FLAT)
    for i in gl.static_range(S - 1):
        cp.async_load(ring.index(i), x + i * 256 + o)
        if SEED != "one group for the prologue" or i == S - 2:
            cp.commit_group()
    total = gl.zeros([256], gl.float32, PAIRS)
    for i in range(n):
        cp.wait_group(S - 1 if SEED == "one more pending" else S - 2)
        k = i + S - 1
        slot = i % S if SEED == "into the slot of this step" else k % S
        cp.async_load(ring.index(slot), x + k * 256 + o, mask=(o < 256) & (k < n))
        if SEED == "groups of copies alone":
            if k < n:
                cp.commit_group()
        else:
            cp.commit_group()
        total += ring.index(i % S).load(PAIRS)
    cp.wait_group(0)
    gl.store(out + r, total)


def of_stages():
    x, out = rng.integers(0, 9, (7, 256)).astype(np.float32), np.zeros(256, np.float32)
    return (x, out, 7, 3), lambda: (out == x.sum(0)).all()


# -- programs that take turns -------------------------------------------------------------------------


@gluon.jit
def turns(x, turn, out, SEED: gl.constexpr):
    o, k = gl.arange(0, 256, LINE), gl.program_id(0)
    polls: gl.constexpr = "relaxed" if SEED == "polls relaxed" else "acquire"
    passes: gl.constexpr = "relaxed" if SEED == "passes on relaxed" else "release"
    if SEED == "polls by volatile loads":
        while gl.load(turn, volatile=True) != k:
            pass
    else:
        while gl.atomic_add(turn, 0, sem=polls) != k:
            pass
    gl.barrier()
    gl.store(out + o, gl.load(out + o) * 2 + gl.load(x + k * 256 + o))
    if SEED != "no barrier":
        gl.barrier()
    gl.atomic_xchg(turn, k + 1, sem=passes, scope="cta" if SEED == "of a block" else "gpu")


def of_turns():
    x, out = rng.integers(0, 9, (4, 256)).astype(np.float32), np.zeros(256, np.float32)
    total = ((x[0] * 2 + x[1]) * 2 + x[2]) * 2 + x[3]
    return (x, np.zeros(1, np.int32), out), lambda: (out == total).all()


# -- slots from one partition to another --------------------------------------------------------------


@gluon.jit
def makes(x, ring, full, empty, n, S: gl.constexpr, SEED: gl.constexpr):
    for i in range(n):
        s = i % S
        mbarrier.wait(empty.index(s), ((i // S) & 1) ^ (0 if SEED == "waits at the start" else 1))
        values = gl.load(x + i * 128 + gl.arange(0, 128, LINE))
        if SEED == "arrives before the store":
            mbarrier.arrive(full.index(s))
        ring.index(s).store(values * 2)
        if SEED != "arrives before the store":
            mbarrier.arrive(full.index(s), pred=(i + 1 < n) | (SEED != "forgets the last"))


@gluon.jit
def takes(out, ring, full, empty, n, S: gl.constexpr, SEED: gl.constexpr):
    for i in range(n):
        s = i % S
        mbarrier.wait(full.index(s), (i // S) & 1)
        values = ring.index((i + 1) % S if SEED == "next slot" else s).load(LINE) + 1
        mbarrier.arrive(empty.index((i + 1) % S if SEED == "frees the next slot" else s))
        gl.store(out + i * 128 + gl.arange(0, 128, LINE), values)


@gluon.jit
def handed(x, out, n, S: gl.constexpr, SEED: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.float32, [S, 128], FLAT)
    full = mbarrier.allocate_mbarrier(batch=S)
    empty = mbarrier.allocate_mbarrier(batch=S)
    for s in gl.static_range(S):
        mbarrier.init(full.index(s), 2 if SEED == "count of two" else 1)
        mbarrier.init(empty.index(s), 1)
    roles: gl.constexpr = (takes, makes)
    gl.warp_specialize(
        [
            (roles[0], (out, ring, full, empty, n, S, SEED)),
            (roles[1], (x, ring, full, empty, n, S, SEED)),
        ],
        [4],
        [48],
    )


def of_handed():
    x = rng.integers(0, 9, (7, 128)).astype(np.float32)
    out = np.zeros_like(x)
    return (x, out, 7, 2), lambda: (out == 2 * x + 1).all()


CASES = {
    persistent: (of_persistent, "sm_90", 1, ["counts anew in each tile", "parity of the count", "parity of the step"]),
    stores: (of_stores, "sm_90", 1, ["one more pending", "no wait", "no fence", "no wait at the end"]),
    stages: (of_stages, "sm_80", 1, ["one group for the prologue", "one more pending", "into the slot of this step", "groups of copies alone"]),
    turns: (of_turns, "sm_90", 4, ["polls relaxed", "passes on relaxed", "polls by volatile loads", "no barrier", "of a block"]),
    handed: (of_handed, "sm_90", 1, ["waits at the start", "arrives before the store", "forgets the last", "next slot", "frees the next slot", "count of two"]),
}  # fmt: skip
SEEDS = [(kernel, seed) for kernel, case in CASES.items() for seed in case[3]]
IMPLIED = {"no fence": (3, 7), "no barrier": (3, 9)}  # by compilers from these releases on


def launched(kernel, seed, side, schedule):
    arguments, arch, programs, _ = CASES[kernel]
    values, right = arguments()
    order = {"schedule": schedule[0], "seed": schedule[1], "checks": True, "timeout": 60.0}
    using = simulated if side == "sim" else emulated
    more = {"tolerated": "error"} if side == "sim" else {"search": True}
    with using(**order, **more):
        kernel[(programs,)](*values, seed, target=f"{side}:{arch}")
    assert right()


@pytest.mark.parametrize("side", ["sim", "emu"])
@pytest.mark.parametrize("kernel", CASES)
@pytest.mark.sampled(6)
def test_right_kernels_are_right(kernel, side):
    for schedule in SCHEDULES:
        launched(kernel, "", side, schedule)


@pytest.mark.parametrize("side", ["sim", "emu"])
@pytest.mark.parametrize("kernel, seed", SEEDS, ids=[seed for _, seed in SEEDS])
@pytest.mark.sampled(6)
def test_each_mistake_is_reported(kernel, seed, side):
    if seed in IMPLIED and gluon.testing.triton_at_least(*IMPLIED[seed]):
        pytest.skip("this compiler inserts it")
    with pytest.raises(GluonError) as caught:
        for schedule in SCHEDULES:
            launched(kernel, seed, side, schedule)
    assert type(caught.value).__name__.removesuffix("Error") in (
        "Race", "Barrier", "Deadlock", "Leak", "MissingWait", "Order", "Emulator", "Uninitialised"
    )  # fmt: skip
