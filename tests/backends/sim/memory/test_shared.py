"""Shared memory: bytes under layouts, so that views alias as on the hardware; partitions and barriers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import LimitError, ShapeError
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_core.layouts import PaddedSharedLayout, SharedLinearLayout, SwizzledSharedLayout
from gluon_core.testing import triton_at_least
from gluon_sim.errors import DeadlockError, SimulatorError
from gluon_sim.memory.shared import offsets_of

rng = np.random.default_rng(13)
L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
L2 = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))


@gluon.jit
def places(M: gl.constexpr, N: gl.constexpr):
    r = gl.arange(0, M, layout=gl.SliceLayout(1, L2))
    c = gl.arange(0, N, layout=gl.SliceLayout(0, L2))
    return r[:, None] * N + c[None, :]


# ---- offsets --------------------------------------------------------------------------------


def test_offsets_of_a_swizzled_buffer_follow_the_definition():
    vec, per_phase, max_phase = 4, 2, 4
    table = offsets_of(SwizzledSharedLayout(vec, per_phase, max_phase, [1, 0]), (32, 64))
    for r in range(32):
        for c in range(64):
            phase = (r // per_phase) % max_phase
            assert table[r, c] == r * 64 + ((c // vec) ^ phase) * vec + c % vec


def test_offsets_of_padded_stacked_and_transposed_buffers():
    padded = PaddedSharedLayout.with_identity_for([[32, 4]], [8, 32], [1, 0])
    np.testing.assert_array_equal(
        offsets_of(padded, (8, 32)), np.arange(8)[:, None] * 36 + np.arange(32)
    )
    plain = SwizzledSharedLayout(1, 1, 1, [0, 1])
    np.testing.assert_array_equal(
        offsets_of(plain, (3, 8, 16)),
        np.arange(3)[:, None, None] * 128 + np.arange(8)[:, None] + np.arange(16) * 8,
    )
    linear = SharedLinearLayout([[0, 1], [1, 0], [0, 2], [2, 2]])
    table = offsets_of(linear, (4, 4))
    assert sorted(table.ravel()) == list(range(16))
    assert table[2, 2] == 8 and table[2, 0] == 12
    # Where two places hold one element, the first counts.
    repeated = SharedLinearLayout([[0, 1], [0, 0], [1, 0]])
    assert offsets_of(repeated, (2, 2)).tolist() == [[0, 1], [4, 5]]


# ---- buffers and views ------------------------------------------------------------------------

LAYOUTS = [
    gl.SwizzledSharedLayout(1, 1, 1, [1, 0]),
    gl.SwizzledSharedLayout(8, 1, 8, [1, 0]),
    gl.SwizzledSharedLayout(4, 2, 4, [0, 1]),
    gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0]),
]


@gluon.jit
def through(a, out, SHARED: gl.constexpr, M: gl.constexpr, N: gl.constexpr):
    o = gl.program_id(0) * M * N + places(M, N)
    s = gl.allocate_shared_memory(a.dtype.element_ty, [M, N], SHARED)
    s.store(gl.load(a + o))
    y = s.permute((1, 0)).load(L2)
    gl.store(out + gl.program_id(0) * M * N + places(N, M), y)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.float64])
def test_a_round_trip_through_every_layout_transposes(layout, dtype):
    a = rng.integers(-99, 99, (3, 32, 64)).astype(dtype)
    out = np.zeros((3, 64, 32), dtype)
    through[(3,)](a, out, layout, 32, 64)
    np.testing.assert_array_equal(out, a.transpose(0, 2, 1))


@gluon.jit
def stages(a, out, n, M: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr):
    shared: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 4, [1, 0])
    s = gl.allocate_shared_memory(gl.int32, [STAGES, M, N], shared)
    pid = gl.program_id(0)
    for i in range(n):
        # Programs take the buffers in different orders.
        s.index((i + pid) % STAGES).store(gl.load(a + places(M, N)) + i)
    for i in range(STAGES):
        gl.store(out + (pid * STAGES + i) * M * N + places(M, N), s.index(i).load(L2))


def test_buffers_are_picked_by_a_runtime_index_that_differs_between_programs():
    a = rng.integers(0, 999, (16, 32)).astype(np.int32)
    out = np.zeros((4, 3, 16, 32), np.int32)
    stages[(4,)](a, out, 7, 16, 32, 3)
    for pid in range(4):
        wanted = {}
        for i in range(7):
            wanted[(i + pid) % 3] = a + i
        for i in range(3):
            np.testing.assert_array_equal(out[pid, i], wanted[i])


@gluon.jit
def bad_index(out, i, N: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [2, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.store(out + gl.arange(0, N, layout=L1), s.index(i).load(L1))


def test_an_index_outside_the_buffers_is_an_error():
    with pytest.raises(SimulatorError, match="expected 0 to 1, got 2") as caught:
        bad_index[(1,)](np.zeros(32, np.int32), 2, 32)
    assert "s.index(i)" in str(caught.value)


@gluon.jit
def slices(a, out, M: gl.constexpr, N: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [M, N], gl.SwizzledSharedLayout(4, 1, 4, [1, 0]))
    x = gl.load(a + places(M, N))
    s.store(x)
    half: gl.constexpr = N // 2
    left = s.slice(0, half, dim=1).load(L2)
    s.slice(half, half, dim=1).store(left * 2)
    gl.store(out + places(M, N), s.load(L2))


def test_slices_alias_the_buffer_they_come_from():
    a = rng.integers(0, 999, (16, 32)).astype(np.int32)
    out = np.zeros_like(a)
    slices[(1,)](a, out, 16, 32)
    np.testing.assert_array_equal(out, np.concatenate([a[:, :16], a[:, :16] * 2], 1))


@gluon.jit
def reinterprets(a, out, M: gl.constexpr, N: gl.constexpr):
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    s = gl.allocate_shared_memory(gl.float32, [M, N], plain)
    s.store(gl.load(a + places(M, N)))
    t = s._reinterpret(gl.int16, [M, 2 * N], plain)
    gl.store(out + places(M, 2 * N), t.load(L2))


def test_reinterpreted_bytes_are_the_same_bytes():
    a = rng.standard_normal((8, 32)).astype(np.float32)
    out = np.zeros((8, 64), np.int16)
    reinterprets[(1,)](a, out, 8, 32)
    np.testing.assert_array_equal(out, a.view(np.int16))


@gluon.jit
def parts_of_a_reserve(a, out, BYTES: gl.constexpr):
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    reserve = gl.allocate_shared_memory(gl.int8, [BYTES], flat)
    rows = reserve._reinterpret(gl.int32, [3, 32], flat)
    columns = gl.arange(0, 32, L1)
    for i in range(3):
        rows.index(i).store(gl.load(a + i * 32 + columns))
    back = reserve._reinterpret(gl.int16, [64], flat).load(L1)
    gl.store(out + gl.arange(0, 64, L1), back)


def test_a_buffer_of_any_size_is_used_through_views_that_it_holds():
    a, out = np.arange(96, dtype=np.int32) << 8, np.zeros(64, np.int16)
    if not triton_at_least(3, 8):
        parts_of_a_reserve[(1,)](a, out, 384)
        np.testing.assert_array_equal(out, a.view(np.int16)[:64])
        with pytest.raises(SimulatorError, match="(?s)at most 368 bytes, got 384.*rows = reserve"):
            parts_of_a_reserve[(1,)](a, out, 368)
    else:  # 3.8 takes memory for such a buffer, and aborts at any view; 3.9 makes none
        message = r"takes up memory.*Allocate 512\.(?s:.*)rows = reserve"
        if triton_at_least(3, 9):
            message = r"Round up to 512(?s:.*)reserve = gl.allocate"
        with pytest.raises(ShapeError, match=message):
            parts_of_a_reserve[(1,)](a, out, 384)


@gluon.jit
def reads_freed(out, N: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    s._keep_alive()
    gl.store(out + gl.arange(0, N, layout=L1), s.load(L1))


@pytest.mark.skipif(not triton_at_least(3, 7), reason="gather on shared memory came with 3.7")
def test_gather_and_scatter_on_shared_memory():
    a = rng.integers(0, 999, (16, 32)).astype(np.int32)
    index = np.stack([rng.permutation(32) for _ in range(16)]).astype(np.int32)
    out = np.zeros((2, 16, 32), np.int32)
    picks[(1,)](a, index, out, 16, 32)
    np.testing.assert_array_equal(out[0], np.take_along_axis(a, index, 1))
    scattered = np.zeros_like(a)
    np.put_along_axis(scattered, index, a, 1)
    np.testing.assert_array_equal(out[1], scattered)


@gluon.jit
def picks(a, index, out, M: gl.constexpr, N: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [M, N], gl.SwizzledSharedLayout(4, 1, 4, [1, 0]))
    x, i = gl.load(a + places(M, N)), gl.load(index + places(M, N))
    s.store(x)
    gl.store(out + places(M, N), s.gather(i, 1))
    s.scatter(x, i, 1)
    gl.store(out + M * N + places(M, N), s.load(L2))


@gluon.jit
def bins(a, out, N: gl.constexpr, BINS: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [BINS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    s.store(gl.zeros((BINS,), gl.int32, L1))
    x = gl.load(a + gl.program_id(0) * N + gl.arange(0, N, layout=L1))
    s.atomic_scatter_add(gl.full((N,), 1, gl.int32, L1), x, 0)
    gl.store(out + gl.program_id(0) * BINS + gl.arange(0, BINS, layout=L1), s.load(L1))


@pytest.mark.skipif(not triton_at_least(3, 8), reason="atomics on shared memory came with 3.8")
def test_atomic_scatter_counts():
    a = rng.integers(0, 32, (2, 256)).astype(np.int32)
    out = np.zeros((2, 32), np.int32)
    bins[(2,)](a, out, 256, 32)
    np.testing.assert_array_equal(out, [np.bincount(row, minlength=32) for row in a])


@gluon.jit
def divided(a, out, N: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    o = gl.arange(0, N, layout=L1)
    x = gl.load(a + gl.program_id(0))
    s.store(o)
    if x > 0:
        s.store(s.load(L1) + x)
    else:
        for i in range(-x):
            s.store(s.load(L1) * 2)
    gl.store(out + gl.program_id(0) * N + o, s.load(L1))


def test_programs_that_part_ways_keep_their_own_buffers():
    a = np.array([3, -2, 0, 5, -1, -4], np.int32)
    out = np.zeros((6, 32), np.int32)
    divided[(6,)](a, out, 32)
    o = np.arange(32)
    np.testing.assert_array_equal(out, [o + x if x > 0 else o * 2**-x for x in a.tolist()])


@gluon.jit
def swapped(a, out, n, N: gl.constexpr):
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    o = gl.arange(0, N, layout=L1)
    front = gl.allocate_shared_memory(gl.int32, [N], plain)
    back = gl.allocate_shared_memory(gl.int32, [N], plain)
    front.store(o)
    back.store(-o)
    for _ in range(gl.load(a + gl.program_id(0))):
        spare = front
        front = back
        back = spare
    gl.store(out + gl.program_id(0) * N + o, front.load(L1))


def test_buffers_swapped_in_a_loop_that_differs_by_program():
    a, out = np.array([0, 1, 2, 3], np.int32), np.zeros((4, 32), np.int32)
    swapped[(4,)](a, out, 0, 32)
    np.testing.assert_array_equal(out, [np.arange(32) * (-1) ** i for i in range(4)])


@gluon.jit
def in_turn(a, out, COUNT: gl.constexpr, TOGETHER: gl.constexpr):
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    x = gl.load(a + places(64, 256))
    for _ in gl.static_range(COUNT):
        first = gl.allocate_shared_memory(gl.float32, [64, 256], plain, x)
        if not TOGETHER:
            x = first.load(L2) + 1
    for _ in gl.static_range(TOGETHER):
        second = gl.allocate_shared_memory(gl.float32, [64, 256], plain, x)
        x = first.load(L2) + second.load(L2)
    gl.store(out + places(64, 256), x)


def test_buffers_that_do_not_fit_together_are_refused_and_those_in_turn_are_not(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
    a, out = np.zeros((2, 64, 256), np.float32)  # 64 KiB each; an sm_80 has 163 KiB
    compiled = in_turn[(1,)](a, out, 6, False)
    assert (out == 6).all() and compiled.metadata.shared == 64 << 10
    assert in_turn[(1,)](a, out, 1, True).metadata.shared == 128 << 10
    with pytest.raises(LimitError, match="too much shared memory.*at most 16"):
        all_at_once[(1,)](a, out, target="sim:sm_80")


@gluon.jit
def all_at_once(a, out):
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    x = gl.load(a + places(64, 256))
    first = gl.allocate_shared_memory(gl.float32, [64, 256], plain, x)
    second = gl.allocate_shared_memory(gl.float32, [64, 256], plain, x)
    third = gl.allocate_shared_memory(gl.float32, [64, 256], plain, x)
    gl.store(out + places(64, 256), first.load(L2) + second.load(L2) + third.load(L2))


# ---- partitions ------------------------------------------------------------------------------


@gluon.jit
def default_part(out, ready, done, s, N: gl.constexpr):
    mbarrier.wait(ready, 0)
    x = s.load(L1)
    gl.store(out + gl.program_id(0) * N + gl.arange(0, N, layout=L1), x)
    mbarrier.arrive(done)


@gluon.jit
def producer_part(a, ready, s, N: gl.constexpr):
    o = gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [4], [0]))
    s.store(gl.load(a + gl.program_id(0) * N + o) * 10)
    mbarrier.arrive(ready)


@gluon.jit
def after_part(out, done, N: gl.constexpr):
    gl.nvidia.ampere.mbarrier.wait(done, 0)
    o = gl.program_id(0) * N + gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(out + o, gl.load(out + o) + 1)


@gluon.jit
def specialized(a, out, N: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready, done = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(ready, 1)
    mbarrier.init(done, 1)
    gl.warp_specialize(
        [
            (default_part, (out, ready, done, s, N)),
            (producer_part, (a, ready, s, N)),
            (after_part, (out, done, N)),
        ],
        [4, 4],
        [64, 64],
    )


def test_partitions_hand_work_over_through_barriers():
    a = rng.integers(0, 99, (5, 64)).astype(np.int32)
    out = np.zeros_like(a)
    specialized[(5,)](a, out, 64, target="sim:sm_90")
    np.testing.assert_array_equal(out, a * 10 + 1)


@gluon.jit
def waits_part(bar, phase):
    gl.nvidia.ampere.mbarrier.wait(bar, phase)


@gluon.jit
def stuck(out):
    first, second = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(first, 1)
    mbarrier.init(second, 2)
    gl.warp_specialize([(waits_part, (first, 0)), (waits_part, (second, 0))], [4], [64])


def test_a_deadlock_lists_the_waiting_tasks():
    with pytest.raises(DeadlockError) as caught:
        stuck[(1,)](np.zeros(1, np.int32), target="sim:sm_90")
    text = str(caught.value)
    head, *rows = [line.strip() for line in text.splitlines()[1:4]]
    assert head.split() == ["who", "line", "waits", "for", "missing", "so", "far"]
    assert re.match(r"the kernel +\d+ +phase 0 of the barrier", rows[0])
    assert re.match(r"partition 1 of the kernel +\d+ +phase 0 of the barrier", rows[1])
    assert head.index("waits for") == rows[0].index("phase 0") == rows[1].index("phase 0")
    assert "1 arrivals" in text and "2 arrivals" in text


@gluon.jit
def uninitialized(out):
    bar = gl.nvidia.ampere.mbarrier.allocate_mbarrier()
    gl.nvidia.ampere.mbarrier.arrive(bar)


def test_a_barrier_must_be_initialized_and_counts_its_arrivals():
    with pytest.raises(SimulatorError, match="not initialized") as caught:
        uninitialized[(1,)](np.zeros(1, np.int32))
    assert "mbarrier.arrive(bar)" in str(caught.value)


@gluon.jit
def phases(out, N: gl.constexpr):
    bars = mbarrier.allocate_mbarrier(batch=2)
    mbarrier.init(bars.index(0), 2)
    mbarrier.init(bars.index(1), 1)
    count = 0
    for i in range(N):
        mbarrier.arrive(bars.index(0))
        mbarrier.arrive(bars.index(0), pred=i % 2 == 0)
        if i % 2 == 1:
            mbarrier.arrive(bars.index(0))
        mbarrier.wait(bars.index(0), i & 1)
        count += 1
    mbarrier.invalidate(bars.index(0))
    gl.store(out, count)


def test_phases_alternate_and_predicates_count():
    out = np.zeros(1, np.int32)
    phases[(1,)](out, 6)
    assert out[0] == 6


@gluon.jit
def ring_consumer(x, ring, full, empty, n, N: gl.constexpr, STAGES: gl.constexpr):
    acc = gl.zeros((N,), gl.int32, L1)
    for i in range(n):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), (i // STAGES) & 1)
        acc += ring.index(slot).load(L1)
        mbarrier.arrive(empty.index(slot))
    return acc, n


@gluon.jit
def ring_producer(x, ring, full, empty, n, N: gl.constexpr, STAGES: gl.constexpr):
    o = gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [1], [0]))
    for i in range(n):
        slot = i % STAGES
        mbarrier.wait(empty.index(slot), ((i // STAGES) & 1) ^ 1)
        ring.index(slot).store(gl.load(x + i * N + o))
        mbarrier.arrive(full.index(slot))


@gluon.jit
def ring_kernel(x, out, counts, N: gl.constexpr, STAGES: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.int32, [STAGES, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full, empty = mbarrier.allocate_mbarrier(batch=STAGES), mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), 1)
        mbarrier.init(empty.index(i), 1)
    n = gl.load(counts + gl.program_id(0))
    acc, total = gl.warp_specialize(
        [
            (ring_consumer, (x, ring, full, empty, n, N, STAGES)),
            (ring_producer, (x, ring, full, empty, n, N, STAGES)),
        ],
        [1],
        [24],
    )
    gl.store(out + gl.program_id(0) * N + gl.arange(0, N, layout=L1), acc + total)


def test_a_ring_of_buffers_between_partitions_whose_trip_counts_differ_by_program():
    x = rng.integers(0, 99, (9, 32)).astype(np.int32)
    counts = np.array([9, 0, 3, 5, 1], np.int32)
    out = np.zeros((5, 32), np.int32)
    ring_kernel[(5,)](x, out, counts, 32, 2, target="sim:sm_90")
    np.testing.assert_array_equal(out, [x[:n].sum(0) + n for n in counts])


@gluon.jit
def lost_arrival(x, ring, full, empty, n, N: gl.constexpr, STAGES: gl.constexpr):
    mbarrier.wait(empty.index(0), 1)


@gluon.jit
def broken_ring(x, out, N: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.int32, [2, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full, empty = mbarrier.allocate_mbarrier(batch=2), mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), 1)
        mbarrier.init(empty.index(i), 1)
    acc, total = gl.warp_specialize(
        [
            (ring_consumer, (x, ring, full, empty, 3, N, 2)),
            (lost_arrival, (x, ring, full, empty, 3, N, 2)),
        ],
        [1],
        [24],
    )
    gl.store(out + gl.arange(0, N, layout=L1), acc + total)


def test_a_producer_that_never_arrives_is_a_deadlock_at_the_consumers_line():
    with pytest.raises(DeadlockError, match="mbarrier.wait\\(full.index\\(slot\\)"):
        broken_ring[(2,)](np.zeros(96, np.int32), np.zeros(32, np.int32), 32, target="sim:sm_90")
