"""In how many rounds a loop comes back to the same slots and phases, and which rounds represent no others."""

import numpy as np
import pytest

import gluon_core as gluon
import gluon_prove.walk
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier, tma, tma_ring
from gluon_prove.periods import periods_of
from tests.prove.proofs import LAYOUT, describe, judged

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def fill(src, ring, full, empty, tiles, STAGES: gl.constexpr):
    for i in range(tiles):
        slot = i % STAGES
        mbarrier.wait(empty.index(slot), i // STAGES & 1 ^ 1)
        mbarrier.expect(full.index(slot), src.block_type.nbytes)
        tma.async_load(src, [0, i * 32], full.index(slot), ring.index(slot))


@gluon.jit
def drain(
    out, ring, full, empty, tiles, STAGES: gl.constexpr, TURN: gl.constexpr, layout: gl.constexpr
):
    for i in range(tiles):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), i // TURN & 1)
        total = gl.sum(ring.index(slot).load(layout), 1)
        gl.store(out + gl.arange(0, 8, gl.SliceLayout(1, layout)), total)
        mbarrier.arrive(empty.index(slot), count=1)


@gluon.jit
def ring_of(src, STAGES: gl.constexpr):
    ring = gl.allocate_shared_memory(src.dtype, [STAGES, 8, 32], src.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    return ring, full, empty


@gluon.jit
def fills(src, one, other, tiles, more, FEW: gl.constexpr, MANY: gl.constexpr):
    fill(src, one[0], one[1], one[2], tiles, FEW)
    fill(src, other[0], other[1], other[2], more, MANY)


@gluon.jit
def drains(
    out, one, other, tiles, more, FEW: gl.constexpr, MANY: gl.constexpr, TURN: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    drain(out, one[0], one[1], one[2], tiles, FEW, FEW, layout)
    drain(out, other[0], other[1], other[2], more, MANY, TURN, layout)


@gluon.jit
def one_after_the_other(
    src, out, tiles, more, FEW: gl.constexpr, MANY: gl.constexpr, TURN: gl.constexpr,
    layout: gl.constexpr, AGAIN: gl.constexpr,
):  # fmt: skip
    one, other = ring_of(src, FEW), ring_of(src, MANY)
    gl.warp_specialize(
        [
            (drains, (out, one, other, tiles, more, FEW, MANY, TURN, layout)),
            (fills, (src, one, other, tiles, more, FEW, MANY)),
        ],
        [1],
        [24],
    )


def rings(few, many, turn, again=False):  # a launch is judged once
    src, out = np.ones((8, 160), np.float32), np.zeros(8, np.float32)
    arguments = describe(src), out, 3, 5, few, many, turn, LAYOUT, again
    return judged(one_after_the_other, (1,), *arguments, target="sim:sm_90")[0]


def test_a_loop_comes_back_apart_from_others(monkeypatch):
    """Rings of one and of two slots come back after 2 and 4 rounds, and after 4 if both had to together."""
    periods = []

    def together(codes):
        periods.append(periods_of(codes))
        return dict.fromkeys(periods[0], max(periods[0].values()))

    proof = rings(1, 2, 2)
    assert proof.verdict == "proved", proof
    monkeypatch.setattr(gluon_prove.walk, "periods_of", together)
    every = rings(1, 2, 2, again=True)
    assert sorted(periods[0].values()) == [2, 4]
    assert every.verdict == "proved" and every.states > proof.states, (proof, every)


def test_a_phase_of_the_second_loop_that_comes_late():
    proof = rings(1, 3, 4)
    assert proof.verdict == "counterexample", proof


def test_too_few_rounds_prove_nothing(monkeypatch):
    monkeypatch.setattr(gluon_prove.walk, "periods_of", lambda codes: {})
    proof = rings(1, 4, 4)
    assert proof.verdict == "cannot say" and "come back" in proof.lines[0], proof


@gluon.jit
def counted_copies(ring, counts, rounds):
    slot = ring.producer()
    for r in range(rounds):
        for i in range(gl.load(counts + r)):
            ring.fetch(slot, [[0, i * 32]])
            slot = slot.next()


@gluon.jit
def counted_sums(ring, out, counts, rounds, FAULT: gl.constexpr, layout: gl.constexpr):
    slot = ring.consumer()
    for r in range(rounds):
        total = gl.zeros([8, 32], gl.float32, layout)
        count = gl.load(counts + r)
        for i in range(count):
            total += ring.wait(slot).load(layout)
            if FAULT == "the third tile is kept":
                if i != 2:
                    ring.release(slot)
            else:
                ring.release(slot)
            slot = slot.next()
        if FAULT == "no first round":
            if count < 1:
                ring.wait(slot)
        gl.store(out + r * 8 + gl.arange(0, 8, gl.SliceLayout(1, layout)), gl.sum(total, 1))


@gluon.jit
def counted(src, out, counts, rounds, FAULT: gl.constexpr, layout: gl.constexpr):
    ring = tma_ring([src], 2)
    gl.warp_specialize(
        [
            (counted_sums, (ring, out, counts, rounds, FAULT, layout)),
            (counted_copies, (ring, counts, rounds)),
        ],
        [1],
        [24],
    )


def counts(fault):
    src, out = np.ones((8, 32), np.float32), np.zeros(16, np.float32)
    arguments = describe(src), out, np.array([1, 0], np.int32), 2, fault, LAYOUT
    return judged(counted, (1,), *arguments, target="sim:sm_90")[0]


def test_first_rounds_represent_later_ones(monkeypatch):
    """Bounds that change in each round of another loop: the states of the first rounds are those of later ones."""
    proof = counts("")
    assert proof.verdict == "proved", proof
    monkeypatch.setattr(gluon_prove.walk.Walker, "_first", lambda self, root: 2)
    apart = counts("none")  # a launch is judged once
    assert apart.verdict == "proved" and apart.states > proof.states, (proof, apart)


@pytest.mark.parametrize("fault", ["the third tile is kept", "no first round"])
def test_mistakes_of_few_rounds_are_found(fault, monkeypatch):
    monkeypatch.setattr("gluon_prove.verdict.again", lambda *args: (None, "not looked for"))
    proof = counts(fault)
    assert proof.verdict == "cannot say" and "deadlock" in proof.lines[0], proof
