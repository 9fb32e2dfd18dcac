"""Boxes and tiles that begin before their tensor: loads of the TMA fill in, nothing is written there."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import KernelWarning
from gluon_core.language.nvidia.blackwell import tma as blackwell_tma
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_sim.errors import OutOfBoundsError
from gluon_sim.settings import using
from tests.backends.sim.hardware.boxes import F16_, REGISTERS, SCHEDULES, describe, numbers, report


@gluon.jit
def write_box(d, x, y, OP: gl.constexpr):
    tile = gl.allocate_shared_memory(d.dtype, [64, 64], F16_)
    tile.store(gl.full([64, 64], 2, d.dtype, REGISTERS))
    fence_async_shared()
    if gl.program_id(0) == 1:  # the others write nothing
        if OP == "store":
            tma.async_store(d, [x, y], tile)
        elif OP == "add":
            tma.async_atomic_add(d, [x, y], tile)
        elif OP == "min":
            tma.async_atomic_min(d, [x, y], tile)
        else:
            tma.async_atomic_max(d, [x, y], tile)
    tma.store_wait(0)


WRITES = ["store", "add", "min", "max"]


@pytest.mark.parametrize("op", WRITES)
def test_a_box_that_is_written_begins_in_the_tensor_or_behind_it(op):
    verb = "stored" if op == "store" else "reduced"
    for x, y, dim in ((-32, 0, 0), (-64, 0, 0), (0, -8, 1), (0, -256, 1), (500, -8, 1)):
        reported = report(
            OutOfBoundsError,
            *(write_box, describe(numbers(128, 128), (64, 64)), x, y, op),
            match=f"coord: the box that is {verb} begins before the tensor .an illegal instruction, "
            rf"as seen on sm_90., in program \(1, 0, 0\); expected 0 or more, got {min(x, y)} in "
            f"dimension {dim} of 2. Shift the box so that it begins inside, or write this part",
            line="tma.async_store" if op == "store" else f"tma.async_atomic_{op}",
            grid=(2,),
            schedules=SCHEDULES[:2],
        )
        assert reported.report == "bounds.before" and reported.program == (1, 0, 0)
    for x, y in ((0, 0), (96, 0), (128, 0), (500, 0), (0, 120), (0, 1024)):
        a = numbers(128, 128)
        wanted = a.copy()
        part = wanted[x : x + 64, y : y + 64]
        part[...] = {
            "store": np.full_like, "add": np.add, "min": np.minimum, "max": np.maximum
        }[op](part, np.float16(2))  # fmt: skip
        write_box[(2,)](describe(a, (64, 64)), x, y, op)
        np.testing.assert_array_equal(a, wanted)


def test_with_the_check_off_elements_before_are_dropped():
    a = numbers(128, 128)
    wanted = a.copy()
    wanted[:32, :64] = 2
    with using(bounds=False):
        write_box[(2,)](describe(a, (64, 64)), -32, 0, "store")
    np.testing.assert_array_equal(a, wanted)


@gluon.jit
def scatter(d, rows, column, R: gl.constexpr):
    tile = gl.allocate_shared_memory(d.dtype, [8, 64], d.layout)
    tile.store(gl.full([8, 64], 2, d.dtype, REGISTERS))
    fence_async_shared()
    blackwell_tma.async_scatter(d, gl.load(rows + gl.arange(0, 8, R)), column, tile)
    tma.store_wait(0)


def test_a_scattered_row_is_in_the_tensor_or_past_it():
    layout = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0]))
    rows = np.array([3, 99, 64, 2**31 - 1, 1, 7, 9, 2], np.int32)
    a = numbers(64, 64)
    wanted = a.copy()
    wanted[rows[rows < 64]] = 2
    scatter[(1,)](describe(a, (1, 64)), rows, 0, layout, target="sim:sm_100")
    np.testing.assert_array_equal(a, wanted)
    with pytest.raises(OutOfBoundsError, match="y_offset: .*got -8. Begin at column 0") as error:
        scatter[(1,)](describe(a, (1, 64)), rows, -8, layout, target="sim:sm_100")
    assert error.value.report == "bounds.before"
    rows[5] = -1
    with pytest.raises(OutOfBoundsError, match="x_offsets: .*Name a row past the end") as error:
        scatter[(1,)](describe(a, (1, 64)), rows, 0, layout, target="sim:sm_100")
    assert error.value.element == (5,) and "async_scatter" in error.value.span.text


# -- gl.portable --------------------------------------------------------------------------------------


@gluon.jit
def tiles(a, out, start, HOW: gl.constexpr):
    L: gl.constexpr = gl.portable.blocked_layout([16, 64], gl.float16)
    source = gl.portable.descriptor(a, [64, 128], [128, 1], [16, 64])
    to = gl.portable.descriptor(out, [64, 128], [128, 1], [16, 64])
    value = gl.full([16, 64], 2, gl.float16, L)
    if HOW == "store":
        gl.portable.store(to, [start, 0], value)
    elif HOW == "writer":
        writer = gl.portable.writer(to)
        writer.store([0, start], value)
        writer.close()
    else:
        copied = gl.portable.pipeline(source, 2)
        copied.fetch(0, [[0, start]], pred=start > -64)
        copied.fetch(1, [[start + 16, 0]], pred=start == 0)
        if start > -64:
            copied.wait(0, 1)
        if start == 0:
            copied.wait(1, 0)
        copied.close()


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_a_portable_tile_begins_in_its_tensor_on_every_target(target):
    for how, line in (
        ("store", "gl.portable.store("),
        ("writer", "writer.store("),
        ("fetch", "copied.fetch(0"),
    ):
        for start in (0, -16):
            a, out = numbers(64, 128), np.zeros((64, 128), np.float16)
            if not start:
                tiles[(1,)](a, out, start, how, target=f"sim:{target}")
                assert (out[:16, :64] == (0 if how == "fetch" else 2)).all() and not out[16:].any()
                continue
            with pytest.raises(
                OutOfBoundsError, match="coordinates: a tile begins before"
            ) as error:
                tiles[(1,)](a, out, start, how, target=f"sim:{target}")
            assert f"got {start} in dimension {int(how != 'store')} of 2" in str(error.value)
            assert error.value.report == "bounds.before" and line in error.value.span.text
            assert not out.any()
    tiles[(1,)](a, out, -64, "fetch", target=f"sim:{target}")  # nothing is copied


# -- constants ----------------------------------------------------------------------------------------


@gluon.jit
def constants(d, p, never):
    tile = gl.allocate_shared_memory(d.dtype, [64, 64], F16_)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, d.nbytes_per_cta)
    tma.async_load(d, [-64, 0], bar, tile)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    if never > 0:
        tma.async_store(d, [-64, 0], tile)
        tma.async_atomic_add(d, [0, -8], tile)
        rows = gl.portable.descriptor(p, [64, 64], [64, 1], [16, 64])
        gl.portable.store(rows, [-16, 0], gl.zeros([16, 64], gl.float16, REGISTERS))
        tma.store_wait(0)


def test_a_constant_before_the_tensor_is_warned_of_where_something_is_written():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        constants[(1,)](describe(numbers(64, 64), (64, 64)), numbers(64, 64), 0)
    warned = [w for w in caught if w.category is KernelWarning]
    first = constants.fn.__code__.co_firstlineno
    assert [w.lineno - first for w in warned] == [10, 11, 13], [str(w.message) for w in warned]
    assert "-64 is before the tensor" in str(warned[0].message)
    assert "-8 is before the tensor" in str(warned[1].message)
    assert "a tile that begins at -16" in str(warned[2].message)
