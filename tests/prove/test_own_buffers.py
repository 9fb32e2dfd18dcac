"""Buffers that one task alone accesses, and loops that a condition skips where they have no round."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, tma_ring
from gluon_core.language.nvidia.hopper.tma import async_store, store_wait
from tests.prove.proofs import LAYOUT, describe, judged

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def copies(ring, rounds, counts, tiles, COUNTED: gl.constexpr):
    slot = ring.producer()
    for r in range(rounds):
        count = gl.load(counts + r) if COUNTED else tiles
        for i in range(count):
            ring.fetch(slot, [[0, i * 32]])
            slot = slot.next()


@gluon.jit
def sums(
    ring, dst, out, rounds, counts, tiles, COUNTED: gl.constexpr, WAIT: gl.constexpr,
    layout: gl.constexpr, member: gl.constexpr,
):  # fmt: skip
    slot = ring.consumer()
    for r in range(rounds):
        count = gl.load(counts + r) if COUNTED else tiles
        total = gl.zeros([8, 32], gl.float32, layout)
        if 0 < count:
            total += ring.wait(slot).load(layout)
            ring.release(slot)
            slot = slot.next()
            for _ in range(1, count):
                total += ring.wait(slot).load(layout)
                ring.release(slot)
                slot = slot.next()
        if r % 3 != 1:
            if WAIT:
                store_wait(0)
            out.store(total)
            fence_async_shared()
            async_store(dst, [0, (r * 3 + member) * 32], out)
    store_wait(0)


@gluon.jit
def summed(
    src, dst, rounds, counts, tiles, COUNTED: gl.constexpr, WAIT: gl.constexpr, layout: gl.constexpr
):  # fmt: skip
    ring = tma_ring([src], 2, consumers=3)
    first = gl.allocate_shared_memory(dst.dtype, [8, 32], dst.layout)
    second = gl.allocate_shared_memory(dst.dtype, [8, 32], dst.layout)
    third = gl.allocate_shared_memory(dst.dtype, [8, 32], dst.layout)
    gl.warp_specialize(
        [
            (sums, (ring, dst, first, rounds, counts, tiles, COUNTED, True, layout, 0)),
            (sums, (ring, dst, second, rounds, counts, tiles, COUNTED, WAIT, layout, 1)),
            (sums, (ring, dst, third, rounds, counts, tiles, COUNTED, True, layout, 2)),
            (copies, (ring, rounds, counts, tiles, COUNTED)),
        ],
        [4, 4, 1],
        [64, 64, 24],
    )


def verdict(counted, wait=True):
    src, dst = np.ones((8, 64), np.float32), np.zeros((8, 288), np.float32)
    counts = np.array([2, 1], np.int32)
    args = describe(src), describe(dst), 2, counts, 2, counted, wait, LAYOUT
    return judged(summed, (1,), *args, target="sim:sm_90")


@pytest.mark.parametrize("counted", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_buffers_of_one_task_multiply_no_states(counted):
    proof, error = verdict(counted)
    assert proof.verdict == "proved" and error is None, proof
    assert proof.states < 12_000


def test_a_race_at_a_buffer_of_one_task_has_a_counterexample():
    proof, error = verdict(False, wait=False)
    assert proof.verdict == "counterexample" and error.report == "race.shared"
