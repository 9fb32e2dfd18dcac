"""Acquires of tensor maps that a kernel writes one after the other, in the PTX and on the emulator."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.testing import MockTensor


@gluon.jit(layouts="auto")
def moved(x, out, rows, columns, LATE: gl.constexpr):
    x_tiles = gl.portable.descriptor(x, [rows, columns], [columns, 1], [32, 64])
    if not LATE:
        out_tiles = gl.portable.descriptor(out, [rows, columns], [columns, 1], [32, 64])
    ring = gl.nvidia.hopper.tma_ring([x_tiles], 1)
    slot = ring.producer()
    ring.fetch(slot, [[0, 0]])
    if LATE:
        out_tiles = gl.portable.descriptor(out, [rows, columns], [columns, 1], [32, 64])
    gl.portable.store(out_tiles, [0, 0], ring.wait(ring.consumer()).load())


def events(late):
    x = MockTensor(gl.float16)
    ptx = moved.warmup(x, x, 32, 64, late, grid=1, target="sm_90").asm["ptx"]
    words = {"cp_fenceproxy": "write", "acquire.gpu": "acquire", "cluster.global.mbarrier": "copy"}
    return [words[m[0]] for m in re.finditer("|".join(words), ptx)]


def test_acquires_of_maps_written_together_follow_the_last():
    assert events(False) == ["write", "write", "acquire", "acquire", "copy"]


def test_a_map_is_acquired_before_its_copy():
    assert events(True) == ["write", "acquire", "copy", "write", "acquire"]


@pytest.mark.parametrize("target", ["emu:sm_90", "sim:sm_90"])
def test_results_are_those_of_numpy(target):
    x = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float16)
    out = np.zeros_like(x)
    moved[(1,)](x, out, 32, 64, False, target=target)
    assert np.array_equal(out, x)
