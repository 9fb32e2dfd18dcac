"""Rings whose states are rotations of each other, and buffers that are watched apart."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, tma_ring
from gluon_prove.values import Term
from tests.prove.proofs import LAYOUT, describe, judged

z3 = pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def copies(first, second, rounds, tiles, FAULT: gl.constexpr):
    slot, outer = second.producer(), first.producer()
    for r in range(rounds):
        first.fetch(outer, [[0, r * 32]])
        outer = outer.next()
        count = tiles
        if FAULT == "a tile less":
            count = gl.maximum(tiles - 1, 0)
        for i in range(count):
            second.fetch(slot, [[0, i * 32]])
            slot = slot.next()
        if FAULT == "a slot is passed over":
            slot = slot.next()


@gluon.jit
def uses(
    first, second, out, rounds, tiles, flag, FAULT: gl.constexpr, layout: gl.constexpr
):  # fmt: skip
    slot, outer = second.consumer(), first.consumer()
    for r in range(rounds):
        tile = first.wait(outer)
        if flag + r > 5:
            tile.store(-tile.load(layout))
            fence_async_shared()
        total = tile.load(layout)
        if FAULT == "released before the load":
            second.release(slot)
        for _ in range(tiles):
            total += second.wait(slot).load(layout) * 1.0
            if FAULT == "slot 1 is kept":
                second.release(slot, slot.index != 1)
            elif FAULT == "no release":
                pass
            else:
                second.release(slot)
            slot = slot.next()
            if FAULT == "the parity stays":
                slot = slot.next(2).before()
        gl.store(out + gl.arange(0, 8, gl.SliceLayout(1, layout)), gl.sum(total, 1))
        if FAULT == "read behind its release":
            first.release(outer)
            gl.store(
                out + gl.arange(0, 8, gl.SliceLayout(1, layout)), gl.sum(tile.load(layout) * 2.0, 1)
            )
        else:
            first.release(outer)
        outer = outer.next()


@gluon.jit
def two_rings(src, out, rounds, tiles, flag, FAULT: gl.constexpr, layout: gl.constexpr):
    first = tma_ring([src], 2)
    second = tma_ring([src], 3)
    gl.warp_specialize(
        [
            (uses, (first, second, out, rounds, tiles, flag, FAULT, layout)),
            (copies, (first, second, rounds, tiles, FAULT)),
        ],
        [4],
        [24],
    )


FAULTS = [
    "a tile less", "a slot is passed over", "released before the load", "slot 1 is kept", "no release",
    "the parity stays", "read behind its release",
]  # fmt: skip


def verdict(fault):
    src, out = np.ones((8, 128), np.float32), np.zeros(8, np.float32)
    return judged(two_rings, (1,), describe(src), out, 2, 4, 3, fault, LAYOUT, target="sim:sm_90")


def test_rotations_of_rings_are_one_state(monkeypatch):
    proof, error = verdict("")
    assert proof.verdict == "proved" and error is None, proof
    monkeypatch.setattr("gluon_prove.rotate.Rotate.__call__", lambda self, key: key)
    plain, _ = verdict("none")  # a launch is judged once
    assert plain.states > 1.5 * proof.states, (proof, plain)


@pytest.mark.parametrize("fault", FAULTS)
def test_mistakes_at_rings_are_found(fault, monkeypatch):
    monkeypatch.setattr("gluon_prove.verdict.again", lambda *args: (None, "not looked for"))
    proof, _ = verdict(fault)
    assert proof.verdict == "cannot say" and "does not find it again" in proof.lines[0], proof


def test_conditions_without_a_common_unknown_are_asked_apart():
    from gluon_prove.smt import Arithmetic

    arithmetic = Arithmetic({0: 32, 1: 32})
    one, other = Term("arg", (0,)), Term("arg", (1,))
    below = Term("icmpSLT", (one, 5)), Term("icmpSLT", (other, 5))
    assert arithmetic.feasible([(one, 2, None), (other, 2, None)], [(below[0], 1)])
    asked = arithmetic.asked
    assert arithmetic.feasible([(one, 2, None), (other, 3, None)], [(below[0], 1)])
    assert arithmetic.asked == asked + 1  # about the other one alone
    assert not arithmetic.feasible([(one, 2, None), (other, 7, None)], [(below[1], 1)])
    arithmetic.assume(Term("icmpSLT", (one, other)))
    assert not arithmetic.feasible([(one, 9, None)], [(below[1], 1)])
