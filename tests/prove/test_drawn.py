"""Drawn rings: no schedule of any small trip count contradicts a proof."""

import random

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_core.language.nvidia.hopper.tma import async_load
from gluon_sim.settings import using
from tests.prove.proofs import LAYOUT, TILE, describe, judged

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")

TRIPS = range(7)
REPORTS = ("race.", "deadlock", "barrier.", "leak.")
# The values of each choice; the first is right, whatever the others are.
CHOICES = {
    "STAGES": [2, 1, 3],
    "CONSUMERS": [1, 2],
    "MOVE": ["copy", "store"],
    "COUNTS": ["index", "carried", "guarded"],
    "PRODUCER": ["right", "right", "right", "other phase", "no wait", "deeper"],
    "FULL": ["right", "right", "right", "half"],
    "CONSUMER": ["right", "right", "right", "other phase", "late", "no wait"],
    "RELEASE": [
        "after",
        "behind",
        "after",
        "behind",
        "before",
        "never",
        "not the third",
        "all but the last",
    ],
    "EMPTY": ["right", "right", "right", "one", "two"],
}


@gluon.jit
def produce(src, ring, full, empty, tiles, D: gl.constexpr, layout: gl.constexpr):
    STAGES: gl.constexpr = D[0]
    DEPTH: gl.constexpr = STAGES + 1 if D[4] == "deeper" else STAGES
    stage = 0
    turn = 1
    for i in range(tiles):
        if D[3] == "carried":
            slot, phase = stage, turn
            if stage + 1 == STAGES:
                stage = 0
                turn ^= 1
            else:
                stage += 1
        else:
            slot, phase = i % STAGES, i // DEPTH & 1 ^ 1
        if D[4] == "other phase":
            phase = phase ^ 1
        if D[4] != "no wait":
            if D[3] == "guarded":
                if i >= STAGES:
                    mbarrier.wait(empty.index(slot), phase)
            else:
                mbarrier.wait(empty.index(slot), phase)
        if D[2] == "copy":
            BYTES: gl.constexpr = (
                src.block_type.nbytes // 2 if D[5] == "half" else src.block_type.nbytes
            )
            mbarrier.expect(full.index(slot), BYTES)
            async_load(src, [0, i * 32], full.index(slot), ring.index(slot))
        else:
            if D[5] == "half":
                mbarrier.arrive(full.index(slot), count=1)
            ring.index(slot).store(gl.zeros([8, 32], gl.float32, layout))
            if D[5] != "half":
                mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
def consume(dst, ring, full, empty, tiles, D: gl.constexpr, layout: gl.constexpr):
    STAGES: gl.constexpr = D[0]
    total = gl.zeros([8, 32], gl.float32, layout)
    last = 0
    for i in range(tiles):
        slot = i % STAGES
        phase = i // STAGES & 1
        if D[6] == "other phase":
            phase = phase ^ 1
        if D[6] == "late":
            phase = (i + 1) // (STAGES + 1) & 1
        if D[6] != "no wait":
            mbarrier.wait(full.index(slot), phase)
        if D[7] == "before":
            mbarrier.arrive(empty.index(slot), count=1)
        total += ring.index(slot).load(layout)
        if D[7] == "after":
            mbarrier.arrive(empty.index(slot), count=1)
        if D[7] == "behind":
            mbarrier.arrive(empty.index(last), count=1, pred=i > 0)
        if D[7] == "not the third":
            mbarrier.arrive(empty.index(slot), count=1, pred=i != 2)
        if D[7] == "all but the last":
            mbarrier.arrive(empty.index(slot), count=1, pred=i + 1 < tiles)
        last = slot
    if D[7] == "behind":
        mbarrier.arrive(empty.index(last), count=1, pred=tiles > 0)
    gl.store(dst + gl.arange(0, 32, layout=gl.SliceLayout(0, layout)), gl.sum(total, 0))


@gluon.jit
def drawn(src, one, other, tiles, D: gl.constexpr, layout: gl.constexpr):
    STAGES: gl.constexpr = D[0]
    WANTED: gl.constexpr = D[1] if D[8] == "right" else 1 if D[8] == "one" else 2
    shape: gl.constexpr = src.block_type.shape
    ring = gl.allocate_shared_memory(src.dtype, [STAGES] + shape, src.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=WANTED)
    if D[1] == 1:
        gl.warp_specialize(
            [
                (consume, (one, ring, full, empty, tiles, D, layout)),
                (produce, (src, ring, full, empty, tiles, D, layout)),
            ],
            [4],
            [24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (one, ring, full, empty, tiles, D, layout)),
                (consume, (other, ring, full, empty, tiles, D, layout)),
                (produce, (src, ring, full, empty, tiles, D, layout)),
            ],
            [4, 4],
            [24, 24],
        )


def drawn_from(seed):
    draw = random.Random(seed)
    return tuple(draw.choice(choice) for choice in CHOICES.values())


def arguments(choices, tiles):
    src = np.ones((8, TILE * 8), np.float32)
    one, other = np.zeros(TILE, np.float32), np.zeros(TILE, np.float32)
    return describe(src), one, other, tiles, choices, LAYOUT


def contradicted(choices):
    """Return the report of some schedule of some small trip count."""
    for tiles in TRIPS:
        settings = {"schedule": "explore", "within": 3.0, "most": 150, "tolerated": "ignore"}
        try:
            with using(**settings, uninitialised=False):
                drawn[(1,)](*arguments(choices, tiles), target="sim:sm_90")
        except GluonError as error:
            assert (getattr(error, "report", None) or "").startswith(REPORTS), error
            return tiles, error
    return None


# One mistake each, of those that are drawn.
CHOSEN = [
    (2, 1, "copy", "index", "right", "right", "right", "before", "right"),
    (3, 1, "store", "carried", "right", "right", "right", "before", "right"),
    (2, 1, "copy", "index", "no wait", "right", "right", "after", "right"),
    (2, 2, "copy", "index", "right", "right", "right", "after", "one"),
    (2, 1, "copy", "guarded", "right", "right", "other phase", "after", "right"),
]
LATE = (3, 1, "copy", "guarded", "right", "right", "late", "after", "right")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("choices", CHOSEN, ids=lambda c: f"{c[2]}-{c[4]}-{c[6]}-{c[7]}-{c[8]}")
def test_one_mistake_is_not_proved(choices, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where failing schedules are kept
    verdict, _ = judged(drawn, (1,), *arguments(choices, 3), target="sim:sm_90")
    assert contradicted(choices) is not None
    assert verdict.verdict == "counterexample", verdict


def test_a_mistake_of_the_seventh_round_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert contradicted(LATE) is None
    verdict, error = judged(drawn, (1,), *arguments(LATE, 3), target="sim:sm_90")
    assert verdict.verdict == "counterexample", verdict
    assert "tiles=7" in verdict.lines[0] and error is not None


@pytest.mark.once
@pytest.mark.sampled(120)
@pytest.mark.parametrize("seed", range(180))
def test_no_schedule_contradicts_a_proof(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    choices = drawn_from(seed)
    verdict, error = judged(drawn, (1,), *arguments(choices, 3), target="sim:sm_90")
    contradiction = contradicted(choices)
    assert not (verdict.verdict == "proved" and contradiction), (choices, verdict, contradiction)
    if verdict.verdict == "counterexample":
        assert error is not None and error.report.startswith(REPORTS), choices
    right = all(
        choice
        in ("right", "copy", "store", "index", "carried", "guarded", "after", "behind", 1, 2, 3)
        for choice in choices
    )
    if right and not (contradiction or choices[1] == 2 and choices[7] == "behind"):
        assert verdict.verdict == "proved", (choices, verdict)


@pytest.mark.sampled(4)
@pytest.mark.once
@pytest.mark.parametrize("moves", CHOICES["MOVE"])
@pytest.mark.parametrize("counts", CHOICES["COUNTS"])
@pytest.mark.parametrize("release", ["after", "behind"])
def test_right_rings_are_proved(moves, counts, release):
    choices = (3, 1, moves, counts, "right", "right", "right", release, "right")
    verdict, error = judged(drawn, (1,), *arguments(choices, 3), target="sim:sm_90")
    assert verdict.verdict == "proved", verdict
    assert error is None


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(180, 360))
def test_steps_that_are_left_out_change_no_verdict(seed, monkeypatch):
    choices = drawn_from(seed)
    collected = []
    for index, kept in enumerate(("one schedule", "some steps", "all")):
        if kept != "one schedule":
            monkeypatch.setattr("gluon_prove.search.IN_TURN", False)
        if kept == "all":
            monkeypatch.setattr("gluon_prove.walk.Walker.hurries", lambda *args: False)
            monkeypatch.setattr("gluon_prove.world.World.lands_early", lambda *args: False)
        # a launch is judged once; another layout is another kernel
        threads = ([1, 32], [2, 16], [4, 8])[index]
        layout = gl.BlockedLayout([1, 1], threads, [4, 1], [1, 0])
        *before, _ = arguments(choices, 3)
        verdict, _ = judged(drawn, (1,), *before, layout, target="sim:sm_90")
        collected.append(verdict.verdict)
    assert len(set(collected)) == 1, (choices, collected)
