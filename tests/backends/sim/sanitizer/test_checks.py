"""Each check of memory accesses reports its mistake under the kernel's line, and is silent when it is off."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.compiler import CompiledKernel
from gluon_core.errors import ArgumentError, LimitError, ShapeError
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_core.testing import triton_at_least
from gluon_sim.errors import (
    MisalignedError,
    OffsetOverflowError,
    OutOfBoundsError,
    SimulatorWarning,
    UninitialisedError,
)
from gluon_sim.settings import Settings, current, using

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
L2 = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


def refused(kernel, error, text, line, grid, *args, **fields):
    """The report of a launch, at the line that contains `line`."""
    with pytest.raises(error, match=text) as caught:
        kernel[grid](*args)
    raised = caught.value
    assert line in raised.span.text and raised.span.file == __file__
    for name, value in fields.items():
        assert getattr(raised, name) == value
    return raised


# ---- bounds ---------------------------------------------------------------------------------


@gluon.jit
def doubles(src, dst, BLOCK: gl.constexpr):
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L1)
    value = gl.load(src + o)
    gl.store(dst + o, value + value)


def test_global_bounds():
    src, dst = np.ones(200, np.float32), np.zeros(256, np.float32)
    refused(
        doubles, OutOfBoundsError, "byte 800 of `src`, which has 800", "gl.load(src + o)", (2,),
        src, dst, 128, program=(1, 0, 0), element=(72,),
    )  # fmt: skip
    with using(bounds=False):
        doubles[(2,)](src, dst, 128)  # outside is zero
        assert (dst[:200] == 2).all() and (dst[200:] == 0).all()
        doubles[(2,)](dst, src, 128)  # and keeps what it had
    assert (src == 4).all()


@gluon.jit
def picks_stage(number, dst, STAGES: gl.constexpr, N: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.int32, [STAGES, N], FLAT)
    o = gl.arange(0, N, layout=L1)
    for stage in gl.static_range(STAGES):
        ring.index(stage).store(o + stage * N)
    chosen = ring.index(gl.load(number))
    gl.store(dst + o, chosen.load(L1))


def test_bounds_of_an_index_known_only_at_run_time():
    dst = np.zeros(128, np.int32)
    picks_stage[(1,)](np.array([2], np.int32), dst, 3, 128)
    assert dst[0] == 256
    for bad in (3, -1):
        number = np.array([bad], np.int32)
        refused(
            picks_stage, OutOfBoundsError, f"expected 0 to 2, got {bad}", "ring.index(gl.load(number))",
            (1,), number, dst, 3, 128,
        )  # fmt: skip
        with using(bounds=False):
            picks_stage[(1,)](number, dst, 3, 128)


@gluon.jit
def spares_stage(spare, dst, STAGES: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(bars.index(stage), count=1)
    first = gl.load(spare)
    for i in range(STAGES + 1):
        # As in C, the remainder of -1 is -1: no stage.
        late = bars.index((i - 1) % STAGES)
        mbarrier.arrive(late, count=1, pred=i >= first)
        mbarrier.wait(late, 0, pred=i >= first)
    gl.store(dst + gl.program_id(0), first)


def test_an_index_outside_counts_where_the_predicate_of_its_use_holds():
    dst = np.zeros(2, np.int32)
    spares_stage[(2,)](np.array([1], np.int32), dst, 2)
    assert (dst == 1).all()
    refused(
        spares_stage, OutOfBoundsError, "expected 0 to 1, got -1", "late = bars.index",
        (2,), np.array([0], np.int32), dst, 2,
    )  # fmt: skip


@gluon.jit
def gathers(src, index, dst, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    buffer = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    buffer.store(gl.load(src + o))
    gl.store(dst + o, buffer.gather(gl.load(index + o), 0))


@pytest.mark.skipif(not triton_at_least(3, 7), reason="gather on shared memory came with 3.7")
def test_bounds_of_a_gather_from_shared_memory():
    src, dst = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    index = src[::-1].copy()
    gathers[(1,)](src, index, dst, 128)
    assert (dst == index).all()
    index[5] = 128
    refused(
        gathers, OutOfBoundsError, "element .5,. of program", "buffer.gather", (1,), src, index, dst,
        128, element=(5,),
    )  # fmt: skip
    with using(bounds=False):
        gathers[(1,)](src, index, dst, 128)


@gluon.jit
def slices(dst, START: gl.constexpr, N: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    buffer.store(gl.zeros((N,), gl.int32, L1))
    part = buffer.slice(START, N // 2)
    gl.store(dst + gl.arange(0, N // 2, layout=L1), part.load(L1))


@gluon.jit
def converts(dst, N: gl.constexpr):
    flat = gl.arange(0, N, layout=L1)
    gl.store(dst + flat, gl.convert_layout(flat, L2))


def test_an_illegal_slice_or_conversion_is_refused_when_the_kernel_is_traced():
    dst = np.zeros(128, np.int32)
    slices[(1,)](dst, 0, 128)
    with pytest.raises(ArgumentError) as caught:
        slices[(1,)](dst, 96, 128)
    assert "buffer.slice" in caught.value.span.text
    with pytest.raises(ArgumentError) as caught:
        converts[(1,)](dst, 128)
    assert "gl.convert_layout" in caught.value.span.text


# ---- uninitialised shared memory ---------------------------------------------------------------


@gluon.jit
def reads_what_nobody_wrote(dst, N: gl.constexpr, WRITTEN: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.float32, [N], FLAT)
    o = gl.arange(0, N, layout=L1)
    if WRITTEN:
        half = gl.arange(0, N // 2, layout=L1)
        buffer.slice(0, N // 2).store(half.to(gl.float32))
    value = buffer.load(L1) + 0
    gl.store(dst + o, value)


def test_a_read_of_shared_memory_that_nobody_wrote():
    dst = np.zeros(256, np.float32)
    refused(
        reads_what_nobody_wrote, UninitialisedError, "256 elements were not", "buffer.load(L1)",
        (1,), dst, 256, False, element=(0,),
    )  # fmt: skip
    refused(
        reads_what_nobody_wrote, UninitialisedError, "256 elements were not", "buffer.load(L1)",
        (2,), dst, 256, True, element=(128,), program=(0, 0, 0),
    )  # fmt: skip
    with using(uninitialised=False):
        reads_what_nobody_wrote[(1,)](dst, 256, True)
    assert (dst[:128] == np.arange(128)).all() and np.isnan(dst[128:]).all()


@gluon.jit
def only_some_write(flags, dst, N: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.float16, [N], FLAT)
    if gl.load(flags + gl.program_id(0)) > 0:
        buffer.store(gl.full((N,), 1.0, gl.float16, L1))
    gl.store(dst + gl.arange(0, N, layout=L1), buffer.load(L1) * 2)


def test_each_program_has_written_for_itself():
    dst = np.zeros(128, np.float16)
    with using(races=False):  # all programs store to one place
        only_some_write[(2,)](np.array([1, 1], np.int32), dst, 128)
        refused(
            only_some_write, UninitialisedError, "128 elements were not", "buffer.load(L1)", (4,),
            np.array([1, 1, 0, 1], np.int32), dst, 128, program=(2, 0, 0),
        )  # fmt: skip


@gluon.jit
def adds_to_bins(src, dst, N: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    o = gl.arange(0, N, layout=L1)
    buffer.scatter(gl.load(src + o), o, 0)
    gl.store(dst + o, buffer.gather(o, 0))


@gluon.jit
def gathers_too_early(src, dst, N: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    o = gl.arange(0, N, layout=L1)
    gl.store(dst + o, buffer.gather(o, 0) + 1)


@pytest.mark.skipif(not triton_at_least(3, 7), reason="gather on shared memory came with 3.7")
def test_scatter_writes_and_gather_reads():
    src, dst = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    adds_to_bins[(1,)](src, dst, 128)
    assert (dst == src).all()
    refused(
        gathers_too_early, UninitialisedError, "local_gather", "buffer.gather", (1,), src, dst, 128
    )
    with using(uninitialised=False):
        gathers_too_early[(1,)](src, dst, 128)


# ---- alignment ------------------------------------------------------------------------------


@gluon.jit
def promises_too_much(src, dst, start, N: gl.constexpr):
    index = gl.arange(0, N, layout=L1)
    place = index + start
    place = gl.max_contiguous(gl.multiple_of(place, 16), 16)
    gl.store(dst + index, gl.load(src + place))


def test_promises_to_the_compiler_must_hold():
    src, dst = np.arange(256, dtype=np.float32), np.zeros(128, np.float32)
    promises_too_much[(1,)](src, dst, 32, 128)
    assert (dst == src[32:160]).all()
    refused(
        promises_too_much, MisalignedError, "multiple_of.16. does not hold for element .0,.; got 3|got 3",
        "index + start", (1,), src, dst, 3, 128, element=(0,),
    )  # fmt: skip
    with using(alignment=False):
        promises_too_much[(1,)](src, dst, 3, 128)
    assert (dst == src[3:131]).all()


@gluon.jit
def promises_runs(src, dst, N: gl.constexpr, CONSTANT: gl.constexpr):
    offsets = gl.arange(0, N, layout=L1)
    index = gl.load(src + offsets)
    if CONSTANT:
        index = gl.max_constancy(index, 4)
    else:
        index = gl.max_contiguous(index, 4)
    gl.store(dst + index, offsets)


def test_promised_runs_must_be_runs():
    dst = np.zeros(256, np.int32)
    good, same = np.arange(128, dtype=np.int32), np.repeat(np.arange(32, dtype=np.int32), 4)
    promises_runs[(1,)](good, dst, 128, False)
    promises_runs[(1,)](same, dst, 128, True)
    good[6], same[6] = 9, 9
    refused(
        promises_runs, MisalignedError, "max_contiguous", "gl.load", (1,), good, dst, 128, False,
        element=(6,),
    )  # fmt: skip
    refused(promises_runs, MisalignedError, "max_constancy", "gl.load", (1,), same, dst, 128, True)


@gluon.jit
def wraps(src, dst, size, N: gl.constexpr, CLAMPED: gl.constexpr):
    index = gl.arange(0, N, layout=L1)
    if CLAMPED:
        there = gl.max_contiguous(gl.multiple_of(gl.where(index < size, index, 0), 16), 16)
    else:
        there = gl.max_contiguous(gl.multiple_of(index % size, 16), 16)
    gl.store(dst + index, gl.load(src + there), mask=index < size)


@pytest.mark.parametrize("clamped", [False, True])
def test_runs_may_end_where_indices_are_bounded(clamped):
    """Public kernels claim runs of `rows % M`, and mask what they store."""
    src, dst = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    with pytest.warns(SimulatorWarning, match="max_contiguous.16. does not hold"):
        wraps[(1,)](src, dst, 100, 128, clamped)
    assert (dst[:100] == src[:100]).all() and not dst[100:].any()
    with using(tolerated="error"), pytest.raises(MisalignedError):
        wraps[(1,)](src, dst, 100, 128, clamped)


@gluon.jit
def hinted_wrongly(dst, N: gl.constexpr):
    index = gl.multiple_of(gl.arange(0, N, layout=L1), (1, 1))
    gl.store(dst + index, index)


def test_hints_have_one_number_per_dimension():
    with pytest.raises(ShapeError, match="expected 1, got 2"):
        hinted_wrongly[(1,)](np.zeros(128, np.int32), 128)


@gluon.jit
def through_integers(src, dst, N: gl.constexpr):
    address = src.to(gl.int64) + 2 + 4 * gl.arange(0, N, layout=L1).to(gl.int64)
    pointer = address.to(gl.pointer_type(gl.float32))
    gl.store(dst + gl.arange(0, N, layout=L1), gl.load(pointer))


def test_an_address_that_is_no_multiple_of_the_element():
    src, dst = np.zeros(256, np.float32), np.zeros(128, np.float32)
    refused(
        through_integers, MisalignedError, "no multiple of the element's 4 bytes", "gl.load(pointer)",
        (1,), src, dst, 128, element=(0,), program=(0, 0, 0),
    )  # fmt: skip
    with using(alignment=False):
        through_integers[(1,)](src, dst, 128)


def test_a_kernel_compiled_for_aligned_arguments_is_launched_on_others():
    big = np.zeros(1024, np.float32)
    start = -big.ctypes.data // 4 % 4
    aligned, other = big[start : start + 256], big[start + 257 : start + 513]
    assert aligned.ctypes.data % 16 == 0 and other.ctypes.data % 16
    compiled = doubles[(1,)](aligned, aligned, 128)
    assert isinstance(compiled, CompiledKernel)
    doubles[(1,)](other, other, 128)  # another specialization
    with pytest.raises(MisalignedError, match="multiple of 16") as caught:
        compiled[(1,)](other, aligned, 128)
    assert caught.value.argument == "src"
    line = inspect.getsourcelines(doubles.fn)[1]
    assert line <= caught.value.span.line <= line + 1
    with using(alignment=False):
        compiled[(1,)](other, aligned, 128)


# ---- overflow -------------------------------------------------------------------------------


@gluon.jit
def far_rows(src, dst, stride, limit, N: gl.constexpr):
    index = gl.arange(0, N, layout=L1)
    row = gl.program_id(0) * stride
    place = row + index
    gl.store(dst + index, gl.load(src + place, mask=index < limit, other=-1))


def test_an_offset_that_wraps_back_into_the_tensor():
    src, dst = np.arange(256, dtype=np.int32), np.zeros(128, np.int32)
    args = src, dst, 2**30
    far_rows[(1,)](*args, 128, 128)
    message = refused(
        far_rows, OffsetOverflowError, "`mul` does not fit into 32 bits", "gl.program_id(0) * stride",
        (5,), *args, 128, 128, program=(2, 0, 0), element=(0,),
    )  # fmt: skip
    assert "int64" in message.remedy
    with using(overflow=False, bounds=False, races=False):
        far_rows[(5,)](*args, 128, 128)  # the last program: 4 * 2**30 is 0
    assert (dst == src[:128]).all()


def test_offsets_of_elements_that_are_masked_off_may_wrap():
    src, dst = np.arange(256, dtype=np.int32), np.zeros(128, np.int32)
    with using(races=False):  # all programs store the same
        far_rows[(5,)](src, dst, 2**30, 0, 128)
    assert (dst == -1).all()


@gluon.jit
def wraps_on_its_way(src, dst, step, count, N: gl.constexpr):
    o = gl.arange(0, N, layout=gl.SliceLayout(0, L2))[None, :] + gl.zeros((1, N), gl.int32, L2)
    for _ in range(count):
        o = o + step
    o = gl.where(o < 0, o, o - 0)
    gl.store(dst + o * 0, gl.load(src + shifted(o)))


@gluon.jit
def shifted(x):
    return gl.reshape(x, x.shape)


def test_the_mark_travels_through_loops_calls_and_shapes():
    src, dst = np.arange(256, dtype=np.int32), np.zeros(128, np.int32)
    wraps_on_its_way[(1,)](src, dst, 16, 4, 32)
    refused(
        wraps_on_its_way, OffsetOverflowError, "`add` does not fit", "o = o + step", (1,), src, dst,
        2**30, 4, 32,
    )  # fmt: skip


@gluon.jit
def hashes(src, dst, N: gl.constexpr):
    index = gl.arange(0, N, layout=L1)
    mixed = (gl.load(src + index) * 1103515245 + 12345) & (N - 1)
    gl.store(dst + mixed, index)


def test_arithmetic_that_may_wrap_is_left_alone():
    hashes[(1,)](np.arange(128, dtype=np.int32), np.zeros(128, np.int32), 128)


# ---- capacity -------------------------------------------------------------------------------


@gluon.jit
def hoards(dst, N: gl.constexpr):
    first = gl.allocate_shared_memory(gl.float32, [N], FLAT)
    second = gl.allocate_shared_memory(gl.float32, [N], FLAT)
    first.store(gl.zeros((N,), gl.float32, L1))
    second.store(first.load(L1))
    gl.store(dst + gl.arange(0, N, layout=L1), first.load(L1) + second.load(L1))


def test_capacity_of_shared_memory():
    dst = np.ones(32768, np.float32)
    with pytest.raises(LimitError, match="262144 bytes in use at once"):
        hoards[(1,)](dst, 32768)
    with using(capacity=False):
        hoards[(1,)](dst, 32768)
    assert (dst == 0).all()
    hoards[(1,)](dst, 32768, capacity=False)
    with pytest.raises(LimitError):  # although it is compiled now
        hoards[(1,)](dst, 32768)


# ---- the switches ---------------------------------------------------------------------------


def test_settings_come_from_the_environment(monkeypatch):
    assert current() == Settings()
    monkeypatch.setenv("GLUON_SIM_BOUNDS", "off")
    monkeypatch.setenv("GLUON_SIM_SEED", "7")
    monkeypatch.setenv("GLUON_SIM_SCHEDULE", "Random")
    monkeypatch.setenv("GLUON_SIM_TIMEOUT", "1.5")
    monkeypatch.setenv("GLUON_SIM_PROXY", "strict")
    chosen = dict(seed=7, schedule="random", timeout=1.5, proxy="strict")
    assert current() == Settings(bounds=False, **chosen)
    with using(seed=8) as inside:
        assert current() is inside and inside.seed == 8 and not inside.bounds
    monkeypatch.setenv("GLUON_SIM_CHECKS", "0")
    monkeypatch.setenv("GLUON_SIM_BOUNDS", "1")
    assert current() == Settings.without_checks(bounds=True, **chosen)
    with pytest.raises(ArgumentError, match="proxy.*writes, strict"):
        using(proxy="letter").__enter__()


@pytest.mark.parametrize(
    "name, value",
    [("RACES", "perhaps"), ("SEED", "x"), ("SCHEDULE", "soon"), ("TIMEOUT", "-1"), ("CHECKS", "2")],
)
def test_a_setting_that_makes_no_sense_names_its_variable(name, value, monkeypatch):
    monkeypatch.setenv(f"GLUON_SIM_{name}", value)
    with pytest.raises(
        ArgumentError, match=name.lower() if name in ("SCHEDULE", "TIMEOUT") else name
    ):
        current()
