"""Side streams: launches that are concurrent with others of one rank."""

import numpy as np
import pytest

import gluon_core as gluon
import gluon_distributed as distributed
from gluon_core import language as gl
from gluon_sim.errors import RaceError

pytestmark = pytest.mark.once

SIM = "sim:hopper"
LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])


@gluon.jit
def fill(x, value, counter, COUNT: gl.constexpr):
    offsets = gl.arange(0, 128, layout=LINE)
    gl.store(x + offsets, offsets * 0 + value)
    if COUNT:
        gl.portable.counter_add(counter, 1, scope="gpu")


@gluon.jit
def take(x, got, counter, WAIT: gl.constexpr):
    offsets = gl.arange(0, 128, layout=LINE)
    if WAIT:
        gl.portable.counter_wait(counter, 1, scope="gpu")
    gl.store(got + offsets, gl.load(x + offsets))


def body(group, wait=True):
    x, counter = group.empty(128, np.int32), np.zeros(1, np.int32)
    got = np.zeros(128, np.int32)
    fill[(1,)](x.local, 1, counter, COUNT=False)
    with group.side_stream() as side:
        fill[(1,)](x.local, group.rank + 5, counter, COUNT=True)
    take[(1,)](x.local, got, counter, WAIT=wait)
    side.join()
    fill[(1,)](x.local, 9, counter, COUNT=False)
    return int(got[0]), int(x.local[0])


def test_a_waiting_launch_sees_the_side_stream():
    assert distributed.simulate(body, 2, SIM) == [(5, 9), (6, 9)]


def test_nothing_else_orders_them():
    with pytest.raises(RaceError):
        distributed.simulate(lambda g: body(g, wait=False), 2, SIM)


def test_later_parts_have_to_join():
    @gluon.jit
    def late(x, counter, go):
        gl.portable.counter_wait(go, 1, scope="gpu")
        offsets = gl.arange(0, 128, layout=LINE)
        gl.store(x + offsets, offsets)

    def rank(group, join):
        x, go = group.empty(128, np.int32), np.zeros(1, np.int32)
        with group.side_stream() as side:
            late[(1,)](x.local, go, go)
        fill[(1,)](np.zeros(128, np.int32), 0, go, COUNT=True)
        if join:
            side.join()
        fill[(1,)](x.local, 9, go, COUNT=False)
        side.join()

    distributed.simulate(lambda g: rank(g, True), 1, SIM)
    with pytest.raises(RaceError):
        distributed.simulate(lambda g: rank(g, False), 1, SIM)


@pytest.mark.parametrize("wait", [True, False])
def test_memory_of_the_rank_alone_is_watched_too(wait):
    def rank(group):
        x, counter, got = np.zeros(128, np.int32), np.zeros(1, np.int32), np.zeros(128, np.int32)
        with group.side_stream() as side:
            fill[(1,)](x, 7, counter, COUNT=True)
        take[(1,)](x, got, counter, WAIT=wait)
        side.join()
        fill[(1,)](x, 8, counter, COUNT=False)
        take[(1,)](x, got, counter, WAIT=False)
        return int(got[0])

    if wait:
        assert distributed.simulate(rank, 2, SIM) == [8, 8]
    else:
        with pytest.raises(RaceError):
            distributed.simulate(rank, 2, SIM)
