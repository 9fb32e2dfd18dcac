"""What a portable copy asks for is asked for where it happens to be done at once, too."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.errors import RaceError
from gluon_sim.settings import using

pytestmark = pytest.mark.once
TARGETS = ("sm_75", "sm_80", "sm_90", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250")
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def pipeline(a, out, N: gl.constexpr, WAIT: gl.constexpr, COMMIT: gl.constexpr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size], [4], [0])
    o = gl.arange(0, N, LAYOUT)
    ring = gl.allocate_shared_memory(a.dtype.element_ty, [2, N], FLAT)
    gl.portable.async_copy(ring.index(0), a, o)
    if COMMIT:
        gl.portable.commit()
    for i in range(1, 4):
        gl.portable.async_copy(ring.index(i % 2), a, o + i * N)
        if COMMIT:
            gl.portable.commit()
        if WAIT:
            gl.portable.wait(1)
        gl.store(out + (i - 1) * N + o, ring.index((i - 1) % 2).load(LAYOUT))
    gl.portable.wait(0)
    gl.store(out + 3 * N + o, ring.index(1).load(LAYOUT))


def run(target, dtype, wait=True, commit=True):
    a = np.arange(1024).astype(dtype)
    out = np.zeros_like(a)
    pipeline[(1,)](a, out, 256, wait, commit, target=f"sim:{target}")
    np.testing.assert_array_equal(out, a)


# One byte at a time no target copies past the registers, four at a time most do.
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
@pytest.mark.parametrize("target", TARGETS)
def test_a_missing_wait_or_commit_is_reported_on_every_target(target, dtype):
    for schedule in ("latest", "eager"):
        with using(schedule=schedule):
            run(target, dtype)
            with pytest.raises(RaceError, match="asynchronous write") as found:
                run(target, dtype, wait=False)
            assert any("async_copy(" in access.span.text for access in found.value.accesses)
            assert "at most 0" in found.value.remedy or "at most 1" in found.value.remedy
            with pytest.raises(RaceError, match="asynchronous write") as found:
                run(target, dtype, commit=False)
            assert "Close the group" in found.value.remedy
    with using(races=False, schedule="eager"):
        run(target, dtype, wait=False)


@gluon.jit
def facts(out):
    gl.store(out, 1 if gl.target.warp_size == 32 else 2)
    gl.store(out + 1, gl.target.warp_size)
    gl.store(out + 2, gl.target.warp_size())
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size], [4], [0])
    gl.store(out + 3, gl.sum(gl.arange(0, 8, LAYOUT), 0))
    if gl.target.name == gl.target.name():
        gl.store(out + 4, gl.target.shared_memory)


@pytest.mark.parametrize("target, lanes", [("sm_90", 32), ("gfx942", 64)])
def test_what_a_kernel_asks_its_target_needs_no_parentheses(target, lanes):
    out = np.zeros(5, np.int32)
    facts[(1,)](out, target=f"sim:{target}")
    memory = {"sm_90": 227, "gfx942": 64}[target] * 1024
    assert out.tolist() == [1 if lanes == 32 else 2, lanes, lanes, 28, memory]
