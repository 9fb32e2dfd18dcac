"""Verdicts on one count of the rounds of two loops, one within the other: prefetched tiles cross from a
tile to the next."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_core.language.nvidia.hopper.tma import async_load
from gluon_sim.errors import SimulatorWarning
from tests.prove.proofs import LAYOUT, TILE, describe, judged

pytestmark = pytest.mark.once
pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def fetch(src, ring, ready, step, STAGES: gl.constexpr, pred):
    slot = step % STAGES
    mbarrier.expect(ready.index(slot), src.block_type.nbytes, pred=pred)
    async_load(src, [0, step * 32], ready.index(slot), ring.index(slot), pred=pred)


@gluon.jit
def flat(src, dst, tiles, steps, STAGES: gl.constexpr, FAULT: gl.constexpr, layout: gl.constexpr):
    ring = gl.allocate_shared_memory(src.dtype, [STAGES] + src.block_type.shape, src.layout)
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    program, programs = gl.program_id(0), gl.num_programs(0)
    mine = (tiles - program + programs - 1) // programs
    if FAULT == "all tiles":
        mine = tiles
    total = mine * steps
    if FAULT == "a step less":
        total -= 1
    if FAULT == "a step more":
        total += 1
    if FAULT == "more steps":
        total = mine * (steps + 1)
    rows = gl.arange(0, 8, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))[None, :]
    for i in gl.static_range(STAGES - 1):
        fetch(src, ring, ready, i, STAGES, i < total)
    step = 0
    for tile in range(program, tiles, programs):
        rounds = steps
        if FAULT == "tiles differ":
            rounds = gl.minimum(steps, tile)
        for _ in range(rounds):
            mbarrier.wait(ready.index(step % STAGES), step // STAGES & 1)
            gl.store(dst + rows * 32 + columns, ring.index(step % STAGES).load(layout))
            ahead = step + STAGES - 1
            if FAULT == "too far ahead":
                ahead += 1
            if FAULT == "up to the last":
                fetch(src, ring, ready, ahead, STAGES, ahead <= total)
            elif FAULT == "within the tile":
                fetch(src, ring, ready, ahead, STAGES, ahead < steps)
            elif FAULT == "transposed":
                fetch(src, ring, ready, ahead, STAGES, total > ahead)
            else:
                fetch(src, ring, ready, ahead, STAGES, ahead < total)
            step += 1
        if FAULT == "one more for each tile":
            step += 1


FAULTS = [
    "all tiles",
    "a step less",
    "more steps",
    "tiles differ",
    "too far ahead",
    "within the tile",
    "one more for each tile",
]


def judge(fault, tiles=3, steps=2, stages=2):
    src, dst = np.ones((8, TILE * 12), np.float32), np.zeros((8, TILE), np.float32)
    return judged(
        flat, (1,), describe(src), dst, tiles, steps, stages, fault, LAYOUT, target="sim:sm_90"
    )[0]


@pytest.mark.parametrize("fault", ["none", "transposed"])
def test_one_count_of_two_loops(fault):
    verdict = judge(fault)
    assert verdict.verdict == "proved"
    assert "under way at the end" not in " ".join(verdict.lines)


@pytest.mark.parametrize("fault", FAULTS)
def test_mistakes_in_it_are_not_proved(fault, monkeypatch):
    monkeypatch.setattr("gluon_prove.verdict.again", lambda *args: (None, "not looked for"))
    assert judge(fault).verdict != "proved"


@pytest.mark.parametrize("fault", ["up to the last"])
def test_a_copy_without_a_wait_is_reported(fault):
    with pytest.warns(SimulatorWarning, match="may still be in flight"):
        verdict = judge(fault)
    assert "under way at the end (line 22)" in " ".join(verdict.lines)


@gluon.jit
def falling(bar_count, tiles):
    bar = mbarrier.allocate_mbarrier(batch=1).index(0)
    mbarrier.init(bar, count=1)
    left = 100
    for i in range(tiles):
        left -= 1
    if left > 0:
        mbarrier.arrive(bar, count=1)
    mbarrier.wait(bar, 0)


def test_a_count_that_falls_may_be_below_0_in_the_end():
    assert judged(falling, (1,), np.zeros(1), 5, target="sim:sm_90")[0].verdict != "proved"


@gluon.jit
def stepped(src, dst, tiles, FAULT: gl.constexpr, layout: gl.constexpr):
    descriptor = gl.portable.descriptor(src, [8, tiles * 32], [tiles * 32, 1], [8, 32])
    ring = gl.portable.pipeline(descriptor, 3)
    rows = gl.arange(0, 8, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))[None, :]
    for i in gl.static_range(2):
        ring.fetch(i, [[0, i * 32]], pred=i < tiles)
    for i in range(tiles):
        tile = ring.wait(i, 0 if FAULT == "fewer pend" else 1)
        gl.store(dst + rows * 32 + columns, tile[0].load(layout))
        ahead = i + 2
        copied = ahead < tiles
        if FAULT == "as memory says":
            copied = copied & (gl.load(dst) < 2)
        if FAULT == "not all":
            copied = copied & (gl.load(dst) < 1)
        ring.fetch(ahead, [[0, ahead * 32]], pred=copied)
    ring.close()


@pytest.mark.parametrize("fault", ["none", "fewer pend", "as memory says", "not all"])
def test_the_order_of_steps_is_proved_or_reported(fault):
    src, dst = np.ones((8, TILE * 3), np.float32), np.zeros((8, TILE), np.float32)
    verdict, error = judged(
        stepped, (1,), src, dst, 3, fault, LAYOUT, target="sim:sm_80", within=2.0
    )
    if fault == "not all":
        assert verdict.verdict == "counterexample" and error.report == "race.steps", verdict
        return
    assert verdict.verdict == "proved", verdict
    proved = "no step of a pipeline out of order" in verdict.lines[0]
    assert proved == (fault != "as memory says"), verdict
    assert (
        proved or "`race.steps`" in verdict.lines[-1] and "gluon run --check" in verdict.lines[-1]
    )


@gluon.jit
def take(out, ring, full, empty, count, layout: gl.constexpr):
    mbarrier.wait(full, count & 1)
    columns = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))
    gl.store(out + columns, gl.sum(ring.load(layout), 0))
    mbarrier.arrive(empty, count=1)
    return count + 1


@gluon.jit
def give(src, ring, full, empty, count):
    mbarrier.wait(empty, count & 1 ^ 1)
    mbarrier.expect(full, src.block_type.nbytes)
    async_load(src, [0, count * 32], full, ring)
    return count + 1


@gluon.jit
def takes(out, ring, full, empty, tiles, FAULT: gl.constexpr, layout: gl.constexpr):
    tile, count = gl.program_id(0), 0
    if FAULT == "in fours" or FAULT == "in fives":
        for k in range(0, tiles, 4 if FAULT == "in fours" else 5):
            count = take(out, ring, full, empty, count, layout)
    else:
        while tile < tiles:
            count = take(out, ring, full, empty, count, layout)
            tile += gl.num_programs(0)
            if FAULT == "skips":
                tile += count & 1


@gluon.jit
def gives(src, ring, full, empty, tiles, FAULT: gl.constexpr):
    tile, count = gl.program_id(0), 0
    if FAULT == "in fours" or FAULT == "in fives":
        for k in range(gl.cdiv(tiles, 4)):
            count = give(src, ring, full, empty, count)
    else:
        while tile < tiles + (FAULT == "one more"):
            count = give(src, ring, full, empty, count)
            tile += gl.num_programs(0)


@gluon.jit
def as_many(src, out, tiles, FAULT: gl.constexpr, layout: gl.constexpr):
    ring = gl.allocate_shared_memory(src.dtype, src.block_type.shape, src.layout)
    full = mbarrier.allocate_mbarrier(batch=1).index(0)
    empty = mbarrier.allocate_mbarrier(batch=1).index(0)
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [
            (takes, (out, ring, full, empty, tiles, FAULT, layout)),
            (gives, (src, ring, full, empty, tiles, FAULT)),
        ],
        [1],
        [24],
    )


@pytest.mark.parametrize("fault", ["none", "in fours", "one more", "skips", "in fives"])
def test_loops_that_are_written_differently(fault):
    """A `while` that counts, and as many rounds counted in another way."""
    src, out = np.ones((8, TILE * 3), np.float32), np.zeros(TILE, np.float32)
    verdict, _ = judged(as_many, (2,), describe(src), out, 3, fault, LAYOUT, target="sim:sm_90")
    assert (verdict.verdict == "proved") == (fault in ("none", "in fours")), verdict
