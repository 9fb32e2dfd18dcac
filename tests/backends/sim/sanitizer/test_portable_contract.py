"""The waits of a portable copy are required where the copy is synchronous, too."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.errors import PipelineError, RaceError, UninitialisedError
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


@pytest.mark.sampled(2)
# One byte at a time no target copies past the registers, four at a time most do.
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
@pytest.mark.parametrize("target", TARGETS)
def test_a_missing_wait_or_commit_is_reported_on_every_target(target, dtype):
    for schedule in ("latest", "eager"):
        with using(schedule=schedule):
            run(target, dtype)
            with pytest.raises(RaceError, match="asynchronous write") as error:
                run(target, dtype, wait=False)
            assert any("async_copy(" in access.span.text for access in error.value.accesses)
            assert "Put `gl.portable.wait(" in error.value.remedy
            with pytest.raises(RaceError, match="asynchronous write") as error:
                run(target, dtype, commit=False)
            assert "Put `gl.portable.commit()` and `gl.portable.wait(0)`" in error.value.remedy
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
def test_questions_to_the_target_need_no_parentheses(target, lanes):
    out = np.zeros(5, np.int32)
    facts[(1,)](out, target=f"sim:{target}")
    memory = {"sm_90": 227, "gfx942": 64}[target] * 1024
    assert out.tolist() == [1 if lanes == 32 else 2, lanes, lanes, 28, memory]


@gluon.jit
def product(
    a, b, c, FENCE: gl.constexpr, WAIT: gl.constexpr, STEPS: gl.constexpr, IS_ASYNC: gl.constexpr,
    ZEROS: gl.constexpr,
):  # fmt: skip
    """c = the sum of a + i @ b over i, with both in a buffer that is written again each time."""
    layouts: gl.constexpr = gl.portable.mma_layouts(
        64, 64, 32, gl.float16, gl.float16, operands="shared"
    )
    A: gl.constexpr = gl.portable.blocked_layout([64, 32], gl.float16)
    B: gl.constexpr = gl.portable.blocked_layout([32, 64], gl.float16)
    a_at = (
        gl.arange(0, 64, gl.SliceLayout(1, A))[:, None] * 32
        + gl.arange(0, 32, gl.SliceLayout(0, A))[None, :]
    )
    b_at = (
        gl.arange(0, 32, gl.SliceLayout(1, B))[:, None] * 64
        + gl.arange(0, 64, gl.SliceLayout(0, B))[None, :]
    )
    left = gl.allocate_shared_memory(gl.float16, [64, 32], layouts.a_shared)
    right = gl.allocate_shared_memory(gl.float16, [32, 64], layouts.b_shared)
    right.store(gl.load(b + b_at))
    if ZEROS:
        zeros = gl.zeros([64, 64], gl.float32, layouts.accumulator)
        acc = gl.portable.accumulator(layouts, zeros)
    else:
        acc = gl.portable.accumulator(layouts)
    for i in range(STEPS):
        left.store(gl.load(a + a_at) + i)
        if FENCE:
            gl.portable.fence()
        acc = gl.portable.mma(left, right, acc, is_async=IS_ASYNC)
        if WAIT:
            acc = gl.portable.mma_wait(acc)
    result = gl.portable.read(acc)
    rows = gl.arange(0, 64, gl.SliceLayout(1, layouts.accumulator))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, layouts.accumulator))[None, :]
    gl.store(c + rows * 64 + columns, result)


def multiply(target, fence=True, wait=True, steps=2, is_async=True, zeros=False):
    a = (np.arange(64 * 32).reshape(64, 32) % 7).astype(np.float16)
    b = (np.arange(32 * 64).reshape(32, 64) % 5).astype(np.float16)
    c = np.full((64, 64), np.nan, np.float32)
    product[(1,)](a, b, c, fence, wait, steps, is_async, zeros, target=f"sim:{target}")
    wanted = sum((a + i).astype(np.float32) @ b.astype(np.float32) for i in range(steps))
    np.testing.assert_array_equal(c, np.broadcast_to(wanted, c.shape))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_zeros_are_an_accumulator_without_products(target):
    multiply(target, steps=0, zeros=True)


def test_tensor_memory_without_products_is_reported():
    with pytest.raises(UninitialisedError) as error:
        multiply("sm_100", steps=0)
    assert "gl.portable.accumulator that may get no product takes zeros" in error.value.remedy


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_100", "gfx942", "gfx1201"])
def test_a_missing_fence_or_wait_of_a_product_is_reported_on_every_target(target):
    multiply(target, is_async=False, wait=False)
    multiply(target, wait=False, steps=1)  # to read is to wait
    for schedule in ("latest", "eager"):
        with using(schedule=schedule):
            multiply(target)
            with pytest.raises(RaceError, match=r"gl\.portable\.mma|warpgroup|tcgen05") as error:
                multiply(target, wait=False)
            assert any("left.store" in access.span.text for access in error.value.accesses)
            assert any("portable.mma(" in access.span.text for access in error.value.accesses)
            with pytest.raises(RaceError) as error:
                multiply(target, fence=False)
            assert "gl.portable.fence()" in error.value.remedy
    with using(races=False, schedule="eager"):
        multiply(target, fence=False)


@gluon.jit
def steps_of(
    a,
    out,
    ROUNDS: gl.constexpr,
    AHEAD: gl.constexpr,
    SHIFT: gl.constexpr,
    PENDING: gl.constexpr,
):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size], [4], [0])
    tiles = gl.portable.pipeline(gl.portable.descriptor(a, [1024], [1], [256]), 3)
    for step in gl.static_range(2):
        tiles.fetch(step, [[step * 256]])
    for step in range(ROUNDS):
        (tile,) = tiles.wait(step * (SHIFT != 9) + SHIFT * (SHIFT != 9), PENDING)
        value = tile.load(LAYOUT)
        gl.portable.fence()
        ahead = step + AHEAD
        tiles.fetch(ahead, [[ahead * 256]], pred=ahead < 4)
        gl.store(out + gl.program_id(0) * 1024 + step * 256 + gl.arange(0, 256, LAYOUT), value)
    tiles.close()


# Rounds, steps ahead, the number added to the step that is waited for (9: it is step 0 always),
# pending; the words of the report.
MISTAKES = {
    "the same step": ((4, 2, 9, 1), "its buffers hold step 3 by now"),
    "a later step": ((4, 2, 1, 0), "step 3 is fetched into the buffers of step 0 of line"),
    "a step too far": ((4, 2, 2, 0), "step 2 is waited for, and was not fetched"),
    "a step too early": ((4, 2, -1, 1), "step -1 is waited for, and was not fetched"),
    "a round too much": (
        (5, 2, 0, 1),
        "step 4 is waited for, and was fetched where `pred` is false",
    ),
    "too much under way": ((4, 2, 0, 2), "pending=2, and 1 later steps"),
    "twice": ((4, 1, 0, 1), "step 1 is fetched a second time, first at line"),
    "left out": ((4, 6, 0, 1), "step 6 is fetched into the buffers of step 0. Fetch the steps one"),
}


@pytest.mark.filterwarnings("default::gluon_sim.errors.SimulatorWarning")  # a slot read early
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_steps_of_a_pipeline_are_held_to_their_order_on_every_target(target):
    a, out = np.arange(1024, dtype=np.float32), np.zeros((2, 1024), np.float32)
    steps_of[(2,)](a, out, 4, 2, 0, 1, target=f"sim:{target}")
    np.testing.assert_array_equal(out, [a, a])
    for arguments, message in MISTAKES.values():
        with pytest.raises(PipelineError) as error:
            steps_of[(2,)](a, out, *arguments, target=f"sim:{target}")
        assert message in str(error.value) and error.value.remedy
        assert "tiles." in error.value.span.text
    with using(races=False):
        steps_of[(2,)](a, out, 4, 2, 0, 2, target=f"sim:{target}")


def test_a_race_of_two_asynchronous_ops_counts_groups_where_the_second_was_issued():
    with pytest.raises(RaceError) as error:
        overtaken[(1,)](np.zeros(1024, np.float32), target="sim:sm_80")
    assert "Put `gl.portable.wait(0)`" in error.value.remedy


@gluon.jit
def overtaken(a):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    o = gl.arange(0, 256, LAYOUT)
    ring = gl.allocate_shared_memory(gl.float32, [256], FLAT)
    gl.portable.async_copy(ring, a, o)
    gl.portable.commit()
    gl.portable.async_copy(ring, a, o)
    gl.portable.commit()
    gl.portable.async_copy(ring, a, o)
    gl.portable.commit()
    gl.portable.wait(0)
