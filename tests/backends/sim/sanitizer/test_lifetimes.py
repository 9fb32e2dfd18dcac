"""A buffer that nothing names any more gives its memory to others, whatever still goes on there."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_sim.errors import RaceError, SimulatorWarning
from gluon_sim.settings import using

pytestmark = pytest.mark.once
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
OTHER = gl.constexpr(gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1]))
WITHIN = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))
ALONG = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
SCALARS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
BOX = "tensordesc<fp16[64, 64],NVMMASharedLayout(128, 16, 2)>"


@gluon.jit
def at(p, LAYOUT: gl.constexpr):
    rows = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    return p + rows[:, None] * 64 + columns[None, :]


@gluon.jit
def stores(box, n, KEEP: gl.constexpr, WAIT: gl.constexpr, BRANCH: gl.constexpr):
    """Two tiles go out, the second through a buffer that is allocated behind the first one's store."""
    if not BRANCH or n > 0:
        first = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
        first.store(gl.full([64, 64], 1, gl.float16, L))
        fence_async_shared()
        tma.async_store(box, [0, 0], first)
    if WAIT:
        tma.store_wait(0)
    second = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    second.store(gl.full([64, 64], 2, gl.float16, L))
    fence_async_shared()
    tma.async_store(box, [64, 0], second)
    tma.store_wait(0)
    if KEEP:
        first._keep_alive()


@gluon.jit
def sums(box, out, AXIS: gl.constexpr):
    """A sum over rows goes through shared memory, one within warps does not."""
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    x = gl.full([64, 64], 1, gl.float16, L) + gl.program_id(0).to(gl.float16)
    tile.store(x)
    fence_async_shared()
    tma.async_store(box, [0, 0], tile)
    gl.store(out + gl.arange(0, 64, gl.SliceLayout(AXIS, L)), gl.sum(x, AXIS))
    tma.store_wait(0)


@gluon.jit
def conversions(box, out, ACROSS: gl.constexpr):
    """A conversion between warps goes through shared memory, one within warps need not."""
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    x = gl.full([64, 64], 1, gl.float16, L) + gl.program_id(0).to(gl.float16)
    tile.store(x)
    fence_async_shared()
    tma.async_store(box, [0, 0], tile)
    goal: gl.constexpr = OTHER if ACROSS else WITHIN
    gl.store(at(out, goal), gl.convert_layout(x, goal))
    tma.store_wait(0)


@gluon.jit
def multiplies(a, c, DEPS: gl.constexpr):
    x = gl.allocate_shared_memory(gl.float16, [64, 64], TILE, gl.load(at(a, L)))
    fence_async_shared()
    acc = warpgroup_mma(x, x, gl.zeros([64, 64], gl.float32, ACC), is_async=True)
    later = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    later.store(gl.load(at(a + 4096, L)))
    if DEPS:
        acc, x = warpgroup_mma_wait(0, deps=(acc, x))
    else:
        acc = warpgroup_mma_wait(0, deps=(acc,))
    gl.store(at(c, ACC), acc)
    gl.store(at(a, L), later.load(L))


@gluon.jit
def rounds(box, n, EARLY: gl.constexpr):
    """In each round one buffer is over before the other begins, and the next round begins again."""
    for i in range(n):
        one = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
        if EARLY:
            tma.store_wait(0, read_only=False)
        one.store(gl.full([64, 64], 2, gl.float16, L))
        x = one.load(L)
        tma.store_wait(0, read_only=False)
        other = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
        other.store(x)
        fence_async_shared()
        tma.async_store(box, [0, 0], other)
    tma.store_wait(0)


@gluon.jit
def outlives(box, n):
    """A buffer of the whole loop has its memory for itself."""
    mine = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    for i in range(n):
        tma.store_wait(0)
        mine.store(gl.full([64, 64], 1, gl.float16, L))
        fence_async_shared()
        tma.async_store(box, [128 * i, 0], mine)
        other = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
        other.store(gl.full([64, 64], 2, gl.float16, L))
        fence_async_shared()
        tma.async_store(box, [128 * i + 64, 0], other)
        tma.store_wait(0)


def boxed():
    return TensorDescriptor.from_tensor(np.zeros((256, 64), np.float16), [64, 64], TILE.value)


def matrices():
    return np.ones((2, 64, 64), np.float16), np.zeros((64, 64), np.float32)


NUMBERS = np.zeros(64, np.float16)
# (kernel, arguments, what the report says, or None where there is none)
CASES = {
    "a later buffer": (stores, (1, False, False, False), "may lie where `"),
    "in a branch": (stores, (1, False, False, True), "may lie where `"),
    "in a branch that was not taken": (stores, (0, False, False, True), None),
    "waited for": (stores, (1, False, True, False), None),
    "kept": (stores, (1, True, False, False), None),
    "a sum of warps": (sums, (NUMBERS, 0), "the memory that the reduction of line"),
    "a sum within warps": (sums, (NUMBERS, 1), None),
    "a conversion between warps": (
        conversions,
        (np.zeros((64, 64), np.float16), True),
        "the memory that the conversion of line",
    ),
    "the next round": (rounds, (3, False), "may lie where `"),
    "the next round, waited for": (rounds, (3, True), None),
    "one round": (rounds, (1, False), None),
    "of the whole loop": (outlives, (2,), None),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_of_a_buffer_that_is_over_while_its_copy_is_not(name):
    kernel, arguments, message = CASES[name]
    for schedule in ("latest", "eager"):
        with using(schedule=schedule, tolerated="error"):
            if message is None:
                kernel[(1,)](boxed(), *arguments, target="sim:sm_90")
                continue
            with pytest.raises(RaceError, match=message) as error:
                kernel[(1,)](boxed(), *arguments, target="sim:sm_90")
            assert error.value.report == "race.lifetime"
            assert "_wait(0" in error.value.remedy
            assert "_keep_alive()" in error.value.remedy
            parts = ("store(gl.full", "gl.sum", "gl.convert_layout")
            assert any(part in error.value.span.text for part in parts)


def test_operands_live_as_long_as_a_wait_names_them():
    with using(tolerated="error"):
        multiplies[(1,)](*matrices(), True, target="sim:sm_90")
        with pytest.raises(RaceError, match="may lie where `") as error:
            multiplies[(1,)](*matrices(), False, target="sim:sm_90")
        assert "later.store" in error.value.span.text


def test_it_is_a_warning_for_compilers_may_place_them_apart():
    with pytest.warns(SimulatorWarning, match="may lie where `"):
        stores[(1,)](boxed(), 1, False, False, False, target="sim:sm_90")
    with using(races=False):
        stores[(1,)](boxed(), 1, False, False, False, target="sim:sm_90")


@gluon.jit
def copies(a, out):
    o = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    brought = gl.allocate_shared_memory(gl.float32, [128], flat)
    cp.async_load(brought, a + o)
    cp.commit_group()
    mine = gl.allocate_shared_memory(gl.float32, [128], flat)
    mine.store(gl.zeros([128], gl.float32, o.type.layout))
    gl.store(out + o, mine.load(o.type.layout))
    cp.wait_group(0)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_compilers_do_place_them_so(target):
    compiled = gluon.compile(copies, target, signature={"a": "*fp32", "out": "*fp32"})
    assert compiled.metadata.shared == 128 * 4  # of the 1024 bytes that the two have
    a = np.zeros(128, np.float32)
    with using(tolerated="error"), pytest.raises(RaceError, match="may lie where"):
        copies[(1,)](a, a.copy(), target=f"sim:{target}")


def test_kept_results_have_memory_of_their_own():
    for keep, bytes in ((False, 8192), (True, 16384)):
        constants = {"KEEP": keep, "WAIT": False, "BRANCH": False}
        compiled = gluon.compile(
            stores, "sm_90", signature={"box": BOX, "n": "i32"}, constexprs=constants
        )
        assert compiled.metadata.shared == bytes


@gluon.jit
def added(a, b):
    return a + b


@gluon.jit
def copies_then_needs_memory(a, out, OP: gl.constexpr):
    other: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    brought = gl.allocate_shared_memory(gl.int32, [512], SCALARS)
    index = gl.arange(0, 512, ALONG)
    cp.async_load(brought, a + index)
    cp.commit_group()
    if OP == "reduction":
        gl.store(out, gl.sum(index, 0))
    elif OP == "conversion":
        gl.store(out + gl.arange(0, 512, other), gl.convert_layout(index, other))
    else:
        gl.store(out + index, gl.associative_scan(index, 0, added))
    cp.wait_group(0)


@pytest.mark.parametrize("op", ["reduction", "conversion", "scan"])
def test_ops_that_need_memory_take_that_of_a_copy(op):
    a, out = np.zeros(512, np.int32), np.zeros(512, np.int32)
    with using(tolerated="error"), pytest.raises(RaceError, match=f"the memory that the {op}"):
        copies_then_needs_memory[(1,)](a, out, op, target="sim:sm_80")
