"""Kernels with one seeded mistake of synchronization each, and the same kernels in unusual forms that are right."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_sim.errors import SimulatorError
from gluon_sim.settings import using

pytestmark = pytest.mark.once
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
ONE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
BYTES = gl.constexpr(64 * 64 * 2)
SCHEDULES = [("latest", 0), ("eager", 0), ("random", 1)]


@gluon.jit
def at(p, LAYOUT: gl.constexpr):
    rows = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    return p + rows[:, None] * 64 + columns[None, :]


# -- a ring of slots with two consumers, which each sum all tiles ------------------------------------


@gluon.jit
def fills(box, ring, full, empty, n, S: gl.constexpr, SEED: gl.constexpr):
    for i in range(n):
        slot = i % S
        into: gl.constexpr = 1 if SEED == "next slot" else 0
        wrong: gl.constexpr = 0 if SEED == "phase of empty" else 1
        mbarrier.wait(empty.index(slot), ((i // S) & 1) ^ wrong)
        if SEED != "late expect":
            mbarrier.expect(full.index(slot), BYTES // 2 if SEED == "half the bytes" else BYTES)
        tma.async_load(box, [i * 64, 0], full.index(slot), ring.index((i + into) % S))
        if SEED == "late expect":
            mbarrier.expect(full.index(slot), BYTES)


@gluon.jit
def sums(ring, full, empty, out, n, S: gl.constexpr, SEED: gl.constexpr):
    total = gl.zeros([64, 64], gl.float32, L)
    for i in range(n):
        slot = i % S
        if SEED == "one phase":
            mbarrier.wait(full.index(slot), 0)
        elif SEED == "first round alone":
            mbarrier.wait(full.index(slot), (i // S) & 1, pred=i < S)
        elif SEED != "no wait":
            mbarrier.wait(full.index(slot), (i // S) & 1)
        if SEED == "early release":
            mbarrier.arrive(empty.index(slot))
        total += ring.index((i + 1) % S if SEED == "other slot" else slot).load(L).to(gl.float32)
        if SEED == "wait again":
            mbarrier.wait(full.index(slot), (i // S) & 1)
        if SEED != "early release":
            mbarrier.arrive(empty.index(slot))
    gl.store(at(out, L), total)


@gluon.jit
def two_consumers(box, out, n, S: gl.constexpr, SEED: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.float16, [S, 64, 64], TILE)
    full = mbarrier.allocate_mbarrier(batch=S)
    empty = mbarrier.allocate_mbarrier(batch=S)
    count: gl.constexpr = 1 if SEED == "count of one" else 3 if SEED == "count of three" else 2
    for i in gl.static_range(S):
        mbarrier.init(full.index(i), 1)
        mbarrier.init(empty.index(i), count)
    gl.warp_specialize(
        [
            (sums, (ring, full, empty, out, n, S, "")),
            (sums, (ring, full, empty, out + 4096, n, S, SEED)),
            (fills, (box, ring, full, empty, n, S, SEED)),
        ],
        [4, 1],
        [64, 24],
    )


def of_two_consumers():
    x = (np.arange(7 * 4096) % 13).astype(np.float16).reshape(7 * 64, 64)
    out = np.zeros((2, 64, 64), np.float32)
    total = x.reshape(7, 64, 64).astype(np.float32).sum(0)
    box = TensorDescriptor.from_tensor(x, [64, 64], TILE.value)
    return (box, out, 7, 3), lambda: (out == total).all()


# -- products of a ring, whose slots are released one step later --------------------------------------


@gluon.jit
def loads(a, b, x, y, full, empty, n, S: gl.constexpr):
    for i in range(n):
        slot = i % S
        mbarrier.wait(empty.index(slot), ((i // S) & 1) ^ 1)
        mbarrier.expect(full.index(slot), 2 * BYTES)
        tma.async_load(a, [0, i * 64], full.index(slot), x.index(slot))
        tma.async_load(b, [i * 64, 0], full.index(slot), y.index(slot))


@gluon.jit
def multiplies(x, y, full, empty, out, n, S: gl.constexpr, SEED: gl.constexpr):
    acc = gl.zeros([64, 64], gl.float32, ACC)
    for i in range(n):
        mbarrier.wait(full.index(i % S), (i // S) & 1)
        acc = warpgroup_mma(x.index(i % S), y.index(i % S), acc, is_async=True)
        before = i % S if SEED == "this slot" else (i + S - 1) % S
        if SEED == "release before the wait":
            mbarrier.arrive(empty.index(before), pred=i > 0)
        acc = warpgroup_mma_wait(2 if SEED == "two pending" else 1, deps=(acc,))
        if SEED == "this slot":
            mbarrier.arrive(empty.index(before))
        elif SEED != "release before the wait":
            mbarrier.arrive(empty.index(before), pred=i > 0)
    if SEED == "one pending at the end":
        acc = warpgroup_mma_wait(1, deps=(acc,))
        gl.store(at(out, ACC), acc)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    gl.store(at(out, ACC), acc)


@gluon.jit
def product(a, b, out, n, S: gl.constexpr, SEED: gl.constexpr):
    x = gl.allocate_shared_memory(gl.float16, [S, 64, 64], TILE)
    y = gl.allocate_shared_memory(gl.float16, [S, 64, 64], TILE)
    full = mbarrier.allocate_mbarrier(batch=S)
    empty = mbarrier.allocate_mbarrier(batch=S)
    for i in gl.static_range(S):
        mbarrier.init(full.index(i), 1)
        mbarrier.init(empty.index(i), 1)
    gl.warp_specialize(
        [
            (multiplies, (x, y, full, empty, out, n, S, SEED)),
            (loads, (a, b, x, y, full, empty, n, S)),
        ],
        [1],
        [24],
    )


def of_product():
    a = (np.arange(64 * 512) % 5).astype(np.float16).reshape(64, 512)
    b = (np.arange(512 * 64) % 7).astype(np.float16).reshape(512, 64)
    out, right = np.zeros((64, 64), np.float32), a.astype(np.float32) @ b.astype(np.float32)
    boxes = (TensorDescriptor.from_tensor(one, [64, 64], TILE.value) for one in (a, b))
    return (*boxes, out, 8, 3), lambda: np.allclose(out, right)


# -- stores by TMA from two buffers -----------------------------------------------------------------


@gluon.jit
def stored(box, a, n, SEED: gl.constexpr):
    tiles = gl.allocate_shared_memory(gl.float16, [2, 64, 64], TILE)
    for i in range(n):
        x = gl.load(at(a + i * 4096, L))
        if SEED != "wait behind the store":
            tma.store_wait(2 if SEED == "two pending" else 1)
        mine = 0 if SEED == "one buffer" else i % 2
        tiles.index(mine).store(x)
        if SEED == "wait behind the store":
            tma.store_wait(1)
        if SEED != "no fence":
            fence_async_shared()
        tma.async_store(box, [i * 64, 0], tiles.index(1 - mine if SEED == "other buffer" else mine))
    if SEED != "no wait at the end":
        tma.store_wait(0)


def of_stored():
    a, out = (np.arange(5 * 4096) % 31).astype(np.float16), np.zeros((5 * 64, 64), np.float16)
    box = TensorDescriptor.from_tensor(out, [64, 64], TILE.value)
    return (box, a, 5), lambda: (out.ravel() == a).all()


# -- numbers of tiles through shared memory ------------------------------------------------------------


@gluon.jit
def schedules(numbers, full, empty, counter, n, SEED: gl.constexpr):
    tile = 0
    i = 0
    while tile < n:
        mbarrier.wait(empty.index(i % 2), ((i // 2) & 1) ^ 1)
        tile = gl.atomic_add(counter, 1, sem="relaxed")
        if SEED == "arrival before the number":
            mbarrier.arrive(full.index(i % 2))
        numbers.index(i % 2).store(gl.full([1], 0, gl.int32, LINE) + tile)
        if SEED != "arrival before the number":
            mbarrier.arrive(full.index(i % 2))
        i += 1


@gluon.jit
def works(numbers, full, empty, x, n, SEED: gl.constexpr):
    o = gl.arange(0, 128, LINE)
    i = 0
    tile = 0
    while tile < n:
        mbarrier.wait(full.index(i % 2), (i // 2) & 1)
        if SEED == "release before the load":
            mbarrier.arrive(empty.index(i % 2))
        tile = gl.max(numbers.index(i % 2).load(LINE), 0)
        if SEED != "release before the load":
            mbarrier.arrive(empty.index(i % 2))
        here = x + tile * 128 + o
        gl.store(here, gl.load(here, mask=(tile < n) & (o >= 0)) + 1, mask=(tile < n) & (o >= 0))
        i += 1


@gluon.jit
def dynamic(counter, x, n, SEED: gl.constexpr):
    numbers = gl.allocate_shared_memory(gl.int32, [2, 1], ONE)
    full = mbarrier.allocate_mbarrier(batch=2)
    empty = mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), 1)
        mbarrier.init(empty.index(i), 1)
    gl.warp_specialize(
        [
            (works, (numbers, full, empty, x, n, SEED)),
            (schedules, (numbers, full, empty, counter, n, SEED)),
        ],
        [4],
        [32],
    )


def of_dynamic():
    x = np.arange(6 * 128, dtype=np.int32)
    return (np.zeros(1, np.int32), x, 6), lambda: (x == np.arange(1, 6 * 128 + 1)).all()


# -- a barrier for one copy after the other ------------------------------------------------------------


@gluon.jit
def again(box, out, SEED: gl.constexpr):
    tiles = gl.allocate_shared_memory(gl.float16, [2, 64, 64], TILE)
    bar = mbarrier.allocate_mbarrier()
    for i in gl.static_range(2):
        mbarrier.init(bar, 1)
        mbarrier.expect(bar, BYTES)
        tma.async_load(box, [64 * i, 0], bar, tiles.index(i))
        if SEED != "invalidated before its copy came" or i == 1:
            mbarrier.wait(bar, 0)
        if SEED != "initialized while in use":
            mbarrier.invalidate(bar)
    gl.store(at(out, L), tiles.index(0).load(L) + tiles.index(1).load(L))


def of_again():
    out = np.zeros(4096, np.float16)
    box = TensorDescriptor.from_tensor(np.ones((128, 64), np.float16), [64, 64], TILE.value)
    return (box, out), lambda: (out == 2).all()


# -- sums by TMA of all programs, which the last one reads ---------------------------------------------


@gluon.jit
def reduced(box, acc, ticket, out, n, SEED: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    tile.store(gl.full([64, 64], 1, gl.float16, L))
    fence_async_shared()
    tma.async_atomic_add(box, [0, 0], tile)
    tma.store_wait(0, read_only=SEED == "read alone")
    gl.barrier()
    sem: gl.constexpr = "relaxed" if SEED == "relaxed ticket" else "acq_rel"
    if gl.atomic_add(ticket, 1, sem=sem) == n - 1:
        gl.store(at(out, L), gl.load(at(acc, L)))


def of_reduced():
    acc, out = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    box = TensorDescriptor.from_tensor(acc, [64, 64], TILE.value)
    return (box, acc, np.zeros(1, np.int32), out, 3), lambda: (out == 3).all()


CASES = {
    two_consumers: (of_two_consumers, 1, ("", "late expect", "wait again"), {
        "phase of empty": "deadlock", "half the bytes": "barrier", "next slot": "race", "one phase": "barrier",
        "first round alone": "barrier", "no wait": "uninitialised", "early release": "race", "other slot": "race",
        "count of one": "deadlock", "count of three": "deadlock",
    }),
    product: (of_product, 1, ("",), {
        "this slot": "race", "two pending": "race", "release before the wait": "race",
        "one pending at the end": "race",
    }),
    stored: (of_stored, 1, ("",), {
        "two pending": "race", "wait behind the store": "race", "one buffer": "race", "other buffer": "race",
        "no fence": "race", "no wait at the end": "leak",
    }),
    dynamic: (of_dynamic, 1, ("",), {"arrival before the number": "race", "release before the load": "race"}),
    again: (of_again, 1, ("",), {"invalidated before its copy came": "barrier", "initialized while in use": "barrier"}),
    reduced: (of_reduced, 3, ("",), {"read alone": "race", "relaxed ticket": "race"}),
}  # fmt: skip
RIGHT = [(kernel, form) for kernel, case in CASES.items() for form in case[2]]
SEEDED = [(kernel, seed) for kernel, case in CASES.items() for seed in case[3]]


def named(value):
    return value or "as it is" if isinstance(value, str) else value.fn.__name__


def run(kernel, seed, schedule):
    make, grid, _, _ = CASES[kernel]
    arguments, right = make()
    with using(schedule=schedule[0], seed=schedule[1], tolerated="error", timeout=60):
        kernel[(grid,)](*arguments, seed, target="sim:sm_90")
    assert right()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kernel", "form"), RIGHT, ids=named)
def test_right_forms_are_not_reported(kernel, form):
    for schedule in SCHEDULES:
        run(kernel, form, schedule)


@pytest.mark.usefixtures("no_implied_fences")
@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("default::gluon_core.errors.KernelWarning")
@pytest.mark.parametrize(("kernel", "seed"), SEEDED, ids=named)
def test_a_seeded_mistake_is_reported_at_a_line_of_the_kernel(kernel, seed):
    kind = CASES[kernel][3][seed]
    with pytest.raises(SimulatorError) as error:
        run(kernel, seed, SCHEDULES[0])
    assert error.value.report.partition(".")[0] == kind, error.value
    assert error.value.span is not None and error.value.span.file == __file__
