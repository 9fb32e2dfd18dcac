"""Consumers without a mask: the first tile of the next step is read before the second one of this step."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring
from tests.prove.proofs import LAYOUT, describe, judged

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def copies(k_ring, v_ring, counts, rounds, FAULT: gl.constexpr):
    slot = k_ring.producer()
    for r in range(rounds):
        for i in range(gl.load(counts + r)):
            k_ring.fetch(slot, [[0, i * 32]])
            v_ring.fetch(slot, [[0, i * 32]])
            if FAULT == "a slot comes again":
                slot = slot.next(1 - i % 2)
            else:
                slot = slot.next()


@gluon.jit
def rows(
    k_ring, v_ring, out, counts, rounds, FAULT: gl.constexpr, layout: gl.constexpr
):  # fmt: skip
    slot = k_ring.consumer()
    for r in range(rounds):
        total = gl.zeros([8, 32], gl.float32, layout)
        count = gl.load(counts + r)
        if 0 < count:
            total += k_ring.wait(slot).load(layout)
            if FAULT != "one slot, kept for a step":
                k_ring.release(slot)
            for _ in range(1, count):
                ahead = slot.next()
                if FAULT == "no wait":
                    k = k_ring.tiles(ahead)
                elif FAULT == "a wait for the phase before":
                    k_ring.wait(ahead.next(2))
                    k = k_ring.tiles(ahead)
                else:
                    k = k_ring.wait(ahead)
                total += k.load(layout)
                if FAULT == "one slot, kept for a step":
                    k_ring.release(slot)
                else:
                    k_ring.release(ahead)
                v = v_ring.wait(slot)
                if FAULT == "a release before the load":
                    v_ring.release(slot)
                total *= v.load(layout)
                if FAULT != "a release before the load":
                    v_ring.release(slot)
                slot = ahead
            if FAULT == "one slot, kept for a step":
                k_ring.release(slot)
            total *= v_ring.wait(slot).load(layout)
            if FAULT != "no last release":
                v_ring.release(slot)
            slot = slot.next()
        gl.store(out + r * 8 + gl.arange(0, 8, gl.SliceLayout(1, layout)), gl.sum(total, 1))


@gluon.jit
def shared(src, out, counts, rounds, FAULT: gl.constexpr, layout: gl.constexpr):
    stages: gl.constexpr = 1 if FAULT == "one slot, kept for a step" else 2
    counted: gl.constexpr = 1 if FAULT == "a consumer too few" else 2
    k_ring = tma_ring([src], stages, consumers=2)
    v_ring = tma_ring([src], stages, consumers=counted)
    gl.warp_specialize(
        [
            (rows, (k_ring, v_ring, out, counts, rounds, FAULT, layout)),
            (rows, (k_ring, v_ring, out, counts, rounds, FAULT, layout)),
            (copies, (k_ring, v_ring, counts, rounds, FAULT)),
        ],
        [4, 1],
        [64, 24],
    )


def verdict(fault):
    src, out = np.ones((8, 64), np.float32), np.zeros(16, np.float32)
    arguments = describe(src), out, np.array([2, 1], np.int32), 2, fault, LAYOUT
    return judged(shared, (1,), *arguments, target="sim:sm_90")[0]


def test_tiles_of_two_steps_at_once():
    proof = verdict("")
    assert proof.verdict == "proved", proof


FAULTS = {
    "no wait": "deadlock",
    "a wait for the phase before": "deadlock",
    "a release before the load": "race.shared",
    "one slot, kept for a step": "deadlock",
}
MORE = {
    "a consumer too few": "deadlock",
    "no last release": "deadlock",
    "a slot comes again": "deadlock",
}


@pytest.mark.parametrize(
    ("fault", "report"),
    [*FAULTS.items(), *(pytest.param(*one, marks=pytest.mark.campaign) for one in MORE.items())],
)
def test_mistakes_are_found(fault, report, monkeypatch):
    monkeypatch.setattr("gluon_prove.verdict.again", lambda *args: (None, "not looked for"))
    proof = verdict(fault)
    assert proof.verdict == "cannot say", proof
    assert proof.lines[0].startswith(report), proof
