"""A pointer reaches the argument that it came from, and no neighbour of it in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier, tma
from gluon_sim.errors import OutOfBoundsError, UninitialisedError
from gluon_sim.settings import using

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
TILE = gl.constexpr(gl.NVMMASharedLayout(32, 32, 2))


@gluon.jit
def add_from(x, y, first, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    gl.store(y + o, gl.load(x + first + o))


@gluon.jit
def put_to(x, y, first, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    gl.store(x + first + o, gl.load(y + o))


@gluon.jit
def chosen(x, y, out, which, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    pointer = x
    if which > 0:
        pointer = y
    gl.store(out + o, gl.load(pointer + o))


def neighbours():
    """Two arrays that follow each other in memory, each the owner of its bytes as far as one sees."""
    both = np.zeros(512, np.float32)
    halves = [np.frombuffer(memoryview(both)[i : i + 256], np.float32) for i in (0, 256)]
    assert halves[0].ctypes.data + halves[0].nbytes == halves[1].ctypes.data
    return halves


@pytest.mark.parametrize("kernel", [add_from, put_to])
def test_a_neighbour_is_out_of_bounds(kernel):
    x, y = neighbours()
    kernel[(1,)](x, y, 128, 128)
    with pytest.raises(OutOfBoundsError, match="byte 1024 of `x`, which has 1024") as caught:
        kernel[(1,)](x, y, 160, 128)
    assert caught.value.element == (96,) and "(32 elements are outside)" in str(caught.value)
    with pytest.raises(OutOfBoundsError, match="byte 1024 of `x`"):
        kernel[(1,)](x, y, 256, 128)
    with using(bounds=False, races=False):
        kernel[(1,)](x, y, 160, 128)


def test_a_pointer_that_is_chosen_reaches_both():
    x, y, out = np.zeros(128, np.float32), np.ones(128, np.float32), np.zeros(128, np.float32)
    for which in (0, 1):
        chosen[(1,)](x, y, out, which, 128)
        assert (out == which).all()


@gluon.jit
def box(x, out, rows, ROWS: gl.constexpr):
    desc = tma.make_tensor_descriptor(x, [rows, 8], [8, 1], [ROWS, 8], TILE)
    s = gl.allocate_shared_memory(gl.float32, [ROWS, 8], TILE)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, desc.block_type.nbytes)
    tma.async_load(desc, [0, 0], bar, s)
    mbarrier.wait(bar, 0)
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])
    gl.store(out, gl.sum(gl.sum(s.load(layout), axis=1), axis=0))


def test_so_does_a_descriptor():
    x, y = neighbours()
    box[(1,)](x, y, 32, 32)
    with pytest.raises(OutOfBoundsError, match="byte 1024 of `x`"):
        box[(1,)](x, y, 64, 64)


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_a_view_bounds_itself_where_everything_is_checked(make):
    whole = make(512, dtype=np.float32 if make is np.zeros else torch.float32)
    y = make(128, dtype=whole.dtype)
    add_from[(1,)](whole[64:192], y, 100, 128)
    with using(checks=True):
        add_from[(1,)](whole[64:192], y, 0, 128)
        with pytest.raises(OutOfBoundsError, match="byte 512 of `x`, which has 512"):
            add_from[(1,)](whole[64:192], y, 1, 128)
        with pytest.raises(OutOfBoundsError, match="4 bytes before the start of `x`"):
            add_from[(1,)](whole[64:192], y, -1, 128)
    with using(views=True), pytest.raises(OutOfBoundsError):
        add_from[(1,)](whole[64:192], y, 1, 128)


def test_the_parts_of_one_tensor_that_overlap():
    both = torch.arange(512, dtype=torch.float32).reshape(128, 4)
    q, k = both[:, :1], both[:, 1:2]
    y = torch.zeros(128)
    with using(checks=True):
        add_from[(1,)](q, y, 0, 128)
        add_from[(1,)](k, y, 380, 128)
        with pytest.raises(OutOfBoundsError):
            add_from[(1,)](k, y, 382, 128)


# ---- arrays that nobody wrote yet -----------------------------------------------------------------


@gluon.jit
def add_one(x, y, n, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    gl.store(y + o, gl.load(x + o, mask=o < n) + 1, mask=o < n)


@gluon.jit
def count(bins, N: gl.constexpr):
    gl.atomic_add(bins + gl.arange(0, N, layout=L1), 1)


@pytest.mark.parametrize("make", [np.empty, torch.empty])
def test_marked_memory_must_be_written_before_it_is_read(make):
    dtype = np.float32 if make is np.empty else torch.float32
    x, y, z = np.ones(128, np.float32), make(128, dtype=dtype), np.zeros(128, np.float32)
    assert gluon.uninitialised(y) is y
    with pytest.raises(UninitialisedError, match="`x`.*128 elements were not") as caught:
        add_one[(1,)](y, z, 128, 128)
    assert "gl.load(x + o" in caught.value.span.text and caught.value.element == (0,)
    add_one[(1,)](x, y, 100, 128)
    add_one[(1,)](y, z, 100, 128)
    assert (z[:100] == 3).all()
    with pytest.raises(UninitialisedError, match="28 elements were not") as caught:
        add_one[(1,)](y, z, 128, 128)
    assert caught.value.element == (100,)
    with using(uninitialised=False):  # what is written then counts, too
        add_one[(1,)](y, z, 128, 128)
        add_one[(1,)](x, y, 128, 128)
    add_one[(1,)](y, z, 128, 128)


def test_an_atomic_reads_its_element():
    bins = gluon.uninitialised(np.empty(128, np.int32))
    with pytest.raises(UninitialisedError, match="atomic"):
        count[(2,)](bins, 128)


def test_a_part_that_is_marked():
    x, y = np.ones(256, np.float32), np.zeros(128, np.float32)
    gluon.uninitialised(x[128:])
    add_one[(1,)](x, y, 128, 128)
    add_from[(1,)](x, y, 0, 128)
    with pytest.raises(UninitialisedError, match="1 elements|element"):
        add_from[(1,)](x, y, 1, 128)


def test_marks_go_with_their_arrays():
    from gluon_core.simulation.unwritten import marks_within

    x = gluon.uninitialised(np.empty(1 << 20, np.uint8))
    base = x.ctypes.data
    assert marks_within(base, base + 1)
    del x
    assert not marks_within(base, base + 1)
