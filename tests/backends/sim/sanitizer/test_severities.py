"""Mistakes that hardware tolerates are warnings, once for each line, and an error where everything is checked."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import LeakError, RaceError, SimulatorWarning, UninitialisedError
from gluon_sim.settings import using
from tests import warm
from tests.backends.sim.hardware.boxes import F16_, REGISTERS, describe, numbers

pytestmark = pytest.mark.sampled(4)

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
CLUSTER = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]]))


def warned(kernel, *args, grid=(1,), **options):
    """The warnings of a launch."""
    with warnings.catch_warnings(record=True) as warnings_seen:
        warnings.simplefilter("always")
        kernel[grid](*args, **options)
    return [w for w in warnings_seen if issubclass(w.category, SimulatorWarning)]


def only_warned(error, line, match, kernel, *args, grid=(1,), **options):
    """One warning at a line by default, an error under all checks, and nothing where it is ignored."""
    (warning,) = warned(kernel, *args, grid=grid, **options)
    report = warning.message.error
    assert isinstance(report, error) and line in report.span.text
    assert match in str(warning.message) and warning.lineno == report.span.line
    assert warning.filename == report.span.file
    with using(checks=True), pytest.raises(error, match=match) as caught:
        kernel[grid](*args, **options)
    assert caught.value.span.line == report.span.line
    with using(tolerated="ignore"):
        assert not warned(kernel, *args, grid=grid, **options)
    with warnings.catch_warnings(), pytest.raises(error, match=match):
        warnings.simplefilter("error", SimulatorWarning)
        kernel[grid](*args, **options)


# ---- copies that nobody waits for -----------------------------------------------------------------


@gluon.jit
def leave(a, n, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [2, N], FLAT)
    for i in range(2):
        cp.async_copy_global_to_shared(s.index(i), a + o, mask=o < n)
        cp.commit_group()


def test_a_copy_into_its_own_memory():
    a = np.arange(128, dtype=np.int32)
    only_warned(LeakError, "async_copy_global_to_shared", "nobody waited", leave, a, 128, 128)
    assert not warned(leave, a, 0, 128)  # brings nothing
    with using(leaks=False):
        assert not warned(leave, a, 128, 128)


@gluon.jit
def leave_box(a, row, LAYOUT: gl.constexpr, MULTICAST: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [64, 64], LAYOUT)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    if MULTICAST:
        gl.barrier(cluster=True)
    mbarrier.expect(bar, 8192)
    if MULTICAST:
        tma.async_load(a, [row, 0], bar, s, multicast=True)
    else:
        tma.async_load(a, [row, 0], bar, s)


@pytest.mark.parametrize("row", [0, 64, 128], ids=["inside", "at the end", "outside"])
def test_a_box(row):
    box = describe(numbers(128, 64), (64, 64))
    only_warned(LeakError, "tma.async_load(", "nobody waited", leave_box, box, row, F16_, False)


@pytest.mark.parametrize("row", [0, 128], ids=["inside", "outside"])
def test_a_box_for_several_blocks_is_an_error(row):

    if TRITON_VERSION < (3, 8):
        pytest.skip("needs Triton 3.8")
    box = describe(numbers(128, 64), (64, 64), CLUSTER.value)
    with pytest.raises(LeakError, match="to the memory of another block"):
        leave_box[(1,)](box, row, CLUSTER, True, num_ctas=2)


@gluon.jit
def leave_store(a, row):
    s = gl.allocate_shared_memory(
        gl.float16, [64, 64], F16_, gl.full([64, 64], 1, gl.float16, REGISTERS)
    )
    fence_async_shared()
    tma.async_store(a, [row, 0], s)


@pytest.mark.parametrize("row", [0, 128], ids=["inside", "outside"])
def test_a_store_whose_source_goes_away_is_an_error(row):
    with pytest.raises(LeakError, match="nobody waited"):
        leave_store[(1,)](describe(numbers(128, 64), (64, 64)), row)


# ---- uninitialized memory ----------------------------------------------------------------------------


@gluon.jit
def copy_on(out, HOW: gl.constexpr, N: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float32, [N], FLAT)
    o = gl.arange(0, N, layout=L1)
    x = s.load(L1)
    if HOW == "copied":
        gl.store(out + o, x)
    elif HOW == "moved":
        t = gl.allocate_shared_memory(gl.float32, [N], FLAT)
        t.store(gl.convert_layout(x, L1))
    elif HOW == "used":
        gl.store(out + o, x + 1)
    elif HOW == "chosen by":
        gl.store(out + o, o, mask=x > 0)
    elif HOW == "carried":
        for i in range(2):
            x = x + i
        gl.store(out + o, x)


@pytest.mark.parametrize("how", ["copied", "moved"])
def test_a_copy_of_unwritten_memory(how):
    out = np.zeros(128, np.float32)
    only_warned(UninitialisedError, "s.load(", "never written", copy_on, out, how, 128)


@pytest.mark.parametrize("how", ["used", "chosen by", "carried"])
def test_a_use_of_unwritten_memory_is_an_error(how):
    with pytest.raises(UninitialisedError, match=r"and line \d+ uses it") as caught:
        copy_on[(1,)](np.zeros(128, np.float32), how, 128)
    assert "s.load(" in caught.value.span.text


@gluon.jit
def store_unwritten(a, HOW: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [64, 64], F16_)
    if HOW == "store":
        tma.async_store(a, [0, 0], s)
        tma.store_wait(0)
    else:
        acc = gl.zeros([64, 64], gl.float32, ACC)
        acc = warpgroup_mma(s, s, acc, is_async=True)
        warpgroup_mma_wait(0, deps=[acc])


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_a_box_that_nobody_wrote(schedule):
    box = describe(numbers(64, 64), (64, 64))
    with using(schedule=schedule):
        only_warned(
            UninitialisedError, "tma.async_store(", "never written", store_unwritten, box, "store"
        )
        with pytest.raises(UninitialisedError, match="warpgroup_mma"):
            store_unwritten[(1,)](box, "product")


# ---- stores to one place --------------------------------------------------------------------------


@gluon.jit
def store_twice(b, p, HOW: gl.constexpr):
    s = gl.allocate_shared_memory(
        gl.float16, [64, 64], F16_, gl.full([64, 64], 1, gl.float16, REGISTERS)
    )
    fence_async_shared()
    tma.async_store(b, [0, 0], s)
    if HOW == "read":
        tma.store_wait(0)
    tma.async_store(b, [0, 0], s)
    if HOW == "loaded":
        tma.store_wait(0)
        r = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
        c = gl.arange(0, 64, gl.SliceLayout(0, REGISTERS))[None, :]
        gl.store(p + r * 64 + c, gl.load(p + r * 64 + c))
    tma.store_wait(0)


def test_two_stores_with_a_wait_until_the_first_has_read():
    b = np.zeros((64, 64), np.float16)
    box = describe(b, (64, 64))
    only_warned(RaceError, "tma.async_store(", "race on element 0", store_twice, box, b, "read")
    for how in ("none", "loaded"):
        with pytest.raises(RaceError):
            store_twice[(1,)](box, b, how)


# ---- where everything is checked --------------------------------------------------------------------


PAGE = """
import numpy, pytest
from tests.backends.sim.sanitizer.test_severities import leave

@pytest.mark.gluon_schedules(1, target="sm_90")
def test_it():
    leave[(1,)](numpy.arange(128, dtype=numpy.int32), 128, 128)
"""


def test_the_check_mode_of_tests_makes_errors(tmp_path):
    (tmp_path / "test_page.py").write_text(PAGE)

    def outcome(*options):
        names = entry_points(group="pytest11", name="gluon_schedules")
        plugins = () if names else ("-p", "gluon_sim.pytest_schedules")
        done = warm.run(["-m", "pytest", "test_page.py", *plugins, *options], cwd=tmp_path)
        return done.returncode, done.stdout

    code, text = outcome()
    assert code == 0 and "SimulatorWarning: the kernel ends while" in text
    code, text = outcome("--gluon-check")
    assert code == 1 and "nobody waited for it (2 such)" in text
