"""Ordered barriers: the order in which partitions pass, what it needs, misuse."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError
from gluon_core.language.nvidia.hopper import ordered_barrier
from gluon_core.registry.load import registry
from tests.backends.sim.sanitizer.test_mutations import Case

pytestmark = pytest.mark.once

SIM = registry().target("sim:sm_90")
LAYOUT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def grow(order, memory, rounds, partition: gl.constexpr):
    turn = order.first(partition)
    for _ in range(rounds):
        order.wait(turn)
        memory.store(memory.load(LAYOUT) * 3 + partition)
        order.arrive(turn)
        turn = turn.next()


@gluon.jit
def in_order(out, rounds, PARTITIONS: gl.constexpr):
    offsets = gl.arange(0, 128, LAYOUT)
    memory = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    memory.store(offsets)
    order = ordered_barrier(PARTITIONS)
    if PARTITIONS == 2:
        gl.warp_specialize(
            [(grow, (order, memory, rounds, 0)), (grow, (order, memory, rounds, 1))], [4], [24]
        )
    else:
        gl.warp_specialize(
            [(grow, (order, memory, rounds, i)) for i in (0, 1, 2)], [4, 4], [24, 24]
        )
    gl.store(out + offsets, memory.load(LAYOUT))


def expected(partitions, rounds):
    x = np.arange(128, dtype=np.int32)
    for _ in range(rounds):
        for partition in range(partitions):
            x = x * 3 + partition
    return x


@gluon.jit
def uneven(out, rounds):
    offsets = gl.arange(0, 128, LAYOUT)
    memory = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    memory.store(offsets)
    order = ordered_barrier(2)
    gl.warp_specialize(
        [(grow, (order, memory, rounds, 0)), (grow, (order, memory, rounds - 1, 1))], [4], [24]
    )
    gl.store(out + offsets, memory.load(LAYOUT))


def test_the_last_partition_may_pass_once_less():
    out = np.full(128, -1, np.int32)
    uneven[(1,)](out, 3, target=SIM, num_warps=4)
    np.testing.assert_array_equal(out, expected(2, 2) * 3)


@pytest.mark.parametrize("partitions, rounds", [(2, 0), (2, 5), (3, 4)])
def test_partitions_pass_in_order(partitions, rounds):
    out = np.full(128, -1, np.int32)
    in_order[(1,)](out, rounds, partitions, target=SIM, num_warps=4)
    np.testing.assert_array_equal(out, expected(partitions, rounds))


def test_each_wait_and_arrival_is_needed():
    compiled = in_order[(1,)](np.zeros(128, np.int32), 4, 2, target=SIM, num_warps=4)
    case = Case(
        compiled,
        (1,),
        lambda: {"out": np.full(128, -1, np.int32)},
        lambda args: [args["out"], 4, 2],
        "out",
        lambda args: expected(2, 4),
    )
    assert case.run() is None
    kinds, missed = case.judged()
    assert not missed
    for op in ("mbarrier_wait", "mbarrier_arrive"):
        assert any(op in name and "deleted" in name for name in kinds), op


@gluon.jit
def misused(out, WAY: gl.constexpr):
    if WAY == "one partition":
        ordered_barrier(1)
    order = ordered_barrier(2)
    if WAY == "no such partition":
        order.first(2)
    if WAY == "no position":
        order.wait(0)


@pytest.mark.parametrize(
    "way, words",
    [
        ("one partition", "partitions"),
        ("no such partition", "partition"),
        ("no position", "order.first"),
    ],
)
def test_misuse_is_an_error(way, words):
    with pytest.raises(ArgumentError, match=words):
        misused[(1,)](np.zeros(1, np.int32), way, target=SIM, num_warps=4)
