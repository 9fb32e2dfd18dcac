"""What the simulator does not see: the limits of docs/simulator.md, each shown by a kernel that is wrong.

A test that fails here is good news: take the limit off the page, and the kernel to the tests of reports.
"""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import _triton
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared
from gluon_sim.errors import OffsetOverflowError, OutOfBoundsError, RaceError, SimulatorError
from gluon_sim.settings import using

pytestmark = pytest.mark.once
L = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
TURNED = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))


@gluon.jit
def turns(a, out, LOADS: gl.constexpr):
    """Two threads store to each element of an array, which is loaded, too, or is not."""
    o = gl.arange(0, 128, L)
    gl.store(a + o, o)
    if LOADS:
        gl.store(out + o, gl.load(a + (127 - o)))
    else:
        gl.store(a + (127 - o), 2 * o)


def test_threads_meet_only_in_arrays_that_are_loaded_and_stored():
    a, out = np.zeros(128, np.int32), np.zeros(128, np.int32)
    with pytest.raises(RaceError):
        turns[(1,)](a, out, True, target="sim:sm_80")
    turns[(1,)](a, out, False, target="sim:sm_80")


@gluon.jit
def hand_over(data, flags, out, SCALAR: gl.constexpr):
    """Program 0 stores and releases, program 1 acquires and loads what other threads stored."""
    o = gl.arange(0, 128, L)
    if gl.program_id(0) == 0:
        gl.store(data + o, o + 1)
        if SCALAR:
            gl.atomic_add(flags, 1, sem="release")
        else:
            gl.atomic_add(flags + o, 1, sem="release")
    elif SCALAR:
        found = gl.atomic_add(flags, 0, sem="acquire")
        while found < 1:
            found = gl.atomic_add(flags, 0, sem="acquire")
        gl.store(out + o, gl.load(data + (127 - o)))
    else:
        found = gl.min(gl.atomic_add(flags + o, 0, sem="acquire"), 0)
        while found < 1:
            found = gl.min(gl.atomic_add(flags + o, 0, sem="acquire"), 0)
        gl.store(out + o, gl.load(data + (127 - o)))


def test_an_atomic_of_a_tensor_counts_for_all_threads():
    def run(scalar):
        data, flags, out = (np.zeros(128, np.int32) for _ in range(3))
        hand_over[(2,)](data, flags, out, scalar, target="sim:sm_80")
        assert out.tolist() == list(range(128, 0, -1))

    run(False)  # though thread 0 has acquired what thread 127 released only by way of the others
    if not _triton.at_least(3, 9):  # since then a barrier stands before a release
        with pytest.raises(RaceError):
            run(True)


ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[1, 0]]))
COLUMNS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 1]]))
BY_COLUMNS = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 1]]))


@gluon.jit
def picks(a, out, GATHER: gl.constexpr, SYNC: gl.constexpr):
    """What one block of a cluster stores the other one loads, or gathers."""
    tile = gl.allocate_shared_memory(gl.float16, [64, 128], BY_COLUMNS)
    down = gl.arange(0, 64, gl.SliceLayout(1, COLUMNS))[:, None]
    tile.store(gl.load(a + down * 128 + gl.arange(0, 128, gl.SliceLayout(0, COLUMNS))[None, :]))
    if SYNC:
        gl.barrier(cluster=True)
    rows = gl.arange(0, 64, gl.SliceLayout(1, ROWS))[:, None]
    columns = gl.arange(0, 128, gl.SliceLayout(0, ROWS))[None, :]
    if GATHER:
        gl.store(out + rows * 128 + columns, tile.gather(columns + rows * 0, 1))
    else:
        gl.store(out + rows * 128 + columns, tile.load(ROWS))
    gl.barrier(cluster=True)


@pytest.mark.skipif(_triton.VERSION < (3, 8), reason="needs Triton 3.8")
def test_gathers_are_not_watched_between_blocks():
    def run(gather, sync):
        a = np.arange(64 * 128).reshape(64, 128).astype(np.float16)
        out = np.zeros_like(a)
        picks[(1,)](a, out, gather, sync, num_ctas=2, target="sim:sm_90")
        np.testing.assert_array_equal(out, a)

    run(False, True)
    with pytest.raises(RaceError, match="block"):
        run(False, False)
    run(True, False)


@gluon.jit
def shifted(x, out, by, other, address, VIA: gl.constexpr):
    """Loads what is `by` elements behind the start of `x`, which is at `address`."""
    o = gl.arange(0, 64, L)
    if VIA == "integer":
        x = x.to(gl.int64).to(gl.pointer_type(gl.float32))
    elif VIA == "memory":
        x = gl.load(address).to(gl.pointer_type(gl.float32))
    gl.store(out + o, gl.load(x + o + by))


def test_a_view_may_be_overrun_into_its_storage():
    whole, out = np.arange(128, dtype=np.float32), np.zeros(64, np.float32)
    shifted[(1,)](whole[:64], out, 64, out, out, "", target="sim:sm_80")
    assert out.tolist() == whole[64:].tolist()
    with using(views=True), pytest.raises(OutOfBoundsError):
        shifted[(1,)](whole[:64], out, 64, out, out, "", target="sim:sm_80")


@pytest.mark.parametrize("via", ["integer", "memory"])
def test_a_pointer_made_from_an_integer_reaches_every_argument(via):
    x, other = np.zeros(64, np.float32), np.arange(64, dtype=np.float32)
    out, address = np.zeros(64, np.float32), np.array([x.ctypes.data], np.int64)
    by = (other.ctypes.data - x.ctypes.data) // 4
    with pytest.raises(OutOfBoundsError):
        shifted[(1,)](x, out, by, other, address, "", target="sim:sm_80")
    shifted[(1,)](x, out, by, other, address, via, target="sim:sm_80")
    assert out.tolist() == other.tolist()
    with pytest.raises(OutOfBoundsError):  # what is no argument it does not reach
        shifted[(1,)](x, out, by, out, address, via, target="sim:sm_80")


@gluon.jit
def doubled(x, out, by, REMAINDER: gl.constexpr):
    o = gl.arange(0, 64, L)
    far = o + by * 65536
    if REMAINDER:
        far = far % 64
    gl.store(out + (far if REMAINDER else far - by * 65536), gl.load(x + o))


def test_overflow_is_not_followed_through_a_remainder():
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with pytest.raises(OffsetOverflowError):
        doubled[(1,)](x, out, 1 << 20, False, target="sim:sm_80")
    doubled[(1,)](x, out, 1 << 20, True, target="sim:sm_80")


@gluon.jit
def asm(out):
    o = gl.arange(0, 128, L)
    found = gl.inline_asm_elementwise(
        "lop3.b32 $0, $1, $1, $1, 0x80;", "=r,r", [o], gl.int32, True, 1
    )
    gl.store(out + o, found)


def test_an_op_without_a_model_is_named():
    with pytest.raises(SimulatorError, match="inline assembly is not simulated") as caught:
        asm[(1,)](np.zeros(128, np.int32), target="sim:sm_80")
    assert "INLINE_ASM" in caught.value.remedy
    gluon.compile(asm, "sm_80", signature={"out": "*i32"})


@gluon.jit
def cached(a, out):
    o = gl.arange(0, 128, L)
    gl.store(out + o, gl.load(a + o, cache_modifier=".ca"))
    fence_async_shared()


def test_hints_about_caches_do_nothing():
    a, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    cached[(1,)](a, out, target="sim:sm_90")
    assert (a == out).all()
