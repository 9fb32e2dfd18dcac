"""Verdicts on roles that find out for themselves, in memory, how much there is to do."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_core.language.nvidia.hopper.tma import async_load
from tests.prove.proofs import LAYOUT, TILE, describe, judged

pytestmark = pytest.mark.once
pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def searched(counts, number, bound):
    left, right = 0, number
    while left < right:
        middle = (left + right) // 2
        if gl.load(counts + middle) <= bound:
            left = middle + 1
        else:
            right = middle
    return left


@gluon.jit
def much(counts, number, warps: gl.constexpr, FAULT: gl.constexpr, mine: gl.constexpr):
    if FAULT == "searched" or FAULT == "searched elsewhere" or FAULT == "searched and stored":
        return searched(counts, number, 1)
    if FAULT == "searched for another":
        return searched(counts, number, 1 + mine)
    index = gl.arange(0, 32, gl.BlockedLayout([1], [32], [warps], [0]))
    beyond: gl.constexpr = mine if FAULT == "other elsewhere" else 0
    if FAULT == "masked":
        count = gl.load(counts + index, mask=index < number)
    elif FAULT == "other mask" and mine:
        count = gl.load(counts + index, mask=index <= number, other=0)
    else:
        count = gl.load(counts + index, mask=index < number, other=beyond)
    if FAULT == "other function" and mine:
        return gl.max(count, 0)
    if FAULT == "one more" and not mine:
        return gl.sum(count, 0) + 1
    return gl.sum(count, 0)


@gluon.jit
def fill(src, counts, other, number, ring, full, empty, FAULT: gl.constexpr):
    if FAULT == "other memory" or FAULT == "searched elsewhere":
        counts = other
    for i in range(much(counts, number, 1, FAULT, 1)):
        mbarrier.wait(empty, i & 1 ^ 1)
        mbarrier.expect(full, src.block_type.nbytes)
        async_load(src, [0, i * 32], full, ring)


@gluon.jit
def drain(
    dst, counts, other, number, ring, full, empty, FAULT: gl.constexpr, layout: gl.constexpr
):  # fmt: skip
    rows = gl.arange(0, 8, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))[None, :]
    for i in range(much(counts, number, 4, FAULT, 0)):
        mbarrier.wait(full, i & 1)
        value = ring.load(layout) * 1.0  # used before the arrival
        mbarrier.arrive(empty, count=1)
        gl.store(dst + rows * 32 + columns, value)
        if FAULT == "stored meanwhile" or FAULT == "searched and stored":
            gl.store(counts, 0)


@gluon.jit
def counted(
    src, dst, counts, other, number, FAULT: gl.constexpr, layout: gl.constexpr
):  # fmt: skip
    ring = gl.allocate_shared_memory(src.dtype, src.block_type.shape, src.layout)
    full = mbarrier.allocate_mbarrier(batch=1).index(0)
    empty = mbarrier.allocate_mbarrier(batch=1).index(0)
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [
            (drain, (dst, counts, other, number, ring, full, empty, FAULT, layout)),
            (fill, (src, counts, other, number, ring, full, empty, FAULT)),
        ],
        [1],
        [40],
    )


def judge(fault):
    src, dst = np.ones((8, TILE * 12), np.float32), np.zeros((8, TILE), np.float32)
    counts = np.zeros(32, np.int32)
    counts[:3] = 1, 0, 2
    return judged(
        counted,
        (1,),
        describe(src),
        dst,
        counts,
        counts.copy(),
        3,
        fault,
        LAYOUT,
        target="sim:sm_90",
    )[0]


def test_reads_of_the_same_memory_are_equal():
    verdict = judge("none")
    assert verdict.verdict == "proved"
    assert "nothing writes the memory read (line 42) meanwhile" in " ".join(verdict.lines)


def test_searches_of_the_same_memory_are_equal():
    verdict = judge("searched")
    assert verdict.verdict == "proved", verdict
    assert "loops without a count of their rounds end (line 20)" in " ".join(verdict.lines)
    assert "nothing writes the memory read (line 22) meanwhile" in " ".join(verdict.lines)


@pytest.mark.parametrize(
    "fault", ["searched elsewhere", "searched for another", "searched and stored"]
)
def test_other_searches_are_not(fault):
    verdict = judge(fault)
    assert verdict.verdict == "cannot say" and "deadlock" in verdict.lines[0], verdict


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "fault",
    [
        "masked",
        "other mask",
        "other elsewhere",
        "other function",
        "one more",
        "other memory",
        "stored meanwhile",
    ],
)
def test_values_that_may_differ_are_distinct(fault):
    assert judge(fault).verdict != "proved"


@gluon.jit
def part(src, dst, tiles, share, STAGES: gl.constexpr, FAULT: gl.constexpr):
    """Prove a ring whose slots go on from where the part begins."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    lanes = gl.arange(0, 128, layout=layout)
    ring = gl.allocate_shared_memory(
        gl.float32, [STAGES, 128], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    first = gl.program_id(0) * share
    last = gl.minimum(first + share, tiles)
    for i in gl.static_range(STAGES - 1):
        cp.async_load(ring.index((first + i) % STAGES), src + (first + i) * 128 + lanes)
        cp.commit_group()
    for i in range(first, last):
        ahead = i + STAGES - 1
        if FAULT == "another slot":
            ahead += 1
        if FAULT == "a slot before":
            ahead = i - 1
        cp.async_load(ring.index(ahead % STAGES), src + ahead * 128 + lanes)
        cp.commit_group()
        cp.wait_group(STAGES if FAULT == "more pend" else STAGES - 1)
        gl.store(dst + i * 128 + lanes, ring.index(i % STAGES).load(layout))
    cp.wait_group(0)


@pytest.mark.parametrize(
    "fault, wanted",
    [
        ("none", "proved"),
        ("another slot", "counterexample"),
        ("more pend", "counterexample"),
        ("a slot before", "cannot say"),  # the one before the first is none
    ],
)
def test_slots_from_where_a_part_begins(fault, wanted):
    src, dst = np.ones(128 * 16, np.float32), np.zeros(128 * 16, np.float32)
    verdict, _ = judged(part, (2,), src, dst, 8, 4, 3, fault, target="sim:sm_80")
    assert verdict.verdict == wanted, verdict
    assert wanted != "proved" or "the count of slots" in " ".join(verdict.lines)
