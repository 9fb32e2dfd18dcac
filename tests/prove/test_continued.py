"""A range that one task walks in two parts, and another one whole."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring
from gluon_prove.continued import Counted, parts_of
from gluon_prove.smt import Arithmetic
from gluon_prove.values import term
from tests.prove.proofs import LAYOUT, describe, judged

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def copied(ring, wide, more):
    slot = ring.producer()
    for _ in range(gl.program_id(0), wide + more, gl.num_programs(0)):
        ring.fetch(slot, [[0, 0]])
        slot = slot.next()


@gluon.jit
def read_in_parts(ring, dst, wide, more, all, FAULT: gl.constexpr, layout: gl.constexpr):
    """Read the tiles of the first blocks, and let the others pass."""
    slot = ring.consumer()
    total = gl.zeros([8, 32], gl.float32, layout)
    few = gl.where(all > 0, wide + more, wide)
    if FAULT == "a part too far":
        few += gl.num_programs(0)
    for _ in range(gl.program_id(0), few, gl.num_programs(0)):
        total += ring.wait(slot).load(layout)
        ring.release(slot)
        slot = slot.next()
    step = gl.num_programs(0)
    passed = gl.program_id(0) + gl.cdiv(gl.maximum(few - gl.program_id(0), 0), step) * step
    if FAULT == "from the bound on":
        passed = few
    for _ in range(passed, wide + more, gl.num_programs(0)):
        tile = ring.wait(slot)
        if FAULT != "no release":
            ring.release(slot)
        if FAULT == "read behind the release":
            total += tile.load(layout)
        slot = slot.next()
    gl.store(dst + gl.arange(0, 8, gl.SliceLayout(1, layout)), gl.sum(total, 1))


@gluon.jit
def in_parts(src, dst, wide, more, all, FAULT: gl.constexpr, layout: gl.constexpr):
    ring = tma_ring([src], 2)
    gl.warp_specialize(
        [
            (copied, (ring, wide, more)),
            (read_in_parts, (ring, dst, wide, more, all, FAULT, layout)),
        ],
        [4],
        [24],
    )


def verdict(fault):
    src, dst = np.ones((8, 32), np.float32), np.zeros(8, np.float32)
    arguments = describe(src), dst, 3, 4, 0, fault, LAYOUT
    return judged(in_parts, (1,), *arguments, target="sim:sm_90")


def test_a_range_in_two_parts_has_the_rounds_of_the_whole(monkeypatch):
    proof, error = verdict("")
    assert proof.verdict == "proved" and error is None, proof
    # Copies that run ahead have states of their own.
    monkeypatch.setattr("gluon_prove.equal.Equal.lead", lambda self, state: [0] * len(state.tasks))
    eager, _ = verdict("none")  # a launch is judged once
    assert eager.verdict == "proved" and eager.states > proof.states, (proof, eager)


@pytest.mark.parametrize("fault", ["no release", "read behind the release", "a part too far"])
def test_mistakes_in_parts_are_found(fault):
    proof, error = verdict(fault)
    assert proof.verdict == "counterexample" and error is not None, proof


def test_a_part_that_begins_elsewhere_is_none():
    proof, _ = verdict("from the bound on")
    assert proof.verdict != "proved", proof


@gluon.jit
def copied_from_the_last(ring, n):
    slot = ring.producer()
    last = gl.cdiv(gl.maximum(n - 7, 0), 8) * 8
    for _ in range(last, n, 8):
        ring.fetch(slot, [[0, 0]])
        slot = slot.next()
    for _ in range(0, last, 8):
        ring.fetch(slot, [[0, 0]])
        slot = slot.next()


@gluon.jit
def read_ahead(ring, dst, n, FAULT: gl.constexpr, layout: gl.constexpr):
    """Read the tile of the last step first, which is a whole one or not."""
    slot = ring.consumer()
    total = gl.zeros([8, 32], gl.float32, layout)
    last = gl.cdiv(gl.maximum(n - 7, 0), 8) * 8
    if n > 0:
        total += ring.wait(slot).load(layout)
        ring.release(slot)
        partial = last < n
        if FAULT == "the other start":
            partial = last >= n
        for _ in range(gl.where(partial, 0, 0 if FAULT == "a step too many" else 8), last, 8):
            slot = slot.next()
            total += ring.wait(slot).load(layout)
            if FAULT != "no release":
                ring.release(slot)
    gl.store(dst + gl.arange(0, 8, gl.SliceLayout(1, layout)), gl.sum(total, 1))


@gluon.jit
def from_the_last(src, dst, n, FAULT: gl.constexpr, layout: gl.constexpr):
    ring = tma_ring([src], 2)
    gl.warp_specialize(
        [(copied_from_the_last, (ring, n)), (read_ahead, (ring, dst, n, FAULT, layout))],
        [4],
        [24],
    )


@pytest.mark.parametrize("fault", ["", "no release", "the other start", "a step too many"])
def test_loops_that_begin_where_a_condition_says_share_the_rounds_of_others(fault):
    src, dst = np.ones((8, 32), np.float32), np.zeros(8, np.float32)
    arguments = describe(src), dst, 20, fault, LAYOUT
    proof, error = judged(from_the_last, (1,), *arguments, target="sim:sm_90")
    assert proof.verdict == ("counterexample" if fault else "proved"), proof


def test_parts_end_no_later_than_the_whole():
    low, few, high, step = (term("arg", place) for place in range(4))
    arithmetic = Arithmetic({place: 32 for place in range(4)})
    step = term("add", step, 1)

    def joined(end, last):
        rounds = term("trips", low, end, step)
        rest = term("add", low, term("mul", rounds, step))
        loops = [(0, low, last), (1, low, end), (1, rest, last)]
        return parts_of([Counted(task, (), a, b, step) for task, a, b in loops], arithmetic)

    assert len(joined(few, term("add", few, high))) == 2
    assert len(joined(term("minsi", few, high), high)) == 2
    assert not joined(few, high)
    assert not joined(few, term("sub", few, high))


def test_the_solver_is_limited_by_its_work(monkeypatch):
    """As z3 counts it, not by the seconds of a busy machine."""
    low, few, high = (term("arg", place) for place in range(3))
    arithmetic = Arithmetic(dict.fromkeys(range(3), 32))
    one = term("maxsi", low, term("minsi", few, high))
    other = term("minsi", term("maxsi", low, few), term("maxsi", low, high))
    assert arithmetic.equal(one, other)
    monkeypatch.setattr("gluon_prove.smt._MOST_WORK", 10)
    assert not arithmetic.equal(one, other)
