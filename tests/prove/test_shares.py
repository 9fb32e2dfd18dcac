"""Verdicts on programs that walk over the steps of several tiles: their share of all steps, or all steps of their tiles."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy
from tests.prove.proofs import judged
from tests.write.test_stage import persistent

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")

LAYOUT = gl.BlockedLayout([1], [32], [4], [0])


@gluon.jit
def fetch(src, ring, part, step, SLOTS: gl.constexpr, layout: gl.constexpr):
    i = gl.arange(0, 128, layout=layout)
    async_copy.async_load(ring.index(step % SLOTS), src + part * 128 + i)
    async_copy.commit_group()


@gluon.jit
def shares(src, dst, units, steps, FAULT: gl.constexpr, layout: gl.constexpr):
    """Store the units of a program's share, tile by tile; a copy runs two steps ahead."""
    SLOTS: gl.constexpr = 3
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ring = gl.allocate_shared_memory(src.dtype.element_ty, [SLOTS, 128], shared)
    i = gl.arange(0, 128, layout=layout)
    program, programs = gl.program_id(0), gl.num_programs(0)
    start, end = units * program // programs, units * (program + 1) // programs
    while start < end:
        tile = start // steps
        first = start - tile * steps
        last = gl.minimum(end - tile * steps, steps)
        for step in gl.static_range(2):
            fetch(src, ring, 0, step, SLOTS, layout)
        step = 0
        for part in range(first, last):
            if FAULT == "early":
                fetch(src, ring, tile * steps + part, step + 3, SLOTS, layout)
            if FAULT == "in flight":
                async_copy.wait_group(2)
            elif FAULT != "no wait":
                async_copy.wait_group(1)
            gl.store(dst + (tile * steps + part) * 128 + i, ring.index(step % SLOTS).load(layout))
            if FAULT != "early":
                fetch(src, ring, tile * steps + part, step + 2, SLOTS, layout)
            if FAULT != "slot stays":
                step += 1
        if FAULT != "under way":
            async_copy.wait_group(0)
        start = tile * steps + last


def launched(fault, within=20.0):
    src, dst = np.zeros(12 * 128, np.float32), np.zeros(12 * 128, np.float32)
    args = src, dst, 12, 4, fault, LAYOUT
    return judged(shares, (3,), *args, target="sim:sm_80", within=within)


def test_shares_are_proved():
    verdict, _ = launched("")
    assert verdict.verdict == "proved", verdict
    assert "assumed, too: loops without a count of their rounds end" in " ".join(verdict.lines)


@pytest.mark.parametrize("fault", ["early", "in flight", "no wait", "slot stays", "under way"])
def test_mistakes_in_shares_are_found(fault):
    verdict, error = launched(fault)
    assert verdict.verdict == "counterexample" and error is not None, verdict


def test_rings_that_copies_fill_across_tiles_are_proved():
    a, b, c = (np.zeros((64, 64), dtype) for dtype in (np.float16, np.float16, np.float32))
    sizes = 64, 64, 64, 32, 32, 32
    verdict, _ = judged(persistent, (2,), a, b, c, *sizes, num_stages=3, target="sim:sm_90")
    assert verdict.verdict == "proved", verdict
