"""Writers of one partition that store in turn: each waits for its own buffers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, ShapeError
from gluon_core.language.nvidia.hopper import tma_writer
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.registry.load import registry
from gluon_sim.errors import RaceError

pytestmark = pytest.mark.once

SIM = registry().target("sim:sm_90")
LAYOUT = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))
ROWS = 16


@gluon.jit
def store_in_turn(writers, more, rounds, WIDTHS: gl.constexpr, ROWS: gl.constexpr):
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    for i in range(rounds):
        left = 0
        for j in gl.static_range(len(WIDTHS)):
            columns = left + gl.arange(0, WIDTHS[j], gl.SliceLayout(0, LAYOUT))
            tile = (100 * (ROWS * i + rows)[:, None] + columns[None, :]).to(gl.float32)
            writers[j].store([ROWS * i, left], tile, turns=writers + more)
            left += WIDTHS[j]
    writers[0].close()


@gluon.jit
def idle():
    pass


@gluon.jit
def through_two_writers(wide, narrow, rounds, ROWS: gl.constexpr, MORE: gl.constexpr):
    """Store 64 columns through one buffer of 32, and 16 through another; with MORE a third writer never stores."""
    writers, more = (tma_writer(wide, 2, 1), tma_writer(narrow, 1)), ()
    if MORE:
        more = (tma_writer(narrow, 1),)
    gl.warp_specialize(
        [(store_in_turn, (writers, more, rounds, (64, 16), ROWS)), (idle, ())], [1], [24]
    )


def described(out):
    return [
        TensorDescriptor.from_tensor(
            out, [ROWS, width], gl.NVMMASharedLayout.get_default_for([ROWS, width], gl.float32)
        )
        for width in (32, 16)
    ]


def stored(rounds, more=False):
    out = np.full((ROWS * rounds, 80), np.nan, np.float32)
    through_two_writers[(1,)](*described(out), rounds, ROWS, more, target=SIM, num_warps=4)
    return out


def test_each_writer_waits_for_its_own_buffers():
    right = 100 * np.arange(4 * ROWS)[:, None] + np.arange(80)
    np.testing.assert_array_equal(stored(4), right)


def test_a_writer_that_never_stores_takes_no_turns():
    with pytest.raises(RaceError):
        stored(4, more=True)


@gluon.jit
def in_wrong_turns(wide, TURNS: gl.constexpr):
    writer = tma_writer(wide)
    writer.store([0, 0], gl.zeros([16, 32], gl.float32, LAYOUT), turns=TURNS)


@pytest.mark.parametrize("turns, error", [(1, ShapeError), ((1,), ArgumentError)])
def test_turns_that_are_no_writers_are_named(turns, error):
    with pytest.raises(error, match="turns: not a"):
        in_wrong_turns[(1,)](described(np.zeros((ROWS, 80), np.float32))[0], turns, target=SIM)


def test_no_store_waits_for_that_of_another_buffer(monkeypatch):
    """Two stores through one buffer and one through another follow each other."""
    monkeypatch.setenv("GLUON_TARGET", "emu:sm_90")
    out = described(np.zeros((ROWS, 80), np.float32))
    text = through_two_writers.warmup(*out, 1, ROWS, False, grid=(1,), num_warps=4).asm["ptx"]
    waits = re.findall(r"cp\.async\.bulk\.wait_group\.read\s+(\d+)", text)
    assert waits == ["1", "0", "2", "0"]
