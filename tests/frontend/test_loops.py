"""Loops: what a name that is given another's value holds in the next round."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def last_slots(out, n, limit):
    """Writes the slot of the round before, which is the first one in round 0."""
    slot = gl.program_id(0)
    before = slot
    for i in range(n):
        gl.store(out + i, before)
        before = slot
        slot = (slot + 1) % limit


@gluon.jit
def last_two(out, n):
    a = gl.program_id(0)
    b = a
    c = b
    i = 0
    while i < n:
        gl.store(out + i, c * 100 + b * 10 + a)
        c = b
        b = a
        a += 1
        i += 1


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx942"])
def test_a_name_that_follows_another(target):
    out = np.full(6, -1, np.int32)
    last_slots[(1,)](out, 6, 3, target=target)
    assert out.tolist() == [0, 0, 1, 2, 0, 1]


def test_a_chain_of_followers_in_a_while_loop():
    out = np.full(5, -1, np.int32)
    last_two[(1,)](out, 5, target="sim:sm_90")
    assert out.tolist() == [0, 1, 12, 123, 234]


_traced: list[int] = []


@gluon.constexpr_function
def noted(step):
    _traced.append(step)
    return step


@gluon.jit
def nested(out, n):
    total = 0
    count = gl.program_id(0)
    for a in range(n):
        outer = total
        for b in range(a, n):
            c = b
            while c < n:
                for d in range(n):
                    for e in range(2):
                        total += noted(1)
                    count, outer = count + 1, count
                c += 1
        gl.store(out + 2 + a, outer)
    gl.store(out, total)
    gl.store(out + 1, count)


def test_loops_within_loops_are_traced_once_per_level_and_once_more():
    out = np.zeros(5, np.int32)
    _traced.clear()
    nested[(1,)](out, 3, target="sim:sm_90")
    assert len(_traced) == 5 + 1
    rounds, ends = 0, []
    for a in range(3):
        rounds += 3 * sum(3 - b for b in range(a, 3))
        ends.append(rounds - 1)
    assert out.tolist() == [2 * rounds, rounds, *ends]
