"""Barriers that the installed compiler puts around atomics, read off its code.

The simulator takes a release for that of one thread where no barrier is before it
(`gluon_core.features.ATOMIC_BARRIERS`), and a scalar result that is used for a barrier.
"""

from __future__ import annotations

import re

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.features import ATOMIC_BARRIERS
from gluon_core.testing import TRITON_VERSION


@gluon.jit
def between_stores(x, flag, layout: gl.constexpr, SEM: gl.constexpr, USED: gl.constexpr):
    o = gl.arange(0, 256, layout=layout)
    gl.store(x + o, o)
    before = gl.atomic_add(flag, 1, sem=SEM)
    y = gl.load(x + o + 256)
    gl.store(x + o + 512, y + before if USED else y)


@gluon.jit
def of_a_tensor(x, flag, layout: gl.constexpr, SEM: gl.constexpr, USED: gl.constexpr):
    o = gl.arange(0, 128, layout=layout)
    gl.store(x + o, o)
    before = gl.atomic_add(flag + o, o, sem=SEM)
    y = gl.load(x + o + 256)
    gl.store(x + o + 512, y + before if USED else y)


TEXTS = {"sm_90": "ptx", "gfx942": "amdgcn"}
BARRIER = re.compile(r"^\s*(bar\.sync|barrier\.sync|s_barrier)", re.M)
ATOMIC = re.compile(r"^\s*(@%p\d+ )?(atom|red)\.global|^\s*global_atomic", re.M)


def barriers(architecture, sem, used, kernel=between_stores):
    """Return if there is one before the atomic, and one after it."""
    lanes = 64 if architecture.startswith("gfx") else 32
    layout = gl.BlockedLayout([1], [lanes], [128 // lanes if kernel is of_a_tensor else 4], [0])
    compiled = gluon.compile(
        kernel,
        architecture,
        signature={"x": "*i32", "flag": "*i32"},
        constexprs={"layout": layout, "SEM": sem, "USED": used},
        options={"num_warps": layout.warps_per_cta[0]},
    )
    text = compiled.asm[TEXTS[architecture]]
    (atomic,) = ATOMIC.finditer(text)
    stores = [m.start() for m in re.finditer(r"st\.global|global_store", text)]
    first = min(stores)
    assert first < atomic.start()
    places = [m.start() for m in BARRIER.finditer(text)]
    return (
        any(first < place < atomic.start() for place in places),
        any(place > atomic.start() for place in places),
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("architecture", TEXTS)
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release", "acq_rel"])
def test_barriers_around_an_atomic(architecture, sem, used):
    theirs = ATOMIC_BARRIERS.held_by(TRITON_VERSION)
    before = theirs and sem in ("release", "acq_rel")
    after = used or (theirs and sem in ("acquire", "acq_rel"))
    assert barriers(architecture, sem, used) == (before, after)


@pytest.mark.once
@pytest.mark.parametrize("architecture", TEXTS)
@pytest.mark.parametrize("sem", ["relaxed", "release"])
def test_an_atomic_of_a_tensor_has_none_after_it(architecture, sem):
    theirs = ATOMIC_BARRIERS.held_by(TRITON_VERSION)
    expected = theirs and sem == "release", False
    assert barriers(architecture, sem, False, of_a_tensor) == expected
